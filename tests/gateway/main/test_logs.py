"""gateway/main/logs.py"""

from __future__ import annotations

import logging
import sys

import orjson
import pytest

from gateway.main.logs import JsonFormatter, TextFormatter, configure


def record(message: str, *args: object, error: Exception | None = None) -> logging.LogRecord:
    info = None
    if error is not None:
        try:
            raise error
        except Exception:
            info = sys.exc_info()
    return logging.LogRecord("mq.test", logging.WARNING, __file__, 1, message, args, info)


def test_nothing_a_client_sends_begins_a_line_of_its_own() -> None:
    for formatter in (TextFormatter(), JsonFormatter()):
        line = formatter.format(record("topic=%s", "a\n2026-01-01 ERROR forged\x1b[31m\r"))
        assert len(line.splitlines()) == 1
        assert "\x1b" not in line


def test_a_traceback_is_indented_and_stays_readable() -> None:
    text = TextFormatter().format(record("failed", error=ValueError("a\x1bb")))
    first, *rest = text.splitlines()
    assert first.endswith("WARNING mq.test failed")
    assert all(line.startswith("    ") for line in rest)
    assert "\x1b" not in text


def test_json_lines_say_when_where_and_what() -> None:
    line = orjson.loads(JsonFormatter().format(record("count=%d", 5, error=ValueError("x"))))
    assert (line["level"], line["logger"], line["message"]) == ("warning", "mq.test", "count=5")
    assert line["time"].endswith("Z")
    assert line["count"] == 5
    assert "ValueError: x" in line["traceback"]


def test_values_that_are_named_are_fields_and_quoted_where_they_need_it() -> None:
    of = record(
        "done %s id=%s ms=%.1f error=%r level=%s none=%s 100%% empty=%s",
        "at once", 'x status="1"', 2.5, OSError(28, "no room"), "high", None, "",
    )  # fmt: skip
    text = TextFormatter().format(of)
    assert text.endswith(
        r'done at once id="x status=\"1\"" ms=2.5 error="OSError(28, '
        r"""'no room')" level=high none=None 100% empty="" """.rstrip()
    )
    line = orjson.loads(JsonFormatter().format(of))
    assert (line["id"], line["ms"], line["error"]) == ('x status="1"', 2.5, "OSError(28, 'no room')")
    assert (line["level"], line["level_"], line["none"], line["empty"]) == ("warning", "high", None, "")


@pytest.mark.parametrize("args", [("one",), ("one", "two", "three"), ({"a": 1},)])
def test_a_message_that_does_not_fit_its_values_is_logged_as_logging_would(args: tuple[object, ...]) -> None:
    of = logging.LogRecord("mq.test", logging.WARNING, __file__, 1, "a=%s b=%s", args, None)
    with pytest.raises(TypeError):
        TextFormatter().format(of)
    assert TextFormatter().format(record("nothing=100%")).endswith("nothing=100%")


def test_the_process_logs_as_configured(capsys: pytest.CaptureFixture[str]) -> None:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    try:
        configure(logging.INFO, "json")
        logging.getLogger("mq.test").info("hello")
        assert orjson.loads(capsys.readouterr().err)["message"] == "hello"
        configure(logging.INFO, "text")
        logging.getLogger("mq.test").info("hello")
        assert capsys.readouterr().err.endswith("INFO mq.test hello\n")
    finally:
        root.handlers[:], root.level = handlers, level
