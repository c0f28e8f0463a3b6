"""Attacks on who one is and whose the data is: forged tokens, forged log lines, foreign pages, a deleted lock."""

from __future__ import annotations

import asyncio
import base64
import shlex
import time
from collections.abc import Iterator, Mapping

import jwt
import orjson
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from jwt.algorithms import RSAAlgorithm

from loadtest.attack.attack import SECURED, Attack
from loadtest.attack.attacker import ADDRESSES, Attacker
from loadtest.attack.victim import JWT_AUDIENCE, JWT_ISSUER, serving, without_settings
from loadtest.bench.payloads import JSON_TYPE

TOPIC = "names"
FORGED = "forged"
SECOND_SERVER_S = 30.0


# -------------------------------------------------------------------------------------------------- forged JWTs


async def forged_tokens(attacker: Attacker, *, times: int) -> None:
    """Tokens that bring their own key, name where it is, or are not signed."""
    asked_for_keys = 0

    def on_connect(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal asked_for_keys
        asked_for_keys += 1
        writer.close()

    listener = await asyncio.start_server(on_connect, "127.0.0.1", 0)
    async with listener:
        port = listener.sockets[0].getsockname()[1]
        tokens = list(_forged(attacker.target.jwt_key.read_bytes(), f"http://127.0.0.1:{port}/keys")) * times

        async def one(number: int) -> None:
            head = attacker.head(
                "GET", "/topics", {"Authorization": f"Bearer {tokens[number]}", "Connection": "close"}, is_stranger=True
            )
            # An address that fails often is made to wait (429), so each token comes from another one.
            heard = await attacker.talk(head, number=number % ADDRESSES)
            attacker.saw(heard.word)
            if heard.status not in ("401", "429"):
                attacker.wrong(f"forged token {number}: {heard.word}")

        await attacker.each(len(tokens), one, at_a_time=8)
    if asked_for_keys:
        attacker.wrong(f"the server asked a token's own address for keys {asked_for_keys} times")


def _forged(public_pem: bytes, url: str) -> Iterator[str]:
    """All are signed with a key of the attacker's, or with none."""
    claims = {
        "iss": JWT_ISSUER, "aud": JWT_AUDIENCE, "sub": FORGED, "exp": int(time.time()) + 600, "scope": "mq:admin",
    }  # fmt: skip
    own = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pem = own.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    jwk = RSAAlgorithm.to_jwk(own.public_key(), as_dict=True)
    headers: tuple[Mapping[str, object], ...] = (
        {}, {"jwk": jwk}, {"jku": url}, {"x5u": url}, {"x5c": ["AAAA"]}, {"jwk": jwk, "kid": "a"},
        {"kid": "../../../../dev/null"}, {"kid": url}, {"crit": ["exp"]}, {"jku": "file:///dev/null"},
    )  # fmt: skip
    for header in headers:
        yield jwt.encode(claims, pem, algorithm="RS256", headers=dict(header))
    for algorithm in ("none", "None", "NONE", "nOnE"):
        yield f"{_part({'alg': algorithm, 'typ': 'JWT'})}.{_part(claims)}."
    signed = f"{_part({'alg': 'HS256', 'typ': 'JWT'})}.{_part(claims)}"  # by the public key as if it were a secret
    key = jwt.algorithms.HMACAlgorithm(jwt.algorithms.HMACAlgorithm.SHA256)
    yield f"{signed}.{base64.urlsafe_b64encode(key.sign(signed.encode(), public_pem)).rstrip(b'=').decode()}"


def _part(value: Mapping[str, object]) -> str:
    return base64.urlsafe_b64encode(orjson.dumps(value)).rstrip(b"=").decode()


# ----------------------------------------------------------------------------------------------------- log lines


async def log_forging(attacker: Attacker, *, times: int) -> None:
    """Names of requests and paths that would look like other fields, or like lines of their own."""
    field = f"x status=200 principal={FORGED}"
    ids = (field, f'x" status=200 principal={FORGED} y="', f"x\tprincipal={FORGED}", f"x\\n principal={FORGED}",
           f"x\x85principal={FORGED}", f"x\u2028principal={FORGED}")  # fmt: skip
    paths = (f"/topics/a%20principal={FORGED}", f"/x%0aprincipal={FORGED}", f"/x?p=a%20principal={FORGED}",
             f"/mq/v1/groups/a%22%20principal={FORGED}")  # fmt: skip
    asked = [("/topics", one) for one in ids] + [(one, "x") for one in paths]

    async def one(number: int) -> None:
        path, request_id = asked[number // 2 % len(asked)]
        headers = {"X-Request-Id": request_id, "Connection": "close"}
        head = attacker.head("GET", path, headers, is_stranger=number % 2 > 0)
        attacker.saw((await attacker.talk(head, number=number)).word)

    await attacker.each(len(asked) * 2 * times, one, at_a_time=4)
    for line in attacker.target.log.read_text(errors="replace").splitlines():
        if is_forged(line):
            attacker.wrong(f"a forged line in the log: {line[:200]}")


def is_forged(line: str) -> bool:
    """Whether a reader of the log's fields would take a client's text for the name of who asked."""
    if FORGED not in line:
        return False
    try:
        words = shlex.split(line)
    except ValueError:
        return True  # a quote that does not end
    return any(word.startswith(f"principal={FORGED}") for word in words)


# ------------------------------------------------------------------------------------------------ foreign pages


async def foreign_pages(attacker: Attacker, *, times: int) -> None:
    """A page of the web, under its own name or under one that it has made point here."""
    port = attacker.target.port
    evil = "https://evil.example"
    asked = (
        ("GET", "/topics", {"Host": "evil.example"}),
        ("GET", "/topics", {"Host": f"evil.example:{port}"}),
        ("GET", "/topics", {"Host": f"localhost.evil.example:{port}"}),
        ("GET", "/topics", {"Host": f"127.0.0.1.evil.example:{port}"}),
        ("GET", "/topics", {"Origin": evil}),
        ("GET", "/topics", {"Origin": "null"}),
        ("GET", "/topics", {"Origin": f"http://localhost:{port}.evil.example"}),
        ("GET", "/topics", {"Origin": f"http://evil.example:{port}"}),
        ("POST", f"/topics/{TOPIC}", {"Origin": evil, "Content-Type": JSON_TYPE, "Content-Length": "0"}),
        ("DELETE", f"/mq/v1/topics/{TOPIC}", {"Origin": evil}),
        ("GET", f"/mq/v1/topics/{TOPIC}/sse", {"Origin": evil}),
        ("OPTIONS", f"/topics/{TOPIC}", {"Origin": evil, "Access-Control-Request-Method": "POST"}),
        ("GET", "/ws/v1", {"Origin": evil, "Connection": "close, Upgrade", "Upgrade": "websocket",
                           "Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA=="}),
    )  # fmt: skip

    async def one(number: int) -> None:
        method, path, headers = asked[number % len(asked)]
        heard = await attacker.talk(attacker.head(method, path, {"Connection": "close", **headers}), number=number)
        attacker.saw(heard.word)
        if heard.status is None or not heard.status.startswith("4"):
            attacker.wrong(f"{method} {path} {headers}: {heard.word}")
        elif b"access-control-allow-origin" in heard.said.lower():
            attacker.wrong(f"{method} {path} {headers}: the page may read the answer")

    await attacker.each(len(asked) * times, one, at_a_time=8)


async def make_topic(attacker: Attacker, **_: int) -> None:
    """What a page would like to reach."""
    await attacker.make_topic(TOPIC)


# ----------------------------------------------------------------------------------------------------- the lock


async def deleted_lock(attacker: Attacker, *, times: int) -> None:
    """Delete the lock of the data directory, and start a second server on it."""
    data = attacker.target.data
    for _ in range(times):
        (data / "lock").unlink(missing_ok=True)
        process = await asyncio.create_subprocess_exec(
            *without_settings(), *serving(data), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
        )  # fmt: skip
        assert process.stdout is not None
        try:
            async with asyncio.timeout(SECOND_SERVER_S):
                said = (await process.stdout.readline()).decode().strip()
                if said.startswith("http"):
                    attacker.wrong("a second server started on the same data")
                    return
                exit_code = await process.wait()
        except TimeoutError:
            attacker.wrong("a second server did not end")
            return
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        attacker.saw("second server refused")
        if exit_code == 0:
            attacker.wrong("the second server ended with exit code 0")


ATTACKS = (
    Attack(
        name="forged-tokens",
        tried="15 JWTs that bring their own key (`jwk`, `jku`, `x5u`, `x5c`, `kid`), have `alg` none, or the public "
        "key for a secret; {times} times",
        run=forged_tokens, victim=SECURED,
        full={"times": 20}, short={"times": 1},
    ),
    Attack(
        name="log-forging",
        tried="request ids and paths that say `principal=` in the access log, {times} times",
        run=log_forging, victim=SECURED,
        full={"times": 50}, short={"times": 1},
    ),
    Attack(
        name="foreign-pages",
        tried="hosts, origins, preflights and sockets of pages of the web, {times} times",
        run=foreign_pages, prepare=make_topic,
        full={"times": 50}, short={"times": 1},
    ),
    Attack(
        name="deleted-lock",
        tried="`DATA/lock` deleted, and a second server started on the same data, {times} times",
        run=deleted_lock,
        full={"times": 3}, short={"times": 1},
    ),
)  # fmt: skip
