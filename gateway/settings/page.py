"""docs/configuration.md: every setting, its default and what it does. `make configuration` writes it, a test compares.

The words are the docstrings below the fields of the settings' dataclasses, so they stand where the defaults do.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from dataclasses import MISSING, fields
from enum import Enum
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Literal, NamedTuple, get_args, get_origin

from gateway.auth.config import AuthConfig
from gateway.settings.cluster import ClusterConfig
from gateway.settings.config import GatewayConfig, Plain, known_settings, plain, settings_of, variable_of
from gateway.settings.kafka import KafkaConfig
from gateway.settings.limits import Limits
from gateway.settings.registry import RegistryConfig
from gateway.settings.tls import TlsConfig
from store.config import StoreConfig
from store.limits import KiB, MiB
from timer.config import TimerConfig

_HEAD = """\
# Configuration

Every setting of `mq serve`. `make configuration` writes this page from the code.

A setting is given by a flag (`mq serve --help` has the common ones), an environment variable, or in a TOML file
(`mq serve --config FILE`); a flag goes before a variable, a variable before the file, the file before the default:

```toml
port = 8082

[store]
acks = "written"
```

An unknown name is refused wherever it stands. `mq config check` says whether a server would start with these settings,
`mq config show` where each value comes from. Times are in milliseconds, sizes in bytes; lists are separated by commas
in a variable. Secrets are never settings: settings name the files that hold them. What the command line takes as a
*client* is in [cli.md](cli.md).
"""

_SECTIONS: dict[str, tuple[type, str]] = {
    "": (GatewayConfig, "Server"),
    "store": (StoreConfig, "Store: `[store]`"),
    "timer": (TimerConfig, "Delayed records: `[timer]`"),
    "auth": (AuthConfig, "Authentication: `[auth]`"),
    "tls": (TlsConfig, "TLS: `[tls]`"),
    "kafka": (KafkaConfig, "Kafka clients: `[kafka]`"),
    "registry": (RegistryConfig, "A schema registry: `[registry]`"),
    "cluster": (ClusterConfig, "Several nodes: `[cluster]`"),
    "limits": (Limits, "Limits: `[limits]`"),
}

_UNITS_MS = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1000, "s"))
_UNITS_BYTES = ((1024 * MiB, "GiB"), (MiB, "MiB"), (KiB, "KiB"))


def configuration_page() -> str:
    """The page."""
    return "".join([_HEAD, *(_section(name, cls, title) for name, (cls, title) in _SECTIONS.items())])


class Described(NamedTuple):
    """A setting of one server, in words of JSON."""

    name: str
    value: Plain
    default: Plain
    source: str
    description: str


def described(config: GatewayConfig) -> list[Described]:
    """All settings: what each is, its default, where it comes from, and what it does."""
    values = settings_of(config)
    rows: list[Described] = []
    for section, (cls, _) in _SECTIONS.items():
        words = words_of(cls)
        for one in fields(cls):
            name = f"{section}.{one.name}" if section else one.name
            if name in values:
                default = None if one.default is MISSING else plain(one.default)
                source = config.sources.get(name, "default")
                rows.append(Described(name, plain(values[name]), default, source, words.get(one.name, "")))
    return rows


@cache
def words_of(cls: type) -> dict[str, str]:
    """The docstring below each field of a dataclass, as one line."""
    found: dict[str, str] = {}
    (node,) = ast.parse(inspect.getsource(cls)).body
    assert isinstance(node, ast.ClassDef)
    for field, after in zip(node.body, node.body[1:], strict=False):
        match field, after:
            case ast.AnnAssign(target=ast.Name(name)), ast.Expr(ast.Constant(str(text))):
                found[name] = " ".join(text.split())
            case _:
                pass
    return found


def _section(section: str, cls: type, title: str) -> str:
    words = words_of(cls)
    rows = "".join(
        f"| `{name}` | `{variable_of(name)}` | {default} | {kind} | {words.get(name.rpartition('.')[2], '')} |\n"
        for name, default, kind in _settings(section, cls)
    )
    return f"\n## {title}\n\n| setting | variable | default | | |\n|---|---|---|---|---|\n{rows}"


def _settings(section: str, cls: type) -> Iterator[tuple[str, str, str]]:
    """Name, default and type of each setting of a section."""
    known = known_settings()
    for field in fields(cls):
        name = f"{section}.{field.name}" if section else field.name
        if name in known:
            required = field.default is MISSING and field.default_factory is MISSING
            yield name, "required" if required else _shown(field.name, field.default), _kind(known[name])


def _shown(name: str, value: object) -> str:
    match value:
        case None | ():
            return "none"
        case bool():
            return f"`{str(value).lower()}`"
        case Enum():
            return f"`{value.name.lower()}`"
        case int():
            units = _UNITS_MS if "_ms" in name else _UNITS_BYTES if "_bytes" in name else ()
            for size, unit in units:
                if value and value % size == 0:
                    return f"{value} ({value // size:,} {unit})"
            return str(value)
        case _:
            return f"`{value}`"


def _kind(kind: object) -> str:
    if get_origin(kind) is UnionType or type(None) in get_args(kind):
        kind = next(choice for choice in get_args(kind) if choice is not type(None))
    if get_origin(kind) is Literal:
        return ", ".join(f"`{choice}`" for choice in get_args(kind))
    if get_origin(kind) is tuple:
        return "list"
    assert isinstance(kind, type)
    if issubclass(kind, Enum):
        return ", ".join(f"`{choice.name.lower()}`" for choice in kind)
    return {bool: "`true`, `false`", int: "number", str: "text", Path: "path"}[kind]


if __name__ == "__main__":  # `make configuration`
    print(configuration_page(), end="")
