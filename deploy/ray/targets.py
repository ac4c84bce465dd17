"""Tells Prometheus where the replicas' metrics are: an application of Ray Serve, on the head node."""

import contextlib

from ray import serve

from pytriton.ray import DiscoveryServer


class Discovery:
    """Serves the targets for as long as the replica lives."""

    def __init__(self, host, port):
        self._server = DiscoveryServer(host, port)
        self._server.start()

    def check_health(self):
        if not self._server.is_alive():
            raise RuntimeError("The targets are no longer served.")

    def __del__(self):
        with contextlib.suppress(AttributeError):  # it was not constructed
            self._server.stop()


def app(arguments):
    """Returns the application; the arguments are the host and the port to listen at."""
    deployment = serve.deployment(
        Discovery,
        name="targets",
        ray_actor_options={"num_cpus": 0, "resources": {"node:__internal_head__": 0.001}},
        max_surge_percent=0,  # the port is free only when the old one is gone
    )
    return deployment.bind(arguments["host"], arguments["port"])
