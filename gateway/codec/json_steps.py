"""JSON of megabytes, read in steps of some milliseconds: a call of the parser cannot be interrupted. Pure.

What is large in a request is one array: records, entries. It is parsed in pieces of STEP_BYTES, cut between two of its
elements, and the rest of the text, with what is left of the array, as the last piece:

    {"acks":"flushed","records":[{"value":1},{"value":2},{"value":3},{"value":4}]}
    |--------- head -----------||------ piece --------| |------ rest ------------|

Where to cut is guessed, by what the elements begin with, and proved: a piece that is JSON between brackets begins and
ends between two elements. Where no guess is right, brackets are counted. An element alone, or a text that has no such
array, is parsed whole if that takes no longer than COST_NS_MAX, else refused.

Invariants
    S1  the value is the one that the parser makes of the whole text, and what it refuses is refused
    S2  no step takes longer than parsing STEP_BYTES, or what COST_NS_MAX allows
S3  nothing heavier than WEIGHT_MAX is made
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator

import orjson

from gateway.codec.json_text import parse_json
from gateway.errors import bad_request, invalid
from store.limits import KiB, MiB

STEP_BYTES = 256 * KiB
"""8 ms of nothing but small objects, 2 ms of usual records."""

COST_NS_MAX = 40_000_000
"""Of one piece, as `_cost_ns` guesses it."""

WEIGHT_MAX = 1_000_000
"""Arrays and objects of a text, and a third of its strings: to free them, and to look at them for garbage, takes time
all at once."""

TOO_DEAR_TEXT = "too many arrays, objects and strings; split it, or send values as text or as bytes."

_HEAD = re.compile(
    rb"\s{0,1000}+(?:\{\s{0,1000}+"
    rb'(?:"[^"\\]{0,200}"\s{0,99}+:\s{0,99}+(?:"[^"\\]{0,1000}"|[-+.\w]{1,100})\s{0,99}+,\s{0,99}+){0,16}+'
    rb'"([^"\\]{1,200})"\s{0,99}+:\s{0,99}+)?+\['
)
"""Up to the first array: of the text, or of an object that has nothing but plain members before it."""

_BEGINNING = re.compile(rb'\s{0,200}+(?:\{\s{0,200}+"[^"\\]{0,200}"|.)', re.DOTALL)
_MARK = re.compile(rb'"(?:[^"\\]++|\\.)*+("?)|[\[\]{}]', re.DOTALL)
_STRING = re.compile(rb'(?:[^"\\]++|\\.)*+("?)', re.DOTALL)
_COMMA = re.compile(rb"\s{0,1000}+,")
_CONTAINER_NS = 130
_QUOTE = ord('"')
_GUESSES_MAX = 3
_MARKS_A_STEP = 10_000  # counted between two turns: some 4 ms
_REST = "\x00 the rest"  # stands before what is left of the array


def parse_in_steps(
    text: bytes, what: str = "body", *, elements_max: int | None = None
) -> Generator[None, None, object]:
    """As `parse_json`: the value is what the generator returns. Between its steps it is others' turn.

    With more elements than `elements_max` in its large array, which the caller refuses then, the rest is not read.
    """
    if len(text) <= STEP_BYTES:
        return parse_json(text, what)
    weight = 0
    for start in range(0, len(text), MiB):
        containers, quotes = _counts(text, start, start + MiB)
        weight += containers + quotes // 6
        if weight > WEIGHT_MAX:
            raise invalid(f"The {what} has {TOO_DEAR_TEXT}")
        yield
    head = _HEAD.match(text)
    at = begin = 0 if head is None else head.end()
    elements: list[object] = []
    while head is not None and len(text) - at > STEP_BYTES:
        end = yield from _end_of_piece(text, at, elements)
        if end is None:
            break
        at = end + 1
        if elements_max is not None and len(elements) > elements_max:
            value = parse_json(text[:begin] + (b"]" if head[1] is None else b"]}"), what)
            return elements if not isinstance(value, dict) else {**value, next(reversed(value)): elements}
        yield
    yield from check_cost(text, at, len(text), what)
    if at == begin:
        return parse_json(text, what)
    value = parse_json(b'%b"\\u0000 the rest",%b' % (text[:begin], text[at:]), what)
    name = head[1].decode() if head is not None and head[1] is not None else None
    array = value[name] if name is not None and isinstance(value, dict) else value
    if not isinstance(array, list) or not array or array[0] != _REST:
        raise bad_request(f"The {what} has {name} more than once.")
    array[:1] = elements
    return value


def _end_of_piece(text: bytes, at: int, elements: list[object]) -> Generator[None, None, int | None]:
    """Parse the next piece, which begins at an element; where the comma behind it is. None when there is none that
    would leave less to be parsed."""
    beginning = _BEGINNING.match(text, at)
    assert beginning is not None
    for end in _guesses(text, at, b"," + beginning[0]):
        if end - at > STEP_BYTES:
            yield from check_cost(text, at, end, "body")
        try:
            piece = orjson.loads(b"[%b]" % text[at:end])
        except orjson.JSONDecodeError:
            yield
            continue
        if piece:  # of nothing but blanks would be one comma too many
            elements += piece
            return end
    counted = yield from _counted_end(text, at)
    if counted is not None:
        yield from check_cost(text, at, counted, "body")
        elements += parse_json(b"[%b]" % text[at:counted])  # type: ignore[arg-type]
    return counted


def _guesses(text: bytes, at: int, separator: bytes) -> Iterator[int]:
    end = at + STEP_BYTES
    for _ in range(_GUESSES_MAX):
        end = text.rfind(separator, at + 1, end)
        if end < 0:
            break
        yield end
    if end < 0 and (end := text.find(separator, at + STEP_BYTES)) >= 0:
        yield end


def _counted_end(text: bytes, at: int) -> Generator[None, None, int | None]:
    """The comma behind the first object or array that ends STEP_BYTES or more after `at`; None: the array ends."""
    depth = mark_count = bracket_count = 0
    position = at
    while position < len(text):
        stop = min(position + STEP_BYTES, len(text))
        for mark in _MARK.finditer(text, position, stop):
            mark_count += 1
            if mark_count % _MARKS_A_STEP == 0:
                yield
            byte = text[mark.start()]
            if byte == _QUOTE:
                if not mark[1]:
                    stop = yield from _end_of_string(text, mark.end())
                continue
            depth += 1 if byte in b"[{" else -1
            bracket_count += 1
            if depth < 0:
                return None
            if depth == 0 and mark.end() - at >= STEP_BYTES:
                comma = _COMMA.match(text, mark.end())
                return None if comma is None else comma.end() - 1
            if bracket_count * _CONTAINER_NS // 2 > COST_NS_MAX:  # a beginning and an end each: `check_cost` refuses it
                raise invalid(f"The body has {TOO_DEAR_TEXT}")
        position = stop
        yield
    return None


def _end_of_string(text: bytes, at: int) -> Generator[None, None, int]:
    """The position behind a string that has been read up to `at`, where no escape is under way."""
    while at < len(text):
        rest = _STRING.match(text, at, at + STEP_BYTES)
        assert rest is not None
        if rest[1] or rest.end() == at:  # its end; or a lone escape at the end of the text
            return rest.end() if rest[1] else len(text)
        at = rest.end()
        yield
    return at


def check_cost(text: bytes, at: int, end: int, what: str) -> Generator[None, None, None]:
    """Raises RequestError 422 for a stretch of text that takes too long to be parsed whole."""
    cost_ns = 0
    for start in range(at, end, MiB):
        cost_ns += _cost_ns(text, start, min(start + MiB, end))
        if cost_ns > COST_NS_MAX:
            raise invalid(f"The {what} has {TOO_DEAR_TEXT}")
        yield


def _cost_ns(text: bytes, start: int, stop: int) -> int:
    """About what parsing takes at most: containers and names that differ are dearest."""
    containers, quotes = _counts(text, start, stop)
    names, commas = text.count(b":", start, stop), text.count(b",", start, stop)
    return _CONTAINER_NS * containers + 32 * quotes + 150 * names + 28 * commas


def _counts(text: bytes, start: int, stop: int) -> tuple[int, int]:
    """Arrays and objects, and quotes."""
    return text.count(b"[", start, stop) + text.count(b"{", start, stop), text.count(b'"', start, stop)
