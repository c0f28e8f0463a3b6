"""Every route of the server, in one table. Nothing is served that is not in it.

A row says what the route is called, who may use it, how large a body it reads and which query parameters it knows; a
row that lacks a permission, or that takes another's place, does not start. A path answers with a trailing "/" too, and
a GET route answers HEAD.
"""

from __future__ import annotations

from aiohttp import hdrs

from gateway.api.shapes import queries
from gateway.auth.access import Permission
from gateway.surfaces.console import served as console
from gateway.surfaces.http.routes import Body, Handler, Query, Row
from gateway.surfaces.native import (
    access,
    audit,
    brokers,
    connections,
    examples,
    groups,
    light,
    lookup,
    me,
    ndjson,
    ops,
    raw,
    recurring,
    schedules,
    stats,
    tickets,
    topics,
)
from gateway.surfaces.openapi import served
from gateway.surfaces.openapi.table import routes_page
from gateway.surfaces.rest_v2 import consumers, fetch, produce
from gateway.surfaces.rest_v2 import topics as v2_topics
from gateway.surfaces.rest_v3 import groups as v3_groups
from gateway.surfaces.rest_v3 import records, resources
from gateway.surfaces.sse import light_stream, topic_stream
from gateway.surfaces.ws.endpoint import consume_handler, produce_handler, websocket_handler


def _get(path: str, name: str, handler: Handler, permission: Permission, query: Query = None) -> Row:
    return Row(method=hdrs.METH_GET, path=path, name=name, handler=handler, permission=permission, query=query)


def _post(
    path: str,
    name: str,
    handler: Handler,
    permission: Permission,
    body: Body = Body.SMALL,
    query: Query = None,
    action: str | None = None,
) -> Row:
    return Row(
        method=hdrs.METH_POST,
        path=path,
        name=name,
        handler=handler,
        permission=permission,
        body=body,
        query=query,
        action=action,
    )


def _put(path: str, name: str, handler: Handler, permission: Permission, *, action: str) -> Row:
    return Row(
        method=hdrs.METH_PUT,
        path=path,
        name=name,
        handler=handler,
        permission=permission,
        body=Body.SMALL,
        action=action,
    )


def _patch(path: str, name: str, handler: Handler, permission: Permission, query: Query = None, *, action: str) -> Row:
    return Row(
        method=hdrs.METH_PATCH,
        path=path,
        name=name,
        handler=handler,
        permission=permission,
        body=Body.SMALL,
        query=query,
        action=action,
    )


def _delete(
    path: str, name: str, handler: Handler, permission: Permission, query: Query = None, action: str | None = None
) -> Row:
    return Row(
        method=hdrs.METH_DELETE,
        path=path,
        name=name,
        handler=handler,
        permission=permission,
        query=query,
        action=action,
    )


_TOPIC = "/topics/{topic}"
_PARTITION = "/topics/{topic}/partitions/{partition}"
_NATIVE = "/mq/v1/topics/{topic}"
_GROUP = "/mq/v1/groups/{group}"
_INSTANCE = "/consumers/{group}/instances/{instance}"
_SCHEDULES = "/mq/v1/schedules"
_SCHEDULE = "/mq/v1/schedules/{schedule}"
_RECURRINGS = "/mq/v1/recurring"
_RECURRING = "/mq/v1/recurring/{recurring}"


def _v3(prefix: str) -> tuple[Row, ...]:
    """The REST Proxy's v3 API below a prefix."""
    clusters = f"{prefix}/v3/clusters"
    cluster = f"{clusters}/{{cluster}}"
    brokers = f"{cluster}/brokers"
    names = f"{cluster}/topics"
    topic = f"{names}/{{topic}}"
    config = f"{topic}/configs/{{name}}"
    partition = f"{topic}/partitions/{{partition}}"
    groups = f"{cluster}/consumer-groups"
    group = f"{groups}/{{group}}"
    describe = Permission.DESCRIBE
    return (
        _post(f"{topic}/records", "v3_produce", records.produce_records, Permission.SEND, Body.STREAM),
        _post(f"{topic}/records:batch", "v3_produce_batch", records.produce_batch, Permission.SEND, Body.RECORDS),
        _get(clusters, "v3_clusters", resources.list_clusters, describe),
        _get(cluster, "v3_cluster", resources.get_cluster, describe),
        _get(brokers, "v3_brokers", resources.list_brokers, describe),
        _get(f"{brokers}/{{broker}}", "v3_broker", resources.get_broker, describe),
        _get(f"{brokers}/{{broker}}/configs", "v3_broker_configs", resources.list_broker_configs, describe),
        _get(names, "v3_topics", resources.list_topics, describe, queries.V3TopicsQuery),
        _post(names, "v3_create_topic", resources.create_topic, Permission.CREATE, action="topic.create"),
        _get(topic, "v3_topic", resources.get_topic, describe),
        _patch(topic, "v3_change_topic", resources.change_topic, Permission.CREATE, action="topic.alter"),
        _delete(topic, "v3_delete_topic", resources.delete_topic, Permission.DELETE, action="topic.delete"),
        _get(f"{topic}/configs", "v3_topic_configs", resources.list_topic_configs, describe),
        _post(
            f"{topic}/configs:alter",
            "v3_alter_topic_configs",
            resources.alter_topic_configs,
            Permission.CREATE,
            action="topic.alter",
        ),
        _get(config, "v3_topic_config", resources.get_topic_config, describe),
        _put(config, "v3_set_topic_config", resources.set_topic_config, Permission.CREATE, action="topic.alter"),
        _delete(config, "v3_reset_topic_config", resources.reset_topic_config, Permission.CREATE, action="topic.alter"),
        _get(f"{topic}/partitions", "v3_partitions", resources.list_partitions, describe),
        _get(partition, "v3_partition", resources.get_partition, describe),
        _get(f"{partition}/offset", "v3_partition_offset", resources.get_partition_offset, describe),
        _get(f"{partition}/replicas", "v3_replicas", resources.list_replicas, describe),
        _get(groups, "v3_groups", v3_groups.list_groups, describe),
        _get(group, "v3_group", v3_groups.get_group, describe),
        _get(f"{group}/consumers", "v3_consumers", v3_groups.list_consumers, describe),
        _get(f"{group}/consumers/{{consumer}}", "v3_consumer", v3_groups.get_consumer, describe),
        _get(f"{group}/consumers/{{consumer}}/assignments", "v3_assignments", v3_groups.list_assignments, describe),
        _get(f"{group}/lag-summary", "v3_lag_summary", v3_groups.lag_summary, describe),
        _get(f"{group}/lags", "v3_lags", v3_groups.list_lags, describe),
        _get(f"{group}/lags/{{topic}}/partitions/{{partition}}", "v3_lag", v3_groups.get_lag, describe),
    )


ROUTES: tuple[Row, ...] = (
    # aiohttp tries the routes of one prefix in this order: the busiest first.
    _post(_TOPIC, "produce", produce.produce, Permission.SEND, Body.RECORDS, queries.SendQuery),
    _post(_PARTITION, "produce_partition", produce.produce, Permission.SEND, Body.RECORDS, queries.SendQuery),
    _get(f"{_PARTITION}/records", "fetch", fetch.fetch_records, Permission.RECEIVE, queries.FetchQuery),
    # REST Proxy metadata
    _get("/", "root", console.home, Permission.PUBLIC),
    _post("/", "root", console.home, Permission.PUBLIC, Body.NONE),
    _get("/brokers", "brokers", v2_topics.brokers, Permission.DESCRIBE),
    _get("/topics", "topic_names", v2_topics.topic_names, Permission.DESCRIBE),
    _get(_TOPIC, "topic_metadata", v2_topics.topic_metadata, Permission.DESCRIBE),
    _get(f"{_TOPIC}/partitions", "partitions", v2_topics.partitions, Permission.DESCRIBE),
    _get(_PARTITION, "partition", v2_topics.partition, Permission.DESCRIBE),
    _get(f"{_PARTITION}/offsets", "partition_offsets", v2_topics.partition_offsets, Permission.DESCRIBE),
    # REST Proxy v2: consumer instances
    _get(f"{_INSTANCE}/records", "instance_records", consumers.records, Permission.RECEIVE, queries.PollQuery),
    _post("/consumers/{group}", "create_instance", consumers.create, Permission.RECEIVE),
    _delete(_INSTANCE, "delete_instance", consumers.delete, Permission.RECEIVE),
    _post(f"{_INSTANCE}/subscription", "subscribe", consumers.subscribe, Permission.RECEIVE, Body.LIST),
    _get(f"{_INSTANCE}/subscription", "subscription", consumers.subscription, Permission.RECEIVE),
    _delete(f"{_INSTANCE}/subscription", "unsubscribe", consumers.unsubscribe, Permission.RECEIVE),
    _post(f"{_INSTANCE}/assignments", "assign", consumers.assign, Permission.RECEIVE, Body.LIST),
    _get(f"{_INSTANCE}/assignments", "assignments", consumers.assignments, Permission.RECEIVE),
    _post(
        f"{_INSTANCE}/offsets",
        "commit_offsets",
        consumers.commit,
        Permission.RECEIVE,
        Body.LIST,
        queries.CommitQuery,
    ),
    Row(
        method=hdrs.METH_GET,
        path=f"{_INSTANCE}/offsets",
        name="committed_offsets",
        handler=consumers.committed,
        permission=Permission.RECEIVE,
        body=Body.LIST,
        query=queries.CommittedQuery,
    ),
    _post(
        f"{_INSTANCE}/offsets:query",
        "query_committed_offsets",
        consumers.query_committed,
        Permission.RECEIVE,
        Body.LIST,
    ),
    _post(f"{_INSTANCE}/positions", "seek", consumers.seek, Permission.RECEIVE, Body.LIST),
    _post(
        f"{_INSTANCE}/positions/beginning",
        "seek_to_beginning",
        consumers.seek_to_beginning,
        Permission.RECEIVE,
        Body.LIST,
    ),
    _post(f"{_INSTANCE}/positions/end", "seek_to_end", consumers.seek_to_end, Permission.RECEIVE, Body.LIST),
    _get(
        f"{_INSTANCE}/topics/{{topic}}",
        "v1_records",
        consumers.v1_records,
        Permission.RECEIVE,
        queries.V1PollQuery,
    ),
    _get(f"{_PARTITION}/messages", "v1_messages", consumers.v1_messages, Permission.RECEIVE, queries.V1MessagesQuery),
    # REST Proxy v3
    *_v3(""),
    *_v3("/kafka"),
    # native: topics and records
    _get("/mq/v1/topics", "list_topics", topics.list_topics, Permission.DESCRIBE, queries.ListTopicsQuery),
    _get(_NATIVE, "describe_topic", topics.describe_topic, Permission.DESCRIBE),
    _put(_NATIVE, "create_topic", topics.create_topic, Permission.CREATE, action="topic.create"),
    _patch(_NATIVE, "change_topic", topics.change_topic, Permission.CREATE, action="topic.alter"),
    _post("/admin/topics", "admin_create_topic", topics.admin_create_topic, Permission.CREATE, action="topic.create"),
    _delete(_NATIVE, "delete_topic", topics.delete_topic, Permission.DELETE, action="topic.delete"),
    _get(
        f"{_NATIVE}/routes",
        "list_topic_routes",
        brokers.list_topic_routes,
        Permission.OPERATE,
        queries.TopicRoutesQuery,
    ),
    _post(f"{_NATIVE}/attach", "attach_topic", topics.attach_topic, Permission.OPERATE, action="topic.attach"),
    _post(
        f"{_NATIVE}/detach", "detach_topic", topics.detach_topic, Permission.OPERATE, Body.NONE, action="topic.detach"
    ),
    _post(
        f"{_NATIVE}/partitions/{{partition}}/move",
        "move_partition",
        brokers.move_partition,
        Permission.OPERATE,
        action="partition.move",
    ),
    _post(
        f"{_NATIVE}/partitions/{{partition}}/takeover",
        "take_over_partition",
        brokers.take_over_partition,
        Permission.OPERATE,
        action="partition.takeover",
    ),
    _get(f"{_NATIVE}/offsets", "topic_offsets", topics.topic_offsets, Permission.DESCRIBE, queries.OffsetsQuery),
    _post(f"{_NATIVE}/messages", "produce_raw", raw.produce_raw, Permission.SEND, Body.RECORDS, queries.SendRawQuery),
    _post(
        f"{_NATIVE}/messages:batch",
        "produce_lines",
        ndjson.produce_lines,
        Permission.SEND,
        Body.STREAM,
        queries.SendLinesQuery,
    ),
    _get(
        f"{_NATIVE}/partitions/{{partition}}/messages/{{offset}}",
        "read_raw",
        raw.read_raw,
        Permission.RECEIVE,
        queries.ReadRawQuery,
    ),
    _get(f"{_NATIVE}/queues/{{queue}}/records", "read_queue", light.read_queue, Permission.RECEIVE, queries.LightQuery),
    _get(
        f"{_NATIVE}/queues/{{queue}}/sse",
        "follow_queue",
        light_stream.follow_queue,
        Permission.RECEIVE,
        queries.FollowLightQuery,
    ),
    _get(
        f"{_NATIVE}/queues/{{queue}}/offsets",
        "committed_in_queue",
        light.committed_in_queue,
        Permission.RECEIVE,
        queries.LightGroupQuery,
    ),
    Row(
        method=hdrs.METH_PUT,
        path=f"{_NATIVE}/queues/{{queue}}/offsets",
        name="commit_in_queue",
        handler=light.commit_in_queue,
        permission=Permission.RECEIVE,
        query=queries.CommitLightQuery,
    ),
    Row(
        method=hdrs.METH_DELETE,
        path=f"{_NATIVE}/queues/{{queue}}/offsets",
        name="forget_in_queue",
        handler=light.forget_in_queue,
        permission=Permission.RECEIVE,
        query=queries.LightGroupQuery,
    ),
    _get(f"{_NATIVE}/queues/{{queue}}", "get_queue", light.get_queue, Permission.DESCRIBE),
    _get(f"{_NATIVE}/queues", "list_queues", light.list_queues, Permission.DESCRIBE, queries.ListLightQuery),
    _get(f"{_NATIVE}/messages", "find_messages", lookup.find_messages, Permission.RECEIVE, queries.FindQuery),
    _post(f"{_NATIVE}/messages:search", "search_messages", lookup.search_messages, Permission.RECEIVE),
    _get("/mq/v1/messages/{message_id}", "get_message", lookup.get_message, Permission.RECEIVE),
    _get(f"{_NATIVE}/sse", "follow_topic", topic_stream.follow_topic, Permission.RECEIVE, queries.FollowQuery),
    # native: schedules
    _get(_SCHEDULES, "list_schedules", schedules.list_schedules, Permission.DESCRIBE, queries.ListSchedulesQuery),
    _get(
        f"{_SCHEDULES}:histogram",
        "schedule_histogram",
        schedules.histogram,
        Permission.DESCRIBE,
        queries.HistogramQuery,
    ),
    _get(_SCHEDULE, "get_schedule", schedules.get_schedule, Permission.RECEIVE, queries.GetScheduleQuery),
    _delete(
        _SCHEDULES,
        "cancel_schedules",
        schedules.cancel_schedules,
        Permission.SEND,
        queries.CancelSchedulesQuery,
        action="schedule.cancel",
    ),
    _delete(
        _SCHEDULE,
        "cancel_schedule",
        schedules.cancel_schedule,
        Permission.SEND,
        queries.OneScheduleQuery,
        action="schedule.cancel",
    ),
    _patch(
        _SCHEDULE,
        "move_schedule",
        schedules.move_schedule,
        Permission.SEND,
        query=queries.OneScheduleQuery,
        action="schedule.move",
    ),
    _post(
        f"{_SCHEDULE}:fire",
        "fire_schedule",
        schedules.fire_schedule,
        Permission.SEND,
        Body.NONE,
        queries.OneScheduleQuery,
        "schedule.fire",
    ),
    _post(
        f"{_SCHEDULES}:batch",
        "change_schedules",
        schedules.change_schedules,
        Permission.SEND,
        Body.LIST,
        action="schedule.batch",
    ),
    # native: recurring schedules
    _get(_RECURRINGS, "list_recurring", recurring.list_recurring, Permission.DESCRIBE, queries.ListRecurringQuery),
    _get(_RECURRING, "get_recurring", recurring.get_recurring, Permission.RECEIVE),
    _put(_RECURRING, "put_recurring", recurring.put_recurring, Permission.SEND, action="recurring.put"),
    _delete(_RECURRING, "delete_recurring", recurring.delete_recurring, Permission.SEND, action="recurring.delete"),
    _post(
        f"{_RECURRING}:pause",
        "pause_recurring",
        recurring.pause_recurring,
        Permission.SEND,
        Body.NONE,
        action="recurring.pause",
    ),
    _post(
        f"{_RECURRING}:resume",
        "resume_recurring",
        recurring.resume_recurring,
        Permission.SEND,
        Body.NONE,
        action="recurring.resume",
    ),
    # native: consumer groups
    _post(f"{_GROUP}/messages:receive", "receive", groups.receive, Permission.RECEIVE),
    _post(f"{_GROUP}/messages:ack", "ack", groups.ack, Permission.RECEIVE, Body.LIST),
    _post(f"{_GROUP}/messages:nack", "nack", groups.nack, Permission.RECEIVE, Body.LIST),
    _post(f"{_GROUP}/messages:reject", "reject", groups.reject, Permission.RECEIVE, Body.LIST),
    _post(f"{_GROUP}/messages:extend", "extend", groups.extend, Permission.RECEIVE, Body.LIST),
    _get("/mq/v1/groups", "list_groups", groups.list_groups, Permission.DESCRIBE, queries.ListGroupsQuery),
    _get(
        "/mq/v1/light-groups",
        "list_light_groups",
        groups.list_light_groups,
        Permission.DESCRIBE,
        queries.ListLightQuery,
    ),
    _get(_GROUP, "describe_group", groups.describe_group, Permission.DESCRIBE),
    _delete(_GROUP, "delete_group", groups.delete_group, Permission.DELETE, action="group.delete"),
    _patch(_GROUP, "configure_group", groups.configure_group, Permission.CREATE, action="group.alter"),
    _get(f"{_GROUP}/lag", "group_lag", groups.group_lag, Permission.DESCRIBE, queries.LagQuery),
    _get(f"{_GROUP}/lag/history", "lag_history", groups.lag_history, Permission.DESCRIBE, queries.PointsQuery),
    _get(
        f"{_GROUP}/light-offsets",
        "group_light_offsets",
        light.group_light_offsets,
        Permission.DESCRIBE,
        queries.ListLightQuery,
    ),
    _get(f"{_GROUP}/leases", "group_leases", groups.group_leases, Permission.DESCRIBE, queries.ListLeasesQuery),
    _post(f"{_GROUP}/offsets:reset", "reset_offsets", groups.reset_offsets, Permission.RECEIVE, action="group.reset"),
    _get(f"{_GROUP}/dlq", "dead_letters", groups.dead_letters, Permission.RECEIVE, queries.DeadLettersQuery),
    _post(f"{_GROUP}/dlq:redrive", "redrive", groups.redrive, Permission.RECEIVE, action="group.redrive"),
    _post(f"{_GROUP}/dlq:settle", "settle_letters", groups.settle_letters, Permission.RECEIVE, action="group.settle"),
    # sockets
    _post("/mq/v1/tickets", "issue_ticket", tickets.issue_ticket, Permission.SOCKET, Body.NONE),
    _get("/ws/v1", "websocket", websocket_handler, Permission.SOCKET),
    _get("/ws/v1/consume", "websocket_consume", consume_handler, Permission.SOCKET, queries.ConsumeQuery),
    _get("/ws/v1/produce", "websocket_produce", produce_handler, Permission.SOCKET, queries.ProduceQuery),
    # operations
    _get("/healthz", "healthz", ops.healthz, Permission.PUBLIC),
    _get("/readyz", "readyz", ops.readyz, Permission.PUBLIC),
    _get("/metrics", "metrics", ops.metrics, Permission.OPERATE),
    _get("/mq/v1/stats", "stats", stats.stats, Permission.OPERATE, queries.PointsQuery),
    _get("/mq/v1/stats/stream", "stats_stream", stats.stats_stream, Permission.OPERATE, queries.NoQuery),
    _get("/mq/v1/audit", "audit", audit.audit, Permission.AUDIT, queries.AuditQuery),
    _get("/mq/v1/brokers", "list_brokers", brokers.list_brokers, Permission.OPERATE, queries.NoQuery),
    _patch(
        "/mq/v1/brokers/{broker}",
        "change_broker",
        brokers.change_broker,
        Permission.OPERATE,
        action="broker.alter",
    ),
    _get(
        "/mq/v1/brokers/{broker}/plan",
        "plan_broker",
        brokers.plan_broker,
        Permission.OPERATE,
        queries.BrokerPlanQuery,
    ),
    _get("/mq/v1/moves", "list_moves", brokers.list_moves, Permission.OPERATE, queries.MovesQuery),
    _post(
        "/mq/v1/brokers/{broker}/takeover",
        "take_over_broker",
        brokers.take_over_broker,
        Permission.OPERATE,
        action="broker.takeover",
    ),
    _get("/mq/v1/routes", "list_routes", brokers.list_routes, Permission.OPERATE, queries.ListRoutesQuery),
    _get("/mq/v1/connections", "list_connections", connections.list_connections, Permission.OPERATE, queries.ListQuery),
    _delete(
        "/mq/v1/connections/{connection}",
        "end_connection",
        connections.end_connection,
        Permission.OPERATE,
        action="connection.end",
    ),
    _get("/mq/v1/sessions", "list_sessions", connections.list_sessions, Permission.OPERATE, queries.ListQuery),
    _delete(
        "/mq/v1/sessions/{session}", "end_session", connections.end_session, Permission.OPERATE, action="session.end"
    ),
    _get("/mq/v1/settings", "settings", connections.settings, Permission.OPERATE, queries.NoQuery),
    _get("/mq/v1/tokens", "list_tokens", access.list_tokens, Permission.ACCESS, queries.ListQuery),
    _post("/mq/v1/tokens", "create_token", access.create_token, Permission.ACCESS, Body.LIST, action="token.create"),
    _delete("/mq/v1/tokens/{token}", "revoke_token", access.revoke_token, Permission.ACCESS, action="token.revoke"),
    _get("/mq/v1/rules", "get_rules", access.get_rules, Permission.ACCESS, queries.NoQuery),
    Row(
        method=hdrs.METH_PUT,
        path="/mq/v1/rules",
        name="put_rules",
        handler=access.put_rules,
        permission=Permission.ACCESS,
        body=Body.LIST,
        action="rules.put",
    ),
    _get("/mq/v1/limits", "limits", ops.limits, Permission.PUBLIC),
    _get("/mq/v1/info", "info", ops.info, Permission.PUBLIC),
    _get("/mq/v1/me", "me", me.me, Permission.KNOWN, queries.NoQuery),
    _get("/openapi.json", "openapi", served.openapi, Permission.PUBLIC),
    _get("/asyncapi.json", "asyncapi", served.asyncapi, Permission.PUBLIC),
    _get("/docs", "docs", served.docs, Permission.PUBLIC),
    _get("/examples", "examples", examples.examples, Permission.PUBLIC),
    _get("/console/{file}", "console_file", console.console_file, Permission.PUBLIC),
    _get("/examples/{file}", "example_file", examples.example_file, Permission.PUBLIC),
    # what orchestrators and clients of other bridges ask for
    _get("/healthy", "healthz", ops.healthz, Permission.PUBLIC),
    _get("/_health", "healthz", ops.healthz, Permission.PUBLIC),
    _get("/ready", "readyz", ops.readyz, Permission.PUBLIC),
    _get("/status/ready", "readyz", ops.readyz, Permission.PUBLIC),
    _get("/openapi", "openapi", served.openapi, Permission.PUBLIC),
)


if __name__ == "__main__":  # `make routes`
    print(routes_page(ROUTES), end="")
