"""What is shown of callers and of the server itself: rights, figures, alarms."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from gateway.api.shapes.answers import Answer, Count, ListPage, TimeMs
from gateway.api.shapes.base import NextOffset, PartitionNumber, one_of
from gateway.api.shapes.schema import Part
from gateway.cluster.mover import Step

SHOWN_SCOPES_MAX = 1000
"""Scopes that are shown of one caller: those allowed, and as many of those denied."""

# Who asks


class ShownScope(Part):
    """What may be done to what: a name, or a prefix and "*"."""

    permissions: list[str]
    kind: Annotated[
        Literal["topic", "group"] | None, Meta(description="null: topics, groups, and the server where it says so.")
    ]
    pattern: str


class Me(Answer):
    """Who the caller is, and what it may do."""

    principal: str
    token_id: Annotated[str | None, Meta(description="null: it came with no token of this server's file.")]
    expires_ms: TimeMs | None
    is_authenticated: Annotated[bool, Meta(description="false: authentication is disabled on this server.")]
    allow: Annotated[list[ShownScope], Meta(max_length=SHOWN_SCOPES_MAX)]
    deny: Annotated[list[ShownScope], Meta(max_length=SHOWN_SCOPES_MAX, description="Wins over what is allowed.")]
    is_whole: Annotated[bool, Meta(description="false: there are more scopes than are shown.")]


# What runs through the server


Figure = Annotated[float | None, Meta(description="null: not measured.")]


class Figures(Part):
    """Rates of the last second, and what there is now."""

    in_records_s: Figure
    in_bytes_s: Figure
    out_records_s: Figure
    out_bytes_s: Figure
    requests_s: Figure
    lag: Annotated[int | None, Meta(description="Records that groups have before them, some seconds ago.")]
    pending: Annotated[int | None, Meta(description="Delayed records that are to come.")]
    topics: int | None
    partitions: int | None
    groups: int | None
    disk_free_bytes: int | None
    disk_total_bytes: int | None
    log_bytes: int | None
    rss_bytes: Annotated[int | None, Meta(description="Memory of the process.")]
    loop_p99_ms: Annotated[float | None, Meta(description="How late 99 of 100 turns of the event loop were at most.")]
    connections: int | None
    sockets: int | None


class Alarm(Part):
    """What is wrong."""

    code: Annotated[str, Meta(description="It stays, whatever the words become.", examples=["disk_full"])]
    severity: Annotated[Literal["error", "warning"], one_of("error", "warning")]
    since_ms: TimeMs
    message: str
    help: Annotated[str, Meta(description="What to do.")]
    group: Annotated[str | None, Meta(description="In which group, if it is one's.")]


class StatsNow(Answer):
    """What runs through the server now, and what is wrong."""

    time_ms: Annotated[int, Meta(ge=0, description="When it was looked.")]
    now: Figures
    alarms: list[Alarm]


class Stats(StatsNow):
    """The same over time."""

    step_ms: Annotated[int, Meta(ge=1, description="How far apart points are.")]
    end_ms: Annotated[int, Meta(ge=0, description="The time of the last point.")]
    series: Annotated[
        dict[str, list[float | None]], Meta(description="By name, the oldest point first, all of one length.")
    ]


# Who may come in


class Token(Answer):
    """What is kept of a token."""

    id: str
    principal: str
    scopes: list[str]
    created_ms: TimeMs
    expires_ms: Annotated[int | None, Meta(description="null: it does not expire.")]


class NewToken(Token, kw_only=True):
    """A token that was made."""

    token: Annotated[str, Meta(description="It is shown this once.")]


class TokenPage(ListPage):
    """A page of tokens, the newest first."""

    tokens: list[Token]


class ShownRule(Part):
    """A rule: what a principal may do beyond the scopes of its token, and what it may not."""

    principal: str
    allow: list[str]
    deny: list[str]


class Rules(Answer):
    """All rules, in the order of the file."""

    rules: list[ShownRule]


# Who is here


class ShownConnection(Part):
    """An open connection."""

    connection: Annotated[str, Meta(description="Its name, to end it by.")]
    kind: Annotated[str, Meta(description="What is spoken on it: http, websocket or kafka.")]
    principal: Annotated[str | None, Meta(description="Of the last request on it.")]
    address: Annotated[str, Meta(description="With its port.")]
    since_ms: TimeMs


class ConnectionPage(ListPage):
    """A page of connections."""

    connections: list[ShownConnection]


class ShownSession(Part):
    """A session of a socket."""

    session: Annotated[str, Meta(description="The beginning of its name, to end it by.")]
    principal: str
    address: str
    since_ms: TimeMs
    state: Annotated[Literal["open", "waiting"], one_of("open", "waiting", said="`waiting`: its connection is lost.")]
    subscriptions: Count
    groups: list[str]


class SessionPage(ListPage):
    """A page of sessions."""

    sessions: list[ShownSession]


class ShownSetting(Part):
    """A setting."""

    name: str
    value: str | int | float | bool | list[str] | None
    default: Annotated[str | int | float | bool | list[str] | None, Meta(description="null: there is none.")]
    source: Annotated[str, Meta(description="`default`, `flag`, a variable, or a file.")]
    description: str


class Settings(Answer):
    """All settings."""

    settings: list[ShownSetting]


# Where partitions are


BrokerState = Literal["up", "avoided", "stopped", "offline", "draining", "drained"]


class ShownBroker(Answer):
    """A broker."""

    broker: str
    kind: Annotated[
        Literal["embedded", "peer", "kafka"],
        one_of(
            "embedded",
            "peer",
            "kafka",
            said="`embedded`: the store of this node. `peer`: that of another one. `kafka`: a Kafka cluster; "
            "counted are the partitions there that this node appends to.",
        ),
    ]
    state: Annotated[
        BrokerState,
        one_of(
            "up",
            "avoided",
            "stopped",
            "offline",
            "draining",
            "drained",
            said="`avoided`: keyless records go elsewhere for a while; it was slow. `offline`: its node is not there. "
            "`draining`: its partitions and groups go to the others, and it takes none. `drained`: they have gone; it "
            "may be removed for good when it has no sealed segments either.",
        ),
    ]
    reasons: Annotated[list[str], Meta(description="Why it takes no records, or why partitions move off it, or to it.")]
    latency_ms: Annotated[float | None, Meta(description="Of sends lately, a moving mean; null: there was none.")]
    excluded_until_ms: Annotated[int | None, Meta(description="Until when it is avoided.")]
    partitions: Annotated[int, Meta(ge=0, description="Whose open segment is on it.")]
    sealed_segments: Annotated[
        int, Meta(ge=0, description="Older records of partitions, read from it until they expire.")
    ]
    groups: Annotated[int | None, Meta(description="Consumer groups that belong to its node; null: it is alone.")]
    on_kafka: Annotated[
        int | None,
        Meta(description="Partitions and shards on Kafka clusters that its node appends to; null: it is alone."),
    ]
    balancing: Annotated[bool, Meta(description="It takes its share of the partitions now.")]
    url: Annotated[str | None, Meta(description="Where clients reach its node; null: here.")]
    room: Annotated[str | None, Meta(description="The machine room that its node stands in.")]


class BrokerList(Answer):
    """All brokers."""

    brokers: list[ShownBroker]


class TakenOver(Answer):
    """What was taken over from a broker that is not there."""

    broker: str
    partitions: Annotated[int, Meta(ge=0, description="That are on other brokers now.")]
    groups: Annotated[list[str], Meta(description="That begin anew, on the node that was asked.")]


SegmentState = Literal["sealed", "open", "moving"]


class ShownSegment(Part):
    """A stretch of a partition, in its offsets."""

    broker: str
    first_offset: NextOffset
    end_offset: Annotated[NextOffset | None, Meta(description="Exclusive; null while it is open.")]
    state: Annotated[
        SegmentState,
        one_of("sealed", "open", "moving", said="`moving`: it is being sealed, and goes on at `moves_to`."),
    ]


class ShownRoute(Answer):
    """A partition."""

    topic: str
    partition: PartitionNumber
    owner: Annotated[str, Meta(description="The broker that takes its records.")]
    segments: Annotated[list[ShownSegment], Meta(min_length=1, description="In order; the last one is open.")]
    moves_to: Annotated[str | None, Meta(description="The broker that a move of it goes to; null: there is none.")]


class RoutePage(ListPage):
    """A page of partitions."""

    partitions: list[ShownRoute]


class ShownMove(Part):
    """A move that is under way."""

    topic: str
    partition: PartitionNumber
    source: Annotated[str, Meta(description="The broker that the partition is on.")]
    to: str
    step: Annotated[
        Step,
        one_of(
            "warm",
            "intent",
            "seal",
            "commit",
            said="`warm`: the target prepares. `intent`: the metadata is told. `seal`: the old broker takes no more. "
            "`commit`: the new one opens. From `seal` on sends wait. Of a move that another node makes: `seal`.",
        ),
    ]
    since_ms: TimeMs


class MovePage(ListPage):
    """Moves that are under way."""

    moves: list[ShownMove]


class PlannedMove(Part):
    """A move to make."""

    topic: str
    partition: PartitionNumber
    source: str
    to: str


class BrokerPlan(Answer):
    """The next moves to make."""

    moves: list[PlannedMove]
    total: Annotated[int, Meta(ge=0, description="How many there are to make in all.")]
