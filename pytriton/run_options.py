"""The options of ``pytriton run``, which override those of the program that it runs."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from pytriton.exceptions import PyTritonInvalidOperationError
from pytriton.model_config.arguments import check_instance
from pytriton.models.definition import InferenceSource
from pytriton.server.config import TritonConfig

if TYPE_CHECKING:
    from pytriton.gateway import GatewayConfig


class StartRefusedError(PyTritonInvalidOperationError):
    """Raised when a program starts its server where it may not."""


@dataclasses.dataclass
class RunOptions:
    """Options of ``pytriton run``, which override the program's own.

    Attributes:
        program: The program, for messages.
        config: Settings of the server; those that are not None override the program's.
        gateway: The gateway that `Triton.serve` opens if the program names none.
        workers: Replaces the inference callables of each model, such as by processes.
        may_start: Whether the program may start a server now.
        has_served: Whether the program has called `Triton.serve` itself.
    """

    program: str = ""
    config: TritonConfig = dataclasses.field(default_factory=TritonConfig)
    gateway: GatewayConfig | None = None
    workers: Callable[[list[InferenceSource]], list[InferenceSource]] = list
    may_start: bool = True
    has_served: bool = False

    def note_serve(self, gateway: GatewayConfig | None) -> GatewayConfig | None:
        """Notes that the program serves, and returns the gateway to open.

        Args:
            gateway: The program's own, if any.

        Raises:
            PyTritonBadParameterError: ``gateway`` is not a `GatewayConfig`.
        """
        if gateway is not None:
            from pytriton.gateway.config import GatewayConfig

            check_instance("serve: gateway", gateway, GatewayConfig)
        self.has_served = True
        return gateway or self.gateway

    def check_start(self) -> None:
        """Checks that the program may start a server.

        Raises:
            StartRefusedError: It may not.
        """
        if not self.may_start:
            raise StartRefusedError(
                f"{self.program} starts its server while it is imported, so it cannot be reloaded: move serve(), run() "
                "or `with Triton()` below `if __name__ == '__main__':`, or omit --reload."
            )


_in_force = RunOptions()


def run_options() -> RunOptions:
    """Returns the options in force; outside of ``pytriton run``, all are unset."""
    return _in_force


@contextlib.contextmanager
def in_force(options: RunOptions) -> Iterator[RunOptions]:
    """Sets the options in force, for all threads.

    Args:
        options: The options.
    """
    global _in_force
    before, _in_force = _in_force, options
    try:
        yield options
    finally:
        _in_force = before
