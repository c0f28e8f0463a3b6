"""All surfaces of a server in one aiohttp application."""

from __future__ import annotations

from collections.abc import Sequence

from aiohttp import web

from gateway.api.cluster import FIGURES
from gateway.api.topic_figures import Row as FigureRow
from gateway.api.topic_figures import TopicFigures
from gateway.main.routes import ROUTES
from gateway.surfaces.http.application import application_of
from gateway.surfaces.http.context import Gateway
from gateway.surfaces.http.routes import Row
from gateway.surfaces.native.connections import SESSIONS_ADMIN
from gateway.surfaces.native.topics import TOPIC_FIGURES
from gateway.surfaces.openapi.served import DOCUMENTS, Documents
from gateway.surfaces.ws.endpoint import SESSIONS, install_sockets


def build_application(gateway: Gateway, rows: Sequence[Row] = ROUTES) -> web.Application:
    """The application of one gateway. Raises ValueError for an illegal route table."""
    application = application_of(gateway, rows)
    application[DOCUMENTS] = Documents(gateway, rows)
    application[TOPIC_FIGURES] = _figures_of(gateway)
    install_sockets(application, gateway)
    application[SESSIONS_ADMIN] = application[SESSIONS]
    return application


def _figures_of(gateway: Gateway) -> TopicFigures:
    cluster, routes = gateway.cluster, gateway.routes_table
    (own,) = gateway.admin.brokers()
    if cluster is None:
        return TopicFigures(routes, gateway.figures, own=own)

    async def others(topic_ids: Sequence[int] | None) -> tuple[Sequence[Sequence[FigureRow]], Sequence[str]]:
        answers, missing = await cluster.ask_all(FIGURES, {"topics": topic_ids})
        return [answer["rows"] for answer in answers.values()], missing

    return TopicFigures(routes, gateway.figures, own=own, others=others)
