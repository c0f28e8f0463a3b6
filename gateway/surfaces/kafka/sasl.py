"""Who a client is: SaslHandshake, SaslAuthenticate. The credential is one of the server's own tokens, or a JWT:

    PLAIN         password: the token; the user name is not looked at (clients want one)
    OAUTHBEARER   RFC 7628: n,,\\x01auth=Bearer TOKEN\\x01\\x01

Until a client has said who it is, nothing else is served, and its requests may be a few KiB large. A token that ends
has its time told, so that a client authenticates again on the same connection (KIP-368); when it has ended, the
connection has. A JWT is taken for `auth.jwt_leeway_ms` longer than it says, as clocks differ. What is told is its own
end; only a client that comes behind that is told the rest.
"""

from __future__ import annotations

from gateway.errors import RequestError
from gateway.surfaces.kafka import errors
from gateway.surfaces.kafka.schema import Message
from gateway.surfaces.kafka.session import Session

PLAIN, OAUTHBEARER = "PLAIN", "OAUTHBEARER"
MECHANISMS = (PLAIN, OAUTHBEARER)


async def sasl_handshake(session: Session, version: int, request: Message) -> Message:
    """Agree on a mechanism."""
    mechanism = request["mechanism"]
    # Version 0 is followed by credentials without a header; every client since Kafka 1.0 sends version 1.
    is_known = mechanism in MECHANISMS and version > 0
    session.mechanism = mechanism if is_known else None
    return {
        "error_code": errors.NONE if is_known else errors.UNSUPPORTED_SASL_MECHANISM,
        "mechanisms": list(MECHANISMS),
    }


async def sasl_authenticate(session: Session, version: int, request: Message) -> tuple[Message, bool]:
    """Take a credential; and whether the connection goes on."""
    mechanism, session.mechanism = session.mechanism, None
    if mechanism is None:
        return _refused(errors.ILLEGAL_SASL_STATE, "SaslHandshake (version 1) comes before SaslAuthenticate.")
    try:
        token = (_plain if mechanism == PLAIN else _bearer)(request["auth_bytes"])
    except ValueError as error:
        return _refused(errors.SASL_AUTHENTICATION_FAILED, str(error))
    try:
        access = session.gateway.authenticator.access_of_token(token, session.address)
    except RequestError as error:
        return _refused(errors.SASL_AUTHENTICATION_FAILED, error.message)
    if session.is_known and access.principal != session.access.principal:
        return _refused(errors.SASL_AUTHENTICATION_FAILED, "Another principal needs another connection.")
    session.access = access
    session.on_access()
    answer: Message = {"error_message": None, "auth_bytes": b""}
    if version >= 1 and access.expires_at_ms is not None:
        left_ms = access.expires_at_ms - session.gateway.clock.now_ms()
        leeway_ms = session.gateway.config.auth.jwt_leeway_ms if access.token_id is None else 0
        answer["session_lifetime_ms"] = max(1, left_ms - leeway_ms if left_ms > leeway_ms else left_ms)
    return answer, True


def _refused(code: int, message: str) -> tuple[Message, bool]:
    return {"error_code": code, "error_message": message, "auth_bytes": b""}, False


def _plain(sent: bytes) -> str:
    parts = sent.split(b"\0")
    if len(parts) != 3 or not parts[2]:
        raise ValueError("PLAIN: authorization id, user name and password, with a null character between them")
    return _text(parts[2])


def _bearer(sent: bytes) -> str:
    for part in sent.split(b"\x01"):
        name, _, value = part.partition(b"=")
        if name.lower() == b"auth":
            scheme, _, token = value.partition(b" ")
            if scheme.lower() == b"bearer" and token.strip():
                return _text(token.strip())
    raise ValueError("OAUTHBEARER: auth=Bearer TOKEN is missing")


def _text(token: bytes) -> str:
    try:
        return token.decode("ascii")
    except UnicodeDecodeError as error:
        raise ValueError("A token is ASCII.") from error
