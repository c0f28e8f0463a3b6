"""Settings of one server: the only reader of TOML, environment variables and flags.

Later wins: defaults, TOML file, environment, flags. A setting is named `port` or, in a section, `store.acks`:

    TOML          port = 8082          [store]
                                       acks = "written"
    environment   MQ_PORT=8082         MQ_STORE_ACKS=written
    flag          --port 8082          --acks written       (the CLI maps its flags to setting names)

The sections are the dataclasses of the parts: `store`, `timer`, `limits`, `auth`, `tls`, `kafka`,
`registry`, `cluster`. Secrets are never settings: settings name the files that hold them, so nothing here needs to be
hidden from a log. Unknown names are
refused everywhere, so a misspelt setting never passes for its default.
"""

from __future__ import annotations

import ipaddress
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from difflib import get_close_matches
from enum import Enum
from pathlib import Path
from types import UnionType
from typing import Any, Literal, NamedTuple, get_args, get_origin, get_type_hints
from urllib.parse import urlsplit

from gateway.auth.config import AuthConfig
from gateway.auth.operator_files import SETTINGS_BYTES_MAX, parse_toml, read_file
from gateway.settings.cluster import ClusterConfig
from gateway.settings.kafka import KafkaConfig, KafkaListener
from gateway.settings.limits import Limits
from gateway.settings.registry import RegistryConfig
from gateway.settings.tls import TlsConfig
from store.config import StoreConfig
from timer.config import TimerConfig, check_retention

ENVIRONMENT_PREFIX = "MQ_"
CLIENT_VARIABLES = frozenset(("MQ_URL", "MQ_TOKEN", "MQ_CA", "MQ_CONTEXT", "MQ_CONFIG"))
"""Variables of the command-line client; they say nothing about a server."""

LogFormat = Literal["text", "json"]
ANY = "*"
"""In `allowed_origins`: pages of any origin."""

INTEGER_MAX = 2**53
"""Of any setting; none may be negative. A larger one is a mistake, and would overflow a clock or a system call."""

WORKERS_MAX = 64

_SHOWN_CHARS_MAX = 100

NO_DATA = Path("/nonexistent")
"""The data directory of a server without a store: nothing is read or written there."""

TIMER_DIRECTORY = "timer"
"""Where the timer's files are in the data directory."""


class ConfigError(ValueError):
    """A setting is unknown, missing or illegal. The message names it and where it came from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayConfig:
    """Everything an operator may choose about one server."""

    data: Path
    """Directory of the store and the timer; made when it is missing."""

    host: str = "127.0.0.1"
    """Address to listen on. Other machines reach a server that listens on another one than 127.0.0.1 or ::1."""

    port: int = 8082
    """0 picks a free one; the chosen one is in the first line printed."""

    workers: int = 0
    """Further processes that take clients' connections, do most of the work of sends and reads, and leave the store to
    this one. For machines with cores to spare. 0: this process does all."""

    insecure_no_auth: bool = False
    """Listen beyond this machine although any client that reaches the port may do anything."""

    allowed_origins: tuple[str, ...] = ()
    """Origins of web pages that may use this server, besides its own; "*": any."""

    compression: Literal["none", "zstd"] = "none"
    """How batches made from JSON requests are stored. zstd takes a fraction of the disk and more of the processor; raw
    batches stay as they came."""

    latency_penalties: Literal["off", "5.x", "4.x"] = "5.x"
    """How long a broker that answered slowly, or failed, gets no records that may go to others: as in RocketMQ 5.x (2
    to 30 s), as in 4.x (30 s to 10 min), or not at all."""

    room: str = ""
    """The machine room that this server stands in: selector `room` and the strategies `machine_room` and
    `machine_room_nearby` go by it."""

    partitions_default: int = 4
    """Partitions of a topic whose creator does not say."""

    keepalive_timeout_ms: int = 15_000
    """How long a connection may take for a request's headers, the wait between requests included. Bytes that trickle
    in do not prolong it, so it also bounds what a slow client costs."""

    body_timeout_ms: int = 30_000
    """How long a request's body may take from its headers to its last byte."""

    drain_delay_ms: int = 0
    """How long a stop only says on /readyz that it is coming, so that a load balancer sends nothing more, before
    anything ends."""

    shutdown_timeout_ms: int = 10_000
    """How long a stop waits for requests that are being answered."""

    ws_ping_ms: int = 25_000
    """How often an idle socket is pinged, so that proxies keep it and a peer that is gone is noticed."""

    ws_write_timeout_ms: int = 10_000
    """A connection whose peer takes no byte of a socket, a stream or an answer for so long is closed."""

    ws_session_grace_ms: int = 15_000
    """How long a session waits for its client after a lost connection: members stay, leases stay. 0: not at all."""

    ws_deflate: bool = True
    """Compress large frames for clients that offer it. Costs processor time; off where the network is fast."""

    consumer_instance_timeout_ms: int = 300_000
    """A REST Proxy consumer instance that is not called for so long is forgotten."""

    audit_directory: Path | None = None
    """Where the trail of admin actions is kept, in a directory `audit` there; of each server another one. Not set: in
    the data directory. A node without one (`cluster.no_store`) prints its lines on standard output then."""

    log_level: str = "info"
    """debug, info, warning or error."""

    log_format: LogFormat = "text"
    """Lines for people, or JSON for programs."""

    access_log: bool = False
    """Log every request: method, path, status, time, who. Small sends do not take the fast path then, and cost several
    times as much."""

    store: StoreConfig
    timer: TimerConfig
    auth: AuthConfig
    tls: TlsConfig = field(default_factory=TlsConfig)
    kafka: KafkaConfig = field(default_factory=KafkaConfig)
    registry: RegistryConfig = field(default_factory=RegistryConfig)
    cluster: ClusterConfig = field(default_factory=ClusterConfig)
    limits: Limits = field(default_factory=Limits)
    """`delay_ms_max` among them is the timer's `delay_max_ms`."""

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise ConfigError("port must be between 0 and 65535")
        if not 0 <= self.workers <= WORKERS_MAX:
            raise ConfigError(f"workers must be between 0 and {WORKERS_MAX}")
        if self.log_level.upper() not in logging.getLevelNamesMapping():
            raise ConfigError(f"log_level {self.log_level}: use debug, info, warning or error")
        if self.cluster.join:
            self._check_joined()
        if not self.cluster.has_data:
            self._check_tokens()
        if self.workers and self.cluster.kafka:
            raise ConfigError("workers: not yet on a node with a Kafka cluster as broker (cluster.kafka)")
        if not 1 <= self.partitions_default <= self.limits.partitions_max:
            raise ConfigError(f"partitions_default must be between 1 and {self.limits.partitions_max}")
        for name in (
            "keepalive_timeout_ms", "body_timeout_ms", "shutdown_timeout_ms", "consumer_instance_timeout_ms",
            "ws_ping_ms", "ws_write_timeout_ms",
        ):  # fmt: skip
            if getattr(self, name) <= 0:
                raise ConfigError(f"{name} must be positive")
        if self.drain_delay_ms < 0:
            raise ConfigError("drain_delay_ms must be at least 0")
        if self.auth.enabled and self.insecure_no_auth:
            raise ConfigError("auth.enabled and insecure_no_auth contradict each other: choose one")
        if not (self.auth.enabled or self.insecure_no_auth or self.is_loopback):
            raise ConfigError(
                f"host {self.host} can be reached from other machines, and authentication is disabled: "
                "use 127.0.0.1, or auth.enabled, or set insecure_no_auth when that is what you want"
            )
        exposed = [one.host for one in self.kafka_listeners if not _is_loopback(one.host)]
        if exposed and not (self.auth.enabled or self.insecure_no_auth):
            raise ConfigError(
                f"kafka.listeners: {exposed[0]} can be reached from other machines, and authentication is disabled: "
                "use auth.enabled, or set insecure_no_auth when that is what you want"
            )
        for origin in self.allowed_origins:
            try:
                check_origin_text(origin)
            except ValueError as error:
                raise ConfigError(f"allowed_origins: {error}") from error

    def _check_joined(self) -> None:
        """What a gateway without a store cannot have. Raises ConfigError."""
        if self.workers:
            raise ConfigError("workers: a gateway without a store has none; start several gateways instead")
        if self.kafka.is_asked_for:
            raise ConfigError("kafka: a gateway without a store has no port for Kafka clients; they connect to nodes")

    def _check_tokens(self) -> None:
        """Without a data directory there is no default for them. Raises ConfigError."""
        auth = self.auth
        if auth.enabled and auth.token_file is None and auth.jwt_issuer is None:
            raise ConfigError("auth.token_file: a server without a store has to be told where the cluster's tokens are")

    sources: Mapping[str, str] = field(default_factory=dict, compare=False)
    """Where each setting that was given comes from: no setting itself."""

    @property
    def logging_level(self) -> int:
        """`log_level` as the standard library's logging has it."""
        return logging.getLevelNamesMapping()[self.log_level.upper()]

    @property
    def kafka_listeners(self) -> list[KafkaListener]:
        """Where Kafka clients are listened for."""
        return [] if self.cluster.join else self.kafka.listening_on(self.host, is_loopback=self.is_loopback)

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach the server."""
        return _is_loopback(self.host)


Settings = dict[str, object]
Plain = str | int | float | bool | list[str] | None


class Given(NamedTuple):
    """A setting's value as it was written, and where."""

    value: object
    source: str


def load(
    *, file: Path | None = None, environment: Mapping[str, str] | None = None, flags: Mapping[str, object] | None = None
) -> GatewayConfig:
    """Build the configuration from its three sources. Flags that are None were not given.

    Raises ConfigError.
    """
    given = gather(file=file, environment=environment, flags=flags)
    config = build({name: value for name, (value, _) in given.items()})
    return replace(config, sources={name: one.source for name, one in given.items()})


def gather(
    *, file: Path | None = None, environment: Mapping[str, str] | None = None, flags: Mapping[str, object] | None = None
) -> dict[str, Given]:
    """Every setting that one of the sources gives, by the source that wins. Raises ConfigError."""
    settings: dict[str, Given] = {}
    if file is not None:
        settings.update({name: Given(value, str(file)) for name, value in _from_toml(file).items()})
    settings.update(_from_environment(environment or {}))
    for name, value in (flags or {}).items():
        if value is not None:
            _known(name, "flag")
            settings[name] = Given(value, "flag")
    return settings


def build(settings: Mapping[str, object]) -> GatewayConfig:
    """Build the configuration from named settings such as {"data": ..., "store.acks": "written"}.

    Raises ConfigError.
    """
    values = {name: _converted(name, value, _known(name, "setting")) for name, value in settings.items()}
    without = next((name for name in ("cluster.join", "cluster.no_store") if values.get(name) is True), None)
    if without is not None and "data" in values:
        raise ConfigError(f"data: a server without a store ({without}) has no data directory")
    if without is not None:
        values["data"] = NO_DATA
    if "data" not in values:
        raise ConfigError("data: the data directory is not set (--data, MQ_DATA, or data in the file)")
    data = values["data"]
    assert isinstance(data, Path)

    def section(name: str) -> dict[str, Any]:
        prefix = name + "."
        return {key.removeprefix(prefix): value for key, value in values.items() if key.startswith(prefix)}

    try:
        store = StoreConfig(root=data, **section("store"))
        timer = TimerConfig(root=data / TIMER_DIRECTORY, **section("timer"))
        check_retention(timer, store.retention_ms)
        return GatewayConfig(
            store=store,
            timer=timer,
            auth=AuthConfig(data=data, **section("auth")),
            tls=TlsConfig(**section("tls")),
            kafka=KafkaConfig(**section("kafka")),
            registry=RegistryConfig(**section("registry")),
            cluster=ClusterConfig(**section("cluster")),
            limits=Limits(delay_ms_max=timer.delay_max_ms, **section("limits")),
            **{name: value for name, value in values.items() if "." not in name},  # type: ignore[arg-type]
        )
    except ConfigError:
        raise
    except ValueError as error:
        raise ConfigError(str(error)) from error


def settings_of(config: GatewayConfig) -> Settings:
    """The value of every setting, by name."""

    def value(name: str) -> object:
        section, dot, field_name = name.partition(".")
        return getattr(getattr(config, section), field_name) if dot else getattr(config, name)

    return {name: value(name) for name in _KNOWN}


def plain(value: object) -> Plain:
    """A setting's value as JSON has it."""
    match value:
        case Enum():
            return value.name.lower()
        case None | bool() | int() | float():
            return value
        case tuple():
            return list(map(str, value))
        case _:
            return str(value)


def known_settings() -> dict[str, object]:
    """Every setting's name and type, as annotated."""
    return dict(_KNOWN)


def variable_of(name: str) -> str:
    """The environment variable of a setting."""
    return ENVIRONMENT_PREFIX + name.replace(".", "_").upper()


def _settings_of(cls: type, prefix: str, derived: frozenset[str]) -> dict[str, object]:
    hints = get_type_hints(cls)
    return {prefix + item.name: hints[item.name] for item in fields(cls) if item.name not in derived}


SECTIONS = frozenset(("store", "timer", "auth", "tls", "kafka", "registry", "cluster", "limits"))

_KNOWN: dict[str, object] = {
    **_settings_of(GatewayConfig, "", SECTIONS | {"sources"}),
    **_settings_of(StoreConfig, "store.", frozenset(("root",))),
    **_settings_of(TimerConfig, "timer.", frozenset(("root",))),
    **_settings_of(AuthConfig, "auth.", frozenset(("data",))),
    **_settings_of(TlsConfig, "tls.", frozenset()),
    **_settings_of(KafkaConfig, "kafka.", frozenset()),
    **_settings_of(RegistryConfig, "registry.", frozenset()),
    **_settings_of(ClusterConfig, "cluster.", frozenset()),
    **_settings_of(Limits, "limits.", frozenset(("delay_ms_max",))),
}


def _known(name: str, source: str) -> object:
    try:
        return _KNOWN[name]
    except KeyError:
        meant = get_close_matches(name, _KNOWN, n=1)
        raise ConfigError(f"unknown {source}: {name}{f' (did you mean {meant[0]}?)' if meant else ''}") from None


def _from_toml(file: Path) -> Settings:
    try:
        document = parse_toml(read_file(file, SETTINGS_BYTES_MAX, may_be_pipe=True).decode())
    except (OSError, ValueError) as error:
        raise ConfigError(f"{file}: {error}") from error
    settings: Settings = {}
    for name, value in document.items():
        if isinstance(value, dict):
            if name not in SECTIONS:
                _known(name, f"section in {file}")
                raise ConfigError(f"{file}: {name} is a setting, not a section")
            settings.update({f"{name}.{key}": inner for key, inner in value.items()})
        else:
            settings[name] = value
    for name in settings:
        _known(name, f"setting in {file}")
    return settings


def _from_environment(environment: Mapping[str, str]) -> dict[str, Given]:
    by_variable = {variable_of(name): name for name in _KNOWN}
    settings: dict[str, Given] = {}
    for variable, value in environment.items():
        if variable.startswith(ENVIRONMENT_PREFIX) and variable not in CLIENT_VARIABLES:
            if variable not in by_variable:
                meant = get_close_matches(variable, by_variable, n=1)
                hint = f" (did you mean {meant[0]}?)" if meant else ""
                raise ConfigError(f"unknown environment variable: {variable}{hint}")
            settings[by_variable[variable]] = Given(value, variable)
    return settings


def _converted(name: str, value: object, kind: object) -> object:
    """The value in the setting's type. Strings, as the environment has them, are read; other types must fit."""
    if get_origin(kind) is UnionType or type(None) in get_args(kind):
        kind = next(choice for choice in get_args(kind) if choice is not type(None))
    try:
        return _convert(value, kind)
    except (ValueError, KeyError) as error:
        wanted = getattr(kind, "__name__", str(kind))
        shown = repr(value)
        if len(shown) > _SHOWN_CHARS_MAX:
            shown = f"{shown[:_SHOWN_CHARS_MAX]}…"
        raise ConfigError(f"{name}: {shown} is not a legal {wanted}") from error


def _convert(value: object, kind: object) -> object:
    converted = _read_value(value, kind)
    if isinstance(converted, int) and not 0 <= converted <= INTEGER_MAX:
        raise ValueError
    return converted


def _read_value(value: object, kind: object) -> object:
    if get_origin(kind) is Literal:
        if value not in get_args(kind):
            raise ValueError
        return value
    if get_origin(kind) is tuple:
        items = value.split(",") if isinstance(value, str) else value
        if not isinstance(items, list | tuple):
            raise ValueError
        return tuple(str(item).strip() for item in items)
    if not isinstance(kind, type):
        raise ValueError
    if isinstance(value, kind) and not (kind is int and isinstance(value, bool)):
        return value
    if isinstance(value, str):
        if kind is Path:
            if not value or "\0" in value:
                raise ValueError
            return Path(value)
        if kind is bool:
            return {"true": True, "1": True, "false": False, "0": False}[value.lower()]
        if kind is int:
            return int(value)
        if issubclass(kind, Enum):
            return kind[value.upper()]
    raise ValueError


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_origin_text(text: str) -> None:
    """Raises ValueError for a setting that is no origin as browsers write it, and so would never match."""
    if text == ANY:
        return
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc:
        raise ValueError(f"{text!r} is no origin such as https://app.example.org")
    if text != (written := f"{parts.scheme}://{parts.netloc.lower()}"):
        raise ValueError(f"{text!r}: write {written!r}")
