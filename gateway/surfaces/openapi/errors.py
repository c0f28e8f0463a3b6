"""What every error code means: the one table that the OpenAPI document and the docs page quote.

A code is the HTTP status, or five digits that begin with it. `docs/http.md` has the same codes for people; a test
compares both with the constants in the code.
"""

from __future__ import annotations

from collections.abc import Iterable

from gateway.surfaces.http.statuses import status_of

MEANINGS: dict[int, str] = {
    400: "Cannot be read: not HTTP, not JSON, a value of the wrong type, bad base64, not a RecordBatch.",
    404: "No such path, file, cluster, broker, setting, consumer or lag.",
    405: "The path has no such method; `Allow` names those it has.",
    406: "None of the types in `Accept` can be produced here.",
    408: "The body did not arrive in time.",
    409: "The group cannot do this now.",
    413: "The body is too large, as it came or once it is inflated.",
    415: "`Content-Type` or `Content-Encoding` is none that is read here.",
    422: "A rule is broken: an unknown field or parameter, no records, an illegal name, a value out of its choices.",
    429: "Too many requests.",
    500: "A fault of the server; its log has the cause under the request id.",
    505: "HTTP/0.9 is not spoken here.",
    40001: "`fetch.min.bytes` is out of range.",
    40002: "The topic exists already, or a setting cannot be that.",
    40050: "Not a cursor, or not one of this topic; in a result: not a receipt of this group.",
    40101: "Credentials are missing, invalid or expired.",
    40301: "The right is missing that the message names; or a page of this origin, or this host name, is not served.",
    40401: "No such topic.",
    40402: "No such partition.",
    40403: "No such topic (metadata, v3), or no such consumer instance.",
    40405: "No such consumer group.",
    40406: "The member is not in the group (any more): join again.",
    40450: "No such schedule: cancelled, moved to another id, or never accepted. On a socket: no such subscription.",
    40451: "No such message id, or retention has passed it.",
    40452: "No such recurring schedule.",
    40453: "No such token.",
    40454: "No such connection or session (any more).",
    40601: "The consumer instance has another format than `Accept` asks for.",
    40801: "A record does not decode in the format asked for; or the schema registry does not have a schema, or does "
    "not take it. Nothing was stored.",
    40901: "v1: the instance reads another topic.",
    40902: "The consumer instance exists already.",
    40903: "Illegal state: both subscribed and assigned, or a partition the instance does not have.",
    40950: "The schedule was delivered already.",
    40951: "The lease has ended; another consumer may have the record.",
    40952: "The group has members.",
    40953: "The topic was deleted and made again since the cursor was written; `details` has the new bounds.",
    40954: "A pending schedule of the topic has this `schedule_key`. Nothing was stored of this record.",
    40955: "The topic exists with another number of partitions, or other settings.",
    40956: "A producer's sequence number was passed over and comes too late.",
    40957: "Part of what this request names was stored by another one.",
    40958: "Tokens and rules cannot be changed here: authentication is disabled, or their files cannot be written.",
    40959: "The partition, or the member's name, is another's now.",
    40960: "Socket: there is a subscription of this name.",
    40961: "Socket: the subscription cannot go on where it was; subscribe again.",
    40962: "Socket: hello is the first command, and comes once.",
    40963: "No light queues here: the index is in files, or the partition is on a Kafka cluster.",
    40964: "The Kafka cluster that the partition is on, is to move to, or is attached to, cannot do this; the message "
    "says what. "
    "Nothing was stored.",
    40965: "The ticket is of another node of the cluster, which the message names.",
    41250: "`If-Match`: the partition ends elsewhere by now; `details` has where. Nothing was stored. Or the tokens or "
    "rules are others by now.",
    41350: "One record or batch is too large.",
    41601: "The offset is out of range; `details` has the bounds.",
    42201: "Avro, Protobuf or JSON Schema: there are keys, but neither `key_schema` nor `key_schema_id`.",
    42202: "Avro, Protobuf or JSON Schema: there are values, but neither `value_schema` nor `value_schema_id`; or the "
    "server has no schema registry: use json or binary.",
    42203: "A key or value does not fit its schema.",
    42204: "A setting of a consumer instance is illegal.",
    42205: "Not a schema, or one of another format.",
    42208: "Too many records, or not a batch of entries with ids.",
    42250: "A delay or due time is illegal: negative, no integer, too far, both given.",
    42251: "A tag, key, header or id is illegal or too large.",
    42252: "Not a filter.",
    42253: "A number is out of its range.",
    42254: "The Idempotency-Key was used for another body.",
    42850: "`If-Match` is missing: say which version of the rules you have seen.",
    42901: "Too many requests or bytes of one caller, or too many failed logins; `Retry-After` says when.",
    42950: "Too many topics, partitions, schedules (recurring ones too), remembered ids, streams, sockets, instances, "
    "tickets or leases; too many partitions move.",
    50002: "Stored bytes fail their check: never skipped, never served.",
    50250: "The Kafka cluster of an attached topic has refused this; the message says why. Nothing was stored.",
    50251: "The schema registry refuses this server, or what answers is none; the log says why.",
    50350: "The server is starting, stopping, or stopped by an I/O error. Whether a send was stored is unknown then.",
    50351: "Too much waits to be written or to be taken, a group is being read, or the timer is behind: try again.",
    50352: "The schema registry does not answer. Nothing was stored, and what was to be read is still there.",
    50750: "The disk is full: nothing was stored, reads go on.",
}


def by_status(error_codes: Iterable[int]) -> dict[int, list[int]]:
    """Codes by their status, both in order."""
    found: dict[int, list[int]] = {}
    for error_code in sorted(set(error_codes), key=lambda code: (status_of(code), code)):
        found.setdefault(status_of(error_code), []).append(error_code)
    return found
