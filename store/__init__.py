"""The log store: one commit log, consume queues as its index. Knows nothing of HTTP, groups or delays.

Store, StoreConfig     open a data directory, append, read      store/store.py, store/config.py
types, errors          the words everything above speaks        store/types.py, store/errors.py
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from store.config import StoreConfig
    from store.store import Store

__all__ = ["Store", "StoreConfig"]


def __getattr__(name: str) -> object:
    # Loaded when asked for: a client command needs the store's errors and types, and not 0.2 s of the rest.
    if name == "Store":
        from store.store import Store

        return Store
    if name == "StoreConfig":
        from store.config import StoreConfig

        return StoreConfig
    raise AttributeError(name)
