"""A replica of a pool: a Ray Serve actor that runs its own Triton."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import pickle
import threading

import ray
import ray.exceptions
import ray.util
from ray import serve

from pytriton.exceptions import PyTritonRuntimeError
from pytriton.ray.pools.directory import PUBLISH_INTERVAL_S, ReplicaEntry, ReplicaFailure, directory
from pytriton.ray.pools.load import LoadMeter
from pytriton.server.config import TritonConfig
from pytriton.server.security import TritonSecurityConfig
from pytriton.triton import Triton
from pytriton.utils.error_text import summary_of, traceback_of

LOGGER = logging.getLogger(__name__)

DRAIN_S = 3.0  # clients learn within a second that a replica is stopping
EXIT_TIMEOUT_S = 30.0

_DIRECTORY_TIMEOUT_S = 30.0


class Replica:
    """Runs a Triton with the models of a pool, and publishes where it is.

    Args:
        payload: The function that binds the models, and the server's settings, both pickled.
    """

    def __init__(self, payload: bytes) -> None:
        context = serve.get_replica_context()
        self._pool, self._id = context.app_name, context.replica_id.unique_id
        self._host = ray.util.get_node_ip_address()
        self._node = ray.get_runtime_context().get_node_id()
        self._ending = threading.Event()
        self._directory = directory()
        self._token: str = ray.get(self._directory.token.remote(self._pool), timeout=_DIRECTORY_TIMEOUT_S)
        try:
            self._start(payload)
        except BaseException as error:
            self._report(error)
            raise
        self._thread = threading.Thread(target=self._keep_published, name="pytriton-ray-directory", daemon=True)
        self._thread.start()

    def check_health(self) -> None:
        """Raises an error if the server is not serving: Ray Serve replaces the replica after three in a row."""
        if not self._triton.is_ready():
            raise PyTritonRuntimeError("Triton is not ready.")

    def record_autoscaling_stats(self) -> dict[str, float]:
        """Returns the load, for `pytriton.ray.pools.autoscale`."""
        return self._load

    def __del__(self) -> None:
        """Removes the replica from the directory, serves remaining requests, and stops the server."""
        self._ending.set()
        with contextlib.suppress(AttributeError):  # it was not constructed
            self._thread.join()
            with contextlib.suppress(ray.exceptions.RayError):
                ray.get(self._directory.withdraw.remote(self._pool, self._id), timeout=_DIRECTORY_TIMEOUT_S)
            self._triton.stop()

    def _start(self, payload: bytes) -> None:
        build, config = pickle.loads(payload)
        self._triton = Triton(
            config=self._placed(config), security_config=TritonSecurityConfig(access_token=self._token)
        )
        try:
            build(self._triton)
            self._triton.run()
            config = self._triton.config
            scheme = "grpcs" if config.grpc_use_ssl else "grpc"
            self._urls = {
                "http": self._url("http", config.http_address, config.http_port, config.allow_http),
                "grpc": self._url(scheme, config.grpc_address, config.grpc_port, config.allow_grpc),
                "metrics": self._url("", config.metrics_address, config.metrics_port, config.allow_metrics),
            }
            self._meter = LoadMeter(self._triton, self._urls["metrics"])
            self._load = self._meter.read()
            self._publish()
        except BaseException:
            self._triton.stop()
            raise

    def _report(self, error: BaseException) -> None:
        """Reports to the directory why this replica could not be started; `deploy` and `status` show it."""
        summary = summary_of(error).splitlines()[-1]
        with contextlib.suppress(ray.exceptions.RayError):
            failure = ReplicaFailure(self._id, self._node, summary, traceback_of(error, error.__traceback__))
            ray.get(self._directory.fail.remote(self._pool, failure), timeout=_DIRECTORY_TIMEOUT_S)

    def _placed(self, config: TritonConfig) -> TritonConfig:
        """Returns the settings with the addresses and ports that other nodes reach."""
        defaults = {
            "http_address": self._host,
            "grpc_address": self._host,
            "metrics_address": self._host,
            "http_port": 0,
            "grpc_port": 0,
            "metrics_port": 0,
            "drain_secs": DRAIN_S,
            "exit_timeout_secs": EXIT_TIMEOUT_S,
        }
        missing = {name: value for name, value in defaults.items() if getattr(config, name) is None}
        return dataclasses.replace(config, **missing)

    def _keep_published(self) -> None:
        while not self._ending.wait(PUBLISH_INTERVAL_S):
            try:
                self._load = self._meter.read()
                self._publish()
            except Exception as error:  # the server, or the directory, is being restarted
                LOGGER.debug("Replica %s of pool %r was not published: %r", self._id, self._pool, error)

    def _publish(self) -> None:
        try:
            self._send_entry()
        except ray.exceptions.RayActorError:
            self._directory = directory()
            self._send_entry()

    def _send_entry(self) -> None:
        entry = ReplicaEntry(
            id=self._id,
            node=self._node,
            **self._urls,
            models=tuple(model.name for model in self._triton.models),
            is_ready=self._triton.is_ready(),
            load=self._load,
            server_restarts=self._triton.report.restarts,
            pid=os.getpid(),
        )
        ray.get(self._directory.publish.remote(self._pool, entry, self._token), timeout=_DIRECTORY_TIMEOUT_S)

    def _url(self, scheme: str, address: str | None, port: int | None, allowed: bool | None) -> str:
        if allowed is False:
            return ""
        host = self._host if address in (None, "0.0.0.0", "::") else address
        location = f"[{host}]:{port}" if ":" in str(host) else f"{host}:{port}"
        return f"{scheme}://{location}" if scheme else location
