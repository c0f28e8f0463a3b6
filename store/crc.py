"""CRC-32C of bytes of which the first have changed, without a look at those that follow.

A CRC is linear: what a change of the first bytes does to it is the CRCs of these before and after (without what
follows), exclusive-or, and that as a polynomial times x to the power of 8 for each byte that follows, modulo the
CRC's own. Polynomials are numbers here whose bit 31 is the coefficient of x^0, as the CRC has them.

    crc(new head + rest) = crc(old head + rest) ^ (crc(old head) ^ crc(new head)) * x^(8 * len(rest))

So a CRC that was good stays one over the bytes that it was made of: what damages the rest in memory meanwhile is found.
Pure.
"""

from __future__ import annotations

from functools import cache, lru_cache

from crc32c import crc32c

from store.types import Buffer

_POLYNOMIAL = 0x82F63B78
_ONE = 1 << 31


def changed_crc(crc: int, old_head: Buffer, new_head: Buffer, rest_bytes: int) -> int:
    """The CRC of `new_head` and so many bytes, of that of `old_head` and the same bytes; the heads are equally long."""
    assert len(old_head) == len(new_head)
    return crc ^ _times(crc32c(old_head) ^ crc32c(new_head), _power(rest_bytes))


@lru_cache(maxsize=256)  # a sender's batches are often of one size: one product each then
def _power(byte_count: int) -> int:
    """x^(8 * byte_count)."""
    power, digit = _ONE, 0
    while byte_count:
        if low := byte_count & 0xFF:
            power = _times(power, _power_of_digit(low, digit))
        byte_count >>= 8
        digit += 1
    return power


@cache  # 255 for each of a length's bytes at most
def _power_of_digit(low: int, digit: int) -> int:
    """x^(8 * low * 256^digit)."""
    if digit:
        power = _power_of_digit(low, digit - 1)
        for _ in range(8):
            power = _times(power, power)
        return power
    power = _ONE
    for _ in range(8 * low):
        power = _times_x(power)
    return power


def _times_x(number: int) -> int:
    return number >> 1 ^ _POLYNOMIAL if number & 1 else number >> 1


def _times(number: int, other: int) -> int:
    """The product of two polynomials, modulo the CRC's."""
    product = 0
    while number:
        if number & _ONE:
            product ^= other
        number = number << 1 & 0xFFFFFFFF
        other = other >> 1 ^ _POLYNOMIAL if other & 1 else other >> 1
    return product
