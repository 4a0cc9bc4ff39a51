"""What is kept by digest is what it says it is, and what is in use is never dropped; tickets open one thing."""

from __future__ import annotations

import hashlib
import http.client
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agents.storage import manifest
from agents.storage.content_store import ContentStore, Full
from agents.storage.manifest import FolderManifest, ManifestEntry, UnfitFile
from agents.storage.peers import Keys, Pace, PeerServer, ticket
from tests.examples_count import examples

EMPTY = hashlib.sha256(b"").hexdigest()
entries = st.lists(
    st.builds(
        ManifestEntry, path=st.integers(0, 999).map(lambda n: f"shard-{n:03d}"), size=st.just(0), sha256=st.just(EMPTY)
    ),
    max_size=30,
    unique_by=lambda entry: entry.path,
)


def folder(at: Path, **files: bytes) -> Path:
    at.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (at / name).write_bytes(content)
    return at


@pytest.fixture
def store(tmp_path: Path) -> ContentStore:
    return ContentStore(tmp_path / "stock", 1 << 20)


def keep(store: ContentStore, at: Path, **files: bytes) -> str:
    made = folder(at, **files)
    return store.put_folder(made, manifest.of_path(made))


# -- manifests


def test_a_folder_has_one_digest_wherever_it_lies_and_another_when_a_byte_changed(tmp_path: Path) -> None:
    here, there = folder(tmp_path / "a", x=b"1", y=b"2"), folder(tmp_path / "b", y=b"2", x=b"1")
    assert manifest.of_path(here).digest == manifest.of_path(there).digest
    (there / "y").write_bytes(b"3")
    assert manifest.of_path(here).digest != manifest.of_path(there).digest


def test_links_are_not_followed(tmp_path: Path) -> None:
    secret = folder(tmp_path / "elsewhere", key=b"secret")
    inside = folder(tmp_path / "a", x=b"1")
    (inside / "key").symlink_to(secret / "key")
    (inside / "more").symlink_to(secret)
    assert [entry.path for entry in manifest.of_path(inside).files] == ["x"]
    (tmp_path / "direct").symlink_to(secret / "key")
    with pytest.raises(UnfitFile, match="is a link"):
        manifest.of_path(tmp_path / "direct")


@given(entries, st.integers(1, 9))
def test_every_file_belongs_to_exactly_one_rank_and_shares_are_even(files: list[ManifestEntry], size: int) -> None:
    shares = [manifest.share(FolderManifest(files), rank, size) for rank in range(size)]
    assert sorted(entry.path for share in shares for entry in share) == sorted(entry.path for entry in files)
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


@pytest.mark.parametrize("path", ["../x", "/etc/x", "a/../../x", "", "a//b", ".", "a/\0"])
def test_a_manifest_never_leads_out_of_its_folder(path: str) -> None:
    with pytest.raises(UnfitFile, match="stay in its folder"):
        manifest.decode(FolderManifest([ManifestEntry(path, 0, EMPTY)]).encode())


# -- the stock


def test_what_came_with_another_digest_is_not_kept(store: ContentStore) -> None:
    draft = store.draft()
    draft.write_bytes(b"something else")
    with pytest.raises(UnfitFile, match="has the digest"):
        store.take(draft, EMPTY)
    assert not store.has(EMPTY)
    assert not draft.exists()


def test_a_file_that_was_written_to_through_its_link_is_not_here_any_more(store: ContentStore, tmp_path: Path) -> None:
    root = keep(store, tmp_path / "a", x=b"good")
    whole = store.manifest(root)
    assert whole is not None
    store.lay_out(whole.files, tmp_path / "job")
    assert (tmp_path / "job" / "x").read_bytes() == b"good"
    os.chmod(tmp_path / "job" / "x", 0o644)
    (tmp_path / "job" / "x").write_bytes(b"evil")
    assert not store.has(whole.files[0].sha256)


def test_a_source_that_changed_under_the_reader_is_refused(store: ContentStore, tmp_path: Path) -> None:
    made = folder(tmp_path / "a", x=b"1")
    found = manifest.of_path(made)
    (made / "x").write_bytes(b"2")
    with pytest.raises(UnfitFile):
        store.put_folder(made, found)
    assert store.roots() == []


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    deadline=None,
    max_examples=examples(25),
)
@given(st.lists(st.integers(0, 7), min_size=1, max_size=12), st.sets(st.integers(0, 7), max_size=2))
def test_the_cap_holds_the_recent_stay_and_what_is_in_use_is_never_dropped(
    tmp_path_factory: pytest.TempPathFactory, uses: list[int], pinned: set[int]
) -> None:
    base = tmp_path_factory.mktemp("lru")
    made = {n: folder(base / str(n), x=bytes([n]) * 100, common=b"c" * 20) for n in range(8)}
    found = {n: manifest.of_path(path) for n, path in made.items()}
    in_use: set[str] = set()
    store = ContentStore(base / "stock", 1500, pinned=lambda: in_use)
    for n in sorted(pinned):
        in_use.add(store.put_folder(made[n], found[n]))
    for turn, n in enumerate(uses):
        store.put_folder(made[n], found[n])
        os.utime(store.folder / "roots" / found[n].digest, ns=(turn + 1, turn + 1))
        assert store.size() <= 1500 + 400  # manifests are small and not asked room for
    roots = store.roots()
    assert in_use <= set(roots)
    assert found[uses[-1]].digest in roots
    for root in roots:
        assert all(store.has(sha256) for sha256 in store.members(root))


def test_there_is_no_room_where_all_is_in_use(tmp_path: Path) -> None:
    store = ContentStore(tmp_path / "stock", 400)
    root = keep(store, tmp_path / "a", x=b"x" * 150)
    store.pinned = lambda: {root}
    with pytest.raises(Full, match="in use"):
        store.make_room(300)
    with pytest.raises(Full, match="at most"):
        store.make_room(500)
    assert store.roots() == [root]


def test_a_share_is_not_told_as_the_whole(store: ContentStore, tmp_path: Path) -> None:
    root = keep(store, tmp_path / "a", x=b"1")
    store.complete(root, "part")
    assert store.roots() == []
    store.drop(root)
    assert not list((store.folder / "files").glob("*/*"))


# -- the door for other nodes


@pytest.fixture
def door(store: ContentStore) -> Iterator[PeerServer]:
    made = PeerServer(("127.0.0.1", 0), store, Keys(), 0)
    made.open()
    yield made
    made.close()


def ask(door: PeerServer, sha256: str, root: str, word: str, span: str = "") -> tuple[int, bytes]:
    link = http.client.HTTPConnection("127.0.0.1", door.port, timeout=5)
    try:
        link.request("GET", f"/files/{sha256}?root={root}&ticket={word}", headers={"Range": span} if span else {})
        answer = link.getresponse()
        return answer.status, answer.read()
    finally:
        link.close()


def test_a_ticket_opens_its_root_and_what_belongs_to_it_and_nothing_else(
    door: PeerServer, store: ContentStore, tmp_path: Path
) -> None:
    mine, other = keep(store, tmp_path / "a", x=b"hello"), keep(store, tmp_path / "b", y=b"other")
    word = ticket(door.keys.current, mine)
    x, y = (hashlib.sha256(content).hexdigest() for content in (b"hello", b"other"))
    assert ask(door, x, mine, word) == (200, b"hello")
    assert ask(door, x, mine, word, "bytes=2-") == (206, b"llo")
    assert ask(door, mine, mine, word)[0] == 200
    assert ask(door, y, mine, word)[0] == 404
    assert ask(door, y, other, word)[0] == 404
    assert ask(door, x, mine, "")[0] == 404
    assert ask(door, x, mine, ticket("another key", mine))[0] == 404
    assert ask(door, "../../../etc/passwd", mine, word)[0] == 404


def test_a_ticket_dies_with_the_key_after_next(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = Keys()
    word = ticket(keys.current, EMPTY)
    assert not keys.rotate()
    monkeypatch.setattr("agents.storage.peers.KEY_LIFE_S", 0.0)
    assert keys.rotate()
    assert keys.accepts(word, EMPTY)
    assert keys.rotate()
    assert not keys.accepts(word, EMPTY)


@given(st.lists(st.integers(1, 4_000), min_size=1, max_size=60), st.integers(500, 5_000))
def test_no_host_gets_more_than_its_pace(pieces: list[int], pace: int) -> None:
    kept, now, sent = Pace(pace), 100.0, 0
    for piece in pieces:
        now += kept.wait_s("host", piece, now)
        assert sent <= pace * (now - 100.0 + 1.0) + 1
        sent += piece
    assert kept.wait_s("another", 1, now) == 0.0
