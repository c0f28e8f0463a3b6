"""Certificates of their own making, for tests and for `make attack`."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    KeySerializationEncryption,
    NoEncryption,
    PrivateFormat,
)


def write_certificate(cert: Path, key: Path, *, password: bytes | None = None, days: int = 30) -> str:
    """A self-signed certificate of localhost, each file replaced as a whole. Returns it in PEM."""
    private = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    names = x509.SubjectAlternativeName([x509.DNSName("localhost"), x509.IPAddress(ip_address("127.0.0.1"))])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(private.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=60))
        .not_valid_after(now + timedelta(days=days))
        .add_extension(names, critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(private, SHA256())
    )
    encryption: KeySerializationEncryption = BestAvailableEncryption(password) if password else NoEncryption()
    text = certificate.public_bytes(Encoding.PEM)
    for path, content in ((key, private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption)), (cert, text)):
        aside = path.with_suffix(".new")
        aside.write_bytes(content)
        os.replace(aside, path)
    return text.decode()
