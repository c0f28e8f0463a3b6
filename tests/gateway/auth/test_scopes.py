"""gateway/auth/scopes.py"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.auth.access import ON_RESOURCES, Permission
from gateway.auth.scopes import ROLES, SCOPES_MAX, Rights, parse_scope, parse_scopes
from store.limits import LIGHT_NAME_BYTES_MAX, TOPIC_NAME_BYTES_MAX


def rights(*allow: str, deny: tuple[str, ...] = ()) -> Rights:
    return Rights(parse_scopes(allow), parse_scopes(deny))


def test_nothing_is_allowed_unless_a_scope_says_so() -> None:
    for permission in Permission:
        expected = permission in (Permission.PUBLIC, Permission.SOCKET, Permission.KNOWN)
        assert Rights().allows(permission, None, None) is expected
        assert Rights().allows(permission, "orders", None) is expected


@pytest.mark.parametrize(
    ("scope", "permission", "topic", "group", "allowed"),
    [
        ("reader:topic:orders", Permission.RECEIVE, "orders", None, True),
        ("reader:topic:orders", Permission.DESCRIBE, "orders", None, True),
        ("reader:topic:orders", Permission.SEND, "orders", None, False),
        ("reader:topic:orders", Permission.RECEIVE, "orders2", None, False),
        ("reader:topic:orders", Permission.RECEIVE, None, "orders", False),
        ("reader:topic:orders", Permission.RECEIVE, "orders", "billing", False),
        ("writer:topic:ord*", Permission.SEND, "orders", None, True),
        ("writer:topic:ord*", Permission.SEND, "or", None, False),
        ("writer:topic:ord*", Permission.RECEIVE, "orders", None, False),
        ("writer:topic:*", Permission.SEND, "anything", None, True),
        ("writer:topic:*", Permission.CREATE, "anything", None, False),
        ("admin:topic:a", Permission.DELETE, "a", None, True),
        ("admin:topic:*", Permission.OPERATE, None, None, False),
        ("send:topic:a", Permission.SEND, "a", None, True),
        ("send:topic:a", Permission.DESCRIBE, "a", None, False),
        ("receive:group:g", Permission.RECEIVE, None, "g", True),
        ("operate", Permission.OPERATE, None, None, True),
        ("operate", Permission.DESCRIBE, "a", None, False),
        ("operate", Permission.AUDIT, None, None, False),
        ("audit", Permission.AUDIT, None, None, True),
        ("audit", Permission.OPERATE, None, None, False),
        ("access", Permission.ACCESS, None, None, True),
        ("operate", Permission.ACCESS, None, None, False),
        ("admin", Permission.ACCESS, None, None, True),
        ("admin:topic:*", Permission.AUDIT, None, None, False),
        ("admin", Permission.AUDIT, None, None, True),
        ("admin", Permission.OPERATE, None, None, True),
        ("admin", Permission.DELETE, "a", "g", True),
        ("send:topic:a", Permission.SEND, None, None, True),
        ("send:topic:a", Permission.RECEIVE, None, None, False),
        ("receive:topic:a/user/42", Permission.RECEIVE, "a/user/42", None, True),
        ("receive:topic:a/user/42", Permission.RECEIVE, "a/user/421", None, False),
        ("receive:topic:a/user/42", Permission.RECEIVE, "a/user/4", None, False),
        ("receive:topic:a/user/42", Permission.RECEIVE, "a/user/42/mail", None, False),
        ("receive:topic:a/user/42/*", Permission.RECEIVE, "a/user/42/mail", None, True),
        ("receive:topic:a/user/42", Permission.RECEIVE, "a", None, False),
        ("receive:topic:a/user/*", Permission.RECEIVE, "a/user/42", None, True),
        ("receive:topic:a/user/*", Permission.RECEIVE, "a/room/7", None, False),
        ("receive:topic:a", Permission.RECEIVE, "a/user/42", None, True),
        ("receive:topic:a", Permission.RECEIVE, "ab/user/42", None, False),
        ("receive:topic:*", Permission.RECEIVE, "a/user/42", None, True),
    ],
)
def test_a_scope_covers(
    scope: str, permission: Permission, topic: str | None, group: str | None, allowed: bool
) -> None:
    assert rights(scope).allows(permission, topic, group) is allowed


def test_a_topic_and_a_group_must_both_be_allowed() -> None:
    both = rights("reader:topic:orders", "reader:group:billing")
    assert both.allows(Permission.RECEIVE, "orders", "billing")
    assert not both.allows(Permission.RECEIVE, "orders", "other")
    assert not both.allows(Permission.RECEIVE, "other", "billing")


def test_denying_wins() -> None:
    some = rights("admin", "reader:topic:secret", deny=("receive:topic:secret*", "operate"))
    assert some.allows(Permission.RECEIVE, "orders", None)
    assert some.allows(Permission.DESCRIBE, "secret", None)
    assert not some.allows(Permission.RECEIVE, "secret", None)
    assert not some.allows(Permission.RECEIVE, "secret-2", None)
    assert not some.allows(Permission.OPERATE, None, None)


@pytest.mark.parametrize("name", ["%RETRY%billing", "%DLQ%billing", "%"])
def test_nobody_sends_to_a_name_that_groups_write(name: str) -> None:
    assert not rights("admin").allows(Permission.SEND, name, None)
    assert not rights(f"send:topic:{name}").allows(Permission.SEND, name, None)
    assert rights("admin").allows(Permission.RECEIVE, name, None)


@pytest.mark.parametrize(
    "text",
    ["", "reader", "reader:", "reader:topic", "reader:topic:", "owner:topic:a", "reader:queue:a", "reader:topic:a b",
     "reader:topic:a*b", "reader:topic:**", "public:topic:a", "operate:topic:a", "READER:topic:a", "reader:topic:ä",
     "reader:topic:a\n", "reader:topic:a:b"],
)  # fmt: skip
def test_what_is_no_scope_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="scope"):
        parse_scope(text)


def test_names_and_numbers_of_scopes_have_limits() -> None:
    assert parse_scope("reader:topic:" + "a" * TOPIC_NAME_BYTES_MAX + "*")
    with pytest.raises(ValueError, match="must end"):
        parse_scope("reader:topic:" + "a" * (TOPIC_NAME_BYTES_MAX + 2))
    assert len(parse_scopes(["admin"] * SCOPES_MAX)) == SCOPES_MAX
    with pytest.raises(ValueError, match=str(SCOPES_MAX)):
        parse_scopes(["admin"] * (SCOPES_MAX + 1))
    with pytest.raises(ValueError, match="text"):
        parse_scopes([5])


NAMES = st.text("ab%", min_size=1, max_size=4)
ACTIONS = st.sampled_from([*ROLES, *(permission.value for permission in ON_RESOURCES)])
SCOPES = st.builds(
    lambda action, kind, name, star: f"{action}:{kind}:{name}{star}",
    ACTIONS, st.sampled_from(["topic", "group"]), NAMES, st.sampled_from(["", "*"]),
)  # fmt: skip


@given(
    st.lists(SCOPES, max_size=5), st.lists(SCOPES, max_size=3), st.sampled_from(sorted(ON_RESOURCES, key=str)), NAMES
)
def test_rights_are_what_their_words_say(allow: list[str], deny: list[str], permission: Permission, name: str) -> None:
    """Against a second reading of the words."""

    def says(text: str) -> bool:
        action, kind, pattern = text.split(":")
        permissions = ROLES.get(action) or {Permission(action)}
        named = name.startswith(pattern[:-1]) if pattern[-1] == "*" else name == pattern
        return kind == "topic" and named and permission in permissions

    expected = any(map(says, allow)) and not any(map(says, deny))
    expected = expected and not (permission is Permission.SEND and name.startswith("%"))
    assert rights(*allow, deny=tuple(deny)).allows(permission, name, None) is expected


@pytest.mark.parametrize(
    ("allow", "deny", "expected"),
    [
        (("admin",), (), None),
        (("reader:topic:*", "reader:group:g"), (), None),
        (("reader:topic:*",), ("receive:topic:secret",), (("*",), ("secret",))),
        (("reader:topic:*",), ("receive:group:secret",), None),
        (("reader:topic:a", "receive:topic:b*", "writer:topic:c", "reader:group:d"), (), (("a", "b*"), ())),
        ((), (), ((), ())),
    ],
)
def test_the_topics_of_a_right_are_patterns(
    allow: tuple[str, ...], deny: tuple[str, ...], expected: tuple[tuple[str, ...], tuple[str, ...]] | None
) -> None:
    assert rights(*allow, deny=deny).topics(Permission.RECEIVE) == expected


ORIGINS = {"g": {"orders", "bills"}, "new": set(), "h": {"%DLQ%g"}, "loop": {"%DLQ%loop", "orders"}}


@pytest.mark.parametrize(
    ("allow", "deny", "topic", "allowed"),
    [
        # on the group, and on every topic that its dead letters came from
        (("reader:group:g", "reader:topic:orders", "reader:topic:bills"), (), "%DLQ%g", True),
        (("reader:group:g", "reader:topic:orders"), (), "%DLQ%g", False),
        (("reader:topic:orders", "reader:topic:bills"), (), "%DLQ%g", False),
        (("reader:group:g", "reader:topic:%DLQ%g"), (), "%DLQ%g", False),
        (("reader:group:g", "reader:topic:*"), (), "%DLQ%g", True),
        (("reader:topic:*",), (), "%DLQ%g", False),
        (("reader:group:g", "reader:topic:*"), ("receive:topic:bills",), "%DLQ%g", False),
        (("reader:group:g", "reader:topic:*"), ("receive:topic:%DLQ%*",), "%DLQ%g", False),
        (("reader:group:g", "writer:topic:orders", "writer:topic:bills"), (), "%DLQ%g", False),
        (("reader:group:new",), (), "%DLQ%new", True),
        # of a group that consumes those of another
        (("reader:group:*", "reader:topic:orders", "reader:topic:bills"), (), "%DLQ%h", True),
        (("reader:group:h", "reader:topic:orders", "reader:topic:bills"), (), "%DLQ%h", False),
        (("reader:group:*", "reader:topic:orders"), (), "%DLQ%h", False),
        (("reader:group:loop", "reader:topic:orders"), (), "%DLQ%loop", True),
        # where it is not known, and for what waits to be tried again: all topics
        (("reader:group:unread", "reader:topic:orders"), (), "%DLQ%unread", False),
        (("reader:group:unread", "reader:topic:*"), (), "%DLQ%unread", True),
        (("reader:group:unread", "reader:topic:*"), ("receive:topic:x",), "%DLQ%unread", False),
        (("reader:group:g", "reader:topic:orders", "reader:topic:bills"), (), "%RETRY%g", False),
        (("reader:group:g", "reader:topic:*"), (), "%RETRY%g", True),
        (("admin",), (), "%RETRY%g", True),
    ],
)
def test_what_a_group_has_written_is_its_and_that_of_where_it_came_from(
    allow: tuple[str, ...], deny: tuple[str, ...], topic: str, allowed: bool
) -> None:
    held = rights(*allow, deny=deny)
    assert held.allows(Permission.RECEIVE, topic, None, ORIGINS.get) is allowed


def test_where_dead_letters_came_from_is_unknown_unless_somebody_says_it() -> None:
    held = rights("reader:group:g", "reader:topic:orders", "reader:topic:bills")
    assert not held.allows(Permission.RECEIVE, "%DLQ%g", None)
    assert rights("admin").allows(Permission.DELETE, "%DLQ%g", None)


def test_who_is_denied_a_topic_has_none_of_its_light_queues() -> None:
    some = rights("receive:topic:a/user/*", "receive:topic:b", deny=("receive:topic:a", "receive:topic:b/secret*"))
    assert not some.allows(Permission.RECEIVE, "a/user/42", None)
    assert some.allows(Permission.RECEIVE, "b/user/42", None)
    assert not some.allows(Permission.RECEIVE, "b/secret/1", None)


def test_a_scope_on_light_queues_is_of_a_topic_and_within_its_limits() -> None:
    longest = "a" * TOPIC_NAME_BYTES_MAX + "/" + "q" * LIGHT_NAME_BYTES_MAX
    assert parse_scope(f"receive:topic:{longest}*").pattern == f"{longest}*"
    for text in (
        f"receive:topic:{longest}q",
        "receive:group:a/b",
        "receive:topic:/b",
        "receive:topic:a/b*c",
        "receive:topic:a/b c",
    ):
        with pytest.raises(ValueError, match="must end with a name"):
            parse_scope(text)
