"""kombu's transport for mq, with which Celery apps run unchanged: docs/celery.md.

messages    how queues and messages of kombu are named and written here; pure
link        one connection to a server for all of a process; what is taken from queues and who is told
transport   what kombu asks for: Transport, Channel, QoS
"""

from mq.kombu.transport import Channel, SecureTransport, Transport

__all__ = ["Channel", "SecureTransport", "Transport"]
