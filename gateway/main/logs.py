"""How log lines look: text for people, JSON for programs. One line a record, whatever is in it.

Messages say `name=%s` for what they are about. As text a value that could be taken for more than one is quoted, as in
logfmt; in JSON each is a field. Control characters are written out. So nothing a client sends can begin a line of its
own, move a terminal's cursor, or look like another field.
"""

from __future__ import annotations

import logging
import re
import sys
import time
from collections.abc import Mapping
from typing import NamedTuple

import orjson

from gateway.settings.config import LogFormat

_CONVERSION = re.compile(r"(?:\b(?P<name>\w+)=)?%[-#0 +]*\d*(?:\.\d+)?(?P<kind>[a-zA-Z%])")
_PLAIN = re.compile(r"[^\s\"=\\]+")
_OWN_FIELDS = frozenset(("time", "level", "logger", "message", "traceback"))


class Said(NamedTuple):
    """What a record says: as text, and by the names in its message."""

    text: str
    fields: Mapping[str, object]


class _Quoted:
    """A value as it stands in a line of text."""

    def __init__(self, text: str) -> None:
        self._text = text if _PLAIN.fullmatch(text) and text.isprintable() else orjson.dumps(text).decode()

    def __str__(self) -> str:
        return self._text

    __repr__ = __str__


def said(record: logging.LogRecord) -> Said:
    """The message with its values, those that are named quoted where they need it."""
    if not isinstance(record.msg, str) or not isinstance(record.args, tuple) or not record.args:
        return Said(record.getMessage(), {})
    shown = list(record.args)
    fields: dict[str, object] = {}
    number = 0
    for match in _CONVERSION.finditer(record.msg):
        kind, name = match["kind"], match["name"]
        if kind == "%":
            continue
        if name is not None and number < len(shown):
            value = shown[number]
            if kind in "sr":
                text = repr(value) if kind == "r" else str(value)
                shown[number] = _Quoted(text)
                value = value if value is None or isinstance(value, int | float) else text
            fields[name] = value
        number += 1
    try:
        return Said(record.msg % tuple(shown), fields)
    except (TypeError, ValueError):
        return Said(record.getMessage(), {})


class TextFormatter(logging.Formatter):
    """`time level logger message`; a traceback follows in lines of its own, indented."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:
        """See logging.Formatter."""
        record.message = said(record).text
        return super().formatMessage(record)

    def format(self, record: logging.LogRecord) -> str:
        """See logging.Formatter."""
        text = super().format(record)
        first, *rest = text.split("\n") if record.exc_info or record.stack_info else [text]
        return "\n    ".join(map(_printable, (first, *rest)))


class JsonFormatter(logging.Formatter):
    """One JSON object: time (RFC 3339, UTC), level, logger, message, a field for each value that the message names, and
    a traceback where there is one. A name that is one of these has an underscore behind it."""

    def format(self, record: logging.LogRecord) -> str:
        """See logging.Formatter."""
        seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        text, fields = said(record)
        line: dict[str, object] = {
            "time": f"{seconds}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": text,
            **{f"{name}_" if name in _OWN_FIELDS else name: value for name, value in fields.items()},
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
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
