"""Inputs reach the stages that read them, each byte checked, from node to node; a source is loaded once for all."""

from __future__ import annotations

import hashlib
import http.server
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from agents.link.server import Server
from agents.protocol import AskSources, Input, Source, Sources
from agents.storage import fetch, manifest
from agents.storage.content_store import ContentStore
from agents.storage.fetch import Fetcher, Unfetched
from agents.storage.peers import Keys, PeerServer, ticket
from tests.agents.conftest import Hands
from tests.agents.test_process import output, ran
from tests.agents.yard import Side, order

Names = Callable[[], str]
CONTENT = bytes(range(256)) * 4096


@dataclass
class Web:
    """A source on the web that counts how often it is loaded."""

    content: bytes = CONTENT
    loads: int = 0
    url: str = ""

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.content).hexdigest()


@pytest.fixture
def web() -> Iterator[Web]:
    told = Web()

    class Page(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            told.loads += 1
            self.send_response(200)
            self.send_header("Content-Length", str(len(told.content)))
            self.end_headers()
            self.wfile.write(told.content)

        def log_message(self, *_: object) -> None:
            return

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    told.url = f"http://127.0.0.1:{server.server_address[1]}/corpus.bin"
    yield told
    server.shutdown()
    server.server_close()


@dataclass
class Cluster:
    """Nodes without agents, and a control plane's word among them: who has what, and who is appointed."""

    base: Path
    nodes: dict[str, ContentStore] = field(default_factory=dict)
    doors: dict[str, PeerServer] = field(default_factory=dict)
    appointed: dict[str, str] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def node(self, name: str, readable: list[Path] | None = None, serves: bool = True) -> Fetcher:
        store = self.nodes[name] = ContentStore(self.base / name, 64 << 20)
        if serves:
            self.doors[name] = PeerServer(("127.0.0.1", 0), store, Keys(), 0)
            self.doors[name].open()
        fetcher = Fetcher(Server("http://127.0.0.1:1"), store, readable or [])
        fetcher._sources = lambda digest, failed: self.sources(name, digest, failed)  # type: ignore[method-assign]
        return fetcher

    def sources(self, asking: str, digest: str, failed: list[str]) -> Sources:
        with self.lock:
            holders = [
                Source(name, f"http://127.0.0.1:{self.doors[name].port}", ticket(self.doors[name].keys.current, digest))
                for name, store in self.nodes.items()
                if name not in (asking, *failed) and name in self.doors and digest in store.roots()
            ]
            if holders:
                return Sources(peers=holders)
            return Sources(is_appointed=self.appointed.setdefault(digest, asking) == asking, wait_s=0.02)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path / "nodes")
    yield made
    for door in made.doors.values():
        door.close()


def test_eight_nodes_that_ask_together_load_the_source_once(cluster: Cluster, web: Web) -> None:
    fetchers = [cluster.node(f"n{number}") for number in range(8)]
    wanted = Input("corpus.bin", web.digest, kind="file", source=web.url)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda fetcher: fetcher.fetch(wanted), fetchers))
    assert web.loads == 1
    assert all(store.path(web.digest).read_bytes() == CONTENT for store in cluster.nodes.values())


def test_a_changed_source_is_noticed_and_never_kept(cluster: Cluster, web: Web) -> None:
    wanted = Input("corpus.bin", web.digest, kind="file", source=web.url)
    web.content = b"something else"
    fetcher = cluster.node("a")
    with pytest.raises(Unfetched, match=r'input "corpus.bin" could not be fetched: .*has the digest'):
        fetcher.fetch(wanted)
    assert cluster.nodes["a"].roots() == []
    web.content = CONTENT
    fetcher.fetch(wanted)
    assert cluster.nodes["a"].roots() == [web.digest]


def tree(at: Path, count: int = 5) -> manifest.FolderManifest:
    at.mkdir(parents=True)
    for number in range(count):
        (at / f"shard-{number}.bin").write_bytes(bytes([number]) * 1000)
    return manifest.of_path(at)


def test_a_folder_goes_from_node_to_node_and_each_rank_gets_its_share(cluster: Cluster, tmp_path: Path) -> None:
    found = tree(tmp_path / "tokens")
    cluster.node("maker")
    root = cluster.nodes["maker"].put_folder(tmp_path / "tokens", found)
    wanted = Input("prep/tokens", root, shard=True)
    ranks = [cluster.node(f"rank{number}") for number in range(2)]
    for rank, fetcher in enumerate(ranks):
        fetcher.fetch(wanted, rank, 2)
    held = [{entry.path for entry in found.files if fetcher.store.has(entry.sha256)} for fetcher in ranks]
    assert held == [{"shard-0.bin", "shard-2.bin", "shard-4.bin"}, {"shard-1.bin", "shard-3.bin"}]


def test_how_long_large_transfers_took_is_told_once(
    cluster: Cluster, web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = Input("corpus.bin", web.digest, kind="file", source=web.url)
    cluster.node("holder").fetch(wanted)
    small = cluster.node("small")
    small.fetch(wanted)
    assert small.take_transfers() == [], "a short transfer says nothing of bandwidth"
    monkeypatch.setattr(fetch, "TELLING_BYTES", 1 << 20)
    asking = cluster.node("asking")
    asking.fetch(wanted)
    (one,) = asking.take_transfers()
    assert (one.size_bytes, one.took_s > 0) == (len(CONTENT), True)
    assert asking.take_transfers() == []


def test_a_peer_that_lies_or_is_gone_is_passed_over(cluster: Cluster, tmp_path: Path) -> None:
    found = tree(tmp_path / "tokens")
    for name in ("liar", "gone", "good"):
        cluster.node(name)
        cluster.nodes[name].put_folder(tmp_path / "tokens", found)
    cluster.doors["gone"].close()
    lie = cluster.nodes["liar"].path(found.files[0].sha256)
    lie.chmod(0o644)
    lie.write_bytes(b"x" * 1000)
    lie.touch()
    fetcher = cluster.node("asking")
    fetcher.fetch(Input("t", found.digest))
    assert fetcher.store.roots() == [found.digest]
    assert all(fetcher.store.has(entry.sha256) for entry in found.files)


def test_a_cut_transfer_goes_on_where_it_was_cut(cluster: Cluster, web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    holder = cluster.node("holder")
    wanted = Input("corpus.bin", web.digest, kind="file", source=web.url)
    holder.fetch(wanted)
    door, real = cluster.doors["holder"], cluster.doors["holder"].pace.wait_s
    cuts = iter([True, False])

    def cut(host: str, count: int, now: float) -> float:
        if door.served[web.digest] >= len(CONTENT) // 2 and next(cuts, False):
            raise ConnectionResetError("cut")
        return real(host, count, now)

    monkeypatch.setattr(door.pace, "wait_s", cut)
    monkeypatch.setattr(door, "handle_error", lambda *_: None)
    cluster.node("asking").fetch(wanted)
    for _ in range(500):  # the last piece is counted after it has arrived
        if door.served[web.digest] == len(CONTENT):
            break
        time.sleep(0.01)
    assert door.served[web.digest] == len(CONTENT)
    assert cluster.nodes["asking"].path(web.digest).read_bytes() == CONTENT


def test_only_folders_that_the_operator_opened_are_read(cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open" / "a.txt").write_text("fine")
    (tmp_path / "closed.txt").write_text("fine")
    (tmp_path / "open" / "way-out").symlink_to(tmp_path / "closed.txt")
    digest = hashlib.sha256(b"fine").hexdigest()
    fetcher = cluster.node("a", [tmp_path / "open"])
    for source in ("closed.txt", "open/../closed.txt", "open/way-out"):
        with pytest.raises(Unfetched, match="lies in no folder that this node may read"):
            fetcher.fetch(Input("x", digest, kind="file", source=str(tmp_path / source)))
    fetcher.fetch(Input("x", digest, kind="file", source=str(tmp_path / "open" / "a.txt")))


def test_what_is_not_wanted_any_more_is_given_up(cluster: Cluster) -> None:
    fetcher = cluster.node("a")
    cluster.appointed["f" * 64] = "somebody else"
    with pytest.raises(Unfetched, match="not wanted any more"):
        fetcher.fetch(Input("x", "f" * 64, source="http://127.0.0.1:1/x"), cancelled=lambda: True)


# -- with real agents


@pytest.fixture
def pair(hands: Hands, tmp_path: Path) -> Iterator[tuple[Hands, Hands]]:
    """Two agents, and a control plane that sends each to the other."""
    (tmp_path / "second").mkdir()
    other = Hands(hands.yard, tmp_path / "second", f"{hands.name}-b")
    other.state.mkdir()
    told: dict[str, tuple[str, str, list[str]]] = {}
    take = hands.yard._take

    def listening(side: Side, report: object) -> None:
        take(side, report)  # type: ignore[arg-type]
        if (kept := report.kept) is not None:  # type: ignore[attr-defined]
            told[side.name] = (kept.url, kept.key, kept.digests)

    def answer(side: Side, asked: AskSources) -> Sources:
        peers = [
            Source(name, url, ticket(key, asked.digest))
            for name, (url, key, digests) in told.items()
            if name != side.name and asked.digest in digests and name not in asked.failed
        ]
        return Sources(peers=peers) if peers else Sources(refused="no node has it")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hands.yard, "_take", listening)
        patch.setattr(hands.yard, "sources", answer)
        hands.start()
        other.launch()
        hands.yard.wait(lambda: other.sides and told.get(other.name))
        yield hands, other
    other.clear()


def test_what_one_stage_leaves_another_reads_on_another_node(pair: tuple[Hands, Hands], part: Names) -> None:
    maker, reader = pair
    first, second = part(), part()
    script = 'mkdir -p "$YARD_OUTPUT_DIR/tokens" && echo 1 2 3 > "$YARD_OUTPUT_DIR/tokens/t.txt"'
    maker.yard.want(maker.name, order(first, "sh", "-c", script, stage="prep", outputs=["tokens"]))
    (left,) = maker.yard.ended(maker.name, first).outputs
    assert (left.name, left.files, left.size_bytes) == ("tokens", 1, 6)
    reads = [Input("prep/tokens", left.digest)]
    ended = ran(reader, second, "sh", "-c", 'cat "$YARD_INPUT_DIR/prep/tokens/t.txt"', inputs=reads)
    assert ended.code == 0, ended
    assert output(reader, second) == "1 2 3\n"


def test_a_stage_that_does_not_leave_what_it_promised_has_failed(shared: Hands, part: Names) -> None:
    end = ran(shared, part(), "true", outputs=["tokens"])
    assert (end.code, end.cause) == (0, "EXIT_CODE")
    assert 'output "tokens" could not be kept: nothing lies at' in end.detail


def test_an_input_that_nobody_has_is_refused_in_a_sentence(shared: Hands, part: Names) -> None:
    end = ran(shared, part(), "true", inputs=[Input("prep/tokens", "a" * 64)])
    assert end.cause == "LAUNCH_FAILED"
    assert end.detail == 'input "prep/tokens" could not be fetched: nobody has it'


def test_on_a_shared_disk_inputs_are_shown_where_they_lie(shared: Hands, part: Names, tmp_path: Path) -> None:
    (tmp_path / "outputs" / "prep").mkdir(parents=True)
    (tmp_path / "outputs" / "prep" / "tokens").write_text("4 5\n")
    (tmp_path / "outputs" / "other").mkdir()
    reads = [Input("tokens.txt", "a" * 64, path=str(tmp_path / "outputs" / "prep" / "tokens"))]
    name = part()
    script = 'cat "$YARD_INPUT_DIR/tokens.txt" "$YARD_INPUT_DIR/prep/tokens"; ls "$YARD_INPUT_DIR"'
    folders = {
        "input_dir": str(tmp_path / "outputs"),
        "output_dir": str(tmp_path / "o"),
        "checkpoint_dir": str(tmp_path),
    }
    assert ran(shared, name, "sh", "-c", script, inputs=reads, **folders).code == 0
    assert output(shared, name).split() == ["4", "5", "4", "5", "other", "prep", "tokens.txt"]
