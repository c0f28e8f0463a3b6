"""The REST Proxy's v3 API, the part that its clients use: clusters, brokers, topics, settings, partitions.

Paths begin with `/v3` (or `/kafka/v3`). A resource has `kind` and `metadata`; a list has its resources in `data`, in
one page. There is one cluster, whose id is the data directory's (of several nodes, that of the first), and one broker a
node, 0 when it is alone. Sending is in records.py, groups are in groups.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from urllib.parse import quote, urlencode

from aiohttp import hdrs, web
from msgspec import to_builtins
from yarl import URL

from gateway.api.cluster import broker_numbers, leader_of
from gateway.api.pages import page_of
from gateway.api.shapes.base import load
from gateway.api.shapes.queries import PAGE_ROWS_DEFAULT, V3TopicsQuery
from gateway.api.shapes.topics import (
    V3ConfigChangesBody,
    V3ConfigValueBody,
    V3NewTopicBody,
    V3TopicChangesBody,
)
from gateway.api.shapes.v3 import (
    PageMetadata,
    Related,
    ResourceMetadata,
    V3Broker,
    V3BrokerConfig,
    V3BrokerConfigs,
    V3Brokers,
    V3Cluster,
    V3Clusters,
    V3Partition,
    V3PartitionOffsets,
    V3Partitions,
    V3Replica,
    V3Replicas,
    V3Topic,
    V3TopicConfig,
    V3TopicConfigs,
    V3Topics,
)
from gateway.auth.access import Permission
from gateway.codec.topic_configs import CONFIG_ILLEGAL, KAFKA_NAMES, kafka_changes, kafka_configs, kafka_text
from gateway.errors import PARTITION_NOT_FOUND, TOPIC_METADATA_NOT_FOUND, RequestError, bad_request
from gateway.routing.base import TopicView
from gateway.surfaces.http.answers import check_accept, json_answer, list_answer, packed
from gateway.surfaces.http.caller import access_of, visible_topics
from gateway.surfaces.http.context import Gateway
from gateway.surfaces.http.reading import json_object, partition_in, read_query
from store.errors import IllegalTopic, TopicExists, UnknownQueue
from store.topics import Changes, TopicConfig


@lru_cache(maxsize=4096)
def _quoted(part: object) -> str:
    """In a path. A thousand partitions have the same words in three addresses each."""
    return quote(str(part), safe="")


class Links:
    """Addresses of resources, as the client reaches this server."""

    def __init__(self, gateway: Gateway, request: web.Request) -> None:
        base = "/kafka/v3" if request.path.startswith("/kafka/") else "/v3"
        host = request.headers.get(hdrs.HOST, "")
        self.cluster_id = gateway.cluster_id
        self._root = f"{request.scheme}://{host}{base}/clusters"

    def to(self, *parts: object) -> str:
        """The address of a resource of the cluster; of the list of clusters without parts."""
        path = "/".join(map(_quoted, parts))
        return f"{self._root}/{path}" if path else self._root

    def at(self, parts: Sequence[object], name: str) -> tuple[ResourceMetadata, str]:
        """The first two fields of a resource; `parts` are those of its address behind the cluster."""
        address = self.to(self.cluster_id, *parts)
        return ResourceMetadata(address, f"crn:///kafka={self.cluster_id}{name}"), self.cluster_id

    def related(self, *parts: object) -> Related:
        """A link to what belongs to a resource."""
        return Related(self.to(self.cluster_id, *parts))

    def page(self, *parts: object) -> PageMetadata:
        """The first field of a list, which is one page."""
        return PageMetadata(self.to(self.cluster_id, *parts))


def links(gateway: Gateway, request: web.Request) -> Links:
    """The addresses for a request below a cluster. Raises RequestError 404 when it is another's."""
    if request.match_info.get("cluster", gateway.cluster_id) != gateway.cluster_id:
        raise RequestError(404, f"Cluster not found. The one here is {gateway.cluster_id}.")
    return Links(gateway, request)


# ---------------------------------------------------------------------------------------------- clusters, brokers


async def list_clusters(gateway: Gateway, request: web.Request, _: bytes) -> web.Response:
    """The one cluster. Clients ask for it first, to learn its id."""
    to = links(gateway, request)
    return json_answer(request, V3Clusters(PageMetadata(to.to()), [_cluster(gateway, to)]))


async def get_cluster(gateway: Gateway, request: web.Request, _: bytes) -> web.Response:
    """The cluster."""
    return json_answer(request, _cluster(gateway, links(gateway, request)))


async def list_brokers(gateway: Gateway, request: web.Request, _: bytes) -> web.Response:
    """All brokers."""
    to = links(gateway, request)
    rows = [_broker(gateway, to, request, number) for number in broker_numbers(gateway.cluster, gateway.routes_table)]
    return json_answer(request, V3Brokers(to.page("brokers"), rows))


async def get_broker(gateway: Gateway, request: web.Request, _: bytes) -> web.Response:
    """A broker by its id."""
    to, broker_id = _checked_broker(gateway, request)
    return json_answer(request, _broker(gateway, to, request, broker_id))


async def list_broker_configs(gateway: Gateway, request: web.Request, _: bytes) -> web.Response:
    """What holds for topics that chose nothing, under Kafka's names."""
    to, broker_id = _checked_broker(gateway, request)
    retention_ms = gateway.config.store.retention_ms
    values = {
        "log.retention.ms": str(-1 if retention_ms is None else retention_ms),
        "message.max.bytes": str(gateway.limits.record_bytes_max),
        "num.partitions": str(gateway.config.partitions_default),
    }
    rows = [
        V3BrokerConfig(
            *to.at(["brokers", broker_id, "configs", name], f"/broker={broker_id}/config={name}"),
            name=name,
            value=value,
            is_read_only=True,
            source="DEFAULT_CONFIG",
            is_default=True,
            broker_id=broker_id,
        )
        for name, value in values.items()
    ]
    return json_answer(request, V3BrokerConfigs(to.page("brokers", broker_id, "configs"), rows))


def _cluster(gateway: Gateway, to: Links) -> V3Cluster:
    return V3Cluster(
        *to.at([], ""),
        controller=to.related("brokers", broker_numbers(gateway.cluster, gateway.routes_table)[0]),
        acls=to.related("acls"),
        brokers=to.related("brokers"),
        broker_configs=to.related("broker-configs"),
        consumer_groups=to.related("consumer-groups"),
        topics=to.related("topics"),
        partition_reassignments=to.related("topics", "-", "partitions", "-", "reassignment"),
    )


def _broker(gateway: Gateway, to: Links, request: web.Request, broker_id: int) -> V3Broker:
    member = gateway.cluster and next(one for one in gateway.cluster.members.values() if one.number == broker_id)
    url = URL(member.url) if member else request.url
    return V3Broker(
        *to.at(["brokers", broker_id], f"/broker={broker_id}"),
        broker_id=broker_id,
        host=url.host,
        port=url.port,
        configs=to.related("brokers", broker_id, "configs"),
        partition_replicas=to.related("brokers", broker_id, "partition-replicas"),
    )


def _checked_broker(gateway: Gateway, request: web.Request) -> tuple[Links, int]:
    to = links(gateway, request)
    numbers = broker_numbers(gateway.cluster, gateway.routes_table)
    for number in numbers:
        if request.match_info["broker"] == str(number):
            return to, number
    raise RequestError(404, f"Broker not found. Those here are {', '.join(map(str, numbers))}.")


# ---------------------------------------------------------------------------------------------- topics


async def list_topics(gateway: Gateway, request: web.Request, _: bytes) -> web.StreamResponse:
    """All topics that the caller may describe; with `page_size` a page of them, by name."""
    query = read_query(V3TopicsQuery, request, gateway)
    to = links(gateway, request)
    views = await visible_topics(gateway, request)
    metadata = to.page("topics")
    if query.page_size is not None or query.page_token is not None:
        views, metadata.next = _page_of(views, query, metadata.self_)
    rows = (_topic_row(to, view.name, view.partitions) for view in views)
    return await packed(request, await list_answer(request, to_builtins(V3Topics(metadata, [])), "data", rows))


def _page_of(views: list[TopicView], query: V3TopicsQuery, address: str) -> tuple[list[TopicView], str | None]:
    """A page of topics that are in order, and the address of the next one."""
    size = query.page_size or PAGE_ROWS_DEFAULT
    rows, token, _ = page_of(
        views,
        lambda view: (view.name, view.name),
        sort="name",
        order="asc",
        cursor=query.page_token,
        limit=size,
        is_sorted=True,
    )
    return rows, None if token is None else f"{address}?{urlencode({'page_size': size, 'page_token': token})}"


async def get_topic(gateway: Gateway, request: web.Request, _: bytes) -> web.Response:
    """One topic."""
    to = links(gateway, request)
    view = topic_of(gateway, request)
    return json_answer(request, _topic_row(to, view.name, view.partitions))


async def create_topic(gateway: Gateway, request: web.Request, body: bytes) -> web.Response:
    """Create a topic: 201; 400/40002 when there is one of the name. With `validate_only` nothing is created."""
    check_accept(request)
    to = links(gateway, request)
    asked = json_object(body, '{"topic_name": "orders", "partitions_count": 4}')
    shape = load(V3NewTopicBody, asked, gateway.limits)
    name = shape.topic_name
    access_of(request).check(Permission.CREATE, topic=name)
    count = gateway.config.partitions_default if shape.partitions_count is None else shape.partitions_count
    configs = [] if shape.configs is None else shape.configs
    config = TopicConfig().changed(_changes(configs, with_operations=False))
    if any(view.name == name for view in gateway.routes_table.topics()):
        raise RequestError(CONFIG_ILLEGAL, f"Topic '{name}' already exists.")
    if shape.validate_only is True:
        return json_answer(request, _topic_row(to, name, count), status=201)
    try:
        view = await gateway.admin.create_topic(name, count, config)
    except (IllegalTopic, TopicExists) as error:
        raise RequestError(CONFIG_ILLEGAL, str(error)) from error
    response = json_answer(request, _topic_row(to, view.name, view.partitions), status=201)
    response.headers[hdrs.LOCATION] = to.to(to.cluster_id, "topics", name)
    return response


async def change_topic(gateway: Gateway, request: web.Request, body: bytes) -> web.Response:
    """Give a topic more partitions."""
    check_accept(request)
    to = links(gateway, request)
    view = topic_of(gateway, request)
    asked = json_object(body, '{"partitions_count": 8}')
    count = load(V3TopicChangesBody, asked, gateway.limits).partitions_count
    try:
        grown = await gateway.admin.grow_topic(view.name, count)
    except IllegalTopic as error:
        raise RequestError(CONFIG_ILLEGAL, str(error)) from error
    return json_answer(request, _topic_row(to, grown.name, grown.partitions))


async def delete_topic(gateway: Gateway, request: web.Request, _: bytes) -> web.Response:
    """Delete a topic and its records: 204."""
    links(gateway, request)
    await gateway.admin.delete_topic(topic_of(gateway, request).name)
    return web.Response(status=204)


def topic_of(gateway: Gateway, request: web.Request) -> TopicView:
    """The topic of the path. Raises RequestError 404/40403, as this API has it."""
    try:
        return gateway.routes_table.topic(request.match_info["topic"])
    except UnknownQueue:
        raise RequestError(TOPIC_METADATA_NOT_FOUND, "This server does not host this topic-partition.") from None


def _topic_row(to: Links, name: str, count: int) -> V3Topic:
    metadata, cluster_id = to.at(["topics", name], f"/topic={name}")
    address = metadata.self_  # what belongs to it is below it: of 10,000 topics, to quote each name once saves 40 ms
    return V3Topic(
        metadata,
        cluster_id,
        topic_name=name,
        partitions_count=count,
        partitions=Related(f"{address}/partitions"),
        configs=Related(f"{address}/configs"),
        partition_reassignments=Related(f"{address}/partitions/-/reassignment"),
    )


# ---------------------------------------------------------------------------------------------- settings of topics


async def list_topic_configs(gateway: Gateway, request: web.Request, _: bytes) -> web.Response:
    """The settings of a topic, chosen or not."""
    to = links(gateway, request)
    view = topic_of(gateway, request)
    rows = [_config_row(gateway, to, view, name) for name in _config_names()]
    return json_answer(request, V3TopicConfigs(to.page("topics", view.name, "configs"), rows))


async def get_topic_config(gateway: Gateway, request: web.Request, _: bytes) -> web.Response:
    """One setting."""
    to = links(gateway, request)
    return json_answer(request, _config_row(gateway, to, topic_of(gateway, request), _config_name(request)))


async def set_topic_config(gateway: Gateway, request: web.Request, body: bytes) -> web.Response:
    """Choose one setting: 204."""
    links(gateway, request)
    asked = json_object(body, '{"value": "86400000"}')
    value = load(V3ConfigValueBody, asked, gateway.limits).value
    await _configure(gateway, request, kafka_changes([(_config_name(request), value)]))
    return web.Response(status=204)


async def reset_topic_config(gateway: Gateway, request: web.Request, _: bytes) -> web.Response:
    """Take a choice back: 204."""
    links(gateway, request)
    await _configure(gateway, request, kafka_changes([(_config_name(request), None)]))
    return web.Response(status=204)


async def alter_topic_configs(gateway: Gateway, request: web.Request, body: bytes) -> web.Response:
    """Choose, or take back, several settings at once: 204."""
    links(gateway, request)
    asked = json_object(body, '{"data": [{"name": "retention.ms", "value": "86400000"}]}')
    shape = load(V3ConfigChangesBody, asked, gateway.limits)
    changes = _changes(shape.data, with_operations=True)
    if shape.validate_only is not True:
        await _configure(gateway, request, changes)
    return web.Response(status=204)


async def _configure(gateway: Gateway, request: web.Request, changes: Changes) -> None:
    view = topic_of(gateway, request)
    try:
        if changes:
            await gateway.admin.configure_topic(view.name, changes)
    except IllegalTopic as error:
        raise RequestError(CONFIG_ILLEGAL, str(error)) from error


def _changes(rows: object, *, with_operations: bool) -> dict[str, int | str | None]:
    """Changes out of `[{"name", "value", "operation"}]`. Raises RequestError 400."""
    if not isinstance(rows, list):
        raise bad_request('configs: must be an array of {"name", "value"} objects')
    named: list[tuple[str, object]] = []
    for row in rows:
        if not isinstance(row, dict) or not isinstance(name := row.get("name"), str):
            raise bad_request('configs: must hold {"name", "value"} objects')
        operation = row.get("operation") or "SET"
        if operation not in ("SET", "DELETE") or (operation == "DELETE" and not with_operations):
            raise bad_request(f"{name}: operation must be SET or DELETE")
        named.append((name, row.get("value") if operation == "SET" else None))
    return kafka_changes(named)


def _config_names() -> list[str]:
    return ["cleanup.policy", *KAFKA_NAMES.values()]


def _config_name(request: web.Request) -> str:
    name = request.match_info["name"]
    if name not in _config_names():
        raise RequestError(404, f"Config {name} not found. There are {', '.join(_config_names())}.")
    return name


def _config_row(gateway: Gateway, to: Links, view: TopicView, name: str) -> V3TopicConfig:
    retention_ms = gateway.config.store.retention_ms
    defaults = {
        "cleanup.policy": "delete",
        "retention.ms": str(-1 if retention_ms is None else retention_ms),
        "max.message.bytes": str(gateway.limits.record_bytes_max),
        "mq.headers": kafka_text(False),
    }
    chosen = kafka_configs(view.config)
    is_default = name not in chosen or name == "cleanup.policy"
    return V3TopicConfig(
        *to.at(["topics", view.name, "configs", name], f"/topic={view.name}/config={name}"),
        name=name,
        value=chosen.get(name, defaults[name]),
        is_read_only=name == "cleanup.policy",
        source="DEFAULT_CONFIG" if is_default else "DYNAMIC_TOPIC_CONFIG",
        is_default=is_default,
        topic_name=view.name,
    )


# ---------------------------------------------------------------------------------------------- partitions


async def list_partitions(gateway: Gateway, request: web.Request, _: bytes) -> web.Response:
    """The partitions of a topic."""
    to = links(gateway, request)
    view = topic_of(gateway, request)
    rows = [_partition_row(gateway, to, view, number) for number in range(view.partitions)]
    return json_answer(request, V3Partitions(to.page("topics", view.name, "partitions"), rows))


async def get_partition(gateway: Gateway, request: web.Request, _: bytes) -> web.Response:
    """One partition."""
    to = links(gateway, request)
    return json_answer(request, _partition_row(gateway, to, *_partition(gateway, request)))


async def get_partition_offset(gateway: Gateway, request: web.Request, _: bytes) -> web.Response:
    """The first readable offset of a partition, and the one the next record will get."""
    to = links(gateway, request)
    view, number = _partition(gateway, request)
    bounds = await gateway.consumer.bounds(view.name, number)
    return json_answer(
        request,
        V3PartitionOffsets(
            *to.at(
                ["topics", view.name, "partitions", number, "offset"],
                f"/topic={view.name}/partition={number}/offset",
            ),
            topic_name=view.name,
            partition_id=number,
            earliest_offset=bounds.min_offset,
            latest_offset=bounds.max_offset,
        ),
    )


async def list_replicas(gateway: Gateway, request: web.Request, _: bytes) -> web.Response:
    """The replicas of a partition: one."""
    to = links(gateway, request)
    view, number = _partition(gateway, request)
    path = ["topics", view.name, "partitions", number, "replicas"]
    broker_id = leader_of(gateway.cluster, gateway.routes_table, view.name, number)
    replica = V3Replica(
        *to.at([*path, broker_id], f"/topic={view.name}/partition={number}/replica={broker_id}"),
        topic_name=view.name,
        partition_id=number,
        broker_id=broker_id,
        broker=to.related("brokers", broker_id),
    )
    return json_answer(request, V3Replicas(to.page(*path), [replica]))


def _partition(gateway: Gateway, request: web.Request) -> tuple[TopicView, int]:
    view = topic_of(gateway, request)
    number = partition_in(request)
    assert number is not None
    if number >= view.partitions:
        raise RequestError(PARTITION_NOT_FOUND, "Partition not found.")
    return view, number


def _partition_row(gateway: Gateway, to: Links, view: TopicView, number: int) -> V3Partition:
    path = ["topics", view.name, "partitions", number]
    leader = leader_of(gateway.cluster, gateway.routes_table, view.name, number)
    return V3Partition(
        *to.at(path, f"/topic={view.name}/partition={number}"),
        topic_name=view.name,
        partition_id=number,
        leader=to.related(*path, "replicas", leader),
        replicas=to.related(*path, "replicas"),
        reassignment=to.related(*path, "reassignment"),
    )
