"""TLS settings of a connection."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

from pytriton.client.exceptions import PyTritonClientValueError


@dataclasses.dataclass(frozen=True)
class TLSConfig:
    """Certificates for ``https://`` and ``grpcs://``.

    Attributes:
        root_certificates: File with the certificates, in PEM, one of which must have signed the server's; the system's
            by default.
        certificate_chain: File with the client's certificate, in PEM, for servers that require one.
        private_key: File with the key of `certificate_chain`, in PEM; by default, that file holds it, too.
        verify: Check the server's certificate; only HTTPS allows False.

    Raises:
        PyTritonClientValueError: A file does not exist, or a key has no certificate.

    Examples:
        >>> tls = TLSConfig(root_certificates="ca.pem")  # doctest: +SKIP
    """

    root_certificates: str | os.PathLike[str] | None = None
    certificate_chain: str | os.PathLike[str] | None = None
    private_key: str | os.PathLike[str] | None = None
    verify: bool = True

    def __post_init__(self) -> None:
        """Checks that the files exist."""
        for name in ("root_certificates", "certificate_chain", "private_key"):
            file = getattr(self, name)
            if file is not None and not Path(file).is_file():
                raise PyTritonClientValueError(f"TLSConfig.{name} is {os.fspath(file)!r}, which is not a file.")
        if self.private_key is not None and self.certificate_chain is None:
            raise PyTritonClientValueError(
                "TLSConfig.private_key is given without its certificate; name the file with it as certificate_chain."
            )
