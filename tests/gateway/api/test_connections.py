"""gateway/api/connections.py"""

from __future__ import annotations

from gateway.api.connections import Connections


class One:
    kind, principal, peer = "http", None, "127.0.0.1:1"

    def __init__(self) -> None:
        self.is_ended = False

    def end(self) -> None:
        self.is_ended = True


def test_connections_have_names_that_no_other_gets() -> None:
    connections, first, second = Connections(), One(), One()
    connections.opened(first, 10)
    connections.opened(second, 20)
    assert list(connections.all()) == [("c1", first, 10), ("c2", second, 20)]
    connections.closed(first)
    connections.closed(first)
    connections.opened(first, 30)
    assert [name for name, _, _ in connections.all()] == ["c2", "c3"]
    assert connections.end("c1") is False
    assert connections.end("c3") is True
    assert (first.is_ended, second.is_ended, len(connections)) == (True, False, 2)
