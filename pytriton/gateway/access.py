"""API keys: who may use which models, and how often. Only hashes of keys are stored."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import hashlib
import http
import json
import logging
import math
import os
import pathlib
import secrets
import stat
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

from pytriton.exceptions import PyTritonBadParameterError
from pytriton.gateway.errors import RequestError
from pytriton.utils.replacement import replace_file

LOGGER = logging.getLogger(__name__)

_PREFIX = "pt-"
_RELOAD_S = 1.0  # between two checks whether the file has changed


@dataclasses.dataclass
class ApiKey:
    """One API key, and what it may do.

    Attributes:
        name: The owner's name, which appears in the log.
        hash: SHA-256 of the key, in hexadecimal digits. No salt is needed, since a key has 256 random bits.
        models: Names of the models that it may use; None for all.
        rate: Requests per second; None for no limit. A burst may have as many requests as one second.
        max_requests: Maximum number of requests in flight; None for no limit.
    """

    name: str
    hash: str
    models: list[str] | None = None
    rate: float | None = None
    max_requests: int | None = None
    in_flight: int = dataclasses.field(default=0, compare=False, repr=False)
    _tokens: float = dataclasses.field(default=math.inf, compare=False, repr=False)
    _filled: float = dataclasses.field(default=0.0, compare=False, repr=False)

    def check_model(self, name: str) -> None:
        """Checks that it may use a model.

        Raises:
            RequestError: It may not.
        """
        if not self.may_use(name):
            raise not_allowed(name)

    def may_use(self, name: str) -> bool:
        """Returns whether it may use a model."""
        return self.models is None or name in self.models

    def take(self) -> None:
        """Counts a request.

        Raises:
            RequestError: There have been too many.
        """
        if self.max_requests is not None and self.in_flight >= self.max_requests:
            raise _too_many(f"The API key has {self.in_flight} requests in flight, which is its limit", 1)
        if self.rate is None:
            return
        now, burst = time.monotonic(), max(1.0, self.rate)
        self._tokens = min(burst, self._tokens + (now - self._filled) * self.rate)
        self._filled = now
        if self._tokens < 1:
            raise _too_many(f"The API key allows {self.rate:g} requests per second", (1 - self._tokens) / self.rate)
        self._tokens -= 1


class KeyStore:
    """The API keys of a file, which is reloaded when it changes.

    Args:
        path: The file; see `create_key`.

    Raises:
        PyTritonBadParameterError: The file cannot be read, or its content is invalid.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = pathlib.Path(path).absolute()  # a function may change the working directory
        self._lock = threading.Lock()
        self._stamp = _stamp(self._path)
        self._keys = {key.hash: key for key in _read(self._path)}
        self._looked = time.monotonic()

    def find(self, headers: Mapping[str, str]) -> ApiKey:
        """Returns the key of a request, sent as ``Authorization: Bearer <key>`` or ``X-API-Key: <key>``.

        Raises:
            RequestError: It has none, or an unknown one.
        """
        self._reload()
        scheme, _, credentials = headers.get("authorization", "").partition(" ")
        given = credentials.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")
        key = self._keys.get(_hash(given)) if given else None
        if key is None:
            what = "The API key is not valid" if given else "Send an API key: 'Authorization: Bearer <key>'"
            raise RequestError(http.HTTPStatus.UNAUTHORIZED, f"{what}.", headers={"www-authenticate": "Bearer"})
        return key

    def _reload(self) -> None:
        now = time.monotonic()
        if now - self._looked < _RELOAD_S:
            return
        with self._lock:
            self._looked = now
            try:
                stamp = _stamp(self._path)
                if stamp == self._stamp:
                    return
                keys = {key.hash: key for key in _read(self._path)}
            except PyTritonBadParameterError as error:
                LOGGER.error("The API keys were not reloaded: %s", error)
                return
            for hashed, key in self._keys.items():  # unchanged keys keep their counts
                if keys.get(hashed) == key:
                    keys[hashed] = key
            self._keys, self._stamp = keys, stamp


def create_key(
    path: str | os.PathLike[str],
    name: str,
    models: list[str] | None = None,
    rate: float | None = None,
    max_requests: int | None = None,
) -> str:
    """Creates an API key, and adds its hash to a file, which is created if it does not exist.

    Args:
        path: The file. A new one can be read by its owner only; one that exists keeps its owner and mode.
        name: The name of the key's owner.
        models: Names of the models that it may use; None for all.
        rate: Requests per second; None for no limit.
        max_requests: Maximum number of requests in flight; None for no limit.

    Returns:
        The key, which is not stored anywhere.

    Raises:
        PyTritonBadParameterError: The file's content is invalid, it already has a key of that name, or it cannot be
            written.

    Examples:
        >>> from pytriton.gateway import create_key
        >>> key = create_key("keys.json", "alice", models=["Double"], rate=10)  # doctest: +SKIP
    """
    target = pathlib.Path(path).resolve()  # a link stays one
    created = _PREFIX + secrets.token_urlsafe(32)
    entry: dict[str, Any] = {"name": name, "hash": _hash(created)}
    entry |= {"models": models, "rate": rate, "max_requests": max_requests}
    with _locked_folder(target.parent):
        _add(_key(entry, target), target)
    return created


def _add(key: ApiKey, target: pathlib.Path) -> None:
    keys = _read(target) if target.exists() else []
    if any(other.name == key.name for other in keys):
        raise PyTritonBadParameterError(f"{target} already has a key named {key.name!r}: remove it first.")
    entries = [
        {
            name: value
            for name in ("name", "hash", "models", "rate", "max_requests")
            if (value := getattr(key, name)) is not None
        }
        for key in [*keys, key]
    ]
    _write(target, json.dumps({"keys": entries}, indent=2))


@contextlib.contextmanager
def _locked_folder(folder: pathlib.Path) -> Iterator[None]:
    """Lets one process at a time replace the folder's files of keys: a key of another one would be lost."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):  # NFS cannot lock a folder; one that does not exist is reported later
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            stack.callback(os.close, descriptor)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield


def _read(path: pathlib.Path) -> list[ApiKey]:
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))["keys"]
        return [_key(entry, path) for entry in entries]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise PyTritonBadParameterError(f"{path} cannot be read as a file of API keys: {error!r}.") from error


def _write(path: pathlib.Path, text: str) -> None:
    """Replaces the file; a running gateway may still read it."""

    def prepare(draft: pathlib.Path) -> None:
        if path.exists():
            status = path.stat()
            with contextlib.suppress(PermissionError):  # only root may give a file away
                os.chown(draft, status.st_uid, status.st_gid)
            draft.chmod(stat.S_IMODE(status.st_mode))

    try:
        replace_file(path, text.encode(), prepare)
    except OSError as error:
        raise PyTritonBadParameterError(f"{path} cannot be written as a file of API keys: {error.strerror}.") from error


def _key(entry: Mapping[str, Any], path: pathlib.Path) -> ApiKey:
    key = ApiKey(**entry)
    models = key.models is None or (isinstance(key.models, list) and all(isinstance(name, str) for name in key.models))
    checks = [
        ("name", isinstance(key.name, str) and bool(key.name), "text"),
        ("hash", isinstance(key.hash, str) and len(key.hash) == 64, "the SHA-256 of the key, in 64 hexadecimal digits"),
        ("models", models, "a list of names"),
        ("rate", _is_limit(key.rate), "a number above 0"),
        ("max_requests", _is_limit(key.max_requests), "a number above 0"),
    ]
    for setting, fits, wanted in checks:
        if not fits:
            raise PyTritonBadParameterError(
                f"{path}: {setting!r} of key {key.name!r} is {getattr(key, setting)!r}; use {wanted}."
            )
    return key


def _is_limit(value: Any) -> bool:
    return value is None or (isinstance(value, int | float) and 0 < value < math.inf)


def _stamp(path: pathlib.Path) -> tuple[int, int, int]:
    try:
        status = path.stat()
    except OSError as error:
        raise PyTritonBadParameterError(f"{path} cannot be read as a file of API keys: {error}.") from error
    return status.st_mtime_ns, status.st_size, status.st_ino


def _hash(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


def not_allowed(model: str, field: str | None = None) -> RequestError:
    """Returns the error of a request whose API key may not use a model, by the name that the client has given."""
    return RequestError(http.HTTPStatus.FORBIDDEN, f"The API key may not use model {model!r}.", field)


def _too_many(message: str, wait_s: float) -> RequestError:
    headers = {"retry-after": str(max(1, math.ceil(wait_s)))}
    return RequestError(http.HTTPStatus.TOO_MANY_REQUESTS, f"{message}: try again later.", headers=headers)
