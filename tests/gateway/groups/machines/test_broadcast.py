"""gateway.groups.machines.broadcast: the names under which members of a broadcasting group are groups of their own."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.groups.machines.broadcast import group_of, is_lone, lone_group, member_of
from store.topics import check_name

names = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,19}", fullmatch=True)


@given(names, st.text(min_size=1, max_size=20))
def test_group_and_member_are_found_again_in_the_name(group: str, member_id: str) -> None:
    name = lone_group(group, member_id)
    assert (group_of(name), member_of(name), is_lone(name)) == (group, member_id, True)


@given(names)
def test_a_plain_group_is_itself(group: str) -> None:
    assert (group_of(group), member_of(group), is_lone(group)) == (group, "", False)
    check_name(group)


@given(names, st.text(max_size=20), names, st.text(max_size=20))
def test_no_two_members_have_one_name(group: str, member_id: str, other: str, other_id: str) -> None:
    is_same = (group, member_id) == (other, other_id)
    assert (lone_group(group, member_id) == lone_group(other, other_id)) is is_same
