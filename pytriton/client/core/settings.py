"""The settings of a client, as its user specifies them."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Sequence

from pytriton.client.core.connecting import FAILOVER_TIMEOUT_S, ConnectOptions
from pytriton.client.core.requests import is_text
from pytriton.client.exceptions import PyTritonClientValueError
from pytriton.client.retry import RetryPolicy
from pytriton.client.tls import TLSConfig
from pytriton.client.url import ServerUrls, TritonUrl

DEFAULT_INIT_TIMEOUT_S = 300.0
DEFAULT_INFERENCE_TIMEOUT_S = 60.0
DEFAULT_RESTART_TIMEOUT_S = 5.0
LATEST_MODEL_VERSION = "<latest>"

_HOST_AND_PORT = re.compile(r"[\w.-]+:\d+")
_UNLIMITED_S = 1e7  # four months; some libraries do not accept infinity


@dataclasses.dataclass(frozen=True)
class Settings:
    """Settings of a client; see `pytriton.client.ModelClient`.

    Attributes:
        waits_for_server: Whether to wait for a server that starts later, and for a model that is bound later:
            ``init_timeout_s`` was given.
        limits_streams: Whether ``inference_timeout_s`` limits responses of streams: it was given.
    """

    url: ServerUrls
    model_name: str
    model_version: str | None
    init_timeout_s: float
    inference_timeout_s: float
    ensure_model_is_ready: bool
    access_token: str | None
    tls: TLSConfig | None
    retry: RetryPolicy | None
    restart_timeout_s: float
    shared_memory: bool
    convert_dtypes: bool
    waits_for_server: bool = True
    limits_streams: bool = True

    @property
    def stream_timeout_s(self) -> float:
        """How long each response of a stream may take."""
        return self.inference_timeout_s if self.limits_streams else _UNLIMITED_S

    @property
    def addresses(self) -> Callable[[], Sequence[str]] | None:
        """The function that returns the servers' URLs, if they come and go."""
        return self.url if callable(self.url) else None

    @property
    def connect_options(self) -> ConnectOptions:
        """How to connect to the servers: not for the whole timeout of a request if another one may serve it."""
        is_alone = isinstance(self.url, str) or (isinstance(self.url, Sequence) and len(self.url) == 1)
        return ConnectOptions(self.tls or TLSConfig(), math.inf if is_alone else FAILOVER_TIMEOUT_S)

    def urls(self) -> list[TritonUrl]:
        """Returns the servers' parsed URLs; none if a function returns them.

        Raises:
            PyTritonClientInvalidUrlError: One of them is not valid.
            PyTritonClientValueError: There is none.
        """
        if callable(self.url):
            return []
        if isinstance(self.url, Sequence) and not isinstance(self.url, str | bytes):
            urls = list(self.url)
        else:
            urls = [self.url]
        if not urls:
            raise PyTritonClientValueError("The list of URLs is empty; name at least one server.")
        return [TritonUrl.from_url(url) for url in urls]

    def model(self) -> tuple[str, str]:
        """Returns name and version of the model; the version is empty for the latest.

        Raises:
            PyTritonClientValueError: They are not valid.
        """
        return check_model_name(self.model_name), version_of(self.model_version)


def check_model_name(model_name: object) -> str:
    """Checks a model's name, and returns it.

    Raises:
        PyTritonClientValueError: It is invalid.
    """
    if not isinstance(model_name, str) or not model_name or not is_text(model_name):
        raise PyTritonClientValueError(f"model_name is {model_name!r}; give the model's name.")
    if "://" in model_name or _HOST_AND_PORT.fullmatch(model_name):
        raise PyTritonClientValueError(
            f"model_name is {model_name!r}, which is a URL; give the URL first, and then the model's name."
        )
    return model_name


def version_of(model_version: str | int | None) -> str:
    """Converts a model's version to the form in Triton's API: empty for the latest.

    Raises:
        PyTritonClientValueError: It is invalid.
    """
    version = "" if model_version in (None, LATEST_MODEL_VERSION) else str(model_version)
    if version and not (version.isascii() and version.isdigit()):
        raise PyTritonClientValueError(f"model_version is {model_version!r}; give a number, or omit it for the latest.")
    return version
