"""gateway/surfaces/kafka/messages.json out of Apache Kafka's own message definitions, which kafka-python ships.

    python -m tests.gateway.surfaces.kafka.definitions > gateway/surfaces/kafka/messages.json

A test compares the two. Only what a server needs is kept: the layout, version by version. Tagged fields are left out:
the server reads past them and sends none, because librdkafka before 2.2 cannot skip them.
"""

from __future__ import annotations

import json
import re
import sys
from importlib.resources import files
from typing import Any

APIS = (
    "ListOffsets", "Metadata", "OffsetCommit", "OffsetFetch", "FindCoordinator", "JoinGroup", "Heartbeat", "LeaveGroup",
    "SyncGroup", "DescribeGroups", "ListGroups", "SaslHandshake", "ApiVersions", "CreateTopics", "DeleteTopics",
    "DeleteRecords", "InitProducerId", "OffsetForLeaderEpoch", "DescribeConfigs", "AlterConfigs", "SaslAuthenticate",
    "CreatePartitions", "DeleteGroups", "IncrementalAlterConfigs", "DescribeCluster", "OffsetDelete", "DescribeAcls",
    "CreateAcls", "DeleteAcls",
)  # fmt: skip
SUBSCRIPTION, ASSIGNMENT = "ConsumerProtocolSubscription", "ConsumerProtocolAssignment"

VERSION_MAX = 32767


def _definition(name: str) -> dict[str, Any]:
    where = "kafka.protocol.schemas.resources"
    text = (files(where) / f"{name}.json").read_text()
    return dict(json.loads(re.sub(r"^\s*//.*$", "", text, flags=re.MULTILINE)))


def _range(text: str | None) -> list[int] | None:
    """The versions that a definition's text names; None: no version."""
    if text is None or text == "none":
        return None
    low, _, high = text.partition("-")
    if text.endswith("+"):
        return [int(text[:-1]), VERSION_MAX]
    return [int(low), int(high or low)]


def _name(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()


def _fields(fields: list[dict[str, Any]], common: dict[str, Any]) -> list[list[Any]]:
    """Each field as [name, type, versions, versions in which it may be null, default, fields of a struct]."""
    found = []
    for field in fields:
        if field.get("taggedVersions") is not None or _range(field["versions"]) is None:
            continue
        kind = field["type"]
        inner = field.get("fields") or common.get(kind.removeprefix("[]"))
        if inner is not None:
            kind = "[]struct" if kind.startswith("[]") else "struct"
        found.append(
            [
                _name(field["name"]),
                kind,
                _range(field["versions"]),
                _range(field.get("nullableVersions")),
                field.get("default"),
                None if inner is None else _fields(inner, common),
            ]
        )
    return found


def message_definition(name: str) -> dict[str, Any]:
    """The layout of a message, as it stands in messages.json."""
    definition = _definition(name)
    common = {struct["name"]: struct["fields"] for struct in definition.get("commonStructs", ())}
    flexible = _range(definition["flexibleVersions"])
    return {
        "versions": _range(definition["validVersions"]),
        "flexible": VERSION_MAX if flexible is None else flexible[0],
        "fields": _fields(definition["fields"], common),
    }


def generated() -> str:
    """The text of messages.json: one line a message."""
    messages = {f"{api}{kind}": message_definition(f"{api}{kind}") for api in APIS for kind in ("Request", "Response")}
    messages |= {name: message_definition(name) for name in (SUBSCRIPTION, ASSIGNMENT)}
    lines = [f"{json.dumps(name)}: {json.dumps(message, separators=(',', ':'))}" for name, message in messages.items()]
    return "{\n" + ",\n".join(lines) + "\n}\n"


if __name__ == "__main__":
    sys.stdout.write(generated())
