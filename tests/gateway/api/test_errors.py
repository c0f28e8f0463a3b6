"""gateway.errors and gateway.api.errors: what callers are told, and the HTTP status that goes with it."""

from __future__ import annotations

import pytest

from gateway.api.errors import ANSWERS, error_of
from gateway.cluster.move_slots import MovesBusy
from gateway.errors import RequestError
from gateway.routing.base import UnknownPartition
from gateway.surfaces.http.statuses import status_of
from store.errors import Corrupt, DiskFull, Overloaded, StoreError, UnknownQueue
from timer.errors import TimerBusy


def leaves(cls: type[Exception]) -> set[type[Exception]]:
    below = cls.__subclasses__()
    return {cls} if not below else {leaf for sub in below for leaf in leaves(sub)} | {cls}


# Offline tools have errors of their own below StoreError; no server raises them.
SERVED = {cls for cls in leaves(StoreError) if cls.__module__ == StoreError.__module__}


@pytest.mark.parametrize("cls", sorted(SERVED, key=lambda cls: cls.__name__))
def test_every_store_error_has_a_row_of_its_own(cls: type[Exception]) -> None:
    assert cls in ANSWERS


@pytest.mark.parametrize("cls", ANSWERS, ids=lambda cls: cls.__name__)
def test_every_code_has_three_or_five_digits(cls: type[Exception]) -> None:
    assert len(str(ANSWERS[cls].error_code)) in (3, 5)


@pytest.mark.parametrize(
    ("error", "status", "code", "retriable"),
    [
        (DiskFull("x"), 507, 50750, True),
        (Overloaded("x"), 503, 50351, True),
        (TimerBusy("x"), 503, 50351, True),
        (MovesBusy("x"), 429, 42950, True),
        (UnknownQueue("x"), 404, 40401, False),
        (UnknownPartition("x"), 404, 40402, False),
        (Corrupt("/secret/path", 7, "crc"), 500, 50002, False),
        (ZeroDivisionError("secret"), 500, 500, False),
        (RequestError(418, "teapot", True), 418, 418, True),
    ],
)
def test_answers(error: Exception, status: int, code: int, retriable: bool) -> None:
    answer = error_of(error)
    assert (status_of(answer.error_code), answer.error_code, answer.retriable) == (status, code, retriable)
    assert "secret" not in answer.message


def test_what_the_timer_cannot_do_now_is_said_in_its_own_words() -> None:
    answer = error_of(TimerBusy("on their way; try again"))
    assert answer.message == "on their way; try again"
    assert answer.retry_after_ms == 1000


def test_a_new_leaf_is_answered_like_its_parent() -> None:
    class DiskVeryFull(DiskFull):
        pass

    assert error_of(DiskVeryFull()).error_code == 50750


def test_the_body_has_the_fields_clients_rely_on_and_only_what_is_known() -> None:
    plain = RequestError(42250, "m")
    assert plain.body("r1") == {"error_code": 42250, "message": "m", "request_id": "r1", "retriable": False}
    assert plain.body() == {"error_code": 42250, "message": "m", "retriable": False}
    full = RequestError(41601, "m", details={"end_offset": 3}, validation_errors=["a: b"])
    assert full.body()["details"] == {"end_offset": 3}
    assert full.body()["validation_errors"] == ["a: b"]
