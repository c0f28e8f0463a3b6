"""What a user may choose: names as in Spark's Kafka source and sink wherever the meaning is the same.

Names are case-insensitive, as everywhere in Spark, and every value is a string. A name that is not in `NAMES`, or a
value that does not parse, is an OptionError that says what is valid: an option that is silently ignored would be
a wrong result later. `docs/spark.md` explains each.
"""

from __future__ import annotations

import json
import re
import ssl
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit

from pyspark_mq.client import REQUEST_TIMEOUT_MS, RETRY_TIMEOUT_MS, Endpoint
from pyspark_mq.errors import OptionError
from pyspark_mq.identity import EPOCH_MAX, WRITE_ID_CHARS_MAX, is_write_id
from pyspark_mq.offsets import (
    EARLIEST,
    LATEST,
    RECORDS_PER_TASK_MAX,
    RECORDS_PER_TASK_MIN,
    Assign,
    AtTime,
    AtTimes,
    Earliest,
    Edge,
    Exact,
    Latest,
    Selection,
    Split,
    Subscribe,
    SubscribePattern,
)

T = TypeVar("T")

CONNECTION_NAMES = ("url", "token", "caFile", "requestTimeoutMs", "retryTimeoutMs")

NAMES = (
    *CONNECTION_NAMES,
    "subscribe",
    "subscribePattern",
    "assign",
    "startingOffsets",
    "startingTimestamp",
    "startingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "endingOffsets",
    "endingTimestamp",
    "endingOffsetsByTimestamp",
    "failOnDataLoss",
    "includeHeaders",
    "columns",
    "minPartitions",
    "maxRecordsPerPartition",
    "minRecordsPerPartition",
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "fetchBytes",
    "groupId",
    "valueFormat",
    "mode",
)
"""Options of reads."""

WRITE_NAMES = (*CONNECTION_NAMES, "topic", "includeHeaders", "writeId", "writeEpoch", "sortRows")
"""Options of writes."""

ALIASES = {
    "mq.url": "url",
    "kafkaConsumer.pollTimeoutMs": "requestTimeoutMs",
    "kafka.request.timeout.ms": "requestTimeoutMs",
    "kafka.group.id": "groupId",
}
"""Names of Spark's Kafka source for options that mean the same here."""

INSTEAD = {
    "kafka.bootstrap.servers": "url",
    "groupIdPrefix": "groupId",
    "fetchOffset.numRetries": "retryTimeoutMs",
    "fetchOffset.retryIntervalMs": "retryTimeoutMs",
    "kafka.security.protocol": "an https url and caFile",
    "kafka.sasl.jaas.config": "token",
    "kafka.isolation.level": "nothing (only what is durable is readable)",
}
"""Names of Spark's Kafka source for which there is something else here."""

SPARKS_OWN_NAMES = ("path", "queryname", "checkpointlocation")
"""What Spark hands over besides; `path` is the argument of `load` and `save`."""

KAFKA_COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")
"""Columns when nothing else is asked for; `includeHeaders` adds "headers"."""

EXTRA_COLUMNS = ("headers", "tag", "deliverAt", "scheduleId", "messageId")
"""Columns that must be asked for."""

MiB = 1024 * 1024
FETCH_BYTES = 4 * MiB
"""A request, its answer and some hundred calls of numpy and Arrow take 2 to 3 ms of a core, whatever the size. Beyond
4 MiB, what a larger one saves is lost again to memory that is not kept from one body to the next."""

FETCH_BYTES_MAX = 64 * MiB
TRIGGER_DELAY_MAX_MS = 15 * 60_000

_DELAY_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}


def check_names(given: Mapping[str, str]) -> None:
    """Raises OptionError for a name that is neither for reads nor for writes."""
    _Values(given, tuple(dict.fromkeys((*NAMES, *WRITE_NAMES))))


def is_about_reading(given: Mapping[str, str]) -> bool:
    """True when the options say what to read, and nothing about a write."""
    names = {name.lower() for name in given}
    to_write = {name.lower() for name in WRITE_NAMES} - {name.lower() for name in NAMES}
    return bool(names & {"subscribe", "subscribepattern", "assign"}) and not names & to_write


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Options of one `load()`, parsed and checked. `starting` is None when the user leaves it to the kind of read."""

    endpoint: Endpoint
    selection: Selection
    starting: Edge | None = None
    ending: Edge | None = None
    no_match_is_latest: bool = False
    fail_on_data_loss: bool = True
    columns: tuple[str, ...] = KAFKA_COLUMNS
    split: Split = field(default_factory=Split)
    records_per_trigger_max: int | None = None
    records_per_trigger_min: int | None = None
    trigger_delay_max_ms: int = TRIGGER_DELAY_MAX_MS
    fetch_bytes: int = FETCH_BYTES
    group: str | None = None
    json_values: bool = False
    fail_fast: bool = False

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> Options:
        """Check and parse the options of a reader. Raises OptionError."""
        values = _Values(given, NAMES)
        json_values = values.choice("valueFormat", ("binary", "json")) == "json"
        if json_values and (ours := values.given("columns", "includeHeaders")):
            raise OptionError(f"option {ours[0]} is not for valueFormat=json: there the schema names all columns")
        if values.given("mode") and not json_values:
            raise OptionError("option mode is for valueFormat=json: it says what becomes of values that do not fit")
        return cls(
            endpoint=_endpoint(values),
            selection=_selection(values),
            starting=_edge(values, "starting"),
            ending=_edge(values, "ending"),
            no_match_is_latest=values.choice("startingOffsetsByTimestampStrategy", ("error", "latest")) == "latest",
            fail_on_data_loss=values.flag("failOnDataLoss", default=True),
            columns=_columns(values),
            split=Split(
                tasks_min=values.count("minPartitions"),
                records_max=values.count("maxRecordsPerPartition") or RECORDS_PER_TASK_MAX,
                records_min=values.count("minRecordsPerPartition") or RECORDS_PER_TASK_MIN,
            ),
            records_per_trigger_max=values.count("maxOffsetsPerTrigger"),
            records_per_trigger_min=values.count("minOffsetsPerTrigger"),
            trigger_delay_max_ms=values.parsed("maxTriggerDelay", _duration_ms) or TRIGGER_DELAY_MAX_MS,
            fetch_bytes=min(values.count("fetchBytes") or FETCH_BYTES, FETCH_BYTES_MAX),
            group=values.get("groupId"),
            json_values=json_values,
            fail_fast=values.choice("mode", ("permissive", "failfast")) == "failfast",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """Options of one `save()` or `start()`, parsed and checked."""

    endpoint: Endpoint
    topic: str | None = None
    """For all rows; None: the rows have a column of that name."""

    write_id: str | None = None
    """What the user calls this write, so that a later run of it is a repeat."""

    write_epoch: int = 0
    sort_rows: bool = False
    include_headers: bool = True

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> WriteOptions:
        """Check and parse the options of a writer. Raises OptionError."""
        values = _Values(given, WRITE_NAMES)
        options = cls(
            endpoint=_endpoint(values),
            topic=values.get("topic") or values.get("path"),
            write_id=values.parsed("writeId", _write_id),
            write_epoch=values.parsed("writeEpoch", _epoch) or 0,
            sort_rows=values.flag("sortRows", default=False),
            include_headers=values.flag("includeHeaders", default=True),
        )
        if values.given("writeEpoch") and options.write_id is None:
            raise OptionError("option writeEpoch counts the writes of a writeId: give that one too")
        return options


class _Values:
    """The raw values by option name, and how to parse them with a good message."""

    def __init__(self, given: Mapping[str, str], legal: Sequence[str]) -> None:
        names = {name.lower(): name for name in (*legal, *SPARKS_OWN_NAMES)}
        names |= {alias.lower(): name for alias, name in ALIASES.items() if name in legal}
        unknown = sorted(name for name in given if name.lower() not in names)
        if unknown:
            instead = {name.lower(): f" (use {other})" for name, other in INSTEAD.items()}
            said = ", ".join(f"{name!r}{instead.get(name.lower(), '')}" for name in unknown)
            raise OptionError(f"unknown option {said}; the options are {', '.join(legal)}")
        self._values: dict[str, str] = {}
        for name, value in given.items():
            if self._values.setdefault(names[name.lower()], value) != value:
                raise OptionError(f"option {names[name.lower()]} is given twice, also as {name}")

    def get(self, name: str) -> str | None:
        return self._values.get(name)

    def given(self, *names: str) -> list[str]:
        """Those of the names that were given."""
        return [name for name in names if name in self._values]

    def parsed(self, name: str, parse: Callable[[str], T]) -> T | None:
        """The value parsed; None when it was not given. `parse` raises ValueError saying what is valid."""
        value = self._values.get(name)
        if value is None:
            return None
        try:
            return parse(value)
        except OptionError:
            raise
        except ValueError as error:
            raise OptionError(f"option {name}={value!r} is not legal: {error}") from error

    def count(self, name: str) -> int | None:
        return self.parsed(name, _positive)

    def flag(self, name: str, *, default: bool) -> bool:
        value = self.choice(name, ("true", "false"))
        return default if value is None else value == "true"

    def choice(self, name: str, legal: tuple[str, ...]) -> str | None:
        value = self._values.get(name)
        if value is None or value.lower() in legal:
            return None if value is None else value.lower()
        raise OptionError(f"option {name}={value!r} is not legal: it is one of {', '.join(legal)}")


def _positive(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number <= 0:
        raise ValueError("it is a whole number above 0")
    return number


def _duration_ms(text: str) -> int:
    """`500ms`, `30s`, `15m`, `1h`; a bare number counts milliseconds, as for Kafka."""
    match = re.fullmatch(r"\s*(\d+)\s*([a-z]*)\s*", text.lower())
    unit_ms = _DELAY_UNITS_MS.get(match[2] or "ms") if match else None
    if match is None or unit_ms is None:
        raise ValueError(f"it is a number and one of the units {', '.join(_DELAY_UNITS_MS)}, such as 15m")
    return int(match[1]) * unit_ms


def _endpoint(values: _Values) -> Endpoint:
    text = values.get("url")
    if text is None:
        raise OptionError("option url is missing: the base of the server, such as http://127.0.0.1:8082")
    urls = tuple(url.strip().rstrip("/") for url in text.split(",") if url.strip())
    for url in urls:
        try:
            parts = urlsplit(url)
            legal = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0 and not parts.query
        except ValueError:
            legal = False
        if not legal:
            raise OptionError(f"option url: {url!r} is not like http://host:port (several are separated by commas)")
    if not urls:
        raise OptionError("option url is empty")
    return Endpoint(
        urls=urls,
        token=values.get("token"),
        ca_pem=values.parsed("caFile", _ca),
        request_timeout_ms=values.count("requestTimeoutMs") or REQUEST_TIMEOUT_MS,
        retry_timeout_ms=values.count("retryTimeoutMs") or RETRY_TIMEOUT_MS,
    )


def _ca(path: str) -> str:
    """The text of a file of certificates, read here on the driver."""
    try:
        text = Path(path).read_text("ascii")
        ssl.create_default_context(cadata=text)
    except (OSError, UnicodeDecodeError, ssl.SSLError) as error:
        raise ValueError(f"it is a file with certificates in PEM, on the driver: {error}") from error
    return text


def _write_id(text: str) -> str:
    if not is_write_id(text):
        raise ValueError(f"it is 1 to {WRITE_ID_CHARS_MAX} visible ASCII characters, without quotes and backslashes")
    return text


def _epoch(text: str) -> int:
    if not text.strip().isdecimal() or int(text) > EPOCH_MAX:
        raise ValueError(f"it is a whole number from 0 to {EPOCH_MAX}")
    return int(text)


def _selection(values: _Values) -> Selection:
    chosen = values.given("subscribe", "subscribePattern", "assign")
    if not chosen and values.get("path"):
        return _subscribe(values.get("path") or "")
    if len(chosen) != 1:
        said = " and ".join(chosen) if chosen else "none of them"
        raise OptionError(f"give exactly one of subscribe, subscribePattern, assign; {said} was given")
    selection = (
        values.parsed("subscribe", _subscribe)
        or values.parsed("subscribePattern", _pattern)
        or values.parsed("assign", _assign)
    )
    assert selection is not None, "one of them was given"
    return selection


def _subscribe(text: str) -> Subscribe:
    topics = tuple(dict.fromkeys(topic.strip() for topic in text.split(",") if topic.strip()))
    if not topics:
        raise OptionError("option subscribe names no topic; it is a list such as orders,payments")
    return Subscribe(topics)


def _pattern(text: str) -> SubscribePattern:
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"it is a regular expression that the whole topic name matches: {error}") from error
    return SubscribePattern(text)


def _assign(text: str) -> Assign:
    shape = ValueError('it is JSON like {"orders":[0,1]}')
    document = _json(text, shape)
    assigned: dict[str, tuple[int, ...]] = {}
    for topic, partitions in document.items():
        if not isinstance(partitions, list) or not partitions or not all(map(_is_count, partitions)):
            raise shape
        assigned[topic] = tuple(sorted(set(partitions)))
    if not assigned:
        raise shape
    return Assign(assigned)


def _edge(values: _Values, edge: str) -> Edge | None:
    """Where to start or end; the three options that say so have this precedence."""
    at_time = values.parsed(f"{edge}Timestamp", _time)
    if at_time is not None:
        return at_time
    at_times = values.parsed(f"{edge}OffsetsByTimestamp", _times)
    if at_times is not None:
        return at_times
    return values.parsed(f"{edge}Offsets", _offsets)


def _time(text: str) -> AtTime:
    if not text.strip().isdecimal():
        raise ValueError("it is milliseconds since 1970 UTC")
    return AtTime(int(text))


def _times(text: str) -> AtTimes:
    return AtTimes(_by_partition(text, smallest=0, shape='it is JSON like {"orders":{"0":1700000000000}}, in ms'))


def _offsets(text: str) -> Edge:
    match text.strip().lower():
        case "earliest":
            return Earliest()
        case "latest":
            return Latest()
    shape = (
        'it is earliest, latest, or JSON like {"orders":{"0":100,"1":-2}} '
        f"({EARLIEST} stands for earliest, {LATEST} for latest)"
    )
    return Exact(_by_partition(text, smallest=EARLIEST, shape=shape))


def _by_partition(text: str, *, smallest: int, shape: str) -> dict[str, dict[int, int]]:
    document = _json(text, ValueError(shape))
    numbers: dict[str, dict[int, int]] = {}
    for topic, partitions in document.items():
        if topic.startswith("#"):  # epochs, when the JSON is the offset of a stream; see stream.py
            continue
        if not isinstance(partitions, dict) or not all(
            partition.isdecimal() and isinstance(number, int) and not isinstance(number, bool) and number >= smallest
            for partition, number in partitions.items()
        ):
            raise ValueError(shape)
        numbers[topic] = {int(partition): number for partition, number in partitions.items()}
    return numbers


def _json(text: str, error: ValueError) -> dict[str, object]:
    try:
        document = json.loads(text)
    except ValueError:
        raise error from None
    if not isinstance(document, dict):
        raise error
    return document


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _columns(values: _Values) -> tuple[str, ...]:
    include_headers = values.flag("includeHeaders", default=False)
    default = (*KAFKA_COLUMNS, "headers") if include_headers else KAFKA_COLUMNS
    return values.parsed("columns", parse_columns) or default


def parse_columns(text: str) -> tuple[str, ...]:
    """A comma-separated list of columns, in any case. Raises ValueError."""
    legal = {name.lower(): name for name in (*KAFKA_COLUMNS, *EXTRA_COLUMNS)}
    names = [name.strip().lower() for name in text.split(",") if name.strip()]
    if not names or len(set(names)) < len(names) or any(name not in legal for name in names):
        raise ValueError(f"it lists columns, each once, out of {', '.join(legal.values())}")
    return tuple(legal[name] for name in names)
