"""The certificate of HTTPS, which is loaded again when its files change."""

from __future__ import annotations

import logging
import os
import pathlib
import ssl
import time

LOGGER = logging.getLogger(__name__)

_RELOAD_S = 1.0  # between two checks whether the files have changed


class Certificate:
    """A certificate that may be renewed while the gateway runs.

    Args:
        context: The context of connections, into which it is loaded already.
        certificate: The path of the certificate chain.
        key: The path of its private key.
    """

    def __init__(
        self, context: ssl.SSLContext, certificate: str | os.PathLike[str], key: str | os.PathLike[str]
    ) -> None:
        self._context = context
        # A function may change the working directory.
        self._files = pathlib.Path(certificate).absolute(), pathlib.Path(key).absolute()
        self._looked = time.monotonic()
        self._stamp = self._stamp_of_files()

    def context(self) -> ssl.SSLContext:
        """Returns the context for a new connection. If the new files cannot be used, it has the earlier certificate."""
        now = time.monotonic()
        if now - self._looked >= _RELOAD_S:
            self._looked = now
            stamp = self._stamp_of_files()
            if stamp != self._stamp:
                self._stamp = stamp
                self._load()
        return self._context

    def _load(self) -> None:
        certificate, key = self._files
        try:
            # A certificate that does not belong to the key would remove the earlier key from a context.
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key)
            self._context.load_cert_chain(certificate, key)
        except OSError as error:  # SSLError, too
            LOGGER.error("The certificate %s was not reloaded with key %s: %s", certificate, key, error)
        else:
            LOGGER.info("The certificate %s was reloaded.", certificate)

    def _stamp_of_files(self) -> list[tuple[int, int] | None]:
        stamps: list[tuple[int, int] | None] = []
        for file in self._files:
            try:
                status = file.stat()
                stamps.append((status.st_ctime_ns, status.st_ino))
            except OSError:
                stamps.append(None)
        return stamps
