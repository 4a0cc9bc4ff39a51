"""What jobs, vendors' tools, archives and other nodes hand to the agent, read by the agent's own readers."""

from __future__ import annotations

import http.client
import importlib
import io
import os
import pkgutil
import socket
import tarfile
import threading
from collections.abc import Callable
from functools import partial
from inspect import isfunction, signature
from pathlib import Path
from typing import Any

import msgspec

import agents
from agents import decode
from agents.decode import BoundedDecoder, Undecodable
from agents.devices import vendors
from agents.devices.card import Card, UnreadableOutput
from agents.devices.cards import BROKEN_INPUT
from agents.devices.readers import rocm
from agents.devices.readers.library import ReaderSilent
from agents.edge.allowance import Allowance
from agents.edge.control_socket import requests as edge_requests
from agents.edge.job_file import JobRefused, chosen, demand
from agents.isolation.run_as import RunAs
from agents.link.server import Server
from agents.notes import clauses
from agents.protocol import Checkpoint, Exit, Here, Phase, Source
from agents.runtimes import engine_probe
from agents.runtimes.container import ContainerExecutor
from agents.runtimes.process import Ground, ProcessExecutor
from agents.storage import checkpoints, layouts, manifest
from agents.storage.bundle import BundleCache
from agents.storage.checkpoint_watch import CheckpointWatch
from agents.storage.content_store import ContentStore, Full
from agents.storage.fetch import Fetcher
from agents.storage.manifest import UnfitFile
from agents.storage.peers import Keys, PeerServer, serve_connection, ticket
from agents.storage.staging import Staging
from agents.storage.tree import Leaf, Tree
from agents.storage.unpack import Unpacking
from agents.supervisor.fork_client import ForkClient
from agents.tasks import journal
from agents.tasks.gang import device_addresses
from agents.tasks.journal import Ended, Gone, Intent, Past, Seen, Signalled, Started
from agents.tasks.progress import ReportFile
from bench.doors.door import Door, write
from bench.doors.shim import REPORTS, TAKEN

FIXTURES = Path(__file__).parents[2] / "tests" / "agents" / "fixtures"
DIGEST = "ab" * 32
BAD_REQUEST = (Undecodable, JobRefused)
_ended = Exit(code=3, cause="EXIT_CODE", detail="ended with exit code 3", said=[("ExitCode", {"code": 3})], ran_s=1.5)
_json = msgspec.json.encode


def _can_be_sent(value: object) -> None:
    """What was taken is put into a report: an error here would end the link."""
    msgspec.json.encode(value)


# -- what a job writes


def _reports(folder: str) -> Door:
    def take(content: bytes) -> None:
        write(f"{folder}/report.jsonl", content)
        reports = ReportFile(Path(folder) / "report.jsonl")
        while reports.poll():
            pass
        here = Here("p", "a", 1, Phase.RUNNING, progress=reports.progress, checkpoints=reports.checkpoints)
        msgspec.json.decode(msgspec.json.encode(here), type=Here)  # as the control plane reads it

    runtime = (
        b'{"checkpoint": {"step": 4, "path": "step-4", "took_s": 0.25}}\n{"report": {"step": 4, "values": {"a": 1}}}\n'
    )
    return Door([*REPORTS, runtime], take)


# A folder in which every layout is seen, with what tells each of them to be complete.
_SAFETENSORS = (22).to_bytes(8, "little") + b'{"t":{"data_offsets":[' + b"0,1]}}    x"
_MARKERS = {
    "yard-checkpoint.json": b'{"step": 3, "path": "checkpoint-3", "bytes": 12}',
    "checkpoint-3/trainer_state.json": b'{"global_step": 3, "best_model_checkpoint": null}',
    "checkpoint-3/model.safetensors.index.json": b'{"weight_map": {"a": "model-00001-of-00002.safetensors"}}',
    "checkpoint-3/model-00001-of-00002.safetensors": _SAFETENSORS,
    "latest": b"global_step7",
    "global_step7/mp_rank_00_model_states.pt": b"PK\x05\x06" + b"\0" * 18,
    "latest_checkpointed_iteration.txt": b"12",
    "iter_0000012/mp_rank_00/model_optim_rng.pt": b"PK\x05\x06" + b"\0" * 18,
    "checkpoint_manager_snapshot.json": b'{"checkpoint_results": [{"checkpoint_dir_name": "checkpoint_000001"}]}',
    "checkpoint_000001/.metadata.json": b'{"a": 1}',
    "checkpoints/checkpoint_0/random_states_0.pkl": b"\x80\x04N.",
    "step-9/.metadata": b"\x80\x04N.",
    "5/_CHECKPOINT_METADATA": b'{"item_handlers": {}, "init_timestamp_nsecs": 1, "commit_timestamp_nsecs": 2}',
    "epoch=1-step=20.ckpt": b"PK\x05\x06" + b"\0" * 18,
}


def _found(tree: Tree) -> None:
    found = [each for each in layouts.recognise(tree) if checkpoints.is_sendable(each)]
    checkpoints.superseded(found, 1, ["checkpoint-3"])
    for each in checkpoints.ordered(found):
        _can_be_sent(Checkpoint(each.step, each.path, 0.0))


def _manifests_of_checkpoints(folder: str) -> Door:
    names = list(_MARKERS)
    turn = iter(range(1 << 62))

    def take(content: bytes) -> None:
        changed = names[next(turn) % len(names)]
        files = {**_MARKERS, changed: content}
        leaves = {name: Leaf(len(held), at) for at, (name, held) in enumerate(files.items())}
        _found(Tree(leaves, lambda path, offset, length: files[path][offset : offset + length]))

    return Door(list(_MARKERS.values()), take)


def _names_of_checkpoints(folder: str) -> Door:
    """Folders and files of any name, each with nothing much in it."""

    def take(content: bytes) -> None:
        names = [os.fsdecode(name[:250]) for name in content.replace(b"\0", b"").split(b"\n")[:50]]
        steps = [[step for step in name.split("/")[:12] if step not in ("", ".", "..")] for name in names]
        leaves = {"/".join(found): Leaf(len(found), at) for at, found in enumerate(steps) if found}
        _found(Tree(leaves, lambda path, offset, length: b"12"[offset : offset + length]))

    return Door(["\n".join(_MARKERS).encode()], take)


def _folder_of_checkpoints(folder: str) -> Door:
    """The same on a disk."""
    for name in _MARKERS:
        os.makedirs(os.path.dirname(f"{folder}/c/{name}"), exist_ok=True)
    turn = iter(range(1 << 62))

    def take(content: bytes) -> None:
        name = list(_MARKERS)[next(turn) % len(_MARKERS)]
        write(f"{folder}/c/{name}", content)
        for each in checkpoints.discover(f"{folder}/c"):
            _can_be_sent(Checkpoint(each.step, each.path, 0.0))
        checkpoints.resume_path(f"{folder}/c", os.fsdecode(content[:300]), 3)

    return Door(list(_MARKERS.values()), take)


def _archives(folder: str) -> Door:
    """A bundle. What is no archive is told as that; it may take nothing with it."""
    outside = Path(folder) / "outside"
    outside.write_text("as it was")

    def take(content: bytes) -> None:
        top = Path(folder) / "bundle"
        top.mkdir(exist_ok=True)
        handle = os.open(top, os.O_RDONLY | os.O_DIRECTORY)
        try:
            with tarfile.open(fileobj=io.BytesIO(content)) as archive:
                Unpacking(handle).take(archive)
        finally:
            os.close(handle)
            _remove(folder, "bundle")
            if sorted(os.listdir(folder)) != ["outside"] or outside.read_text() != "as it was":
                raise SystemExit("something outside of the folder was touched")

    seeds = []
    for form in (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT, tarfile.USTAR_FORMAT):
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w", format=form) as archive:
            for name, kind in (("a", tarfile.DIRTYPE), ("a/b", tarfile.REGTYPE), ("a/c", tarfile.SYMTYPE)):
                entry = tarfile.TarInfo(name)
                entry.type, entry.linkname, entry.size = kind, "b", 3 if kind == tarfile.REGTYPE else 0
                archive.addfile(entry, io.BytesIO(b"abc") if entry.size else None)
        seeds.append(packed.getvalue()[:4096])
    return Door(seeds, take, (Exception,))


def _remove(folder: str, name: str) -> None:
    """Remove a folder as the agent does."""
    from agents.isolation import beneath

    top = os.open(folder, beneath.FOLDER)
    try:
        beneath.remove(top, name)
    finally:
        os.close(top)


# -- what lies in a part's folder; where agent and job are one user, a job can write there


def _ground(folder: str) -> Ground:
    state = Path(folder)
    return Ground(
        boot_id="b",
        bell=state / "bell",
        lease=state / "lease",
        fork_client=ForkClient(state / "shim.log"),
        bundles=BundleCache(state / "bundles", Server("http://127.0.0.1")),
        run_as=RunAs(name="self"),
    )


def _ends(folder: str, name: str) -> Door:
    ground = _ground(folder)
    executor = ContainerExecutor(ground) if name.startswith("container") else ProcessExecutor(ground)
    intent = Intent("p", "a", 1, "b", f"{folder}/p", executor="container")
    os.makedirs(intent.folder)
    write(f"{intent.folder}/taken", b'{}\n{"pid": %d, "born": 1, "main": 1, "main_born": 1}' % os.getpid())
    if name == "container-state.json":
        write(f"{intent.folder}/exit.json", _json(_ended))

    def take(content: bytes) -> None:
        write(f"{intent.folder}/{name}", content)
        seen = executor.look(intent)
        here = Here("p", "a", 1, seen.phase, pid=seen.pid, pid_start=seen.pid_start, substate=str(seen.substate))
        here = msgspec.structs.replace(here, substate_said=clauses(seen.substate), notes=list(map(str, seen.notes)))
        _can_be_sent(msgspec.structs.replace(here, exit=seen.exit, notes_said=list(map(clauses, seen.notes))))

    state = b'{"running": true, "substate": "", "notes": ["n"], "end": {"cause": "LAUNCH_FAILED", "detail": "d"}}'
    seeds = {"exit.json": _json(_ended), "taken": TAKEN, "container-state.json": state}
    return Door([seeds[name]], take)


def _notes(folder: str) -> Door:
    """Every note whose shape some module of the agent knows, by turns."""
    shapes = every_shape()
    turn = iter(range(1 << 62))

    def take(content: bytes) -> None:
        write(f"{folder}/note", content)
        shape = shapes[next(turn) % len(shapes)]
        found: Any = None if shape.is_packed else shape.find(f"{folder}/note")
        if found is not None:
            msgspec.to_builtins(found)

    return Door(
        [
            b'{"folder": "/c", "rank": 0, "in_use": "", "keep": 3, "resume": "a", "known": [["a", 5]]}',
            b'{"roots": ["%b"], "outputs": ["x"], "output_dir": "/o", "uid": 5, "gid": 5}' % DIGEST.encode(),
            b'{"outputs": [{"name": "x", "digest": "%b", "size_bytes": 7, "files": 2}]}' % DIGEST.encode(),
            b'{"joules": {"gpu": 5.5}, "unknown": ["npu"], "measured_s": 3.5}',
            b'{"spec_rev": 3, "share": {"cpus_milli": 4000, "cpus": [1, 2], "suspended": false}}',
            b'{"before": {"GPU-1": 77}}',
            b'{"own": ["MIG-1"]}',
            b'{"gpu": 1234}',
            _json(_ended),
        ],
        take,
    )


def every_shape() -> list[BoundedDecoder[Any]]:
    """What the modules of the agent decode by shape."""
    found = {}
    for module in pkgutil.walk_packages(agents.__path__, "agents."):
        if not module.name.endswith("__main__"):
            for value in vars(importlib.import_module(module.name)).values():
                if isinstance(value, BoundedDecoder):
                    found[id(value)] = value
    return list(found.values())


def _watches(folder: str) -> Door:
    def take(content: bytes) -> None:
        write(f"{folder}/watch.json", content)
        CheckpointWatch(folder).is_foreign("a/b")
        write(f"{folder}/staging.json", content)
        Staging.leaves_outputs(folder)
        write(f"{folder}/outputs.json", content)
        _can_be_sent(Staging.left(folder))

    return Door([b'{"folder": "/c", "keep": 3, "known": [["a", 5]], "outputs": []}'], take)


def _journals(folder: str) -> Door:
    lines: list[journal.Line] = [
        Started(3, "b", 5.5),
        Seen(7, "l"),
        Intent("p", "a", 1, "b", "/f", uid=5, lease_until=3.5),
        Signalled("p", 3),
        Ended("p", _ended),
        Gone("p", "a", 1, _ended, 4.5),
    ]

    def take(content: bytes) -> None:
        write(f"{folder}/journal.jsonl", content)
        past, _ = journal.read(Path(folder) / "journal.jsonl")
        again = Past()
        for line in past.lines():
            again.take(msgspec.json.decode(msgspec.json.encode(line), type=journal.Line))

    plain = b"".join(_json(line) + b"\n" for line in lines)
    return Door([plain, b"".join(map(journal.written, lines))], take)


# -- what other nodes send

_files = [manifest.ManifestEntry("a/b", 3, DIGEST), manifest.ManifestEntry("c", 0, DIGEST, True)]
_tree = manifest.FolderManifest(_files)


def _peer_manifests(folder: str) -> Door:
    def take(content: bytes) -> None:
        found = manifest.decode(content)
        assert found.size >= 0, "sizes are none below zero"
        found.encode()
        manifest.share(found, 1, 3)

    return Door([_tree.encode()], take, (UnfitFile,))


class _Answering:
    """Another node that answers whoever comes with what it is told to."""

    def __init__(self) -> None:
        self.answer = b""
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.socket.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            visitor, _ = self.socket.accept()
            try:
                visitor.recv(4096)
                visitor.sendall(self.answer)
                visitor.shutdown(socket.SHUT_WR)
            except OSError:
                pass
            visitor.close()


def _peer_answers(folder: str) -> Door:
    store = ContentStore(Path(folder) / "stock", 1 << 40)
    fetcher = Fetcher(Server("http://127.0.0.1"), store, [])
    node = _Answering()

    def take(content: bytes) -> None:
        node.answer = content
        draft = store.draft()
        try:
            fetcher.download(Source("n", node.url, "t"), DIGEST, DIGEST, draft, None)
        finally:
            draft.unlink(missing_ok=True)

    head = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"
    ranged = b"HTTP/1.1 206 Partial\r\nContent-Range: bytes 2-4/5\r\nContent-Length: 3\r\n\r\nllo"
    chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"
    return Door([head, ranged, chunked], take, (OSError, http.client.HTTPException, UnfitFile, Full))


def _peer_requests(folder: str) -> Door:
    store, keys = ContentStore(Path(folder) / "stock", 1 << 30), Keys()
    digest = store.put_bytes(b"content")
    store.complete(digest, "file")
    server = PeerServer(("127.0.0.1", 0), store, keys, 0)

    def take(content: bytes) -> None:
        ours, theirs = socket.socketpair()
        try:
            theirs.sendall(content[:60_000])
            theirs.shutdown(socket.SHUT_WR)
            serve_connection(ours, server)
        finally:
            ours.close()
            theirs.close()

    asked = (
        f"GET /files/{digest}?root={digest}&ticket={ticket(keys.current, digest)} HTTP/1.1\r\nRange: bytes=2-\r\n\r\n"
    )
    return Door([asked.encode(), b"GET / HTTP/1.0\r\n\r\n"], take)


def _kept_roots(folder: str) -> Door:
    """What stands in the content store itself."""
    store = ContentStore(Path(folder) / "stock", 1 << 30)

    def take(content: bytes) -> None:
        write(f"{folder}/stock/roots/{DIGEST}", content[:4096])
        path = store.path(DIGEST)
        path.parent.mkdir(exist_ok=True)
        write(str(path), content)
        os.utime(path, ns=(1_000_000_000, 1_000_000_000))
        store.members(DIGEST)

    return Door([b"tree", b"file", _tree.encode()], take, (UnfitFile,))


# -- what tools print


def parsers() -> list[Callable[[str], list[Card]]]:
    """Whatever reads the text of one answer of a vendor's tool."""
    modules = [
        importlib.import_module(f"agents.devices.vendors.{each.name}")
        for each in pkgutil.iter_modules(vendors.__path__)
    ]
    return [
        parse
        for module in [*modules, rocm]
        for parse in vars(module).values()
        if isfunction(parse) and parse.__module__ == module.__name__ and [*signature(parse).parameters] == ["text"]
    ]


def _tools(folder: str) -> Door:
    """By turns, each with what some tool printed once."""
    every = parsers()
    turn = iter(range(1 << 62))

    def take(content: bytes) -> None:
        every[next(turn) % len(every)](content.decode(errors="replace"))

    printed = [path.read_bytes() for path in sorted(FIXTURES.glob("*.*"))]
    assert len(printed) > 20, "the recorded answers are there"
    return Door([each for each in printed if len(each) < 65536], take, (UnreadableOutput, ReaderSilent, *BROKEN_INPUT))


def _engines(folder: str) -> Door:
    podman = (
        b'{"host": {"security": {"rootless": true}, "cgroupVersion": "v2", "cgroupControllers": ["memory"]}, '
        b'"version": {"Version": "5.1"}}'
    )
    docker = b'{"ServerVersion": "27", "MemoryLimit": true, "SecurityOptions": ["name=rootless"]}'

    def take(content: bytes) -> None:
        told = decode.parse(content)
        for read in (engine_probe.podman, engine_probe.docker):
            try:
                read("/bin/engine", told)
            except engine_probe.UNREADABLE:
                pass

    return Door([podman, docker], take, (Undecodable,))


def _gang_addresses(folder: str) -> Door:
    return Door(
        [b"address_0=10.0.0.1\naddress_1=10.0.0.2\n"],
        lambda content: device_addresses(content.decode(errors="replace")),
    )


def _values(folder: str) -> Door:
    """Plain values of any kind, made fit to be sent."""

    def take(content: bytes) -> None:
        value = decode.parse(content)
        msgspec.json.encode(decode.sendable(value))
        decode.mapping(content)
        decode.digits(content)

    return Door([*REPORTS, _json(_ended), b"12345"], take, (Undecodable,))


# -- what accounts of the node ask


def _edge_requests(folder: str) -> Door:
    allowed = Allowance("lab", "line3", kinds=["cpu", "gpu"], cpus=64, memory_gib=512, hours=99, most_devices=8)

    def take(content: bytes) -> None:
        request = edge_requests.read(content)
        asked = demand(request.job, chosen(request.job, [allowed]))
        _can_be_sent(asked)

    job = {"name": "weld", "run": "true", "cpus": 1, "memory": "2GiB", "time_limit": "1h30m", "env": {"A": 1}}
    words = {"command": ["a", "b"], "devices": {"kind": "gpu", "count": 2, "model": "L4"}, "project": "lab"}
    return Door([_json({"do": "submit", "id": "x", "job": each}) for each in (job, words)], take, declared=BAD_REQUEST)


DOORS: dict[str, Callable[[str], Door]] = {
    "agent: report.jsonl": _reports,
    "agent: manifests of checkpoints": _manifests_of_checkpoints,
    "agent: names of checkpoints": _names_of_checkpoints,
    "agent: folder of checkpoints": _folder_of_checkpoints,
    "agent: archive": _archives,
    "agent: exit.json": partial(_ends, name="exit.json"),
    "agent: taken": partial(_ends, name="taken"),
    "agent: container-state.json": partial(_ends, name="container-state.json"),
    "agent: notes by shape": _notes,
    "agent: notes of a part": _watches,
    "agent: journal": _journals,
    "peer: manifest": _peer_manifests,
    "peer: answer": _peer_answers,
    "peer: request": _peer_requests,
    "peer: content store": _kept_roots,
    "tool: what it prints": _tools,
    "tool: container engine": _engines,
    "tool: addresses of devices": _gang_addresses,
    "agent: values": _values,
    "agent: requests of accounts": _edge_requests,
}
