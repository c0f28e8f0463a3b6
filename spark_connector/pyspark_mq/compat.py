"""Names that older pysparks lack: before 4.2 streams have no rate limit and AvailableNow is one batch, and 4.0 cannot
write streams."""

from __future__ import annotations

import pyspark

try:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxRows,
        ReadMinRows,
        SupportsTriggerAvailableNow,
    )

    ADMISSION_CONTROL = True
except ImportError:
    from dataclasses import dataclass

    ADMISSION_CONTROL = False

    class ReadLimit:  # type: ignore[no-redef]
        """Stands in for the class of pyspark 4.2; Spark never passes one here."""

    class ReadAllAvailable(ReadLimit):  # type: ignore[no-redef]
        """As above."""

    @dataclass
    class ReadMaxRows(ReadLimit):  # type: ignore[no-redef]
        """As above."""

        max_rows: int

    @dataclass
    class ReadMinRows(ReadLimit):  # type: ignore[no-redef]
        """As above."""

        min_rows: int

    class SupportsTriggerAvailableNow:  # type: ignore[no-redef]
        """As above."""


try:
    from pyspark.sql.datasource import DataSourceStreamArrowWriter

    STREAM_WRITES = True
except ImportError:
    STREAM_WRITES = False

    class DataSourceStreamArrowWriter:  # type: ignore[no-redef]
        """Stands in for the class of pyspark 4.1; never used."""


def missing() -> str | None:
    """What this pyspark cannot do, for a warning; None when it can do everything."""
    if ADMISSION_CONTROL and STREAM_WRITES:
        return None
    no_writes = "" if STREAM_WRITES else "; streams cannot be written, except in foreachBatch"
    return (
        f"pyspark {pyspark.__version__} is older than 4.2: streams have no rate limit (maxOffsetsPerTrigger and "
        f"minOffsetsPerTrigger are ignored), and availableNow is a single batch{no_writes}"
    )


__all__ = [
    "ADMISSION_CONTROL",
    "STREAM_WRITES",
    "DataSourceStreamArrowWriter",
    "ReadAllAvailable",
    "ReadLimit",
    "ReadMaxRows",
    "ReadMinRows",
    "SupportsTriggerAvailableNow",
    "missing",
]
