"""Senders alone: single records, batches, delayed ones. What the audit reads afterwards is all that is read."""

from loadtest.load import events as events
from loadtest.load.senders import BatchSender, DelayedSender, SingleSender

__all__ = ["BatchSender", "DelayedSender", "SingleSender"]
