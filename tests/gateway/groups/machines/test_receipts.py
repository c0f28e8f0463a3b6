"""Receipts: signed, bound to the group, refused when anything differs."""

from __future__ import annotations

import base64
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.groups.machines import receipts
from gateway.groups.machines.errors import IllegalRequest
from gateway.groups.machines.receipts import (
    KEY_BYTES_MAX,
    KEY_BYTES_MIN,
    REMEMBERED_MAX,
    RUN_RECORDS_MAX,
    Receipt,
    RunReceipts,
    Signer,
    in_short,
    joined,
)
from store.limits import LIGHT_NAME_BYTES_MAX

KEY, OTHER = b"k" * 32, b"o" * 32
NAMES = st.sampled_from(["", "inbox", "\u0160" * (LIGHT_NAME_BYTES_MAX // 2)])
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
        st.just(1),
        NAMES,
    ),
    group=st.text(max_size=20),
)
def test_a_receipt_reads_back_after_a_restart(receipt: Receipt, group: str) -> None:
    assert Signer([KEY]).check(group, Signer([KEY]).sign(group, receipt)) == receipt


def test_the_text_form_is_fixed() -> None:
    texts = Signer([KEY]).sign_all("billing", [RECEIPT, RECEIPT._replace(offset=RECEIPT.offset + 1)])
    signed = texts[0].rpartition(".")[0]
    assert list(texts) == [f"{signed}.0", f"{signed}.1"]
    assert signed.startswith("r2.")
    raw = base64.urlsafe_b64decode(signed[3:])
    fields = "00000010" + "00000003" + "0000010000000000" + "00000002" + "0000019b76daa800" + "0000000000000007"
    assert raw[:41].hex() == "02" + fields + "00000002"
    assert len(raw) == 57


OLD = "r1.AQAAABAAAAADAAABAAAAAAAAAAACAAABm3baqAAAAAAAAAAAByOqdwE1lz9V8jqm0qXR_Bk"
"""What a server made of RECEIPT, by this key, when each record had a signature of its own."""


def test_a_receipt_of_the_form_before_is_accepted_in_its_one_spelling() -> None:
    signer = Signer([KEY])
    for _ in range(2):
        assert signer.check("billing", OLD) == RECEIPT
    assert signer.check_all("shipping", [OLD]) == [None]
    assert Signer([OTHER]).check_all("billing", [OLD, OLD + ".0", OLD[:-1]]) == [None] * 3
    raw = bytearray(base64.urlsafe_b64decode(OLD[3:] + "="))
    for at in range(len(raw)):
        changed = bytes(raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :])
        assert signer.check_all("billing", ["r1." + base64.urlsafe_b64encode(changed).rstrip(b"=").decode()]) == [None]
    last = [OLD[:-1] + char for char in "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"]
    assert [text for text in last if signer.check_all("billing", [text]) != [None]] == [OLD]


@given(at=st.integers(0, 56), flip=st.integers(1, 255))
def test_a_receipt_with_any_byte_changed_is_refused(at: int, flip: int) -> None:
    signer = Signer([KEY])
    signed, _, place = signer.sign("billing", RECEIPT).rpartition(".")
    raw = bytearray(base64.urlsafe_b64decode(signed[3:]))
    raw[at] ^= flip
    with pytest.raises(IllegalRequest):
        signer.check("billing", f"r2.{base64.urlsafe_b64encode(raw).decode()}.{place}")


def test_a_place_is_one_of_its_run_in_one_spelling() -> None:
    texts = Signer([KEY]).sign_all("billing", [RECEIPT._replace(offset=n) for n in range(11)])
    signed = texts[0].rpartition(".")[0]
    for signer in (Signer([KEY]), Signer([KEY])):
        for place in ("11", "999", "1000", "00", "01", "+1", "-1", "1 ", "", "x", "\u0661", "1.0", "1e0"):
            assert signer.check_all("billing", [f"{signed}.{place}", texts[10]]) == [None, RECEIPT._replace(offset=10)]
        assert signer.check_all("billing", [signed, f"{signed}.."]) == [None, None]


@given(st.lists(st.builds(
    Receipt, st.integers(16, 17), st.integers(0, 1), st.integers(0, 6), st.integers(1, 2), st.integers(5, 6),
    st.integers(7, 8), st.just(1), NAMES,
), max_size=12))  # fmt: skip
def test_receipts_of_any_order_and_kind_read_back_in_their_order(wanted: list[Receipt]) -> None:
    texts = Signer([KEY]).sign_all("billing", wanted)
    assert Signer([KEY]).check_all("billing", texts) == wanted


@given(data=st.data())
def test_receipts_of_a_long_run_read_back_in_any_order(data: st.DataObject) -> None:
    offsets = list(range(300))
    for _ in range(data.draw(st.integers(0, 3))):
        at, other = (data.draw(st.integers(0, 299)) for _ in range(2))
        offsets[at] = offsets[other]
    texts = Signer([KEY]).sign_all("billing", [RECEIPT._replace(offset=0, size=300)])
    signer, chosen = Signer([KEY]), [texts[offset] for offset in offsets]
    assert [one and one.offset for one in signer.check_all("billing", chosen)] == offsets
    in_order = 1 + sum(after != before + 1 for before, after in itertools.pairwise(offsets))
    assert len(signer.check_runs("billing", chosen)) == in_order


@given(data=st.data(), size=st.integers(0, 12))
def test_receipts_of_a_run_are_what_their_texts_are(data: st.DataObject, size: int) -> None:
    texts = Signer([KEY]).sign_all("billing", [RECEIPT._replace(size=12)])
    assert isinstance(texts, RunReceipts)
    first = data.draw(st.integers(0, 12 - size))
    run, each = texts[first : first + size], list(texts)[first : first + size]
    assert (list(run), len(run), joined(run, ", ")) == (each, size, joined(each, ", "))
    assert all(run[at] == each[at] for at in range(-size, size))
    for at in (-size - 1, size):
        with pytest.raises(IndexError):
            run[at]
    low, high = (data.draw(st.integers(-14, 14)) for _ in range(2))
    assert list(run[low:high]) == each[low:high]


@given(data=st.data())
def test_a_run_is_checked_as_its_texts_are_and_texts_are_told_as_a_run_where_they_are_one(data: st.DataObject) -> None:
    """Signed by this server or another one, of this group or another one, with one of two keys."""
    run = RECEIPT._replace(offset=100, size=data.draw(st.integers(1, 70)))
    signer = Signer([data.draw(st.sampled_from((KEY, OTHER)))])
    texts = signer.sign_all(data.draw(st.sampled_from(("billing", "other"))), [run])
    assert isinstance(texts, RunReceipts)
    if data.draw(st.booleans()):
        signer = Signer([KEY])
    some = RunReceipts(texts.signed, data.draw(st.integers(0, 72)), data.draw(st.integers(0, 72)))
    checked = signer.check_runs("billing", some)
    each = list(some)
    as_texts = signer.check_all("billing", each)
    assert [one for run in checked for one in ([None] if run is None else run.each())] == as_texts
    in_short_form = in_short(each, signer.check_runs("billing", each))
    assert list(in_short_form) == each
    assert isinstance(in_short_form, RunReceipts) == (None not in as_texts and len(each) > 1)


def test_texts_of_two_runs_or_of_one_in_another_order_are_no_run() -> None:
    signer = Signer([KEY])
    texts = list(signer.sign_all("billing", [RECEIPT._replace(size=3)]))
    others = list(signer.sign_all("billing", [RECEIPT._replace(offset=0, size=3)]))
    for given_texts in (texts[:2] + others[:1], [texts[1], texts[0], texts[2]], [texts[0], texts[2]], [*texts, ""], []):
        assert in_short(given_texts, signer.check_runs("billing", given_texts)) is given_texts


@pytest.mark.parametrize("glue", ["\n", "", '","', "\0"])
def test_texts_that_look_like_receipts_only_when_they_are_joined_are_none(glue: str) -> None:
    texts = Signer([KEY]).sign_all("billing", [RECEIPT._replace(size=100)])
    for first, last in ((1, 2), (40, 41), (97, 98)):
        glued = [*texts[:first], glue.join(texts[first : last + 1]), *texts[last + 1 :], ""]
        found = Signer([KEY]).check_all("billing", glued)
        assert [at for at, one in enumerate(found) if one is None] == [first, len(glued) - 1]


def test_a_run_has_so_many_records_at_most() -> None:
    wanted = [RECEIPT._replace(offset=n) for n in range(RUN_RECORDS_MAX + 1)]
    texts = Signer([KEY]).sign_all("billing", wanted)
    assert len({text.rpartition(".")[0] for text in texts[:RUN_RECORDS_MAX]}) == 1
    assert texts[RUN_RECORDS_MAX].rpartition(".")[0] != texts[0].rpartition(".")[0]
    assert Signer([KEY]).check_all("billing", texts) == wanted


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
    padded = [f"{prefix}{text[:chars].ljust(chars, 'A')}" for prefix, chars in (("r1.", 71), ("r2.", 76))]
    for candidate in (text, "r1." + text, *padded, f"{padded[1]}.0", "r1." + "é" * 71, "r2." + "é" * 76 + ".0"):
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


def test_so_many_runs_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    assert REMEMBERED_MAX >= 10_000
    monkeypatch.setattr(receipts, "REMEMBERED_MAX", 4)
    signer = Signer([KEY])
    hashed: list[int] = []
    by_signature = signer._checked
    monkeypatch.setattr(signer, "_checked", lambda *args: hashed.append(1) or by_signature(*args))
    first = [signer.sign("billing", RECEIPT._replace(offset=2 * n)) for n in range(4)]
    assert signer.check("billing", first[0]).offset == 0
    assert not hashed, "four are remembered"
    second = signer.sign("billing", RECEIPT._replace(offset=8))
    assert signer.check("billing", first[1]).offset == 2
    assert len(hashed) == 1, "a fifth makes the signer forget"
    assert signer.check("billing", second).offset == 8
    assert len(hashed) == 1
