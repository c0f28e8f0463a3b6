"""The log store: one commit log, consume queues as its index. Knows nothing of HTTP, groups or delays.

Store, StoreConfig     open a data directory, append, read      store/store.py, store/config.py
types, errors          the words everything above speaks        store/types.py, store/errors.py
"""

from store.config import StoreConfig
from store.store import Store

__all__ = ["Store", "StoreConfig"]
