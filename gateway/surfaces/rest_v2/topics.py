"""The REST Proxy's metadata of topics and partitions."""

from __future__ import annotations

from aiohttp import web

from gateway.api.cluster import broker_numbers, leader_of
from gateway.api.shapes import answers
from gateway.codec.topic_configs import kafka_configs
from gateway.errors import TOPIC_METADATA_NOT_FOUND, RequestError
from gateway.routing.base import TopicView, UnknownPartition
from gateway.surfaces.http.answers import v2_answer
from gateway.surfaces.http.caller import visible_topics
from gateway.surfaces.http.context import Gateway
from gateway.surfaces.http.reading import partition_in, topic_in
from store.errors import UnknownQueue


async def brokers(gateway: Gateway, request: web.Request, _: bytes) -> web.Response:
    """The broker ids of the REST Proxy's metadata."""
    return v2_answer(request, answers.Brokers(broker_numbers(gateway.cluster, gateway.routes_table)))


async def topic_names(gateway: Gateway, request: web.Request, _: bytes) -> web.Response:
    """The names of all topics that the caller may describe."""
    return v2_answer(request, [view.name for view in await visible_topics(gateway, request)])


async def topic_metadata(gateway: Gateway, request: web.Request, _: bytes) -> web.Response:
    """One topic with its partitions, in the REST Proxy's shape."""
    try:
        view = topic_in(gateway, request)
    except UnknownQueue:
        raise RequestError(TOPIC_METADATA_NOT_FOUND, "Topic not found.") from None
    rows = [_partition(gateway, view, number) for number in range(view.partitions)]
    return v2_answer(request, answers.TopicMetadata(view.name, kafka_configs(view.config), rows))


async def partitions(gateway: Gateway, request: web.Request, _: bytes) -> web.Response:
    """The partitions of a topic."""
    view = topic_in(gateway, request)
    return v2_answer(request, [_partition(gateway, view, number) for number in range(view.partitions)])


async def partition(gateway: Gateway, request: web.Request, _: bytes) -> web.Response:
    """One partition of a topic."""
    number = partition_in(request)
    view = topic_in(gateway, request)
    assert number is not None
    if number >= view.partitions:
        raise UnknownPartition
    return v2_answer(request, _partition(gateway, view, number))


async def partition_offsets(gateway: Gateway, request: web.Request, _: bytes) -> web.Response:
    """The first readable offset of a partition, and the one the next record will get."""
    number = partition_in(request)
    assert number is not None
    bounds = await gateway.consumer.bounds(request.match_info["topic"], number)
    return v2_answer(request, answers.PartitionOffsets(bounds.min_offset, bounds.max_offset))


def _partition(gateway: Gateway, view: TopicView, number: int) -> answers.PartitionMetadata:
    leader = leader_of(gateway.cluster, gateway.routes_table, view.name, number)
    return answers.PartitionMetadata(number, leader, [answers.Replica(leader, leader=True, in_sync=True)])
