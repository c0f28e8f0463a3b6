"""What an operator may choose about a schema registry."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistryConfig:
    """A Confluent-compatible schema registry, for the REST Proxy's formats `avro`, `jsonschema` and `protobuf`. They
    need `pip install 'mq-gateway[registry]'`."""

    url: str | None = None
    """Where its API begins: http://registry.example.org:8081, or https://. Not set: these formats are refused."""

    user: str | None = None
    """Whom to log in as, with `password_file` (HTTP Basic)."""

    password_file: Path | None = None
    """The user's password. Read for each request to the registry, so it may be changed at any time."""

    token_file: Path | None = None
    """A bearer token, instead of a user. Read as the password is."""

    ca_file: Path | None = None
    """Certificates (PEM) to trust, instead of the system's, when the URL is https://."""

    timeout_ms: int = 5_000
    """How long the registry may take for one answer; then the request that needs it is answered 503."""

    auto_register: bool = True
    """Register schemas that senders bring and the registry does not have, under a subject of the topic. Off: they are
    refused."""

    def __post_init__(self) -> None:
        if (self.user is None) != (self.password_file is None):
            raise ValueError("registry.user and registry.password_file go together")
        if self.user is not None and self.token_file is not None:
            raise ValueError("registry.user and registry.token_file contradict each other: choose one")
        if self.timeout_ms < 1:
            raise ValueError("registry.timeout_ms must be positive")
        if self.url is not None:
            split = urlsplit(self.url)
            if "@" in split.netloc:
                raise ValueError("registry.url: credentials do not belong there; set registry.user and password_file")
            if split.scheme not in ("http", "https") or not split.hostname or split.query or split.fragment:
                raise ValueError(f"registry.url: {self.url!r} is no URL such as http://registry.example.org:8081")
            if self.ca_file is not None and split.scheme != "https":
                raise ValueError("registry.ca_file needs an https:// URL")
