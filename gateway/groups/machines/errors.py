"""What can go wrong in a consumer group, by what a caller can do about it.

GroupError
├── UnknownGroup        no client ever consumed in this group
├── UnknownMember       no such member, or its session has ended: join again
├── StaleGeneration     the caller acts for a generation in which it does not own this: join again
├── GroupActive         the group has members, and this needs an empty one, or force
├── GroupFull           a limit of the group is reached: retry later or raise it
├── GroupElsewhere      it belongs to another node of the cluster: the message says where
├── GroupUnavailable    it is not known yet how far the group is: retry in a moment
└── IllegalRequest      the request breaks a rule; the message names it
"""

from __future__ import annotations


class GroupError(Exception):
    """Base of all errors of consumer groups. Nothing was changed."""


class UnknownGroup(GroupError):
    """No member, offset, lease or setting of it is known."""


class UnknownMember(GroupError):
    """The member never joined, has left, or was expired."""


class StaleGeneration(GroupError):
    """The member does not own the partition in the generation it names: whatever it did is another's work now."""


class GroupActive(GroupError):
    """Offsets of a group with members are not moved, nor is it deleted, unless forced."""


class GroupFull(GroupError):
    """The group holds as many members, or records that are leased and not settled, as it may."""


class GroupUnavailable(GroupError):
    """How far the group is cannot be known now; nothing may be concluded from it."""


class GroupElsewhere(GroupError):
    """The group belongs to another node of the cluster; that one is to be asked."""


class IllegalRequest(GroupError):
    """A value that no state of the group could accept."""
