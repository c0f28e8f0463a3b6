"""Which requests are served, and in which versions.

Versions from 0 on are advertised for every request, whatever is served: librdkafka before 2.11.1 looks for single old
versions (Produce 0 for gzip, FindCoordinator 0 for groups) and gives up features when they are missing. Apache Kafka
advertises Produce 0 for the same reason. A request in a version below `min_version` ends its connection.

Not above: Fetch 13, Produce 13, Metadata 10, OffsetCommit 10 and so on name topics by id. Transactions (their markers
would take offsets), KIP-848 groups and share groups are not served and not advertised.
"""

from __future__ import annotations

from typing import NamedTuple

PRODUCE, FETCH, LIST_OFFSETS, METADATA = 0, 1, 2, 3
OFFSET_COMMIT, OFFSET_FETCH, FIND_COORDINATOR = 8, 9, 10
JOIN_GROUP, HEARTBEAT, LEAVE_GROUP, SYNC_GROUP, DESCRIBE_GROUPS, LIST_GROUPS = 11, 12, 13, 14, 15, 16
SASL_HANDSHAKE, API_VERSIONS = 17, 18
CREATE_TOPICS, DELETE_TOPICS, DELETE_RECORDS, INIT_PRODUCER_ID = 19, 20, 21, 22
OFFSET_FOR_LEADER_EPOCH, DESCRIBE_ACLS, CREATE_ACLS, DELETE_ACLS = 23, 29, 30, 31
DESCRIBE_CONFIGS, ALTER_CONFIGS, SASL_AUTHENTICATE = 32, 33, 36
CREATE_PARTITIONS, DELETE_GROUPS, INCREMENTAL_ALTER_CONFIGS, OFFSET_DELETE, DESCRIBE_CLUSTER = 37, 42, 44, 47, 60


class Api(NamedTuple):
    """One kind of request. `flexible`: the version from which headers and lengths are compact."""

    key: int
    name: str
    min_version: int
    max_version: int
    flexible: int


APIS = {
    api.key: api
    for api in (
        Api(PRODUCE, "Produce", 3, 9, 9),
        Api(FETCH, "Fetch", 4, 12, 12),
        Api(LIST_OFFSETS, "ListOffsets", 1, 11, 6),
        Api(METADATA, "Metadata", 0, 9, 9),
        Api(OFFSET_COMMIT, "OffsetCommit", 2, 8, 8),
        Api(OFFSET_FETCH, "OffsetFetch", 1, 8, 6),
        Api(FIND_COORDINATOR, "FindCoordinator", 0, 4, 3),
        Api(JOIN_GROUP, "JoinGroup", 0, 9, 6),
        Api(HEARTBEAT, "Heartbeat", 0, 4, 4),
        Api(LEAVE_GROUP, "LeaveGroup", 0, 5, 4),
        Api(SYNC_GROUP, "SyncGroup", 0, 5, 4),
        Api(DESCRIBE_GROUPS, "DescribeGroups", 0, 5, 5),
        Api(LIST_GROUPS, "ListGroups", 0, 4, 3),
        Api(SASL_HANDSHAKE, "SaslHandshake", 0, 1, 32767),
        Api(API_VERSIONS, "ApiVersions", 0, 3, 3),
        Api(CREATE_TOPICS, "CreateTopics", 2, 6, 5),
        Api(DELETE_TOPICS, "DeleteTopics", 1, 5, 4),
        Api(DELETE_RECORDS, "DeleteRecords", 0, 2, 2),
        Api(INIT_PRODUCER_ID, "InitProducerId", 0, 4, 2),
        Api(OFFSET_FOR_LEADER_EPOCH, "OffsetForLeaderEpoch", 2, 4, 4),
        Api(DESCRIBE_ACLS, "DescribeAcls", 1, 3, 2),
        Api(CREATE_ACLS, "CreateAcls", 1, 3, 2),
        Api(DELETE_ACLS, "DeleteAcls", 1, 3, 2),
        Api(DESCRIBE_CONFIGS, "DescribeConfigs", 1, 4, 4),
        Api(ALTER_CONFIGS, "AlterConfigs", 0, 2, 2),
        Api(SASL_AUTHENTICATE, "SaslAuthenticate", 0, 2, 2),
        Api(CREATE_PARTITIONS, "CreatePartitions", 0, 3, 2),
        Api(DELETE_GROUPS, "DeleteGroups", 0, 2, 2),
        Api(INCREMENTAL_ALTER_CONFIGS, "IncrementalAlterConfigs", 0, 1, 1),
        Api(OFFSET_DELETE, "OffsetDelete", 0, 0, 32767),
        Api(DESCRIBE_CLUSTER, "DescribeCluster", 0, 1, 0),
    )
}
