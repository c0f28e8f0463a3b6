"""TLS of the server: a certificate and its key from files, read again when they change.

New handshakes use what was read last; connections that are open keep theirs. Files that cannot be used are refused at
the start, and later leave the old ones in force, with a line in the log: a renewal gone wrong must not end the service
before the old certificate does.
"""

from __future__ import annotations

import logging
import ssl
from datetime import UTC, datetime

from gateway.auth.operator_files import KEYS_BYTES_MAX, WatchedFiles, read_file
from gateway.settings.tls import TlsConfig

log = logging.getLogger(__name__)

EXPIRY_WARNING_DAYS = 14

_VERSIONS = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}


class TlsError(ValueError):
    """The certificate or its key cannot be used. The message names the file and says why."""


class ServerTls:
    """The server's side of TLS. `context` stays the same object for good; what it holds is replaced."""

    def __init__(self, config: TlsConfig) -> None:
        """Raises TlsError."""
        assert config.cert_file is not None
        assert config.key_file is not None
        self._cert_file, self._key_file = config.cert_file, config.key_file
        self._files = WatchedFiles(self._cert_file, self._key_file)
        self._files.have_changed()
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = _VERSIONS[config.minimum]
        self.context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
        self.context.set_alpn_protocols(["http/1.1"])
        self._load(self.context)
        self._trusting: ssl.SSLContext | None = None

    def trusting(self) -> ssl.SSLContext:
        """Whose certificates are trusted when a request is sent on to another node: public ones, and, as nodes often
        share one, this node's own; after a change, what it was before as well: another node may still have that."""
        if self._trusting is None:
            self._trusting = ssl.create_default_context()
            self._trusting.load_verify_locations(self._cert_file)
        return self._trusting

    def reload(self) -> TlsError | bool:
        """Use the files again if one has changed since the last look: whether they are used now, or why not, which is
        said once."""
        if not self._files.have_changed():
            return False
        try:
            self._load(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))  # a failure half-way must not touch the one in use
            self._load(self.context)
            if self._trusting is not None:
                self._trusting.load_verify_locations(self._cert_file)
        except (TlsError, OSError) as failure:  # of OpenSSL, too: it reads the files again
            if not self._files.refused(failure):
                return False
            error = failure if isinstance(failure, TlsError) else TlsError(f"{self._cert_file}: {failure}")
            log.error("certificate not reloaded, the old one stays in use: %s", error)
            return error
        self._files.used()
        log.info("certificate reloaded file=%s", self._cert_file)
        return True

    def _load(self, context: ssl.SSLContext) -> None:
        from cryptography.x509 import load_pem_x509_certificate  # loaded by servers with TLS alone

        for setting, path in (("tls.cert_file", self._cert_file), ("tls.key_file", self._key_file)):
            try:
                read_file(path, KEYS_BYTES_MAX)  # OpenSSL would wait for a pipe, with the event loop
            except (OSError, ValueError) as error:
                reason = error.strerror if isinstance(error, OSError) else error
                raise TlsError(f"{setting} {path}: {reason}") from error
        try:
            context.load_cert_chain(self._cert_file, self._key_file, password=_no_password)
            certificate = load_pem_x509_certificate(read_file(self._cert_file, KEYS_BYTES_MAX))
            left = certificate.not_valid_after_utc - datetime.now(UTC)
        except _PasswordWanted:
            raise TlsError(f"tls.key_file {self._key_file}: has a password; write the key without one") from None
        except ssl.SSLError as error:
            said = {
                "KEY_VALUES_MISMATCH": "the key is not that of the certificate",
                "KEY_TYPE_MISMATCH": "the key is not that of the certificate",
            }.get(error.reason or "", "one of them is no certificate or key in PEM that can be used")
            detail = f" ({error.reason})" if error.reason else ""
            raise TlsError(
                f"tls.cert_file {self._cert_file} and tls.key_file {self._key_file}: {said}{detail}"
            ) from error
        except ValueError as error:
            raise TlsError(f"tls.cert_file {self._cert_file}: no certificate in PEM that can be read") from error
        except OSError as error:  # gone since the look above
            raise TlsError(f"tls.cert_file {self._cert_file}: {error.strerror}") from error
        if left.days < EXPIRY_WARNING_DAYS:
            log.warning("certificate ends soon or has ended file=%s days_left=%d", self._cert_file, left.days)


class _PasswordWanted(Exception):
    pass


def _no_password() -> str:
    """Instead of OpenSSL's prompt for a passphrase, which no one would answer."""
    raise _PasswordWanted
