"""The users of a server and their checks, for Locust: every kind of user, a steady number of them.

    locust -f loadtest/locustfile.py --headless -u 20 -r 10 -t 30s --host http://127.0.0.1:8082

What they do and what is checked: loadtest/load/. Other mixtures and shapes: loadtest/profiles/. How to: docs/load.md.
"""

from loadtest.load import events as events
from loadtest.load.groups import QueueConsumer, StreamConsumer
from loadtest.load.readers import LongPoller, SocketReader
from loadtest.load.senders import BatchSender, DelayedSender, SingleSender

__all__ = [
    "BatchSender",
    "DelayedSender",
    "LongPoller",
    "QueueConsumer",
    "SingleSender",
    "SocketReader",
    "StreamConsumer",
]
