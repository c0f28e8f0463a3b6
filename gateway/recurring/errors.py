"""What recurring schedules refuse.

StoreError
├── UnknownRecurring   there is none of this name                 (404)
├── TooManyRecurring   the bound on their number is reached       (429)
└── NoPlace            the topic is not there, or does not take the record; nobody is answered with it
"""

from __future__ import annotations

from store.errors import StoreError


class UnknownRecurring(StoreError):
    """There is no recurring schedule of this name."""


class TooManyRecurring(StoreError):
    """No room for another recurring schedule. Nothing was stored."""


class NoPlace(StoreError):
    """The topic of a recurring schedule is not there, or does not take its record."""
