"""What nodes hand each other is encrypted, and only the node that the control plane named is asked for it."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from agents.link.server import Server
from agents.protocol import MEASURED, MEASURED_BYTES, Input, Source
from agents.storage import certificate, peers
from agents.storage.certificate import PIN, PinnedConnection
from agents.storage.content_store import ContentStore
from agents.storage.fetch import Fetcher
from agents.storage.manifest import UnfitFile
from agents.storage.peers import Keys, PeerServer, ticket

CONTENT = b"what another node has\n" * 4000
DIGEST = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[tuple[PeerServer, str]]:
    """A node that has a file and serves it over TLS; with its address."""
    store = ContentStore(tmp_path / "holder", 64 << 20)
    assert store.put_bytes(CONTENT) == DIGEST
    store.complete(DIGEST, "file")
    context, pin = certificate.serving(tmp_path)
    server = PeerServer(("127.0.0.1", 0), store, Keys(), 0, context)
    server.open()
    yield server, f"https://127.0.0.1:{server.port}#{pin}"
    server.close()


def fetcher(tmp_path: Path, plain: bool = False) -> Fetcher:
    store = ContentStore(tmp_path / "asking", 64 << 20)
    return Fetcher(Server("http://127.0.0.1:1"), store, [], plain=plain)


def test_a_file_comes_over_tls_from_the_node_that_was_named(holder: tuple[PeerServer, str], tmp_path: Path) -> None:
    server, url = holder
    asking = fetcher(tmp_path)
    asking._from_peer(Input("x", DIGEST, kind="file"), Source("n", url, ticket(server.keys.current, DIGEST)), 0, 1)
    assert asking.store.path(DIGEST).read_bytes() == CONTENT
    assert server.served[DIGEST] == len(CONTENT)


def test_nothing_is_sent_to_whoever_shows_another_certificate(holder: tuple[PeerServer, str], tmp_path: Path) -> None:
    """Not even the ticket: somebody in between would use it at once."""
    server, _ = holder
    asking = fetcher(tmp_path)
    wrong = f"https://127.0.0.1:{server.port}#{PIN}{'0' * 64}"
    with pytest.raises(ssl.SSLError, match="another certificate"):
        asking.download(Source("n", wrong, ticket(server.keys.current, DIGEST)), DIGEST, DIGEST, tmp_path / "d", None)
    for pin in ("", PIN, "md5=1"):
        source = Source("n", f"https://127.0.0.1:{server.port}#{pin}", "t")
        with pytest.raises((ssl.SSLError, UnfitFile)):
            asking.download(source, DIGEST, DIGEST, tmp_path / "d", None)
    assert server.served == {}


def test_another_host_is_not_asked_without_encryption_unless_the_operator_says_so(tmp_path: Path) -> None:
    source = Source("n", "http://192.0.2.1:8700", "t")
    with pytest.raises(UnfitFile, match="--peers-plain"):
        fetcher(tmp_path)._to(source)
    assert isinstance(fetcher(tmp_path, plain=True)._to(source), http.client.HTTPConnection)
    assert isinstance(fetcher(tmp_path)._to(Source("n", "http://127.0.0.1:1", "t")), http.client.HTTPConnection)


def test_what_is_on_the_way_is_not_to_be_read(holder: tuple[PeerServer, str], tmp_path: Path) -> None:
    """All that goes over the wire, both ways, has neither the ticket nor the content in it."""
    server, url = holder
    seen: list[bytes] = []
    relay = socket.create_server(("127.0.0.1", 0))

    def pump(one: socket.socket, other: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while piece := one.recv(65536):
                seen.append(piece)
                other.sendall(piece)
            other.shutdown(socket.SHUT_WR)

    def pass_on() -> None:
        near, _ = relay.accept()
        with near, socket.create_connection(("127.0.0.1", server.port)) as far:
            other = threading.Thread(target=pump, args=(near, far), daemon=True)
            other.start()
            pump(far, near)
            for each in (near, far):
                with contextlib.suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)
            other.join()

    passing = threading.Thread(target=pass_on, daemon=True)
    passing.start()
    key = ticket(server.keys.current, DIGEST)
    way = f"https://127.0.0.1:{relay.getsockname()[1]}#{url.partition('#')[2]}"
    asking = fetcher(tmp_path)
    asking._from_peer(Input("x", DIGEST, kind="file"), Source("n", way, key), 0, 1)
    passing.join()
    relay.close()
    passed = b"".join(seen)
    assert len(passed) > len(CONTENT)
    for secret in (key.encode(), DIGEST.encode(), CONTENT[:22]):
        assert secret not in passed


def test_who_speaks_no_tls_or_says_nothing_holds_up_nobody(
    holder: tuple[PeerServer, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, url = holder
    monkeypatch.setattr(peers, "VISITORS", 8)
    server._seats = threading.BoundedSemaphore(8)
    silent = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(4)]
    with socket.create_connection(("127.0.0.1", server.port)) as loud:
        loud.sendall(b"GET / HTTP/1.0\r\n\r\n" * 100)
        asking = fetcher(tmp_path)
        asking._from_peer(Input("x", DIGEST, kind="file"), Source("n", url, ticket(server.keys.current, DIGEST)), 0, 1)
    more = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(30)]
    deadline = time.monotonic() + 30
    while threading.active_count() > 30 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert sum(thread.name.startswith("Thread") for thread in threading.enumerate()) <= 8 + 4
    for each in (*silent, *more):
        each.close()


def test_certificates_are_new_each_time_and_whole(tmp_path: Path) -> None:
    made = [certificate.generate() for _ in range(20)]
    assert len({each for pair in made for each in pair}) == 40
    for der, _ in made:
        pem = ssl.DER_cert_to_PEM_cert(der)
        context = ssl.create_default_context(cadata=pem)
        assert [dict(pair[0] for pair in each["subject"]) for each in context.get_ca_certs() or []] in (
            [], [{"commonName": "switchyard node"}],
        )  # fmt: skip
    context, pin = certificate.serving(tmp_path)
    assert list(tmp_path.iterdir()) == [], "the key stays nowhere"
    assert pin.startswith(PIN)


def test_the_curve_is_p256() -> None:
    """Points that NIST's published vectors give for the base point (FIPS 186, P-256)."""
    assert certificate.times(1) == certificate._G
    x, y = certificate.times(2)
    assert x == 0x7CF27B188D034F7E8A52380304B51AC3C08969E277F21B35A60B48FC47669978
    assert y == 0x07775510DB8ED040293D9AC69F7430DBBA7DADE63CE982299E04B79D227873D1
    assert certificate.times(certificate._N - 1)[0] == certificate._G[0]
    for factor in (3, 12345, certificate._N // 3):
        x, y = certificate.times(factor)
        b = 0x5AC635D8AA3A93E7B3EBBD55769886BC651D06B0CC53B0F63BCE3C3E27D2604B
        assert (y * y - (x * x * x - 3 * x + b)) % certificate._P == 0


def test_openssl_agrees_that_it_signed_itself(tmp_path: Path) -> None:
    (tmp_path / "c.pem").write_text(ssl.DER_cert_to_PEM_cert(certificate.generate()[0]))
    asked = ["openssl", "verify", "-check_ss_sig", "-CAfile", str(tmp_path / "c.pem"), str(tmp_path / "c.pem")]
    try:
        told = subprocess.run(asked, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("no openssl here")
    assert told.returncode == 0, told.stderr


def test_a_pinned_connection_knows_the_holder(holder: tuple[PeerServer, str]) -> None:
    _, url = holder
    connection = PinnedConnection(url)
    connection.connect()
    assert isinstance(connection.sock, ssl.SSLSocket)
    assert connection.sock.version() == "TLSv1.3"
    connection.close()


def test_a_link_is_measured_by_bytes_that_mean_nothing(holder: tuple[PeerServer, str], tmp_path: Path) -> None:
    server, url = holder
    asking = fetcher(tmp_path)
    asking.measure(Source("n", url, ticket(server.keys.current, MEASURED)))
    (told,) = asking.take_transfers()
    assert (told.size_bytes, told.peer) == (MEASURED_BYTES, "n")
    assert told.took_s > 0
    assert server.served == {}
    for given in (ticket(server.keys.current, DIGEST), "", ticket("another key", MEASURED)):
        with pytest.raises(UnfitFile, match="404"):
            asking.measure(Source("n", url, given))
    # A ticket to measure opens nothing else.
    with pytest.raises(UnfitFile, match="404"):
        asking._from_peer(
            Input("x", DIGEST, kind="file"), Source("n", url, ticket(server.keys.current, MEASURED)), 0, 1
        )
    assert asking.take_transfers() == []
