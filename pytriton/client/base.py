"""The common base of the blocking and the asyncio clients."""

from __future__ import annotations

import abc
import numbers
from typing import Any, NoReturn, TypeVar

from pytriton.client.core import fork_safety
from pytriton.client.core.deadlines import check_timeout
from pytriton.client.core.requests import EncodedRequest, check_rows
from pytriton.client.core.server_set import name_of
from pytriton.client.core.session import Session
from pytriton.client.core.settings import (
    DEFAULT_INFERENCE_TIMEOUT_S,
    DEFAULT_INIT_TIMEOUT_S,
    DEFAULT_RESTART_TIMEOUT_S,
    Settings,
)
from pytriton.client.exceptions import PyTritonClientClosedError, PyTritonClientValueError
from pytriton.client.retry import RetryPolicy
from pytriton.client.tls import TLSConfig
from pytriton.client.url import ServerUrls
from pytriton.model_config.triton_model_config import TritonModelConfig

_Self = TypeVar("_Self", bound="BaseModelClient")


class BaseModelClient(abc.ABC):
    """A client of one model.

    Args:
        url: The server's URL: ``localhost``, ``localhost:8000``, ``http://…``, ``https://…``, ``grpc://…`` or
            ``grpcs://…``. The default port is 8000 for HTTP, 8001 for gRPC and 443 for ``https``. With a list of URLs,
            requests go to the servers in turn, except those that are not ready. If servers come and go, pass a function
            without arguments that returns the current list of URLs. It is called before each attempt to send a request,
            so it must return at once, for example a list that something else keeps up to date; an empty list means that
            no server is ready at present.
        model_name: The model's name.
        model_version: Its version; the latest by default.
        lazy_init: Connect on first use; otherwise when the client is created or, in asyncio, entered.
        init_timeout_s: How long to wait, in seconds, until the server and the model are ready and the model's
            configuration is known; also for a server that starts later, and for a model that is bound later. By
            default, the client waits 300 s for a server that responds, 1 s for one that cannot be reached, and 5 s if
            another program responds, but not for a model that a ready server does not have. While a function returns no
            address, it waits for one, too.
        inference_timeout_s: How long to wait for a response, in seconds; 60 by default. Clients of streams wait this
            long for each response, by default without limit, as a stream may be slow.
        model_config: The model's configuration; by default, it is fetched from the server, once.
        ensure_model_is_ready: Wait until the model is ready before the first request.
        access_token: The server's token, for restricted endpoints.
        tls: Certificates for ``https://`` and ``grpcs://``.
        retry: Which failed requests are sent again; by default those that a restart of the server interrupted, see
            ``restart_timeout_s``.
        restart_timeout_s: For how many seconds a request is sent again when the connection to a server that has
            responded before breaks or is refused, as during a restart of the server; 5 by default, 0 for never. The
            request may then be executed twice. With ``retry``, that policy applies instead. It is also how long a
            request waits for an address while a function returns none.
        shared_memory: Move large tensors through shared memory; the server must be on this host.
        convert_dtypes: Convert arrays of another dtype if no value can change, such as int32 to int64.

    Raises:
        PyTritonClientInvalidUrlError: The URL is not valid; with a function, requests raise it.
        PyTritonClientValueError: Another argument has an invalid value, or the function does not return a list;
            with a function, requests raise it.
    """

    def __init__(
        self,
        url: ServerUrls,
        model_name: str,
        model_version: str | None = None,
        *,
        lazy_init: bool = True,
        init_timeout_s: float | None = None,
        inference_timeout_s: float | None = None,
        model_config: TritonModelConfig | None = None,
        ensure_model_is_ready: bool = True,
        access_token: str | None = None,
        tls: TLSConfig | None = None,
        retry: RetryPolicy | None = None,
        restart_timeout_s: float | None = None,
        shared_memory: bool = False,
        convert_dtypes: bool = False,
    ) -> None:
        """Stores the arguments; ``lazy_init`` decides when it connects."""
        check_type("model_config", model_config, TritonModelConfig)
        check_type("tls", tls, TLSConfig)
        check_type("retry", retry, RetryPolicy)
        self._settings = Settings(
            url=url,
            model_name=model_name,
            model_version=model_version,
            init_timeout_s=_timeout("init_timeout_s", init_timeout_s, DEFAULT_INIT_TIMEOUT_S),
            inference_timeout_s=_timeout("inference_timeout_s", inference_timeout_s, DEFAULT_INFERENCE_TIMEOUT_S),
            ensure_model_is_ready=ensure_model_is_ready,
            access_token=access_token,
            tls=tls,
            retry=retry,
            restart_timeout_s=_restart_timeout(restart_timeout_s),
            shared_memory=shared_memory,
            convert_dtypes=convert_dtypes,
            waits_for_server=init_timeout_s is not None,
            limits_streams=inference_timeout_s is not None,
        )
        self._lazy_init = lazy_init
        self._process = fork_safety.process
        self._closed = False
        self._session = self._make_session(model_config)
        if not lazy_init:
            self._connect()

    @classmethod
    def from_existing_client(cls: type[_Self], existing_client: BaseModelClient) -> _Self:
        """Creates a client of the same model, which reuses the data that the other has fetched from the server.

        Args:
            existing_client: A client of any kind; it can still be used.

        Returns:
            A client with connections of its own.
        """
        client = getattr(existing_client, "_client", existing_client)  # a futures client has one
        if not isinstance(client, BaseModelClient):
            raise PyTritonClientValueError(f"existing_client is {existing_client!r}; give a client of pytriton.client.")
        settings, session = client._settings, client._session
        return cls(
            settings.url,
            settings.model_name,
            settings.model_version,
            init_timeout_s=settings.init_timeout_s if settings.waits_for_server else None,
            inference_timeout_s=settings.inference_timeout_s if settings.limits_streams else None,
            model_config=session.current_config,
            ensure_model_is_ready=settings.ensure_model_is_ready and not session.prepared,
            access_token=settings.access_token,
            tls=settings.tls,
            retry=settings.retry,
            restart_timeout_s=settings.restart_timeout_s,
            shared_memory=settings.shared_memory,
            convert_dtypes=settings.convert_dtypes,
        )

    @abc.abstractmethod
    def _make_session(self, config: TritonModelConfig | None) -> Session:
        """Creates the session."""

    @abc.abstractmethod
    def _connect(self) -> None:
        """Connects when the client is created, unless it is lazy."""

    def _check_open(self) -> None:
        if self._closed:
            raise PyTritonClientClosedError(
                f"The client of model {self._settings.model_name!r} is closed; create another one."
            )
        if self._process is not fork_safety.process:
            self._start_over()

    def _start_over(self) -> None:
        """Adapts the client to this process, a fork of the one that created it."""
        raise fork_safety.error(f"The client of model {self._settings.model_name!r}")

    def _checked_rows(self, request: EncodedRequest) -> EncodedRequest:
        """Checks that a batch is not larger than the model accepts."""
        config = self._session.config
        assert config is not None
        check_rows(config, request)
        return request

    def __reduce__(self) -> NoReturn:
        fork_safety.refuse_copy(self)

    def __repr__(self) -> str:
        url = self._settings.url
        return f"{type(self).__name__}({name_of(url) if callable(url) else repr(url)}, {self._settings.model_name!r})"


def _timeout(what: str, timeout_s: float | None, default_s: float) -> float:
    return default_s if timeout_s is None else check_timeout(what, timeout_s)


def _restart_timeout(timeout_s: float | None) -> float:
    if timeout_s is None:
        return DEFAULT_RESTART_TIMEOUT_S
    return 0.0 if timeout_s == 0 else check_timeout("restart_timeout_s", timeout_s)


def check_type(what: str, value: object, wanted: type[object]) -> None:
    """Checks the class of an argument that may be None.

    Args:
        what: Its name in the message.
        value: Its value.
        wanted: Its class.

    Raises:
        PyTritonClientValueError: It has another class.
    """
    if value is not None and not isinstance(value, wanted):
        raise PyTritonClientValueError(f"{what} is {value!r}; give a {wanted.__name__}.")


def check_count(what: str, number: Any) -> int:
    """Checks a positive integer.

    Args:
        what: Its name in the message.
        number: Its value.

    Raises:
        PyTritonClientValueError: It is not a positive integer.
    """
    if isinstance(number, bool) or not isinstance(number, numbers.Integral) or number < 1:
        raise PyTritonClientValueError(f"{what} is {number!r}; give an integer from 1.")
    return int(number)
