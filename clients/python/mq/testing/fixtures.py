"""Fixtures for pytest, found by themselves where mq-py is installed.

mq_fake      a client of a server in memory (mq/testing/fake.py), open; needs pytest-asyncio
mq_server    the URL of a real server, for the whole run: MQ_TEST_URL, else one that is started on a free port with data
             in a temporary directory, if the server is installed in this environment; else the test is skipped
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from mq.testing.fake import Fake

try:
    import pytest_asyncio

    async_fixture: Any = pytest_asyncio.fixture
except ImportError:
    async_fixture = pytest.fixture  # tests of other async plugins, which take async fixtures as they are


@async_fixture  # type: ignore[untyped-decorator]
async def mq_fake() -> AsyncIterator[Fake]:
    """A client of a server in memory."""
    async with Fake() as client:
        yield client


@pytest.fixture(scope="session")
def mq_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a server."""
    if url := os.environ.get("MQ_TEST_URL"):
        yield url
        return
    if importlib.util.find_spec("gateway") is None:
        pytest.skip("no server: pip install mq-gateway, or set MQ_TEST_URL")
    data = tmp_path_factory.mktemp("mq-server")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MQ_")}
    server = subprocess.Popen(
        [sys.executable, "-m", "gateway", "serve", "--data", str(data / "data"), "--port", "0"],
        env=environment, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert server.stdout is not None
        yield server.stdout.readline().strip()
    finally:
        server.terminate()
        server.wait(30)
        server.stdout.close() if server.stdout is not None else None
