"""gateway.main.schemas: a registry that is set, is not, or whose libraries are missing."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.main import schemas
from gateway.main.schemas import opened_schemas
from gateway.schemas.service import RegistrySchemas
from gateway.settings.config import ConfigError, build
from gateway.settings.registry import RegistryConfig


async def test_a_registry_that_is_set(caplog: pytest.LogCaptureFixture) -> None:
    async with opened_schemas(RegistryConfig(url="https://registry.example.org:8081/sub/")) as made:
        assert isinstance(made, RegistrySchemas)
    assert not caplog.records


async def test_none_is_set() -> None:
    async with opened_schemas(RegistryConfig()) as made:
        assert made is None


async def test_without_the_libraries_the_log_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(schemas, "LIBRARIES", (*schemas.LIBRARIES, "no_such_package", "no_such.package"))
    async with opened_schemas(RegistryConfig(url="http://127.0.0.1:1")) as made:
        assert made is None
    [record] = caplog.records
    assert "no_such_package, no_such.package is not installed" in record.message
    assert "pip install 'mq-gateway[registry]'" in record.message


@pytest.mark.parametrize("content", [None, "no certificate"])
async def test_certificates_that_cannot_be_used_end_the_start(tmp_path: Path, content: str | None) -> None:
    file = tmp_path / "ca.pem"
    if content is not None:
        file.write_text(content)
    with pytest.raises(ConfigError, match=r"registry\.ca_file"):
        async with opened_schemas(RegistryConfig(url="https://registry.example.org", ca_file=file)):
            pass


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"registry.url": "registry:8081"}, "is no URL such as"),
        ({"registry.url": "ftp://registry"}, "is no URL such as"),
        ({"registry.url": "http://registry/?a=b"}, "is no URL such as"),
        ({"registry.url": "http://me:secret@registry"}, "credentials do not belong there"),
        ({"registry.user": "me"}, "go together"),
        ({"registry.user": "me", "registry.password_file": "p", "registry.token_file": "t"}, "contradict each other"),
        ({"registry.timeout_ms": 0}, "must be positive"),
        ({"registry.url": "http://registry", "registry.ca_file": "ca.pem"}, "needs an https"),
    ],
)
def test_settings_that_contradict_each_other(settings: dict[str, object], why: str) -> None:
    with pytest.raises(ConfigError, match=why) as caught:
        build({"data": "unused", **settings})
    assert "secret@" not in str(caught.value)
