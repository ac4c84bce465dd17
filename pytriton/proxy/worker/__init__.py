"""Workers: call inference callables for the model instances in the server."""
