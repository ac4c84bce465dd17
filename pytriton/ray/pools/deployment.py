"""Deployment of pools through Ray Serve, which places, supervises and scales the replicas."""

from __future__ import annotations

import dataclasses
import hashlib
import logging
import math
import time
from collections.abc import Callable, Mapping
from typing import Any

import ray
from ray import serve
from ray.serve.schema import ApplicationStatus, ApplicationStatusOverview

from pytriton.exceptions import PyTritonBadParameterError, PyTritonRuntimeError
from pytriton.process.pickling import pickled
from pytriton.ray.pools.autoscale import Autoscale
from pytriton.ray.pools.pool import DEPLOYMENT, Pool
from pytriton.ray.pools.replica import DRAIN_S, EXIT_TIMEOUT_S, Replica
from pytriton.ray.pools.status import messages_of
from pytriton.server.config import TritonConfig
from pytriton.triton import Triton
from pytriton.utils.numbers import is_integer, is_number

LOGGER = logging.getLogger(__name__)

Build = Callable[[Triton], object]

_HEALTH_CHECK_S = 1.0
_HEALTH_TIMEOUT_S = 30.0
_STARTS = 3  # of a replica, after which the deployment has failed
_STOP_MARGIN_S = 10.0
_POLL_S = 0.1
_REPORT_S = 5.0


def application(
    build: Build,
    *,
    replicas: int | None = None,
    num_cpus: float = 1.0,
    num_gpus: float = 0.0,
    autoscale: Autoscale | None = None,
    config: TritonConfig | None = None,
    actor_options: Mapping[str, Any] | None = None,
    max_surge_percent: int = 25,
) -> serve.Application:
    """Returns a pool as an application of Ray Serve, for ``serve run`` and Serve's config files.

    The arguments are those of `deploy`. The pool has the application's name, with which `connect` finds it.

    Raises:
        PyTritonBadParameterError: An argument has an invalid value.

    Examples:
        >>> app = application(build, num_cpus=2)  # doctest: +SKIP
    """
    _check(build, replicas, num_cpus, num_gpus, autoscale, max_surge_percent)
    config = config or TritonConfig()
    try:
        payload = pickled((build, config))
    except Exception as error:
        raise PyTritonBadParameterError(
            f"build cannot be sent to other nodes: {type(error).__name__}: {error}; create in the function what it "
            "needs, models above all."
        ) from error
    drain_s = DRAIN_S if config.drain_secs is None else config.drain_secs
    exit_s = EXIT_TIMEOUT_S if config.exit_timeout_secs is None else config.exit_timeout_secs
    settings: dict[str, Any] = {
        "name": DEPLOYMENT,
        "ray_actor_options": {**(actor_options or {}), "num_cpus": num_cpus, "num_gpus": num_gpus},
        "health_check_period_s": _HEALTH_CHECK_S,
        "health_check_timeout_s": _HEALTH_TIMEOUT_S,
        "graceful_shutdown_timeout_s": drain_s + exit_s + _STOP_MARGIN_S,
        "max_constructor_retry_count": _STARTS,
        "max_surge_percent": max_surge_percent,
    }
    version = hashlib.sha256(payload + repr(sorted(settings.items(), key=str)).encode()).hexdigest()[:16]
    if autoscale is None:
        settings["num_replicas"] = replicas or 1
    else:
        settings["autoscaling_config"] = autoscale.settings(replicas)
    deployment: Any = serve.deployment(Replica, **settings)
    # Without a version, Ray Serve would replace all replicas even if only their number changes.
    app: serve.Application = deployment.options(version=version, _internal=True).bind(payload)
    return app


def deploy(
    build: Build,
    *,
    name: str,
    replicas: int | None = None,
    num_cpus: float = 1.0,
    num_gpus: float = 0.0,
    autoscale: Autoscale | None = None,
    config: TritonConfig | None = None,
    actor_options: Mapping[str, Any] | None = None,
    max_surge_percent: int = 25,
    timeout_s: float = 300.0,
) -> Pool:
    """Starts a pool of Tritons on the nodes of a Ray cluster, or updates it; returns when all replicas are ready.

    Each replica is a Ray actor with a Triton of its own, which clients reach directly. Ray restarts one that dies, if
    necessary on another node. Uses the cluster that this process is connected to; otherwise `ray.init` chooses one.

    An existing pool is updated: to other arguments or another function by replacing a few replicas at a time, each
    after its successor is ready; to another number of replicas without affecting the others. No request is lost. If an
    update fails, the earlier replicas remain.

    Args:
        build: Binds the models; it is called in each replica, with its `Triton`. Functions and classes of a script or a
            notebook, closures and lambdas can be sent; modules are imported on the node.
        name: The pool's name, and that of its application in Ray Serve.
        replicas: The number of replicas, 1 by default; with `autoscale`, the initial number.
        num_cpus: CPUs that Ray reserves for a replica; it does not enforce them.
        num_gpus: GPUs that Ray reserves for a replica, which sees only those.
        autoscale: How the number of replicas follows the load.
        config: The settings of the Tritons. By default, they listen at their node's address, at free ports.
        actor_options: Further options of Ray actors, like ``resources``, ``accelerator_type`` and ``runtime_env``.
        max_surge_percent: How many replicas an update may start beyond their number, in percent of it and rounded up;
            with 0, it stops old replicas first, for clusters without room for more.
        timeout_s: How long to wait until all replicas are ready, in seconds.

    Returns:
        The pool.

    Raises:
        PyTritonBadParameterError: An argument has an invalid value.
        PyTritonRuntimeError: The replicas did not become ready; the message has the error of `build` or of a model, or
            the missing resources. A new pool is then removed.

    Examples:
        >>> def build(triton):
        ...     triton.bind("Double", double, inputs=[...], outputs=[...])
        >>> pool = deploy(build, name="double", replicas=3, num_cpus=2)  # doctest: +SKIP
        >>> with pool.client("Double") as client:  # doctest: +SKIP
        ...     client.infer_sample(np.float32([1, 2]))
    """
    if not isinstance(name, str) or not name:
        raise PyTritonBadParameterError(f"name is {name!r}; give the pool a name.")
    if not timeout_s > 0:
        raise PyTritonBadParameterError(f"timeout_s is {timeout_s!r}; give a positive number of seconds.")
    app = application(
        build,
        replicas=replicas,
        num_cpus=num_cpus,
        num_gpus=num_gpus,
        autoscale=autoscale,
        config=config,
        actor_options=actor_options,
        max_surge_percent=max_surge_percent,
    )
    if not ray.is_initialized():
        ray.init()
    serve.start(proxy_location="Disabled")
    pool = Pool(name)
    is_new = name not in serve.status().applications
    known_failures = max((each.number for each in pool.failures()), default=0)
    serve.run_many(
        [serve.RunTarget(app, name=name, route_prefix=None)],
        wait_for_ingress_deployment_creation=False,
        wait_for_applications_running=False,
    )
    progress = _Progress(pool, known_failures, {"CPU": num_cpus, "GPU": num_gpus}, is_new)
    try:
        progress.wait_until_running(timeout_s)
    except BaseException:
        if is_new:
            serve.delete(name, _blocking=False)
        raise
    return pool


@dataclasses.dataclass
class _Progress:
    """The progress of a deployment, and the reasons if it does not progress.

    Attributes:
        pool: The pool.
        known_failures: The number of the last failure before this deployment.
        wanted: The resources that a replica requires.
        is_new: Whether the pool is new; otherwise it is updated.
    """

    pool: Pool
    known_failures: int
    wanted: Mapping[str, float]
    is_new: bool

    def wait_until_running(self, timeout_s: float) -> None:
        """Waits until all replicas are ready.

        Raises:
            PyTritonRuntimeError: They are not ready in time, or cannot be started.
        """
        name, start = self.pool.name, time.monotonic()
        report_at = start + _REPORT_S
        while True:
            app = serve.status().applications.get(name)
            state = ApplicationStatus.NOT_STARTED if app is None else app.status
            if state is ApplicationStatus.RUNNING:
                return
            if state is ApplicationStatus.DEPLOY_FAILED:
                raise PyTritonRuntimeError(f"Pool {name!r} cannot be {self._verb}. {self._reason(app)}{self._outcome}")
            now = time.monotonic()
            if now > start + timeout_s:
                raise PyTritonRuntimeError(
                    f"Pool {name!r} was not {self._verb} within {timeout_s:g} s. {self._reason(app)}{self._outcome}"
                )
            if now > report_at and app is not None and _starts(app):
                report_at = math.inf
                LOGGER.warning("Pool %r is still being %s. %s", name, self._verb, self._reason(app))
            time.sleep(_POLL_S)

    @property
    def _verb(self) -> str:
        return "deployed" if self.is_new else "updated"

    @property
    def _outcome(self) -> str:
        return "" if self.is_new else " The earlier replicas still serve."

    def _reason(self, app: ApplicationStatusOverview | None) -> str:
        failures = [each for each in self.pool.failures() if each.number > self.known_failures]
        if failures:
            errors = dict.fromkeys(f"on node {each.node[:8]}, {each.error}" for each in failures)
            return f"A replica could not be started: {'; '.join(errors)}\n{failures[-1].traceback}"
        messages = [] if app is None else messages_of(app)
        return " ".join(filter(None, [*messages, self._room()]))

    def _room(self) -> str:
        """Describes the resources that a replica requires, and those of the cluster."""
        free, nodes = ray.available_resources(), [node["Resources"] for node in ray.nodes() if node["Alive"]]
        asked = [
            f"{number:g} {resource} (free in the cluster: {free.get(resource, 0):g}; the largest node has "
            f"{max((node.get(resource, 0) for node in nodes), default=0):g})"
            for resource, number in self.wanted.items()
            if number
        ]
        return f"A replica requires {', '.join(asked)}." if asked else ""


def _starts(app: ApplicationStatusOverview) -> bool:
    return any("STARTING" in map(str, deployment.replica_states) for deployment in app.deployments.values())


def _check(
    build: object,
    replicas: int | None,
    num_cpus: object,
    num_gpus: object,
    autoscale: Autoscale | None,
    max_surge_percent: object,
) -> None:
    if not callable(build):
        raise PyTritonBadParameterError(f"build is {build!r}; pass a function that takes a Triton and binds models.")
    if replicas is not None and (not is_integer(replicas) or replicas < 1):
        raise PyTritonBadParameterError(f"replicas is {replicas!r}; give an integer from 1.")
    for what, number in (("num_cpus", num_cpus), ("num_gpus", num_gpus)):
        if not is_number(number) or number < 0:
            raise PyTritonBadParameterError(f"{what} is {number!r}; give a number from 0 up.")
    if autoscale is not None and not isinstance(autoscale, Autoscale):
        raise PyTritonBadParameterError(f"autoscale is {autoscale!r}; give an Autoscale(...).")
    least, most = (autoscale.min_replicas, autoscale.max_replicas) if autoscale else (1, math.inf)
    if replicas is not None and not least <= replicas <= most:
        raise PyTritonBadParameterError(f"replicas is {replicas}, and autoscale allows {least} to {most}.")
    if not isinstance(max_surge_percent, int) or not 0 <= max_surge_percent <= 100:
        raise PyTritonBadParameterError(f"max_surge_percent is {max_surge_percent!r}; give an integer from 0 to 100.")
