"""`import mq.celery` lets Celery (and kombu) use `mq://` and `mqs://` URLs; docs/celery.md is the guide.

import mq.celery
app = Celery("shop", broker="mq://127.0.0.1:8082", backend="rpc://")
"""

from __future__ import annotations

from typing import Any

from kombu.transport import TRANSPORT_ALIASES

TRANSPORT_ALIASES.update({"mq": "mq.kombu:Transport", "mqs": "mq.kombu:SecureTransport"})


def revoke(app: Any, task_id: str, *, queue: str | None = None, **options: Any) -> bool:
    """Revoke a task, wherever it is. True: it waited for its ETA and will never be delivered, whatever workers do; this
    is durable. False: it was not waiting; workers have been told to skip it, as `app.control.revoke` does, with its
    `options` (`terminate`, `signal`).

    `queue`: where it was sent to; without it, all queues that the app knows are asked. Other queues are not."""
    names = [queue] if queue is not None else list(app.amqp.queues)
    with app.connection_for_write() as connection:
        channel = connection.default_channel
        for name in names:
            if channel.cancel_delayed(name, task_id):
                return True
    app.control.revoke(task_id, **options)
    return False
