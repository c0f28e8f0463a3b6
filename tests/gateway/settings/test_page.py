"""gateway/settings/page.py: docs/configuration.md is what the code says, and says something about every setting."""

from __future__ import annotations

import re
from pathlib import Path

from gateway.settings.config import known_settings, variable_of
from gateway.settings.page import configuration_page

PAGE = Path(__file__).resolve().parents[3] / "docs" / "configuration.md"


def test_the_page_is_made_from_the_settings() -> None:
    assert PAGE.read_text() == configuration_page(), "run: make configuration"


def test_every_setting_has_its_variable_and_words() -> None:
    rows = re.findall(r"^\| `([\w.]+)` \| `(\w+)` \| (.+?) \| (.+?) \| (.*) \|$", configuration_page(), re.MULTILINE)
    assert {name: variable for name, variable, *_ in rows} == {name: variable_of(name) for name in known_settings()}
    assert [name for name, _, _, _, words in rows if len(words) < 10] == []
    shown = {name: (default, kind) for name, _, default, kind, _ in rows}
    assert shown["store.acks"] == ("`flushed`", "`written`, `flushed`")
    assert shown["store.retention_ms"] == ("604800000 (7 d)", "number")
    assert shown["limits.body_bytes_max"] == ("16777216 (16 MiB)", "number")
    assert shown["data"] == ("required", "path")
    assert shown["allowed_origins"] == ("none", "list")
