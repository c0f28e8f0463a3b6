"""What the requests of one connection share: who sends them, from where, and the parts of the server."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from gateway.auth.access import NOBODY, OPEN, Access, Permission
from gateway.settings.kafka import KafkaListener
from gateway.surfaces.http.admission import payer_of
from gateway.surfaces.http.context import Gateway
from gateway.surfaces.kafka.groups import KafkaGroups
from gateway.surfaces.kafka.produce import ProduceReader


@dataclass(slots=True)
class Session:
    """One connection, for its requests. `reached` is the address at which the client has found the server."""

    gateway: Gateway
    groups: KafkaGroups
    listener: str
    reached: KafkaListener
    address: str
    access: Access = OPEN
    mechanism: str | None = None
    """The SASL mechanism that was agreed on, and not used yet."""

    client_id: str = ""
    is_short_of_room: bool = False
    """There was no memory for the records of its last Fetch request."""

    reader: ProduceReader = field(default_factory=ProduceReader)
    on_access: Callable[[], None] = field(default=lambda: None)
    """Called when `access` has changed."""

    @property
    def is_known(self) -> bool:
        """Whether the client may send more than what says who it is."""
        return self.access is not NOBODY

    @property
    def payer(self) -> str:
        """Who is charged for what this client does."""
        return payer_of(self.access, self.address)

    @property
    def advertised(self) -> KafkaListener:
        """Where the client is to connect to."""
        return self.gateway.config.kafka.advertised_for(self.listener) or self.reached

    def may(self, permission: Permission, *, topic: str | None = None, group: str | None = None) -> bool:
        """Whether the client may do this."""
        return self.access.allows(permission, topic=topic, group=group)
