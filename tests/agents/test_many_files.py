"""A job that leaves more files than anybody counts: others are served meanwhile, and all of it goes in the end."""

from __future__ import annotations

import asyncio
import os
import socket
import tracemalloc
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from agents.isolation import beneath
from agents.isolation.beneath import Folder
from agents.protocol import Exit, Phase
from agents.runtimes.scripted import ScriptedExecutor
from agents.storage import checkpoints, manifest, tree
from agents.storage.manifest import UnfitFile
from agents.storage.tree import Leaf, Tree
from agents.storage.whole import shards_missing
from agents.supervisor.procfs import boot_id
from agents.supervisor.record import write_whole
from agents.supervisor.saving import signature
from agents.tasks import node as nodes
from agents.tasks.journal import Gone, Intent, Journal
from agents.tasks.node import NodeTasks
from agents.tasks.part import StartedPart
from agents.tasks.progress import ReportFile
from tests.agents.conftest import Hands
from tests.agents.test_process import output
from tests.agents.yard import order

Names = Callable[[], str]
MANY = 100_000


def fill(folder: Path, count: int, each: int = 1000) -> None:
    for at in range(0, count, each):
        inner = folder / f"d{at}"
        inner.mkdir(parents=True)
        for number in range(min(each, count - at)):
            os.close(os.open(inner / str(number), os.O_WRONLY | os.O_CREAT))


def left(folder: Path) -> int:
    return sum(len(files) + len(folders) for _, folders, files in os.walk(folder))


@pytest.mark.parametrize("each", [100, 6_000])
def test_a_folder_goes_in_turns_of_a_bounded_size(tmp_path: Path, each: int) -> None:
    fill(tmp_path / "work", 6_000, each)
    turns, before = 0, left(tmp_path / "work")
    while not beneath.thin(str(tmp_path / "work"), 500):
        turns += 1
        now = left(tmp_path / "work")
        assert before - 500 - 1_100 <= now < before
        before = now
    assert turns >= 6_000 // 1_600
    assert left(tmp_path / "work") == 0


def test_what_is_no_folder_of_ours_is_not_gone_into(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").touch()
    (tmp_path / "link").symlink_to("other")
    assert beneath.thin(str(tmp_path / "link"), 10)
    assert beneath.thin(str(tmp_path / "none"), 10)
    assert (tmp_path / "other" / "file").exists()


def opened(folder: Path) -> NodeTasks:
    (folder / "parts").mkdir(exist_ok=True)
    return NodeTasks("n", folder / "parts", Journal(folder / "journal.jsonl"), ScriptedExecutor(), boot_id())


async def test_the_loop_runs_between_any_two_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Told by the order of what happens: after each turn somebody else's work comes before the next one."""
    happened: list[str] = []
    real = beneath.thin

    def thin(path: str, most: int) -> bool:
        happened.append("turn")
        return real(path, most)

    monkeypatch.setattr(beneath, "thin", thin)
    monkeypatch.setattr(nodes, "REMOVED_AT_ONCE", 250)
    node = opened(tmp_path)
    folder = node.runs / "p"
    fill(folder / "work", 5_000)
    (folder / "tmp").mkdir()
    removal = asyncio.get_running_loop().create_task(node._remove(Intent("p", "a", 1, "b", str(folder))))

    async def others() -> None:
        while not removal.done():
            happened.append("other")
            await asyncio.sleep(0)

    await asyncio.gather(removal, others())
    assert node.removal_turns >= 4
    turns = [at for at, what in enumerate(happened) if what == "turn"]
    assert all("other" in happened[one:two] for one, two in pairwise(turns) if two - one > 1)
    assert happened.count("other") > node.removal_turns
    await node.close()


async def test_a_removal_that_was_cut_off_is_gone_on_with(tmp_path: Path) -> None:
    node = opened(tmp_path)
    node.open()
    for name in ("gone", "unknown"):
        fill(node.runs / name / "work", 50)
    node.journal.append(Intent("gone", "a", 1, "b", str(node.runs / "gone")))
    node.journal.append(Gone("gone", "a", 1, Exit(code=0)))
    node.keep("look at its parts", node.tick)
    for _ in range(2_000):
        if left(node.runs / "gone" / "work") == 0:
            break
        await asyncio.sleep(0.01)
    assert left(node.runs / "gone" / "work") == 0
    assert left(node.runs / "unknown" / "work") > 0, "what nobody remembers is nobody's to remove"
    await node.close()


def test_what_is_looked_at_is_bounded_whatever_lies_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Folders, pipes and links count as files do: a look at a folder of checkpoints comes to its end."""
    for name in range(300):
        inner = tmp_path / f"d{name}"
        inner.mkdir()
        for number in range(10):
            (inner / f"l{number}").symlink_to("nowhere")
    with Folder(str(tmp_path)) as folder:
        looked: list[str] = []
        real = folder.entries
        monkeypatch.setattr(folder, "entries", lambda path="", most=None: looked.append(path) or real(path, most))
        assert list(folder.walk(careful=False, most=100)) == []
        assert len(looked) < 100
        with pytest.raises(OSError, match="more than 100 files"):
            list(folder.walk(most=100))
    monkeypatch.setattr(manifest, "MAX_FILES", 100)
    with Folder(str(tmp_path.parent)) as above, pytest.raises((OSError, UnfitFile), match=r"more than 10[01] files"):
        manifest.of(above, tmp_path.name)
    assert signature(str(tmp_path)) == (0, 0, 0)
    assert checkpoints.discover(str(tmp_path)) == []


def test_a_folder_of_checkpoints_that_is_too_full_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree, "MAX_FILES", 20)
    part = StartedPart(Intent("p", "a", 1, "b", str(tmp_path)))
    write_whole(f"{tmp_path}/watch.json", {"folder": f"{tmp_path}/c"})
    fill(tmp_path / "c", 10)
    assert not part.watch.look()
    assert part.here().notes == []
    fill(tmp_path / "c" / "more", 50)
    assert part.watch.look()
    (said,) = part.here().notes
    assert "holds more than" in said


def test_a_name_that_claims_to_be_one_of_very_many_costs_nothing() -> None:
    leaves = {f"checkpoint-1/m{stem}-00001-of-99999.bin": Leaf(1) for stem in range(20)}
    seen = Tree(leaves, lambda path, offset, length: b"x")
    tracemalloc.start()
    try:
        assert "is missing" in shards_missing(seen, "checkpoint-1")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1 << 20, "as many names would be some ten MiB"


def test_a_report_without_end_costs_a_bounded_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "report.jsonl"
    with path.open("wb") as file:
        file.truncate(1 << 30)
        file.seek(0, os.SEEK_END)
        file.write(b'\n{"report": {"step": 7}}\n')
    reports = ReportFile(path)
    read = 0
    real = os.pread

    def pread(descriptor: int, count: int, offset: int) -> bytes:
        nonlocal read
        content = real(descriptor, count, offset)
        read += len(content)
        return content

    monkeypatch.setattr(os, "pread", pread)
    assert reports.poll()
    assert reports.progress is not None
    assert reports.progress.step == 7
    assert read <= 1 << 20
    # Very many short lines: the newest are taken, and no more of them than a look has room for.
    taken = []
    monkeypatch.setattr(reports, "_take", lambda line, at: taken.append(line) or True)
    with path.open("ab") as file:
        file.write(b'{"report": {}}\n' * 8_000)
    reports.poll()
    assert 0 < len(taken) <= 500


SCRIPT = """
import os, socket, sys
for at in range(0, int(sys.argv[1]), 1000):
    os.mkdir(f"d{at}")
    for number in range(1000):
        os.close(os.open(f"d{at}/{number}", os.O_WRONLY | os.O_CREAT))
report = os.environ["YARD_REPORT_FILE"]
with open(report, "ab") as file:
    file.truncate(1 << 30)
for folder in (os.environ["YARD_CHECKPOINT_DIR"], os.environ["YARD_OUTPUT_DIR"]):
    os.mkfifo(folder + "/latest")
    os.mkfifo(folder + "/yard-checkpoint.json")
    os.symlink("/etc", folder + "/checkpoint-3")
    os.chdir(folder)
    socket.socket(socket.AF_UNIX).bind("latest_checkpointed_iteration.txt")
print("made", flush=True)
"""


@pytest.mark.parametrize(("clock", "many"), [("as it is", MANY), ("set back", 3_000)])
def test_others_run_on_and_what_is_left_goes(hands: Hands, part: Names, clock: str, many: int) -> None:
    """A hundred thousand files, a report of a GiB, and sockets, pipes and links where files are looked for."""
    hands.start()
    beside, bad, after = part(), part(), part()
    hands.yard.want(hands.name, order(beside, "sh", "-c", "while :; do echo beside; sleep 0.2; done"))
    hands.yard.phase(hands.name, beside, Phase.RUNNING)
    script = SCRIPT
    if clock == "set back":
        script += "import time\nold = time.time() - 9e8\n"
        script += 'for name in os.listdir("."):\n    os.utime(name, (old, old), follow_symlinks=False)\n'
    hands.yard.want(hands.name, order(bad, "python3", "-c", script, str(many), stage="bad", outputs=["latest"]))
    side = hands.yard.side(hands.name)
    ended = hands.yard.wait(lambda: side.ended.get(bad), 300)
    assert ended.exit is not None
    assert output(hands, bad) == "made\n"
    # It said that it leaves an output, and there is a pipe: its end names that.
    assert ended.exit.cause == "EXIT_CODE"
    assert 'output "latest" could not be' in ended.exit.detail
    hands.yard.want(hands.name, order(after, "true"))
    end = hands.yard.ended(hands.name, after).exit
    assert end is not None
    assert end.code == 0
    assert hands.yard.side(hands.name).here[beside].exit is None
    hands.yard.wait(lambda: not (hands.state / "parts" / bad).exists(), 300)
    assert "Traceback" not in hands.log


def test_a_socket_is_no_file(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "s"))
        with Folder(str(tmp_path)) as folder, pytest.raises(OSError, match=r"\w"):
            folder.open("s")
