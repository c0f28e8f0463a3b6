"""store.limits: the limits fit each other and what clients are told, and each of them is enforced somewhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from store import limits
from store.config import StoreConfig
from store.limits import (
    BATCH_BYTES_MAX,
    BATCH_RECORDS_MAX,
    COMMIT_LOG_FILE_BYTES_MIN,
    ENTRY_BYTES_MAX,
    HEADER_COUNT_MAX,
    HEADERS_BYTES_MAX,
    KEY_BYTES_MAX,
    RECORD_BYTES_MAX,
    TAG_BYTES_MAX,
    TOPIC_NAME_BYTES_MAX,
    KiB,
    MiB,
)
from store.log.entry import entry_bytes
from store.record_batch import Record, check, encode
from store.types import Append, Delay, QueueKey, Source


def test_units_are_binary() -> None:
    assert (KiB, MiB) == (2**10, 2**20)


def test_every_limit_is_a_positive_integer() -> None:
    values = {name: value for name, value in vars(limits).items() if name.isupper()}
    assert len(values) >= 10
    assert all(isinstance(value, int) and value > 0 for value in values.values())


def test_the_largest_record_with_the_largest_key_and_headers_fits_a_batch() -> None:
    headers = [(f"{n:04}", bytes(HEADERS_BYTES_MAX // HEADER_COUNT_MAX - 4)) for n in range(HEADER_COUNT_MAX)]
    assert sum(len(name) + len(value) for name, value in headers) == HEADERS_BYTES_MAX
    key = bytes(KEY_BYTES_MAX)
    record = Record(key, bytes(RECORD_BYTES_MAX - KEY_BYTES_MAX - HEADERS_BYTES_MAX), 0, headers)
    assert check(encode([record])).record_count == 1


def test_a_tag_fits_the_headers_of_its_record() -> None:
    assert len("mq-tag") + TAG_BYTES_MAX <= HEADERS_BYTES_MAX


def test_the_largest_batch_with_the_widest_extension_fits_an_entry() -> None:
    queue, count = QueueKey(16, 0), BATCH_RECORDS_MAX
    append = Append(
        queue=queue,
        batch=bytes(BATCH_BYTES_MAX),
        record_count=count,
        tag_hashes=[1] * count,
        delays=[Delay(1, 16, 0)] * count,
        sources=[Source(1, 0)] * count,
    )
    assert entry_bytes(append, TOPIC_NAME_BYTES_MAX) <= ENTRY_BYTES_MAX


def test_a_store_with_the_smallest_files_opens_and_with_smaller_ones_does_not(tmp_path: Path) -> None:
    config = StoreConfig(root=tmp_path, commit_log_file_bytes=COMMIT_LOG_FILE_BYTES_MIN)
    assert config.entry_bytes_max == COMMIT_LOG_FILE_BYTES_MIN // 4
    with pytest.raises(ValueError, match=str(COMMIT_LOG_FILE_BYTES_MIN)):
        StoreConfig(root=tmp_path, commit_log_file_bytes=COMMIT_LOG_FILE_BYTES_MIN - 1)


def test_with_default_files_the_entry_limit_is_the_formats() -> None:
    assert StoreConfig(root=Path("x")).entry_bytes_max == ENTRY_BYTES_MAX
