"""Pools: replicas of a server on the nodes of a cluster."""
