"""Certificates for tests: a CA, servers and clients signed by it, and those that nobody should accept."""

from __future__ import annotations

import ipaddress
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

SIGNS = x509.KeyUsage(
    key_cert_sign=True,
    crl_sign=True,
    digital_signature=False,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    encipher_only=False,
    decipher_only=False,
)
"""Key usage of an authority, which Python 3.13 asks for (`VERIFY_X509_STRICT`)."""


class Authority:
    """A certificate authority that signs into a folder.

    Args:
        folder: gets `NAME.pem`, with certificate and key, and `NAME.key`; the CA's own certificate alone is `ca`.
        name: of the CA, and of its file.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        certificate = (
            self._builder(self._name, self._key.public_key(), timedelta(days=2))
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(SIGNS, critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self.ca = folder / f"{name}.pem"
        self.ca.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))

    def sign(self, name: str, host: str = "127.0.0.1", lasts: timedelta = timedelta(days=1)) -> Path:
        """A certificate for `name` that is good for this host; one that lasts less than nothing has expired."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        try:
            where: x509.GeneralName = x509.IPAddress(ipaddress.ip_address(host))
        except ValueError:
            where = x509.DNSName(host)
        certificate = (
            self._builder(subject, key.public_key(), lasts)
            .add_extension(x509.SubjectAlternativeName([where]), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        secret = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        (self._folder / f"{name}.key").write_bytes(secret)
        both = self._folder / f"{name}.pem"
        both.write_bytes(secret + certificate.public_bytes(serialization.Encoding.PEM))
        return both

    def _builder(self, subject: x509.Name, key: ec.EllipticCurvePublicKey, lasts: timedelta) -> x509.CertificateBuilder:
        now = datetime.now(UTC)
        of_ca = self._key.public_key()
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=3))
            .not_valid_after(now + lasts)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(of_ca), critical=False)
        )
