"""All surfaces of a server in one aiohttp application."""

from __future__ import annotations

from collections.abc import Sequence

from aiohttp import web

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
    application[TOPIC_FIGURES] = TopicFigures(gateway.consumer, gateway.figures)
    install_sockets(application, gateway)
    application[SESSIONS_ADMIN] = application[SESSIONS]
    return application
