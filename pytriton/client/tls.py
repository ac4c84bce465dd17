"""How a connection is encrypted."""

from __future__ import annotations

import dataclasses
import os


@dataclasses.dataclass(frozen=True)
class TLSConfig:
    """Certificates for ``https://`` and ``grpcs://``.

    Attributes:
        root_certificates: File with the certificates, in PEM, that the server's own must be signed by; the system's
            by default.
        certificate_chain: File with the client's certificate, in PEM, for servers that ask for one.
        private_key: File with the key of `certificate_chain`, in PEM.
        verify: Check the server's certificate; only HTTPS can do without.

    Examples:
        >>> tls = TLSConfig(root_certificates="ca.pem")
    """

    root_certificates: str | os.PathLike[str] | None = None
    certificate_chain: str | os.PathLike[str] | None = None
    private_key: str | os.PathLike[str] | None = None
    verify: bool = True
