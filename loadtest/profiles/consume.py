"""Few senders of batches and many consumers of every kind: one record in, many out."""

from loadtest.load import events as events
from loadtest.load import groups, readers, senders


class BatchSender(senders.BatchSender):
    """One in nine users."""

    weight = 1


class LongPoller(readers.LongPoller):
    """HTTP."""

    weight = 2


class SocketReader(readers.SocketReader):
    """Without a group."""

    weight = 2


class StreamConsumer(groups.StreamConsumer):
    """Members of one group."""

    weight = 2


class QueueConsumer(groups.QueueConsumer):
    """Leases of another."""

    weight = 2
