"""Receipts: signed, bound to the group, refused when anything differs."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.groups.machines import receipts
from gateway.groups.machines.errors import IllegalRequest
from gateway.groups.machines.receipts import KEY_BYTES_MAX, KEY_BYTES_MIN, REMEMBERED_MAX, Receipt, Signer

KEY, OTHER = b"k" * 32, b"o" * 32
RECEIPT = Receipt(16, 3, 2**40, 2, 1_767_225_600_000, 7)


@given(
    receipt=st.builds(
        Receipt,
        st.integers(0, 2**32 - 1),
        st.integers(0, 2**32 - 1),
        st.integers(0, 2**63 - 1),
        st.integers(0, 2**32 - 1),
        st.integers(0, 2**63 - 1),
        st.integers(0, 2**63 - 1),
    ),
    group=st.text(max_size=20),
)
def test_a_receipt_reads_back_after_a_restart(receipt: Receipt, group: str) -> None:
    assert Signer([KEY]).check(group, Signer([KEY]).sign(group, receipt)) == receipt


def test_the_text_form_is_fixed() -> None:
    text = Signer([KEY]).sign("billing", RECEIPT)
    assert text.startswith("r1.")
    raw = base64.urlsafe_b64decode(text[3:] + "=")
    assert raw[:37].hex() == (
        "01" + "00000010" + "00000003" + "0000010000000000" + "00000002" + "0000019b76daa800" + "0000000000000007"
    )
    assert len(raw) == 53


@given(at=st.integers(0, 52), flip=st.integers(1, 255))
def test_a_receipt_with_any_byte_changed_is_refused(at: int, flip: int) -> None:
    signer = Signer([KEY])
    raw = bytearray(base64.urlsafe_b64decode(signer.sign("billing", RECEIPT)[3:] + "="))
    raw[at] ^= flip
    with pytest.raises(IllegalRequest):
        signer.check("billing", "r1." + base64.urlsafe_b64encode(raw).rstrip(b"=").decode())


def test_a_receipt_is_worth_nothing_in_another_group_or_under_another_key() -> None:
    text = Signer([KEY]).sign("billing", RECEIPT)
    for signer, group in ((Signer([KEY]), "shipping"), (Signer([OTHER]), "billing")):
        with pytest.raises(IllegalRequest):
            signer.check(group, text)


def test_keys_can_be_changed_without_voiding_receipts() -> None:
    old = Signer([KEY]).sign("billing", RECEIPT)
    both = Signer([OTHER, KEY])
    assert both.check("billing", old) == RECEIPT
    assert Signer([OTHER]).check("billing", both.sign("billing", RECEIPT)) == RECEIPT


@given(st.text(max_size=90))
def test_any_other_text_is_refused(text: str) -> None:
    for candidate in (text, "r1." + text, "r1." + text[:71].ljust(71, "A"), "r1." + "é" * 71):
        with pytest.raises(IllegalRequest):
            Signer([KEY]).check("billing", candidate)


def test_a_key_has_a_least_and_a_greatest_length() -> None:
    for length in (KEY_BYTES_MIN, KEY_BYTES_MAX):
        Signer([b"x" * length])
    for keys in ([], [b"x" * (KEY_BYTES_MIN - 1)], [b"x" * (KEY_BYTES_MAX + 1)]):
        with pytest.raises(ValueError):
            Signer(keys)


def test_a_receipt_that_is_remembered_is_judged_as_one_that_is_not() -> None:
    """Known and unknown ones, shown once and twice, to the right group and to another."""
    signer, stranger = Signer([KEY]), Signer([OTHER])
    texts = signer.sign_all("billing", [RECEIPT._replace(offset=n) for n in range(4)])
    forged = stranger.sign("billing", RECEIPT)
    later = Signer([KEY]).sign("billing", RECEIPT._replace(offset=9))
    for _ in range(2):
        found = signer.check_all("billing", [*texts[:2], forged, later, texts[0]])
        assert [one and one.offset for one in found] == [0, 1, None, 9, 0]
    assert signer.check_all("shipping", texts[2:]) == [None, None]
    assert [one and one.offset for one in signer.check_all("billing", texts[2:])] == [2, 3]


def test_so_many_receipts_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    assert REMEMBERED_MAX >= 10_000
    monkeypatch.setattr(receipts, "REMEMBERED_MAX", 4)
    signer = Signer([KEY])
    hashed: list[int] = []
    by_signature = signer._check_all
    monkeypatch.setattr(signer, "_check_all", lambda group, texts: hashed.append(1) or by_signature(group, texts))
    first = signer.sign_all("billing", [RECEIPT._replace(offset=n) for n in range(4)])
    assert signer.check("billing", first[0]).offset == 0
    assert not hashed, "four are remembered"
    second = signer.sign_all("billing", [RECEIPT._replace(offset=n) for n in range(4, 6)])
    assert signer.check("billing", first[1]).offset == 1
    assert len(hashed) == 1, "a fifth makes the signer forget"
    assert signer.check("billing", second[0]).offset == 4
    assert len(hashed) == 1
