"""Sends under a condition: `If-Match: "104"`, only if the first record gets offset 104.

The number is the partition's end offset (Mq-End-Offset, `end_offset`) as the sender last saw it. Whoever reads a
partition, decides, and appends, learns by 412/41250 that another record came first, and that nothing was stored.
"""

from __future__ import annotations

import re

from aiohttp import hdrs, web

from gateway.errors import bad_request, invalid
from gateway.surfaces.http.send_options import DELAY_HEADERS

_OFFSET = re.compile(r'"([0-9]{1,18})"|([0-9]{1,18})')


def expected_offset(request: web.Request) -> int | None:
    """The offset that a request's first record is to get; None without the header. Raises RequestError 400."""
    if hdrs.IF_MATCH not in request.headers:
        return None
    values = request.headers.getall(hdrs.IF_MATCH)
    found = _OFFSET.fullmatch(values[0].strip())
    if len(values) > 1 or found is None:
        raise bad_request('If-Match: must be the end offset of the partition, such as "104"')
    return int(found[1] or found[2])


def refuse_condition(request: web.Request) -> None:
    """For sends of many requests' worth, to which one condition or due time cannot apply. Raises RequestError 422."""
    for name, header in DELAY_HEADERS.items():
        if header in request.headers:
            raise invalid(f"{header}: not for streams and batches of entries; give their records a {name}")
    if hdrs.IF_MATCH in request.headers:
        raise invalid(
            "If-Match: not for streams and batches of entries; use POST /topics/{topic}/partitions/{partition}"
        )
