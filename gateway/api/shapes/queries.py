"""Limits of query parameters that several routes have, or that the API document shows."""

from __future__ import annotations

PAGE_ROWS_DEFAULT, PAGE_ROWS_MAX = 100, 1000
"""`limit`: rows of one page of schedules, of messages with a key, of dead letters."""

BUCKETS_DEFAULT, BUCKETS_MAX = 60, 1000
"""`buckets` of a histogram of schedules."""

STREAM_CREDIT_DEFAULT, STREAM_CREDIT_MAX = 100, 1_000
"""`credit` of an event stream in a group: records on lease to it at a time."""
