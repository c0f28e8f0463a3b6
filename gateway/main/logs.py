"""How log lines look: text for people, JSON for programs. One line a record, whatever is in it.

Control characters are written out, so nothing a client sends can begin a line of its own or move a terminal's cursor.
"""

from __future__ import annotations

import logging
import sys
import time

import orjson

from gateway.settings.config import LogFormat


class TextFormatter(logging.Formatter):
    """`time level logger message`; a traceback follows in lines of its own, indented."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        """See logging.Formatter."""
        text = super().format(record)
        first, *rest = text.split("\n") if record.exc_info or record.stack_info else [text]
        return "\n    ".join(map(_printable, (first, *rest)))


class JsonFormatter(logging.Formatter):
    """One JSON object: time (RFC 3339, UTC), level, logger, message, and error with a traceback."""

    def format(self, record: logging.LogRecord) -> str:
        """See logging.Formatter."""
        seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line: dict[str, object] = {
            "time": f"{seconds}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return orjson.dumps(line, default=str, option=orjson.OPT_NON_STR_KEYS).decode()


def configure(level: int, log_format: LogFormat) -> None:
    """Send the process's log to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
    logging.basicConfig(level=level, handlers=[handler], force=True)


def _printable(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)
