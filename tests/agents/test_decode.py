"""Hostile files of jobs: what is in them arrives within bounds, and never keeps an agent from its other parts."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from agents import decode
from agents.isolation.beneath import Folder
from agents.link.connection import _encoded
from agents.protocol import PROTO, Conditions, Here, InventoryRef, Phase, Report
from agents.storage import checkpoints
from agents.storage.manifest import UnfitFile, of
from agents.supervisor.record import read_whole, tell, write_whole
from agents.tasks.progress import ReportFile
from tests.agents.conftest import ROOT, Hands
from tests.agents.yard import order, stop

Names = Callable[[], str]

LINES = [
    '{"report": {"step": 1' + "0" * 400 + ', "values": {"loss": 1' + "0" * 400 + "}}}",
    '{"report": {"step": 1' + "0" * 6000 + "}}",
    "[" * 200_000,
    '{"report": ' + "[" * 100_000 + "]" * 100_000 + "}",
    '{"checkpoint": {"step": -1' + "0" * 400 + ', "path": "/a"}}',
    '{"checkpoint": {"step": 1e400, "path": "/\\ud800"}}',
    '{"phase": {"name": "\\ud800\\u0000", "critical": 1}}',
    '{"phase": {"name": ' + "1" * 5000 + "}}",
    '{"report": {"step": 1, "values": {"a": 1, "\\ud800": 2}, "values_at": {"a": 1e400, "\\ud800": -1, "b": [3]}}}',
    '{"report": {"step": 1, "values": {"a": 1}, "values_at": [1]}}',
    '{"report": {"values": {"\\udfff": "\\ud800", "a\\u0000b": NaN, "c": Infinity, "d": true}}}',
    "null", "[]", '"x"', '{"report": [1]}', "\x00\xff", '{"report": {"step": true}}',
]  # fmt: skip


@pytest.mark.parametrize("line", LINES, ids=lambda line: line[:30])
def test_an_odd_line_is_taken_within_bounds_or_passed_over(tmp_path: Path, line: str) -> None:
    (tmp_path / "report.jsonl").write_text(line + '\n{"report": {"step": 7}}\n')
    reports = ReportFile(tmp_path / "report.jsonl")
    assert reports.poll()
    assert reports.progress is not None
    assert reports.progress.step == 7
    here = Here("p", "a", 1, Phase.RUNNING, progress=reports.progress, checkpoints=reports.checkpoints)
    assert msgspec.json.decode(msgspec.json.encode(here), type=Here) == here
    assert "\\u0000" not in json.dumps(msgspec.to_builtins(here))


def test_a_value_is_of_the_step_of_its_line_or_of_the_one_that_the_line_names(tmp_path: Path) -> None:
    lines = [
        ({"values": {"lr": 1}}, {}),
        ({"step": 5, "values": {"loss": 2.5}}, {"lr": 0}),
        ({"step": 10}, {"lr": 0, "loss": 5}),
        ({"values": {"loss": [1]}}, {"lr": 0, "loss": 5}),
        ({"step": 20, "values": {"lr": 1, "loss": 2.5}, "values_at": {"loss": 15, "other": 3}}, {"loss": 15}),
        ({"step": 30, "values": {"lr": 1, "loss": 2}, "values_at": {"loss": -1, "lr": 2**60}}, {}),
    ]
    reports = ReportFile(tmp_path / "report.jsonl")
    for line, values_at in lines:
        with open(reports.path, "a") as file:
            file.write(json.dumps({"report": line}) + "\n")
        assert reports.poll()
        assert reports.progress is not None
        assert reports.progress.values_at == values_at


@pytest.mark.parametrize(
    ("told", "taken"),
    [
        ("4.5", 4.5),
        ("0", 0.0),
        ("-1", None),
        ("1e12", None),
        ("1e400", None),
        ("NaN", None),
        ('"3"', None),
        ("[]", None),
    ],
)
def test_how_long_a_save_took_is_taken_within_bounds_and_the_checkpoint_in_any_case(
    tmp_path: Path, told: str, taken: float | None
) -> None:
    (tmp_path / "report.jsonl").write_text(f'{{"checkpoint": {{"step": 3, "path": "/c", "took_s": {told}}}}}\n')
    reports = ReportFile(tmp_path / "report.jsonl")
    assert reports.poll()
    assert [(each.step, each.took_s) for each in reports.checkpoints] == [(3, taken)]


def test_names_of_files_that_cannot_be_sent_are_no_checkpoints_and_no_output(tmp_path: Path) -> None:
    for name in (b"checkpoint-" + b"9" * 200, b"checkpoint-7", b"step_\xff5"):
        folder = os.path.join(os.fsencode(tmp_path), name)
        os.mkdir(folder)
        for file, content in (
            (b"trainer_state.json", b'{"global_step": 7}'),
            (b"model.bin", b"x"),
            (b".metadata", b"x"),
        ):
            with open(os.path.join(folder, file), "wb") as written:
                written.write(content)
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("²")
    assert {each.step for each in checkpoints.discover(str(tmp_path)) if each.is_complete} <= {7}
    with Folder(str(tmp_path)) as opened, pytest.raises(UnfitFile, match="no UTF-8 text"):
        of(opened, os.fsdecode(b"step_\xff5"))


def test_a_report_with_what_cannot_be_sent_is_sent_without_it() -> None:
    here = [Here("p", "a", 1, Phase.RUNNING, notes=["\ud800"]), Here("q", "a", 1, Phase.RUNNING, pid=10**30)]
    report = Report(PROTO, "1", "boot", 1, 1, 1, InventoryRef("h"), here=here, conditions=Conditions(notes=["fine"]))
    found = msgspec.json.decode(_encoded(report), type=Report)
    assert found.here[0].notes == ["?"]
    assert found.conditions.notes == ["fine"]


def test_malformed_json_is_refused_with_what_the_fork_server_has_loaded() -> None:
    """In a process that has imported what a fork server has, and not, as a test would, ``json``."""
    texts = ["{", '{"a" 1}', '"abc', "[1", "{1:2}", '"\\x"', '"\x01"', "[" * 100_000, '{"phase": {"critical"']
    script = f"""
import sys
sys.path.append(".")
import agents.supervisor.fork_server
from agents.supervisor.lean import loads
assert "json" not in sys.modules
for text in {texts!r}:
    try:
        loads(text.encode())
    except ValueError:
        continue
    raise SystemExit("taken: " + text)
"""
    for python in {sys.executable, *(path for path in ["/usr/bin/python3"] if os.path.exists(path))}:
        done = subprocess.run([python, "-I", "-S", "-c", script], cwd=ROOT, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, ""), python


@pytest.mark.parametrize("hostile", [LINES[0], LINES[3], '{"phase": {"name": "save", "critical": '])
def test_a_part_with_a_hostile_report_ends_and_its_agent_starts_again(
    hands: Hands, part: Names, tmp_path: Path, hostile: str
) -> None:
    hands.start()
    (tmp_path / "line").write_text(hostile + "\n")
    script = f'cat {tmp_path}/line >> "$YARD_REPORT_FILE"; trap "exit 3" TERM; while :; do sleep 0.05; done'
    bad, good = part(), part()
    hands.yard.want(hands.name, order(bad, "sh", "-c", script), order(good, "sleep", "60"))
    for name in (bad, good):
        hands.yard.phase(hands.name, name, Phase.RUNNING)
    hands.end()
    hands.start()
    for name in (bad, good):
        hands.yard.phase(hands.name, name, Phase.RUNNING)
    hands.yard.want(hands.name, stop(bad, 5.0), stop(good, 5.0))
    end = hands.yard.ended(hands.name, bad).exit
    assert end is not None
    assert end.stopped
    assert hands.yard.ended(hands.name, good).exit is not None
    report = hands.yard.side(hands.name).report
    assert report is not None
    assert report.conditions.notes == []


def test_a_full_disk_tears_no_file(small_disk: Path) -> None:
    """On a real file system without room: the old content stays, and whoever wrote is told."""
    write_whole(f"{small_disk}/stop.json", {"grace_s": 1.0})
    record = os.open(small_disk / "taken", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    tell(record, {"pid": 1})
    with (small_disk / "filler").open("wb", buffering=0) as filler, contextlib.suppress(OSError):
        while True:
            filler.write(b"x" * 4096)
    tell(record, {"main": "x" * 8000})
    os.close(record)
    with pytest.raises(OSError, match="No space left"):
        write_whole(f"{small_disk}/stop.json", {"grace_s": 2.0, "why": "x" * 8000})
    assert read_whole(f"{small_disk}/stop.json") == {"grace_s": 1.0}
    assert (small_disk / "taken").read_bytes().split(b"\n")[1] == b'{"pid": 1}'


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own with 256 KiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if (
        os.getuid() != 0
        or subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=256k,nr_inodes=64", "tmpfs", str(folder)],
            check=False,
            capture_output=True,
        ).returncode
    ):
        pytest.skip("mounting a file system needs root")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def test_sendable_leaves_what_can_be_sent() -> None:
    plain = {"a": [1, 2.5, "文", None, True], "b": {}}
    assert decode.sendable(plain) == plain


@pytest.mark.parametrize("told", ["much", "-1", "1e3", "1" * 17, "٣", " 5"])
def test_a_setting_that_is_no_whole_number_is_refused_by_its_name(told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("YARD_AGENT_CACHE_BYTES", told)
    with pytest.raises(ValueError, match="YARD_AGENT_CACHE_BYTES must be a whole number from 0 to"):
        decode.setting("YARD_AGENT_CACHE_BYTES", 7)


@pytest.mark.parametrize(("told", "read"), [("", 7), ("0", 0), ("1048576", 1048576)])
def test_a_setting_is_read(told: str, read: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("YARD_AGENT_CACHE_BYTES", told)
    assert decode.setting("YARD_AGENT_CACHE_BYTES", 7) == read
