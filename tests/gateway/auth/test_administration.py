"""gateway/auth/administration.py: what may be granted, and files that are changed whole or not at all."""

from __future__ import annotations

import asyncio
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.auth.access import ON_RESOURCES, Permission
from gateway.auth.acl import Rule, parse_acl, parse_rules
from gateway.auth.administration import AccessFiles, Changed, TooMuch, UnknownToken, check_grant, check_rules
from gateway.auth.config import AuthConfig
from gateway.auth.rules_text import rewrite_rules
from gateway.auth.scopes import Rights, parse_scopes
from gateway.auth.tokens import TokenFileError, find, read_tokens
from tests.clock import FakeClock

ADMIN = Rights(parse_scopes(["admin"]))


def rights(*allow: str, deny: tuple[str, ...] = ()) -> Rights:
    return Rights(parse_scopes(allow), parse_scopes(deny))


@pytest.mark.parametrize(
    ("granted", "maker", "may"),
    [
        (rights(), rights(), True),
        (rights("admin"), ADMIN, True),
        (rights("admin"), rights("admin:topic:*", "admin:group:*", "operate", "audit", "access"), True),
        (rights("admin"), rights("admin:topic:*", "operate", "audit", "access"), False),
        (rights("access"), rights("access"), True),
        (rights("operate"), rights("access"), False),
        (rights("reader:topic:orders"), rights("reader:topic:orders"), True),
        (rights("reader:topic:orders"), rights("reader:topic:or*"), True),
        (rights("reader:topic:or*"), rights("reader:topic:orders"), False),
        (rights("reader:topic:or*"), rights("reader:topic:o*"), True),
        (rights("reader:topic:o*"), rights("reader:topic:or*"), False),
        (rights("reader:topic:orders"), rights("describe:topic:orders"), False),
        (rights("reader:topic:orders"), rights("describe:topic:*", "receive:topic:o*"), True),
        (rights("reader:topic:orders"), rights("reader:group:*"), False),
        (rights("reader:topic:orders"), rights("reader:topic:*", deny=("receive:topic:orders",)), False),
        (rights("reader:topic:*"), rights("reader:topic:*", deny=("receive:topic:orders",)), False),
        (rights("reader:topic:a*"), rights("reader:topic:*", deny=("receive:topic:orders",)), True),
        (
            rights("reader:topic:*", deny=("receive:topic:orders",)),
            rights("reader:topic:*", deny=("receive:topic:orders",)),
            True,
        ),
        (
            rights("reader:topic:*", deny=("receive:topic:o*",)),
            rights("reader:topic:*", deny=("receive:topic:orders",)),
            True,
        ),
        (rights("operate"), Rights(parse_scopes(["admin"]), parse_scopes(["operate"])), False),
    ],
)
def test_nobody_grants_what_they_do_not_have(granted: Rights, maker: Rights, may: bool) -> None:
    if may:
        check_grant(granted, maker)
    else:
        with pytest.raises(TooMuch, match="you may not grant"):
            check_grant(granted, maker)


SCOPES = st.lists(
    st.builds(
        lambda action, kind, name, star: f"{action}:{kind}:{name}{star}",
        st.sampled_from(["reader", "send", "admin"]),
        st.sampled_from(["topic", "group"]),
        st.text("ab", min_size=1, max_size=2),
        st.sampled_from(["", "*"]),
    ),
    max_size=4,
)


@given(SCOPES, SCOPES, SCOPES, SCOPES, st.text("ab", min_size=1, max_size=3))
def test_what_is_granted_its_maker_may(
    allow: list[str], deny: list[str], own: list[str], own_deny: list[str], name: str
) -> None:
    granted = Rights(parse_scopes(allow), parse_scopes(deny))
    maker = Rights(parse_scopes(own), parse_scopes(own_deny))
    try:
        check_grant(granted, maker)
    except TooMuch:
        return
    for permission in ON_RESOURCES:
        for topic, group in ((name, None), (None, name)):
            assert maker.allows(permission, topic, group) or not granted.allows(permission, topic, group)


@pytest.mark.parametrize(
    ("before", "after", "may"),
    [
        ([], [Rule("ann", ("reader:topic:a",), ())], True),
        ([], [Rule("ann", ("reader:topic:b",), ())], False),
        ([Rule("ann", ("reader:topic:b",), ())], [Rule("ann", ("reader:topic:b", "reader:topic:a"), ())], True),
        ([Rule("ann", ("reader:topic:b",), ())], [], True),
        ([Rule("ann", (), ("reader:topic:b",))], [], False),
        ([Rule("ann", (), ("reader:topic:a",))], [], True),
        ([], [Rule("*", ("admin",), ())], False),
        ([Rule("ann", ("reader:topic:b",), ())], [Rule("bob", ("reader:topic:b",), ())], False),
    ],
)
def test_a_change_of_rules_gives_no_more_than_its_maker_has(before: list[Rule], after: list[Rule], may: bool) -> None:
    acls = parse_acl(rewrite_rules("", before)), parse_acl(rewrite_rules("", after))
    maker = rights("access", "reader:topic:a")
    if may:
        check_rules(*acls, maker)
    else:
        with pytest.raises(TooMuch):
            check_rules(*acls, maker)


@given(st.lists(st.builds(Rule, st.text(min_size=1, max_size=9), st.just(("operate",)), st.just(())), max_size=3))
def test_rules_are_read_as_they_were_written(rules: list[Rule]) -> None:
    rules = [rule for rule in rules if not any(0xD800 <= ord(char) < 0xE000 for char in rule.principal)]
    assert parse_rules(rewrite_rules("", rules)) == rules


async def test_files_are_changed_by_one_at_a_time_and_tell_when(tmp_path: Path) -> None:
    changes = 0

    async def changed() -> None:
        nonlocal changes
        changes += 1

    config = AuthConfig(data=tmp_path)
    files = AccessFiles(config, FakeClock(), changed)
    assert await files.tokens() == ([], (await files.tokens())[1])
    token, record = await files.create_token(ADMIN, "ann", ["operate"], None)
    assert find(read_tokens(config.tokens_path), token) == record
    (kept,), tag = await files.tokens()
    assert (kept, changes) == (record, 1)
    with pytest.raises(Changed):
        await files.create_token(ADMIN, "bob", [], None, tag="old")
    with pytest.raises(TooMuch):
        await files.create_token(rights("access"), "bob", ["operate"], None)
    with pytest.raises(TokenFileError):
        await files.create_token(ADMIN, "no name", [], None)
    made = await asyncio.gather(*(files.create_token(ADMIN, f"p{number}", [], None) for number in range(10)))
    assert len((await files.tokens())[0]) == 11
    with pytest.raises(Changed):
        await files.revoke_token(record.id, tag=tag)
    await files.revoke_token(record.id, tag=(await files.tokens())[1])
    with pytest.raises(UnknownToken):
        await files.revoke_token(record.id)
    assert record.id not in read_tokens(config.tokens_path)

    rules, tag = await files.rules()
    assert rules == []
    wanted = [Rule("ann", ("operate",), ()), Rule("jwt:x", (), ("admin",))]
    put = await files.put_rules(ADMIN, wanted, tag)
    assert (put.rules, await files.rules()) == (wanted, put)
    assert stat.S_IMODE(config.acl_path.stat().st_mode) == 0o600
    with pytest.raises(Changed):
        await files.put_rules(ADMIN, [], tag)
    with pytest.raises(TooMuch):  # what rules say of somebody is granted with a token for them
        await files.create_token(rights("access"), "ann", [], None)
    with pytest.raises(TooMuch):
        await files.put_rules(rights("access"), [*wanted, Rule("me", ("audit",), ())], put.tag)
    with pytest.raises(ValueError, match="rule 1"):
        await files.put_rules(ADMIN, [Rule("ann", ("nonsense",), ())], put.tag)
    assert (await files.rules(), len(made)) == (put, 10)
    assert not list(tmp_path.rglob("*.new"))
    assert Permission.ACCESS in ADMIN.allow[0].permissions
