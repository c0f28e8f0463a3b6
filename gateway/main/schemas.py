"""The schemas of a server's registry, when there is one and the libraries are installed that read them."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from importlib.util import find_spec

from gateway.api.schemas import Schemas
from gateway.schemas.service import opened
from gateway.settings.config import ConfigError
from gateway.settings.registry import RegistryConfig

log = logging.getLogger(__name__)

LIBRARIES = ("fastavro", "jsonschema_rs", "google.protobuf", "grpc_tools")
"""What `pip install 'mq-gateway[registry]'` brings; only the processes that convert values load it."""


@asynccontextmanager
async def opened_schemas(config: RegistryConfig) -> AsyncIterator[Schemas | None]:
    """None where no registry is set, or, with a line in the log, a library is missing. Raises ConfigError for files
    that cannot be used."""
    missing = [] if config.url is None else [name for name in LIBRARIES if not _is_there(name)]
    if missing:
        log.warning(
            "registry.url is set, but %s is not installed, and schema formats are refused: "
            "pip install 'mq-gateway[registry]'", ", ".join(missing),
        )  # fmt: skip
    if config.url is None or missing:
        yield None
        return
    async with AsyncExitStack() as parts:
        try:
            schemas = await parts.enter_async_context(opened(config))
        except (OSError, ValueError) as error:
            raise ConfigError(f"registry.ca_file: {error}") from error
        yield schemas


def _is_there(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:  # of the package that it is in
        return False
