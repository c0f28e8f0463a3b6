"""What an operator may choose about TLS."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsConfig:
    """HTTPS instead of HTTP, when the two files are given."""

    cert_file: Path | None = None
    """The certificate and those between it and the root, in PEM."""

    key_file: Path | None = None
    """Its private key in PEM, without a password."""

    minimum: Literal["1.2", "1.3"] = "1.2"
    """Older versions of TLS are refused."""

    def __post_init__(self) -> None:
        if (self.cert_file is None) != (self.key_file is None):
            raise ValueError("tls.cert_file and tls.key_file go together")

    @property
    def is_on(self) -> bool:
        """Whether the server speaks TLS."""
        return self.cert_file is not None
