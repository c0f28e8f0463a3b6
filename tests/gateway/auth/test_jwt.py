"""gateway/auth/jwt.py"""

from __future__ import annotations

import base64
import hmac
import time
from collections.abc import Callable

import jwt as pyjwt
import orjson
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from gateway.auth.jwt import (
    EXPIRES_S_MAX,
    JWT_CHARS_MAX,
    KEYS_MAX,
    RSA_BITS_MIN,
    SECRET_BYTES_MIN,
    SUBJECT_CHARS_MAX,
    Algorithm,
    JwtRefused,
    JwtVerifier,
    verifier,
)
from gateway.auth.scopes import parse_scope
from loadtest.slowness import slowness

SECRET = b"0123456789abcdef0123456789abcdef"


def rsa_key(p: int, q: int) -> rsa.RSAPrivateKey:
    """Of two primes that are written down here: to find some takes a tenth of a second, in each process that so much as
    collects these tests."""
    d = pow(65537, -1, (p - 1) * (q - 1))
    public = rsa.RSAPublicNumbers(65537, p * q)
    numbers = rsa.RSAPrivateNumbers(
        p, q, d, rsa.rsa_crt_dmp1(d, p), rsa.rsa_crt_dmq1(d, q), rsa.rsa_crt_iqmp(p, q), public
    )
    return numbers.private_key(unsafe_skip_rsa_key_validation=True)


RSA_KEY = rsa_key(
    int(
        "fb6e268850763f847f8287a69570c1ce8b2e6bb045c0c300b8be0afa5045f38d6e90af5752ea40cf8fc530522054e711fbaf"
        "decd57a3d5255ca00ac5a449f626ea956fd64deb7ebf6947afa49868f0fca8c51cbfc1d636bdd2656171fadff3582368f78c"
        "f394f581685b0163bcb0c541ad77bbe23c013476e3f70cd5206b59dd",
        16,
    ),
    int(
        "e07fc5152cf61b14edb2d43cc8f08a24671f4ac817fcf86c2df03d9a7dcc06a6336cc2dad441805a140cdb20ca8df79fc655"
        "3f66ca7ada1989d8c002fe5f5bfad7db0d89f4713efcd07b54627423397d8aa933821c7db48bbab85f90017beb331778f2be"
        "e14f3c3bb0ec5c847293e9a33f20949319e0c624da7a4550a3e26ce5",
        16,
    ),
)
STRANGER = rsa_key(
    int(
        "df8edb9d460c908c2e5a6ba3f79112f983f76ec2c1ac1e1b87dd6150415d6a773bb81931775b28193ce98edaf9f1900cf437"
        "4329a5b4ca2be8ab462df268142716e182e03b5e50573954d854b9a6003adb0617e546449a137767225319b136e181f19d2d"
        "9388cb42391d08f00e30d3bbd9f300bc47a6f0b2b70647706bb323ad",
        16,
    ),
    int(
        "d0649fa2ba2a0e83bc746af15c6187deb21c770662385c2f2c1b54f7e7b50b6506740cdb128dc2c69ab26ff262e4c111d526"
        "e1c82f0a4f3a8c1b6272a77622c97dc4758a29f5e096b3c705e365847a84c00784ae8cfa0c0f651eb39d88ca0e80f2a43cf7"
        "f1add8ff9be184a850f29f961e210808e7af933c3b8d96158ed09413",
        16,
    ),
)
"""A key of somebody who would like to be trusted. Its signatures are good."""

EC_KEY = ec.generate_private_key(ec.SECP256R1())
LEEWAY_MS = 30_000


def pem(key: rsa.RSAPrivateKey | rsa.RSAPublicKey | ec.EllipticCurvePrivateKey) -> bytes:
    public = key if isinstance(key, rsa.RSAPublicKey) else key.public_key()
    return public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def checker(algorithm: Algorithm, key_file: bytes) -> JwtVerifier:
    return verifier(
        issuer="https://issuer.example",
        audience="mq",
        algorithm=algorithm,
        key_file=key_file,
        scope_claim="scope",
        leeway_ms=LEEWAY_MS,
    )


def claims(**changes: object) -> dict[str, object]:
    now_s = int(time.time())
    told = {"iss": "https://issuer.example", "aud": "mq", "sub": "ann", "exp": now_s + 60} | changes
    return {name: value for name, value in told.items() if value is not None}


def signed(key: object = SECRET, algorithm: str = "HS256", **changes: object) -> str:
    return pyjwt.encode(claims(**changes), key, algorithm)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("algorithm", "key", "key_file"),
    [("HS256", SECRET, SECRET + b"\n"), ("RS256", RSA_KEY, pem(RSA_KEY)), ("ES256", EC_KEY, pem(EC_KEY))],
)
def test_a_good_token_tells_who_it_is(algorithm: Algorithm, key: object, key_file: bytes) -> None:
    found = checker(algorithm, key_file).verify(
        signed(key, algorithm, scope="openid mq:reader:topic:orders email", exp=2_000_000_000)
    )
    assert found.principal == "jwt:ann"
    assert found.scopes == (parse_scope("reader:topic:orders"),)
    assert found.expires_ms == 2_000_000_000_000 + LEEWAY_MS


def test_any_key_of_the_file_will_do_and_is_named() -> None:
    both = checker("RS256", pem(RSA_KEY) + pem(STRANGER))
    ids = {both.verify(signed(key, "RS256")).key_id for key in (RSA_KEY, STRANGER)}
    assert ids == both.key_ids
    assert len(ids) == 2


@pytest.mark.parametrize(
    "changes",
    [{"exp": None}, {"iss": None}, {"aud": None}, {"sub": None}, {"exp": int(time.time()) - 60}, {"iss": "other"},
     {"aud": "other"}, {"aud": ["other"]}, {"sub": ""}, {"sub": "a\nb"}, {"exp": "soon"}, {"exp": 1e300},
     {"exp": EXPIRES_S_MAX + 1}, {"nbf": int(time.time()) + 3600}, {"scope": 5}, {"scope": "mq:owner:topic:a"},
     {"sub": "a" * (SUBJECT_CHARS_MAX + 1)}],
)  # fmt: skip
def test_a_token_that_lacks_something_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises(JwtRefused):
        checker("HS256", SECRET).verify(signed(**changes))


def test_clocks_may_differ_by_the_leeway() -> None:
    now_s = int(time.time())
    assert checker("HS256", SECRET).verify(signed(exp=now_s - LEEWAY_MS // 1000 + 5))
    with pytest.raises(JwtRefused):
        checker("HS256", SECRET).verify(signed(exp=now_s - LEEWAY_MS // 1000 - 1))


def forged(header: dict[str, object], signature: str = "") -> str:
    def part(content: object) -> str:
        return base64.urlsafe_b64encode(orjson.dumps(content)).decode().rstrip("=")

    return f"{part(header)}.{part(claims())}.{signature}"


@pytest.mark.parametrize(
    "token",
    [
        forged({"alg": "none"}),
        forged({"alg": "None"}),
        forged({"alg": "HS512"}, "AAAA"),
        forged({"alg": "RS256", "jwk": {"kty": "oct", "k": "AA"}}, "AAAA"),
        forged({"alg": "RS256", "jku": "https://evil.example/keys"}, "AAAA"),
        forged({"alg": "RS256", "crit": ["x"]}, "AAAA"),
        signed(STRANGER, "RS256"),
        signed(EC_KEY, "ES256"),
        "", ".", "..", "a.b.c", "\udc80", "é.é.é", "." * JWT_CHARS_MAX, "A" * (JWT_CHARS_MAX + 1),
    ],
)  # fmt: skip
def test_a_forged_token_is_refused(token: str) -> None:
    with pytest.raises(JwtRefused) as refusal:
        checker("RS256", pem(RSA_KEY)).verify(token)
    assert not token or len(token) < 10 or token not in str(refusal.value)


def test_a_public_key_is_no_shared_secret() -> None:
    """The old confusion: sign with HS256 and the issuer's public key, which everybody knows."""
    header = base64.urlsafe_b64encode(b'{"alg":"HS256","typ":"JWT"}').decode().rstrip("=")
    import hashlib
    import hmac

    body = base64.urlsafe_b64encode(orjson.dumps(claims())).decode().rstrip("=")
    mac = hmac.new(pem(RSA_KEY), f"{header}.{body}".encode(), hashlib.sha256).digest()
    token = f"{header}.{body}." + base64.urlsafe_b64encode(mac).decode().rstrip("=")
    with pytest.raises(JwtRefused):
        checker("RS256", pem(RSA_KEY)).verify(token)


def test_lengths_up_to_their_limits_are_fine() -> None:
    assert checker("HS256", SECRET).verify(signed(sub="a" * SUBJECT_CHARS_MAX))
    assert checker("HS256", SECRET).verify(signed(exp=EXPIRES_S_MAX))
    spare = JWT_CHARS_MAX - len(signed(x=""))
    padded = next(
        token for size in range(spare * 3 // 4 + 4, 0, -1) if len(token := signed(x="a" * size)) <= JWT_CHARS_MAX
    )
    assert len(padded) >= JWT_CHARS_MAX - 1
    assert checker("HS256", SECRET).verify(padded)


PRIVATE = RSA_KEY.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
SMALL = rsa.RSAPublicNumbers(65537, (1 << 1023) + 1).public_key()
OTHER_CURVE = ec.generate_private_key(ec.SECP384R1())


@pytest.mark.parametrize(
    ("algorithm", "key_file", "message"),
    [
        ("HS256", SECRET[: SECRET_BYTES_MIN - 1], "at least 32 bytes"),
        ("HS256", pem(RSA_KEY), "shared secret"),
        ("RS256", SECRET, "public keys in PEM"),
        ("RS256", PRIVATE, "private key"),
        ("RS256", pem(SMALL), "2048"),
        ("RS256", pem(EC_KEY), "RSA"),
        ("ES256", pem(RSA_KEY), "P-256"),
        ("ES256", pem(OTHER_CURVE), "P-256"),
        ("ES256", b"-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----", "cannot be read"),
        ("ES256", pem(EC_KEY) * (KEYS_MAX + 1), str(KEYS_MAX)),
    ],
)
def test_a_key_file_that_does_not_fit_is_refused(algorithm: Algorithm, key_file: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        checker(algorithm, key_file)


def test_as_many_keys_as_the_limit_are_fine() -> None:
    assert len(checker("ES256", pem(EC_KEY) * KEYS_MAX).keys) == KEYS_MAX
    assert len(SECRET) == SECRET_BYTES_MIN


def jwk_of(key: rsa.RSAPrivateKey) -> dict[str, object]:
    found: dict[str, object] = orjson.loads(pyjwt.algorithms.RSAAlgorithm.to_jwk(key.public_key()))
    return found


@pytest.mark.parametrize(
    "header",
    [
        {"jwk": jwk_of(STRANGER)},
        {"jwk": jwk_of(STRANGER), "kid": "1"},
        {"jku": "http://127.0.0.1:9/keys.json"},
        {"x5u": "http://127.0.0.1:9/chain.pem"},
        {"x5c": [base64.b64encode(pem(STRANGER)).decode()]},
        {"kid": "../../../../dev/null"},
        {"kid": "/proc/self/environ"},
        {"kid": "file:///etc/passwd"},
        {"kid": "x' UNION SELECT 'secret"},
        {"kid": "|/bin/true"},
        {"kid": {"k": "v"}},
        {"kid": None},
        {"cty": "JWT"},
        {"b64": False, "crit": ["b64"]},
        {"zip": "DEF"},
    ],
)
def test_nothing_that_a_token_says_of_its_key_is_listened_to(
    header: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Signed well, by a key that it brings or names: refused, without a look at the network or a file."""

    def touched(*_: object, **__: object) -> None:
        raise AssertionError("a token made the server look somewhere")

    check = checker("RS256", pem(RSA_KEY))
    for name in ("socket.socket", "socket.create_connection", "builtins.open", "os.open", "urllib.request.urlopen"):
        monkeypatch.setattr(name, touched)
    token = by_hand({"alg": "RS256", "typ": "JWT", **header}, lambda text: _rs256(STRANGER, text))
    with pytest.raises(JwtRefused):
        check.verify(token)


def by_hand(header: dict[str, object] | bytes, sign: Callable[[bytes], bytes]) -> str:
    """A token with any header, which no library would write."""

    def part(content: bytes) -> bytes:
        return base64.urlsafe_b64encode(content).rstrip(b"=")

    head = header if isinstance(header, bytes) else orjson.dumps(header)
    text = part(head) + b"." + part(orjson.dumps(claims()))
    return (text + b"." + part(sign(text))).decode()


def _rs256(key: rsa.RSAPrivateKey, text: bytes) -> bytes:
    return pyjwt.algorithms.RSAAlgorithm(pyjwt.algorithms.RSAAlgorithm.SHA256).sign(text, key)


def _hs256(secret: bytes, text: bytes) -> bytes:
    return hmac.digest(secret, text, "sha256")


def test_a_token_by_hand_is_taken_when_it_is_right() -> None:
    """Or the tests around it would prove nothing."""
    assert checker("RS256", pem(RSA_KEY)).verify(by_hand({"alg": "RS256"}, lambda text: _rs256(RSA_KEY, text)))
    assert checker("HS256", SECRET).verify(by_hand({"alg": "HS256"}, lambda text: _hs256(SECRET, text)))


@pytest.mark.parametrize(
    ("algorithm", "key_file", "header", "sign"),
    [
        # The public key as a shared secret, in every form in which it may have been read.
        ("RS256", pem(RSA_KEY), {"alg": "HS256"}, lambda text: _hs256(pem(RSA_KEY), text)),
        ("RS256", pem(RSA_KEY), {"alg": "HS256"}, lambda text: _hs256(pem(RSA_KEY).strip(), text)),
        ("ES256", pem(EC_KEY), {"alg": "HS256"}, lambda text: _hs256(pem(EC_KEY), text)),
        # No secret, and the name of another algorithm over the right one.
        ("HS256", SECRET, {"alg": "HS256", "kid": "/dev/null"}, lambda text: _hs256(b"", text)),
        ("HS256", SECRET, {"alg": "hs256"}, lambda text: _hs256(SECRET, text)),
        ("HS256", SECRET, {"alg": ["HS256"]}, lambda text: _hs256(SECRET, text)),
        ("HS256", SECRET, {"alg": None}, lambda text: _hs256(SECRET, text)),
        ("HS256", SECRET, {}, lambda text: _hs256(SECRET, text)),
        ("RS256", pem(RSA_KEY), b'{"alg":"none","alg":"RS256"}', lambda _: b""),
        ("RS256", pem(RSA_KEY), b'{"alg":"RS256","alg":"none"}', lambda _: b""),
        ("RS256", pem(RSA_KEY), {"alg": "PS256"}, lambda text: _rs256(RSA_KEY, text)),
        # r = s = 0, which some verifiers took for a signature of anything.
        ("ES256", pem(EC_KEY), {"alg": "ES256"}, lambda _: bytes(64)),
        ("ES256", pem(EC_KEY), {"alg": "ES256"}, lambda _: b""),
    ],
)
def test_the_token_does_not_choose_how_it_is_checked(
    algorithm: Algorithm, key_file: bytes, header: dict[str, object] | bytes, sign: Callable[[bytes], bytes]
) -> None:
    with pytest.raises(JwtRefused):
        checker(algorithm, key_file).verify(by_hand(header, sign))


def test_an_encrypted_token_is_none_of_ours() -> None:
    with pytest.raises(JwtRefused):
        checker("RS256", pem(RSA_KEY)).verify(".".join(["e30", "AA", "AA", "AA", "AA"]))


def test_the_dearest_token_is_checked_in_a_moment() -> None:
    """As long as a header may be, signed by none of the most keys: what an address may make the server do at a time."""
    keys = [rsa.generate_private_key(65537, RSA_BITS_MIN) for _ in range(2)] * (KEYS_MAX // 2)
    check = checker("RS256", b"".join(map(pem, keys)))
    token = signed(STRANGER, "RS256", x="y" * 5_000)
    assert len(token) <= JWT_CHARS_MAX
    started_s = time.thread_time()
    with pytest.raises(JwtRefused):
        check.verify(token)
    taken_s = time.thread_time() - started_s
    assert taken_s < 0.05 * slowness()
