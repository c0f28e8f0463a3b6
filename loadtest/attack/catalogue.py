"""All attacks, in the order in which one server meets them: what it remembers for longest comes last."""

from __future__ import annotations

from loadtest.attack import answers, bodies, connections, groups, kafka, names, remembered

ATTACKS = (
    *connections.ATTACKS,
    *bodies.ATTACKS,
    *names.ATTACKS,
    *answers.ATTACKS,
    *kafka.ATTACKS,
    *groups.ATTACKS,
    *remembered.ATTACKS,
)
