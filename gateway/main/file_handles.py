"""File handles: as many as the system allows, and how many of them connections may take.

A connection is a handle, and so is a file of the log. If strangers could take the last one, nothing could be stored: so
what connections may have is bounded by what the process has, less what the store and the timer need.
"""

from __future__ import annotations

import logging
import resource
from dataclasses import replace

from gateway.settings.config import GatewayConfig
from gateway.settings.limits import Limits

log = logging.getLogger(__name__)

RESERVED_MAX = 4096
"""Handles that are not for connections, where there are many; where there are few, half of them."""

ADDRESS_SHARE = 3
"""One address has at most one of so many of the connections, where these had to be bounded."""

_MANY = 1 << 20  # where the system sets no limit


def raised_limit() -> int:
    """Raise the limit of this process as far as the system lets it; return it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MANY if hard == resource.RLIM_INFINITY else hard
    if soft != resource.RLIM_INFINITY and soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (ValueError, OSError) as error:
            log.warning("the limit of file handles cannot be raised from=%d to=%d error=%s", soft, wanted, error)
        else:
            soft = wanted
    return _MANY if soft == resource.RLIM_INFINITY else soft


def bounded(limits: Limits, handle_limit: int) -> Limits:
    """The limits of a server whose process may have so many files and sockets open."""
    connections = max(1, handle_limit - min(RESERVED_MAX, handle_limit // 2))
    if connections >= limits.connections_max:
        return limits
    of_address = limits.connections_per_address_max
    return replace(
        limits,
        connections_max=connections,
        connections_per_address_max=min(of_address, max(1, connections // ADDRESS_SHARE)),
    )


def within_handles(config: GatewayConfig) -> GatewayConfig:
    """The configuration with the limits that hold in this process, whose limit of handles is raised for it."""
    handle_limit = raised_limit()
    limits = bounded(config.limits, handle_limit)
    if limits is not config.limits:
        log.warning(
            "few file handles, so fewer connections handles=%d connections_max=%d instead_of=%d",
            handle_limit, limits.connections_max, config.limits.connections_max,
        )  # fmt: skip
    return replace(config, limits=limits)
