"""The gateway as an application of Ray Serve: one on each node that has the resource ``gateway``.

Ray Serve supervises it, but is not in the path of a request: the gateway itself listens at a port of the node.
"""

import contextlib

from ray import serve

import pytriton.ray
from pytriton.gateway import Gateway, GatewayConfig
from pytriton.gateway.server import GatewayServer

EXIT_TIMEOUT_S = 30.0


class PoolGateway:
    """Serves a pool as JSON, for as long as the replica lives."""

    def __init__(self, pool, settings):
        config = GatewayConfig(**settings)
        pool = pytriton.ray.connect(pool)
        self._server = GatewayServer(Gateway(pool.urls("grpc"), config, access_token=pool.access_token), config)
        self._server.start()

    def check_health(self):
        if not self._server.is_alive():
            raise RuntimeError("The gateway has stopped; see its log.")

    def __del__(self):
        with contextlib.suppress(AttributeError):  # it was not constructed
            self._server.stop(EXIT_TIMEOUT_S)


def app(arguments):
    """Returns the application; the arguments are the pool's name, and settings of `GatewayConfig`."""
    settings = dict(arguments)
    pool = settings.pop("pool")
    deployment = serve.deployment(
        PoolGateway,
        name="gateway",
        ray_actor_options={"num_cpus": 0, "resources": {"gateway": 1}},
        max_surge_percent=0,  # the port is free only when the old one is gone
        graceful_shutdown_timeout_s=settings.get("drain_secs", 0) + EXIT_TIMEOUT_S + 10,
        health_check_period_s=2,
    )
    return deployment.bind(pool, settings)
