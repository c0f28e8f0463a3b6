"""gateway/main/admin.py"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from gateway.cluster.metadata import Unavailable
from gateway.main.admin import LocalAdmin
from gateway.main.no_store import NoStore
from gateway.routing.table import RouteTable
from gateway.settings.limits import Limits
from store.config import StoreConfig
from store.errors import Overloaded


async def test_a_topic_that_the_metadata_cannot_make_now_is_refused_as_by_a_store(tmp_path: Path) -> None:
    """Groups wait for a store. Another error ended the node while its metadata was away."""

    async def create_topic(*_: object, **choices: object) -> None:
        raise Unavailable("no endpoint answers")

    admin = LocalAdmin(NoStore(StoreConfig(root=tmp_path)), None, Limits(), RouteTable(), is_node=True)
    admin.topics = SimpleNamespace(create_topic=create_topic)  # type: ignore[assignment]
    with pytest.raises(Overloaded, match="%DLQ%g cannot be made now: no endpoint answers"):
        await admin.create_own_topic("%DLQ%g", 1)
