"""What jobs, tools and archives hand to the agent: what is sound is taken within bounds, the rest is refused."""

from __future__ import annotations

import io
import json
import os
import tarfile
import tempfile
from importlib import import_module
from inspect import isfunction, signature
from pathlib import Path
from pkgutil import iter_modules

import msgspec
from hypothesis import example, given
from hypothesis import strategies as st

from agents import decode
from agents.devices import vendors
from agents.devices.card import UnreadableOutput
from agents.devices.cards import BROKEN_INPUT
from agents.devices.readers import rocm
from agents.devices.readers.library import ReaderSilent
from agents.protocol import Checkpoint, Here, Phase
from agents.storage import checkpoints
from agents.storage.unpack import Unpacking, UnpackRefused
from agents.supervisor import lean
from agents.supervisor.record import ordered, shim_record
from agents.supervisor.stream import OutputStream
from agents.tasks.progress import ReportFile

plain = (
    st.none()
    | st.booleans()
    | st.integers(min_value=-(10**400), max_value=10**400)
    | st.floats()
    | st.text(st.characters(exclude_categories=()), max_size=300)
)
values = st.recursive(
    plain, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=80), inner, max_size=3)
)
known = st.sampled_from(
    ["report", "phase", "checkpoint", "values", "values_at", "step", "total", "name", "path", "critical", "took_s"]
)
lines = st.recursive(values, lambda inner: st.dictionaries(known, inner, max_size=4), max_leaves=12)


@given(st.lists(lines.map(json.dumps).map(str.encode) | st.binary(max_size=200), max_size=8))
@example([b"[" * 100_000])
def test_a_report_file(written: list[bytes]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "report.jsonl"
        path.write_bytes(b"".join(line + b"\n" for line in written))
        reports = ReportFile(path)
        reports.poll()
        here = Here("p", "a", 1, Phase.RUNNING, progress=reports.progress, checkpoints=reports.checkpoints)
        sent = msgspec.json.encode(here)
        assert len(sent) < 64 << 10
        assert b"\\u0000" not in sent
        assert msgspec.json.decode(sent, type=Here).progress == reports.progress


@given(st.binary(max_size=300) | values.map(json.dumps).map(str.encode))
@example(b"[" * 100_000)
def test_orders_records_and_texts(content: bytes) -> None:
    for read in (lean.loads, decode.parse):
        try:
            read(content)
        except ValueError:
            pass
    assert isinstance(decode.mapping(content), dict)
    with tempfile.TemporaryDirectory() as folder:
        Path(f"{folder}/taken").write_bytes(b"{}\n" + content)
        assert isinstance(shim_record(folder), dict)
        assert isinstance(ordered(folder), dict)


@given(values)
def test_plain_values_can_be_sent(value: object) -> None:
    msgspec.json.encode(decode.sendable(value))
    for found in (decode.number(value), decode.count(value)):
        assert found is None or abs(found) <= (2**53 if isinstance(found, int) else 1e300)
    assert "\0" not in decode.words(value, 100).encode().decode()


names = st.lists(st.sampled_from(["a", "b", "..", ".", "", "d" * 250, "文", "\udcff"]), min_size=1, max_size=6).map(
    "/".join
)
kinds = st.sampled_from(
    [tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE, b"x", b"S"]
)
entries = st.lists(st.tuples(names, kinds, names, st.integers(0, 0o7777)), max_size=12)


def archive_of(members: list[tuple[str, bytes, str, int]]) -> bytes:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for name, kind, link, mode in members:
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname, entry.mode = kind, link, mode
            entry.size = 3 if kind == tarfile.REGTYPE else 0
            archive.addfile(entry, io.BytesIO(b"abc") if entry.size else None)
    return content.getvalue()


@given(entries)
def test_an_archive(members: list[tuple[str, bytes, str, int]]) -> None:
    """Nothing outside of the folder is made or changed, and no link in it leads out, whatever the archive holds."""
    with tempfile.TemporaryDirectory() as top:
        inside, beside = Path(top, "one", "inside"), Path(top, "a")
        inside.mkdir(parents=True)
        beside.write_text("beside")
        handle = os.open(inside, os.O_RDONLY | os.O_DIRECTORY)
        try:
            with tarfile.open(fileobj=io.BytesIO(archive_of(members))) as archive:
                Unpacking(handle).take(archive)
        except (UnpackRefused, OSError, tarfile.TarError):
            pass
        finally:
            os.close(handle)
        assert sorted(os.listdir(top)) == ["a", "one"]
        assert os.listdir(Path(top, "one")) == ["inside"]
        assert beside.read_text() == "beside"
        assert beside.stat().st_nlink == 1
        real = os.path.realpath(inside)
        for folder, folders, files in os.walk(os.fsencode(inside)):
            for name in folders + files:
                path = os.path.join(folder, name)
                assert os.fsdecode(os.path.realpath(path)).startswith(real)
                assert os.path.islink(path) or not os.lstat(path).st_mode & 0o6022


@given(st.binary(max_size=2000))
def test_what_is_no_archive(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as top:
        handle = os.open(top, os.O_RDONLY | os.O_DIRECTORY)
        try:
            with tarfile.open(fileobj=io.BytesIO(content)) as archive:
                Unpacking(handle).take(archive)
        except (UnpackRefused, OSError, tarfile.TarError, EOFError, ValueError):
            pass
        finally:
            os.close(handle)


# Whatever the folder scan finds, and the parser that several of them share.
TOOLS = [import_module(f"agents.devices.vendors.{found.name}") for found in iter_modules(vendors.__path__)] + [rocm]
PARSERS = [
    parse
    for tool in TOOLS
    for name, parse in vars(tool).items()
    if isfunction(parse) and parse.__module__ == tool.__name__ and [*signature(parse).parameters] == ["text"]
]
PRINTED = [path.read_text() for path in sorted((Path(__file__).parents[1] / "agents" / "fixtures").glob("*.*"))]
odd = st.sampled_from(
    [
        "9" * 400,
        "9" * 5000,
        "1e400",
        "-1",
        "NaN",
        "\0",
        "[",
        "{",
        "²",
        "|",
        "+---+",
        ":",
        "N/A",
        '"',
        "0x",
        "\r",
        "\x85",
        "[" * 9000,
    ]
) | st.text(max_size=20)


@st.composite
def answers(draw: st.DrawFn) -> str:
    """What a tool printed once, with odd pieces in the place of some of it."""
    text = draw(st.sampled_from(PRINTED))
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, len(text)))
        text = text[:at] + draw(odd) + text[at + draw(st.integers(0, 60)) :]
    return text


@given(answers())
@example('index, name\n0, "' + "x" * 140_000 + '"\n')
def test_what_tools_of_vendors_print(text: str) -> None:
    """Whatever a parser makes of it is what the look at cards expects of broken input."""
    assert len(PARSERS) > 12
    for parse in PARSERS:
        try:
            parse(text)
        except (UnreadableOutput, ReaderSilent, *BROKEN_INPUT):
            continue


@given(st.lists(st.binary(max_size=200), max_size=10), st.integers(0, 300))
def test_a_log_keeps_its_bytes_up_to_its_cap(written: list[bytes], cap: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        reader, writer = os.pipe()
        stream = OutputStream(reader, f"{folder}/0.out", cap)
        try:
            for piece in written:
                os.write(writer, piece)
        finally:
            os.close(writer)
        while stream.pump():
            pass
        stream.drain()
        kept = Path(f"{folder}/0.out").read_bytes() if os.path.exists(f"{folder}/0.out") else b""
        whole = b"".join(written)
        assert whole.startswith(kept[: min(len(kept), cap)]) or len(whole) > cap


@given(st.binary(max_size=200) | values.map(json.dumps).map(str.encode))
def test_a_folder_of_checkpoints(content: bytes) -> None:
    markers = (
        "yard-checkpoint.json", "checkpoint-3/trainer_state.json", "checkpoint-3/model.safetensors",
        "checkpoint_manager_snapshot.json", "latest_checkpointed_iteration.txt", "checkpoint_000001/.metadata.json",
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        for name in markers:
            path = Path(folder, name)
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(content)
        for found in checkpoints.discover(folder):
            msgspec.json.encode(Checkpoint(found.step, found.path, 0.0))
