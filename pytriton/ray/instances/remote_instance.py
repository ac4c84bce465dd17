"""The declaration of a model instance on another node."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pytriton.exceptions import PyTritonBadParameterError
from pytriton.model_config.model_spec import ModelSpec
from pytriton.models.external_instance import ExternalInstance, InstanceOpener, OpenedInstance
from pytriton.process.payload import payload_of
from pytriton.ray.instances.actor import instance_actor
from pytriton.ray.instances.spec import InstanceSpec
from pytriton.ray.instances.supervisor import ActorSupervisor
from pytriton.utils.numbers import is_integer, is_number

# Options that the supervisor sets itself, because it restarts the actors.
_OWN_OPTIONS = {
    "num_cpus": "the argument num_cpus",
    "num_gpus": "the argument num_gpus",
    "max_restarts": "nothing: actors are restarted as long as the model is loaded",
    "max_task_retries": "the argument retries",
    "max_concurrency": "ModelConfig(max_in_flight=...)",
    "concurrency_groups": "ModelConfig(max_in_flight=...)",
    "lifetime": "nothing: actors end with the model",
    "name": "nothing: a restarted actor could not reuse the name",
    "get_if_exists": "nothing: each instance has its own actor",
}


@dataclasses.dataclass(frozen=True)
class RemoteInstance(ExternalInstance):
    """An instance of a model in a Ray actor, on any node of a cluster, passed to `Triton.bind` in place of a function.

    The factory is called in the actor and creates the inference callable there. The actor is started when the model is
    loaded, restarted if it dies, if necessary on another node, and stopped with the model. If Ray is not initialized by
    then, ``ray.init()`` is called. Functions and classes of a script or a notebook are sent to the actor; modules are
    imported there, and PyTriton must be installed on each node.

    Args:
        factory: Returns the inference callable: a function of any kind, or an object with ``__call__``. If the object
            has a method ``close``, it is called at the end.
        args: Positional arguments of the factory.
        kwargs: Keyword arguments of the factory.
        num_cpus: CPUs that Ray reserves for the actor.
        num_gpus: GPUs that Ray reserves for it; Ray sets ``CUDA_VISIBLE_DEVICES``.
        ray_actor_options: Other options of Ray's actors: ``resources``, ``runtime_env``, ``scheduling_strategy``, ...
        placement_timeout_s: How long, in seconds, `Triton.bind` or `Triton.run` waits for room in the cluster, and
            for the actor to start there.
        retries: How often a batch whose actor dies is sent to another actor, which may execute it a second time. Use 0
            for functions that must not be executed twice.

    Raises:
        PyTritonBadParameterError: An argument has an invalid value.

    Examples:
        >>> def make(scale):
        ...     @batch
        ...     def infer(x):
        ...         return {"y": x * scale}
        ...     return infer
        >>> instances = [RemoteInstance(make, args=[2], num_cpus=2) for _ in range(3)]
        >>> triton.bind("Scale", instances, inputs=[...], outputs=[...])  # doctest: +SKIP
    """

    num_cpus: float = dataclasses.field(default=1, kw_only=True)
    num_gpus: float = dataclasses.field(default=0, kw_only=True)
    ray_actor_options: Mapping[str, Any] = dataclasses.field(default_factory=dict, kw_only=True)
    placement_timeout_s: float = dataclasses.field(default=60.0, kw_only=True)
    retries: int = dataclasses.field(default=1, kw_only=True)

    def __post_init__(self) -> None:
        """Checks the arguments; `Triton.bind` checks that they can be pickled."""
        super().__post_init__()
        for name in ("num_cpus", "num_gpus", "placement_timeout_s"):
            value = getattr(self, name)
            if not is_number(value) or value < 0:
                raise PyTritonBadParameterError(f"RemoteInstance: {name} is {value!r}; use a number from 0.")
        if not is_integer(self.retries) or self.retries < 0:
            raise PyTritonBadParameterError(f"RemoteInstance: retries is {self.retries!r}; use an integer from 0.")
        if not isinstance(self.ray_actor_options, Mapping):
            raise PyTritonBadParameterError(
                f"RemoteInstance: ray_actor_options is {self.ray_actor_options!r}; use a dictionary."
            )
        for name in self.ray_actor_options:
            if name in _OWN_OPTIONS:
                raise PyTritonBadParameterError(
                    f"RemoteInstance: ray_actor_options has {name!r}, which is reserved; use {_OWN_OPTIONS[name]}."
                )
        try:
            instance_actor(self._options())
        except Exception as error:  # Ray raises errors of several types
            raise PyTritonBadParameterError(
                f"RemoteInstance: Ray does not accept the actor options {self._options()!r}: {error}"
            ) from error

    def prepare(self, spec: ModelSpec, number: int) -> InstanceOpener:
        """Captures everything that the actor needs."""
        if spec.config.gpu_tensors:
            raise PyTritonBadParameterError(
                f"Model {spec.name!r} has gpu_tensors=True and a RemoteInstance: tensors on a GPU do not stay there on "
                "their way to another process of Ray; omit gpu_tensors, and they go through memory."
            )
        payload = payload_of(self, spec, number, "actor")
        return _Opener(
            InstanceSpec(spec, number, payload, self._options(), float(self.placement_timeout_s), self.retries)
        )

    def _options(self) -> dict[str, Any]:
        return {**self.ray_actor_options, "num_cpus": self.num_cpus, "num_gpus": self.num_gpus}


@dataclasses.dataclass(frozen=True)
class _Opener(InstanceOpener):
    """Starts the actor of an instance."""

    spec: InstanceSpec

    def open(self, siblings: Sequence[OpenedInstance], on_failing: Callable[[bool], None]) -> OpenedInstance:
        """See `InstanceOpener`."""
        peers = [each for each in siblings if isinstance(each, ActorSupervisor)]
        return ActorSupervisor(self.spec, peers[0].group if peers else None, on_failing)
