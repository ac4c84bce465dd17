"""Remote instances: instances of a model in actors, on the nodes of a cluster."""
