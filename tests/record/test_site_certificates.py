"""How a site and this cluster prove to each other who they are, with real certificates over real TLS."""

from __future__ import annotations

import ipaddress
import ssl
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from controlplane.sites import exchange
from controlplane.sites import service as writer
from controlplane.sites.models import Site
from tests.record.scripted_site import TOKEN, ScriptedSite, SiteServer
from tests.record.yard import Yard

NOW = datetime.now(UTC)


@dataclass
class Certificate:
    """A certificate and its key, as files; ``issuer`` signed it."""

    row: x509.Certificate
    key: ec.EllipticCurvePrivateKey
    pem: Path
    key_file: Path

    @property
    def fingerprint(self) -> str:
        return self.row.fingerprint(hashes.SHA256()).hex()


def made(folder: Path, name: str, by: Certificate | None = None, *, ends: timedelta = timedelta(days=1)) -> Certificate:
    """Make a certificate for 127.0.0.1, signed by another one or by itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    issuer = by.row.subject if by else subject
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(NOW - timedelta(days=30))
        .not_valid_after(NOW + ends)
        .add_extension(x509.BasicConstraints(ca=by is None, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
    row = builder.sign(by.key if by else key, hashes.SHA256())
    found = Certificate(row, key, folder / f"{name}.pem", folder / f"{name}.key")
    found.pem.write_bytes(row.public_bytes(serialization.Encoding.PEM))
    plain = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    found.key_file.write_bytes(key.private_bytes(*plain))
    return found


Start = Callable[..., ScriptedSite]


@pytest.fixture
def start(settings: Any, tmp_path: Path) -> Iterator[Start]:
    """Starts sites over TLS, each with a certificate."""
    settings.SITE_NETWORKS = (ipaddress.ip_network("127.0.0.0/8"),)
    settings.SITE_FILES = str(tmp_path / "files")
    servers = []

    def started(shows: Certificate, wants: Certificate | None = None) -> ScriptedSite:
        site = ScriptedSite()
        server = SiteServer(site)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(shows.pem, shows.key_file)
        if wants is not None:
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_verify_locations(wants.pem)
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
        site.url = site.url.replace("http:", "https:")
        servers.append(server)
        return site

    yield started
    for server in servers:
        server.stop()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where the files of the site are."""
    found = tmp_path / "files" / "berlin"
    found.mkdir(parents=True)
    return found


def looked(site: ScriptedSite, name: str = "berlin", **more: Any) -> str:
    """Look at a site once; return the code of what is wrong, empty if it answered."""
    row = Site.objects.create(name=name, url=site.url, **more)
    writer.stand_in(row)
    writer.set_token(row, TOKEN, "ada")
    exchange.look()
    row.refresh_from_db()
    assert bool(row.answered_at) != bool(row.said)
    return row.said[0]["code"] if row.said else ""


def test_an_authority_of_its_own_vouches_for_a_site(yard: Yard, start: Start, folder: Path, tmp_path: Path) -> None:
    authority = made(tmp_path, "authority")
    (folder / "ca.pem").write_bytes(authority.pem.read_bytes())
    assert looked(start(made(tmp_path, "site", authority))) == ""


@pytest.mark.parametrize("kind", ["stale", "of another authority", "of itself"])
def test_a_certificate_that_nobody_vouches_for_is_a_condition_and_harms_no_other_site(
    yard: Yard, start: Start, folder: Path, tmp_path: Path, kind: str
) -> None:
    authority, other = made(tmp_path, "authority"), made(tmp_path, "other")
    (folder / "ca.pem").write_bytes(authority.pem.read_bytes())
    shows = {
        "stale": lambda: made(tmp_path, "site", authority, ends=timedelta(days=-1)),
        "of another authority": lambda: made(tmp_path, "site", other),
        "of itself": lambda: made(tmp_path, "site"),
    }[kind]()
    site = start(shows)
    assert looked(site) == "SiteTlsFailed"
    assert site.asked == [], "nothing was sent, and no token"
    well = ScriptedSite()
    server = SiteServer(well)
    try:
        assert looked(well, "oslo") == ""
    finally:
        server.stop()


def test_a_fingerprint_is_of_one_certificate(yard: Yard, start: Start, tmp_path: Path) -> None:
    shows = made(tmp_path, "site")
    site = start(shows)
    assert looked(site, fingerprint=shows.fingerprint) == ""
    other = start(made(tmp_path, "other"))
    assert looked(other, "oslo", fingerprint=shows.fingerprint) == "SiteOtherCertificate"
    assert other.asked == [], "nothing was sent, and no token"


def test_a_site_may_want_a_certificate_of_ours(yard: Yard, start: Start, folder: Path, tmp_path: Path) -> None:
    authority = made(tmp_path, "authority")
    (folder / "ca.pem").write_bytes(authority.pem.read_bytes())
    site = start(made(tmp_path, "site", authority), wants=authority)
    assert looked(site) in ("SiteTlsFailed", "SiteUnreachable")
    assert site.asked == []
    ours = made(tmp_path, "ours", authority)
    (folder / "client.pem").write_bytes(ours.pem.read_bytes())
    (folder / "client.key").write_bytes(ours.key_file.read_bytes())
    Site.objects.update(retry_at=None)
    exchange.look()
    assert Site.objects.get().condition == ""


def test_files_that_are_none_are_a_condition(yard: Yard, start: Start, folder: Path, tmp_path: Path) -> None:
    (folder / "client.pem").write_text("no certificate")
    assert looked(start(made(tmp_path, "site"))) == "SiteFilesUnusable"
