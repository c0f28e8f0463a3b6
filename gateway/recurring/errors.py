"""What recurring schedules refuse.

StoreError
├── UnknownRecurring   there is none of this name
│   └── RecurringUnowned    ... and in a cluster it is no node's: it has to be owned before it is used
├── TooManyRecurring   the bound on their number is reached
└── Undeliverable      the topic does not exist or refuses the record (logged and counted; never an answer)
"""

from __future__ import annotations

from store.errors import StoreError


class UnknownRecurring(StoreError):
    """There is no recurring schedule of this name."""


class RecurringUnowned(UnknownRecurring):
    """The name is no node's, or not any more: no schedule of it may be made before it is this one's."""


class TooManyRecurring(StoreError):
    """No room for another recurring schedule. Nothing was stored."""


class Undeliverable(StoreError):
    """The topic of a recurring schedule does not exist, or refuses its record."""
