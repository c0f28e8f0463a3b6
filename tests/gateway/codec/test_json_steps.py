"""gateway/codec/json_steps.py"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.codec import json_steps
from gateway.codec.json_steps import STEP_BYTES, parse_in_steps
from gateway.errors import RequestError
from loadtest.slowness import slowness
from loadtest.turns.cases import BOMBS
from store.limits import MiB

STEP_CPU_S = 0.05


@pytest.fixture(autouse=True)
def _calm_collector() -> Iterator[None]:
    """As a server has it: with Python's own threshold, most of the time goes into looking for garbage."""
    before = gc.get_threshold()
    gc.set_threshold(50_000, 20, 20)
    yield
    gc.set_threshold(*before)


def run(text: bytes) -> tuple[object, int, float]:
    """The value, how many steps it took, and the CPU time of the longest."""
    steps = parse_in_steps(text)
    count, longest_s = 1, 0.0
    while True:
        started_s = time.thread_time()
        try:
            next(steps)
        except StopIteration as end:
            return end.value, count, max(longest_s, time.thread_time() - started_s)
        longest_s = max(longest_s, time.thread_time() - started_s)
        count += 1


@pytest.fixture
def _small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_steps, "STEP_BYTES", 24)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(alphabet='a"\\,{}[]: é\n', max_size=12),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(alphabet='a"\\,{k', max_size=4), inner, max_size=3)
    ),
    max_leaves=12,
)  # fmt: skip
PIECES = ['{"records":[', '{"v":1}', '{"v":[{"v":1},2]}', ",", "]", "}", '"', "[", " ", "1", "\\"]
RECORDS = st.fixed_dictionaries({"value": JSON}, optional={"key": JSON, "headers": JSON})


@pytest.mark.usefixtures("_small_steps")
@settings(max_examples=150, deadline=None)
@given(
    elements=st.lists(RECORDS | JSON, max_size=20),
    before=st.dictionaries(st.text(max_size=6), st.text(max_size=10) | JSON, max_size=3),
    after=st.dictionaries(st.text(max_size=6), JSON, max_size=3),
    bare=st.booleans(),
    indent=st.booleans(),
)
def test_the_value_is_that_of_the_whole_text(
    elements: list[object], before: dict[str, object], after: dict[str, object], bare: bool, indent: bool
) -> None:
    value = elements if bare else {**before, "records": elements, **after}
    text = orjson.dumps(value, option=orjson.OPT_INDENT_2 if indent else None)
    assert run(text)[0] == orjson.loads(text)


@pytest.mark.usefixtures("_small_steps")
@settings(max_examples=150, deadline=None)
@given(text=st.lists(st.sampled_from(PIECES), max_size=40).map("".join))
def test_what_is_no_json_is_refused_and_what_is_is_not(text: str) -> None:
    try:
        expected = orjson.loads(text)
    except orjson.JSONDecodeError:
        with pytest.raises(RequestError):
            run(text.encode())
    else:
        assert run(text.encode())[0] == expected


def test_a_large_request_takes_many_steps() -> None:
    value = {"acks": "flushed", "records": [{"key": f"k{n}", "value": {"n": [n, {"m": n}]}} for n in range(40_000)]}
    text = orjson.dumps(value)
    found, count, _ = run(text)
    assert found == value
    assert count >= len(text) // STEP_BYTES


@pytest.mark.usefixtures("_small_steps")
def test_a_name_twice_is_refused_where_the_array_would_be_mixed() -> None:
    first = b'{"records":[%b],"records":[{"v":2}]}' % b",".join([b'{"v":1}'] * 10)
    with pytest.raises(RequestError, match="more than once"):
        run(first)


@pytest.mark.parametrize("wrap", [b"%b", b'{"records":%b}', b'{"records":[{"value":%b}]}', b'[{"a":%b},{"a":1}]'])
@pytest.mark.parametrize(("name", "bomb"), [(name, bomb(MiB)) for name, bomb in BOMBS.items()])
def test_no_step_of_any_bomb_is_long(wrap: bytes, name: str, bomb: bytes) -> None:
    text = wrap.replace(b"%b", bomb)
    assert any(_longest_s(text) < STEP_CPU_S * slowness() for _ in range(3)), name


def _longest_s(text: bytes) -> float:
    steps = parse_in_steps(text)
    longest_s = 0.0
    while True:
        started_s = time.thread_time()
        try:
            next(steps)
        except (StopIteration, RequestError):
            return max(longest_s, time.thread_time() - started_s)
        longest_s = max(longest_s, time.thread_time() - started_s)
