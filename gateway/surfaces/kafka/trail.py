"""A line in the trail for each act of a Kafka client that administers, as by HTTP."""

from __future__ import annotations

from gateway.api.trail_files import Act
from gateway.surfaces.kafka.session import Session


async def record(session: Session, action: str, what: dict[str, str], code: int, **details: object) -> None:
    """Say what was done, or refused with an error code, and wait as long as the answer may wait for the disk. Of what
    was refused only names are kept."""
    if session.gateway.trail is None:
        return
    access = session.access
    act = Act(
        action=action,
        principal=access.principal,
        token_id=access.token_id,
        object=what,
        details={} if code else details,
        address=session.address,
        outcome="refused" if code else "done",
        error_code=code or None,
    )
    await session.gateway.trail.recorded(act)
