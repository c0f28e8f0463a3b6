"""gateway/auth/address.py"""

from __future__ import annotations

import pytest

from gateway.auth.address import IPV6_NETWORK_BITS, counted_as


@pytest.mark.parametrize(
    ("address", "counted"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("", ""),
        ("/run/mq.sock", "/run/mq.sock"),
    ],
)
def test_callers_are_counted_by_what_they_can_change(address: str, counted: str) -> None:
    assert counted_as(address) == counted
    assert IPV6_NETWORK_BITS == 64
