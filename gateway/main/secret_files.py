"""What a node knows the others and etcd by, from files, read again while it runs when they change.

    cluster.secret_file               the secret it sends with, and accepts
    the same with `.also` behind      another one that it accepts as well, when there is such a file. So a secret is
                                      changed without a moment in which two nodes do not know each other: the new one
                                      into `.also` everywhere; then the two change places everywhere; then `.also` goes
    cluster.etcd_password_file        the password of the next login
    cluster.etcd_ca_file              trusted from then on, as well as what was before

What was sent with is accepted for FORMER_S more: files are changed one after the other, and nodes look at them once a
second. A file that cannot be used leaves what was in force, with a line in the log.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from gateway.auth.operator_files import WatchedFiles, read_file
from gateway.cluster.etcd import EtcdConfig, EtcdMetadata
from gateway.cluster.peer_auth import Secret
from gateway.main.reload import RELOAD_INTERVAL_S
from gateway.settings.cluster import ClusterConfig
from store.limits import KiB

log = logging.getLogger(__name__)

SECRET_BYTES_MAX = 64 * KiB
"""Of the files with the cluster's secret and etcd's password."""

ALSO = ".also"
FORMER_S = 10.0
"""How long a secret is accepted that the files do not have any more."""


def also_file(config: ClusterConfig) -> Path:
    """Where the secret is that is accepted as well, while there is one."""
    assert config.secret_file is not None
    return config.secret_file.with_name(config.secret_file.name + ALSO)


def secret_of(config: ClusterConfig) -> Secret:
    """The cluster's secret. Raises OSError, ValueError."""
    assert config.secret_file is not None
    secret = Secret(secret_in(config.secret_file))
    if also_file(config).exists():
        _rotate(config, secret)
    return secret


def secret_in(file: Path) -> bytes:
    """What such a file holds. Raises OSError, ValueError."""
    return read_file(file, SECRET_BYTES_MAX, may_be_pipe=True).strip()


Watched = tuple[Sequence[Path], Callable[[], None]]
"""Files, and what reads them again."""


def etcd_files(config: ClusterConfig, metadata: EtcdMetadata, etcd: EtcdConfig) -> list[Watched]:
    """Those by which etcd is known."""
    password, authority, tls = config.etcd_password_file, config.etcd_ca_file, etcd.tls
    watched: list[Watched] = []
    if password is not None:
        watched.append(((password,), lambda: metadata.use_password(secret_in(password).decode())))
    if authority is not None and tls is not None:
        watched.append(((authority,), lambda: tls.load_verify_locations(cafile=authority)))
    return watched


@asynccontextmanager
async def kept_fresh(config: ClusterConfig, secret: Secret, others: Sequence[Watched] = ()) -> AsyncIterator[None]:
    """Have what was read of the secret's files, and of others, be what they say while the block runs."""
    fresh = asyncio.create_task(_keep_fresh(config, secret, others), name="secret files")
    try:
        yield
    finally:
        fresh.cancel()
        with suppress(asyncio.CancelledError):
            await fresh


async def _keep_fresh(config: ClusterConfig, secret: Secret, others: Sequence[Watched]) -> None:
    assert config.secret_file is not None
    secrets = (config.secret_file, also_file(config))
    watched: list[Watched] = [(secrets, lambda: _rotate(config, secret)), *others]
    files_and_uses = [(WatchedFiles(*files), use) for files, use in watched]
    is_first = True  # they may have changed since they were read
    loop = asyncio.get_running_loop()
    former_until_s = loop.time()
    while True:
        await asyncio.sleep(RELOAD_INTERVAL_S)
        if loop.time() >= former_until_s:
            secret.forget_former()
        for files, use in files_and_uses:
            if not files.have_changed():
                continue
            try:
                use()
            except (OSError, ValueError) as error:
                if files.refused(error):
                    log.error("not read again, what was in force stays file=%s error=%s", files.paths[0], error)
            else:
                files.used()
                if not is_first:
                    log.info("read again file=%s", files.paths[0])
                if files.paths == secrets:
                    former_until_s = loop.time() + FORMER_S
        is_first = False


def _rotate(config: ClusterConfig, secret: Secret) -> None:
    assert config.secret_file is not None
    also = also_file(config)
    secret.rotate(_regular(config.secret_file), _regular(also) if also.exists() else None)


def _regular(file: Path) -> bytes:
    return read_file(file, SECRET_BYTES_MAX).strip()
