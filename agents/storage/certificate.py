"""A key and a self-sign certificate for one agent process, made without any package, and pinned by its digest.

The certificate is not verified by a chain: a client knows its SHA-256 from the control plane and compares. The key pair
is of P-256 (FIPS 186-5, SEC 1); TLS itself is OpenSSL's. It is new with every start of the agent.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import http.client
import os
import secrets
import ssl
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

PIN: Final = "sha256="
_P: Final = 2**256 - 2**224 + 2**192 + 2**96 - 1
_N: Final = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
_G: Final = (
    0x6B17D1F2E12C4247F8BCE6E563A440F277037D812DEB33A0F4A13945D898C296,
    0x4FE342E2FE1A7F9B8EE7EB4A7C0F9E162BCE33576B315ECECBB6406837BF51F5,
)
Point = tuple[int, int] | None

# Object identifiers, encoded: ecPublicKey, prime256v1, ecdsa-with-SHA256, commonName.
_EC_KEY: Final = bytes.fromhex("06072a8648ce3d0201")
_P256: Final = bytes.fromhex("06082a8648ce3d030107")
_ECDSA: Final = bytes.fromhex("06082a8648ce3d040302")
_COMMON_NAME: Final = bytes.fromhex("0603550403")


def _add(one: Point, two: Point) -> Point:
    """Return the sum of two points of the curve; None is the point at infinity."""
    if one is None or two is None:
        return two if one is None else one
    (x1, y1), (x2, y2) = one, two
    if x1 == x2:
        if (y1 + y2) % _P == 0:
            return None
        slope = 3 * (x1 * x1 - 1) * pow(2 * y1, -1, _P)
    else:
        slope = (y2 - y1) * pow(x2 - x1, -1, _P)
    x = (slope * slope - x1 - x2) % _P
    return x, (slope * (x1 - x) - y1) % _P


def times(factor: int) -> tuple[int, int]:
    """Return the base point multiplied by ``factor``."""
    found: Point = None
    power: Point = _G
    while factor:
        if factor & 1:
            found = _add(found, power)
        power = _add(power, power)
        factor >>= 1
    assert found is not None, "the factor is between 0 and the order"
    return found


def _der(tag: int, *content: bytes) -> bytes:
    """Encode one value of DER (X.690): its tag, its length, and its content."""
    body = b"".join(content)
    if len(body) < 128:
        return bytes((tag, len(body))) + body
    length = len(body).to_bytes((len(body).bit_length() + 7) // 8, "big")
    return bytes((tag, 0x80 | len(length))) + length + body


def _integer(value: int) -> bytes:
    return _der(0x02, value.to_bytes(value.bit_length() // 8 + 1, "big"))


def _sequence(*content: bytes) -> bytes:
    return _der(0x30, *content)


def sign(key: int, content: bytes) -> bytes:
    """Return the ECDSA signature of some bytes under a key, with SHA-256."""
    digest = int.from_bytes(hashlib.sha256(content).digest(), "big")
    while True:
        once = secrets.randbelow(_N - 1) + 1
        r = times(once)[0] % _N
        s = pow(once, -1, _N) * (digest + r * key) % _N
        if r and s:
            return _sequence(_integer(r), _integer(s))


def generate() -> tuple[bytes, bytes]:
    """Return a new certificate and its key, both as DER."""
    key = secrets.randbelow(_N - 1) + 1
    x, y = times(key)
    public = _der(0x03, b"\0\x04", x.to_bytes(32, "big"), y.to_bytes(32, "big"))
    name = _sequence(_der(0x31, _sequence(_COMMON_NAME, _der(0x0C, b"switchyard node"))))
    # The certificate is used until its process ends; RFC 5280 defines this date for "no known expiry".
    validity = _sequence(_der(0x17, b"700101000000Z"), _der(0x18, b"99991231235959Z"))
    content = _sequence(
        _der(0xA0, _integer(2)),
        _integer(secrets.randbits(120) + 1),
        _sequence(_ECDSA),
        name,
        validity,
        name,
        _sequence(_sequence(_EC_KEY, _P256), public),
    )
    certificate = _sequence(content, _sequence(_ECDSA), _der(0x03, b"\0", sign(key, content)))
    private = _sequence(_integer(1), _der(0x04, key.to_bytes(32, "big")), _der(0xA0, _P256), _der(0xA1, public))
    return certificate, private


def _pem(kind: str, content: bytes) -> str:
    text = base64.encodebytes(content).decode()
    return f"-----BEGIN {kind}-----\n{text}-----END {kind}-----\n"


def serving(folder: Path) -> tuple[ssl.SSLContext, str]:
    """Return a TLS context with a new certificate, and the certificate's digest. The key is in the folder only
    briefly."""
    certificate, key = generate()
    path = folder / f"{secrets.token_hex(8)}.pem"
    try:
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(_pem("EC PRIVATE KEY", key) + _pem("CERTIFICATE", certificate))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.load_cert_chain(path)
    finally:
        path.unlink(missing_ok=True)
    return context, PIN + hashlib.sha256(certificate).hexdigest()


class PinnedConnection(http.client.HTTPSConnection):
    """A connection to exactly the holder of one certificate: nothing is sent before it has proved that."""

    def __init__(self, url: str, timeout_s: float = 30.0) -> None:
        parts = urlsplit(url)
        self._pin = parts.fragment.removeprefix(PIN)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        # Neither a name nor a signature is verified, only the digest.
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        super().__init__(parts.hostname or "", parts.port, timeout=timeout_s, context=context)

    def connect(self) -> None:
        super().connect()
        shown = self.sock.getpeercert(binary_form=True) or b""
        if not hmac.compare_digest(hashlib.sha256(shown).hexdigest().encode(), self._pin.encode()):
            self.close()
            raise ssl.SSLError("it has another certificate than the control plane told: somebody else answers there")
