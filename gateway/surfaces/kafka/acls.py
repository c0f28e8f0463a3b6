"""Access rules as Kafka's tools read them: DescribeAcls, CreateAcls, DeleteAcls.

The rules are the scopes of tokens and the ACL file, which belong to the operator: they are shown here and changed there
(`mq token`, `auth.acl_file`). How a scope is shown:

    scope                    resource, pattern                        operations
    receive:topic:orders     topic, literal "orders"                  Read
    send:topic:billing-*     topic, prefixed "billing-"               Write
    describe:group:*         group, literal "*"                       Describe, DescribeConfigs
    create                   -                                        Create, Alter, AlterConfigs
    delete                   -                                        Delete
    operate                  cluster, literal "kafka-cluster"         DescribeConfigs
    audit                    cluster, literal "kafka-cluster"         Describe
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from gateway.auth.access import Permission, Scope
from gateway.surfaces.kafka import errors
from gateway.surfaces.kafka.schema import Message
from gateway.surfaces.kafka.session import Session
from store.turns import others_turn

BINDINGS_MAX = 20_000
"""Rules of one answer; a narrower filter shows the others."""

BINDINGS_PER_TURN = 1_000

_ANY, _MATCH = 1, 2  # of resource types, patterns, operations and permissions; of patterns
_TOPIC, _GROUP, _CLUSTER = 2, 3, 4
_LITERAL, _PREFIXED = 3, 4
_DENY, _ALLOW = 2, 3
_READ, _WRITE, _CREATE, _DELETE, _ALTER, _DESCRIBE, _DESCRIBE_CONFIGS, _ALTER_CONFIGS = 3, 4, 5, 6, 7, 8, 10, 11
_CLUSTER_NAME = "kafka-cluster"
_ON_RESOURCES: Mapping[Permission, tuple[int, ...]] = {
    Permission.DESCRIBE: (_DESCRIBE, _DESCRIBE_CONFIGS),
    Permission.SEND: (_WRITE,),
    Permission.RECEIVE: (_READ,),
    Permission.CREATE: (_CREATE, _ALTER, _ALTER_CONFIGS),
    Permission.DELETE: (_DELETE,),
}
_ON_CLUSTER = {Permission.OPERATE: _DESCRIBE_CONFIGS, Permission.AUDIT: _DESCRIBE}
_RESOURCES: Mapping[str | None, tuple[int, ...]] = {"topic": (_TOPIC,), "group": (_GROUP,), None: (_TOPIC, _GROUP)}

_DISABLED = "Authentication is disabled on this server: every client may do everything."
_ELSEWHERE = "Rules are the scopes of tokens and the ACL file of the server: use mq token, or edit auth.acl_file."


class Binding(NamedTuple):
    """One rule, in the order of Kafka's fields."""

    resource_type: int
    resource_name: str
    pattern_type: int
    principal: str
    operation: int
    permission_type: int


def bindings_of(principal: str, scope: Scope, permission_type: int) -> Iterator[Binding]:
    """The rules that say what a scope says."""
    name, pattern = scope.pattern, _LITERAL
    if name.endswith("*") and name != "*":
        name, pattern = name[:-1], _PREFIXED
    user = f"User:{principal}"
    for kind in _RESOURCES[scope.kind]:
        for permission, operations in _ON_RESOURCES.items():
            if permission in scope.permissions:
                for operation in operations:
                    yield Binding(kind, name, pattern, user, operation, permission_type)
    for permission, operation in _ON_CLUSTER.items():
        if permission in scope.permissions:
            yield Binding(_CLUSTER, _CLUSTER_NAME, _LITERAL, user, operation, permission_type)


def _matches(binding: Binding, wanted: Message) -> bool:
    if wanted["host_filter"] not in (None, "*"):  # all rules hold for every host
        return False
    for field, value in (
        ("resource_type_filter", binding.resource_type),
        ("operation", binding.operation),
        ("permission_type", binding.permission_type),
    ):
        if wanted[field] not in (_ANY, value):
            return False
    if wanted["principal_filter"] not in (None, binding.principal):
        return False
    name, pattern = wanted["resource_name_filter"], wanted["pattern_type_filter"]
    if pattern == _MATCH and name is not None:  # the rules that speak of a resource of this name
        if binding.pattern_type == _PREFIXED:
            return bool(name.startswith(binding.resource_name))
        return binding.resource_name in ("*", name)
    return pattern in (_ANY, _MATCH, binding.pattern_type) and name in (None, binding.resource_name)


async def describe_acls(session: Session, version: int, request: Message) -> Message:
    """The rules that a filter names: of static tokens and of the ACL file. Scopes inside of JWTs are not known here."""
    refusal = _refusal(session)
    if refusal is not None:
        return {"error_code": refusal[0], "error_message": refusal[1]}
    found: dict[Binding, None] = {}
    seen = 0
    for principal, rights in session.gateway.authenticator.rules():
        for scopes, permission_type in ((rights.allow, _ALLOW), (rights.deny, _DENY)):
            for scope in scopes:
                for binding in bindings_of(principal, scope, permission_type):
                    seen += 1
                    if seen % BINDINGS_PER_TURN == 0:
                        await others_turn()
                    if _matches(binding, request):
                        found[binding] = None
                        if len(found) > BINDINGS_MAX:
                            text = f"More than {BINDINGS_MAX} rules; filter by principal or resource."
                            return {"error_code": errors.POLICY_VIOLATION, "error_message": text}
    resources: dict[tuple[int, str, int], list[Message]] = {}
    for resource_type, name, pattern, user, operation, permission_type in found:
        resources.setdefault((resource_type, name, pattern), []).append(
            {"principal": user, "host": "*", "operation": operation, "permission_type": permission_type}
        )
    return {
        "error_message": None,
        "resources": [
            {"resource_type": kind, "resource_name": name, "pattern_type": pattern, "acls": acls}
            for (kind, name, pattern), acls in resources.items()
        ],
    }


def _refusal(session: Session) -> tuple[int, str] | None:
    """Why the client may not see the rules."""
    if not session.gateway.authenticator.is_required:
        return errors.SECURITY_DISABLED, _DISABLED
    if not session.may(Permission.AUDIT):
        return errors.CLUSTER_AUTHORIZATION_FAILED, "Not allowed: audit here."
    return None


async def create_acls(session: Session, version: int, request: Message) -> Message:
    """Refuse: rules are not made by clients."""
    code, message = _refusal(session) or (errors.POLICY_VIOLATION, _ELSEWHERE)
    return {"results": [{"error_code": code, "error_message": message} for _ in request["creations"]]}


async def delete_acls(session: Session, version: int, request: Message) -> Message:
    """Refuse: rules are not deleted by clients."""
    code, message = _refusal(session) or (errors.POLICY_VIOLATION, _ELSEWHERE)
    return {
        "filter_results": [
            {"error_code": code, "error_message": message, "matching_acls": []} for _ in request["filters"]
        ]
    }
