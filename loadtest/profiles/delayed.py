"""Delayed records and those who wait for them: is every one on time?"""

from loadtest.load import events as events
from loadtest.load import readers, senders


class DelayedSender(senders.DelayedSender):
    """Four in five users."""

    weight = 4


class SocketReader(readers.SocketReader):
    """Sees when they come."""

    weight = 1
