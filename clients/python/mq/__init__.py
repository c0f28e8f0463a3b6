"""The Python client of mq: send, read, share out, work off, delay. docs/python.md is the guide.

async with mq.connect("http://127.0.0.1:8082") as client:
    receipt = await client.send("orders", {"sku": 9}, key="u1")
    async for message in client.read("orders", start="earliest"):
        print(message.offset, message.value)
"""

from mq.client import Client, Group, connect
from mq.errors import Closed, ConnectionLost, LeaseLost, MqError, QueueFull, Refused, Reject, Retry, Undecodable
from mq.message import Message, Receipt
from mq.middleware import Outgoing
from mq.queue import Queue
from mq.read import Reader
from mq.record import Record
from mq.record_batch import RawBatch, RawRecord
from mq.recurring import Recurring
from mq.schedules import Schedule
from mq.stream import Stream
from mq.worker import Worker, worker

__all__ = [
    "Client", "Closed", "ConnectionLost", "Group", "LeaseLost", "Message", "MqError", "Outgoing", "Queue", "QueueFull",
    "RawBatch", "RawRecord", "Reader", "Receipt", "Record", "Recurring", "Refused", "Reject", "Retry", "Schedule",
    "Stream", "Undecodable", "Worker", "connect", "worker",
]  # fmt: skip
