"""Whom a network address stands for, where callers are counted by address. Pure.

An IPv6 caller has 2**64 addresses of its own, so its network counts. What a proxy says about its clients
(X-Forwarded-For) is ignored: any client can send that.
"""

from __future__ import annotations

import ipaddress
from functools import lru_cache

IPV6_NETWORK_BITS = 64


@lru_cache(maxsize=4096)
def counted_as(address: str) -> str:
    """The address of an IPv4 caller, the /64 network of an IPv6 one, other texts as they are."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv4Address):
        return address
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(ipaddress.ip_network((parsed, IPV6_NETWORK_BITS), strict=False))
