"""A running part is changed at the same pid, and what could not be changed is said."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.protocol import DeviceClaim, Here, Phase, Share, Wanted
from agents.resources import adjust
from agents.resources.adjust import Reach, Setting
from agents.supervisor import procfs
from tests.agents.conftest import Hands
from tests.agents.yard import order, stop

Names = Callable[[], str]
FOREVER = (
    "import threading, time\nfor _ in range(3): threading.Thread(target=time.sleep, args=(300,), daemon=True).start()"
)


@pytest.fixture
def family() -> Iterator[Callable[[], list[int]]]:
    """A small family: two processes, the first with four threads."""
    script = f"{FOREVER}\nimport subprocess\nprint('ready', flush=True)\nsubprocess.run(['sleep', '300'])"
    first = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, start_new_session=True)
    assert first.stdout is not None
    first.stdout.readline()

    def find() -> list[int]:
        return [first.pid, *procfs.descendants(first.pid)]

    # A child between vfork and exec would hold its parent where no signal stops it.
    wait(lambda: "sleep" in {Path(f"/proc/{pid}/comm").read_text().strip() for pid in find()})
    yield find
    for pid in find():
        procfs.send(pid, 9)
    first.wait()
    first.stdout.close()


def threads(family: Callable[[], list[int]]) -> list[int]:
    return [int(name) for pid in family() for name in os.listdir(f"/proc/{pid}/task")]


def stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def test_every_thread_moves_to_the_given_cores(family: Callable[[], list[int]]) -> None:
    core = max(os.sched_getaffinity(0))
    assert adjust.apply(Reach(family), Setting(), Setting(cpus=(core,))) == []
    assert len(threads(family)) >= 5
    assert {frozenset(os.sched_getaffinity(tid)) for tid in threads(family)} == {frozenset({core})}


def test_a_core_that_is_not_there_is_a_sentence(family: Callable[[], list[int]]) -> None:
    (note,) = adjust.apply(Reach(family), Setting(), Setting(cpus=(4000,)))
    assert note.startswith("cores 4000 could not be set: invalid argument")


def test_a_smaller_weight_is_a_nicer_process(family: Callable[[], list[int]]) -> None:
    assert adjust.apply(Reach(family), Setting(), Setting(cpu_weight=33, io_weight=25)) == []
    assert {os.getpriority(os.PRIO_PROCESS, tid) for tid in threads(family)} == {adjust.nice_of(33)}
    assert adjust.nice_of(33) == 5


def test_all_stop_and_all_go_on(family: Callable[[], list[int]]) -> None:
    assert adjust.apply(Reach(family), Setting(), Setting(suspended=True)) == []
    wait(lambda: all(map(stopped, family())))
    assert adjust.apply(Reach(family), Setting(suspended=True), Setting()) == []
    wait(lambda: not any(map(stopped, family())))


def wait(claim: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not claim():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_limit_below_what_is_in_use_is_not_set(family: Callable[[], list[int]], tmp_path: Path) -> None:
    reach = Reach(family, folder=str(tmp_path))
    (note,) = adjust.apply(reach, Setting(), Setting(memory_bytes=1 << 20))
    assert "was not lowered to 1 MiB" in note
    assert not list(tmp_path.iterdir())
    assert adjust.apply(reach, Setting(), Setting(memory_bytes=1 << 40)) == []


def test_what_the_kernel_refuses_is_named_with_the_reason() -> None:
    """Another user's process, or a better priority without the right to it."""

    def refuse(_: int) -> None:
        raise PermissionError(13, "Permission denied")

    failure = adjust._each_thread(lambda: [os.getpid()], refuse)
    assert failure.startswith("permission denied (thread ")


@given(st.integers(1, 10_000), st.integers(1, 10_000))
def test_more_weight_is_never_a_worse_place(one: int, other: int) -> None:
    less, more = sorted((one, other))
    assert adjust.nice_of(less) >= adjust.nice_of(more)
    assert adjust.io_level_of(less) >= adjust.io_level_of(more)
    assert (adjust.nice_of(100), adjust.io_level_of(100)) == (0, 4)


# -- through a real agent


def revised(run: Wanted, rev: int, **share: object) -> Wanted:
    return Wanted(run.part, run.attempt, run.epoch, "run", spec_rev=rev, spec=run.spec, share=Share(**share))  # type: ignore[arg-type]


def seen(hands: Hands, part: str, rev: int) -> Here:
    found: Here = hands.yard.wait(
        lambda: (here := hands.yard.side(hands.name).here[part]) and here.spec_rev >= rev and here
    )
    return found


def test_a_revision_changes_the_running_process_and_no_other(shared: Hands, part: Names) -> None:
    name, cores = part(), sorted(os.sched_getaffinity(0))
    run = order(name, sys.executable, "-c", f"{FOREVER}\ntime.sleep(300)")
    shared.yard.want(shared.name, run)
    before = shared.yard.phase(shared.name, name, Phase.RUNNING)
    assert before.pid is not None
    shared.yard.want(shared.name, revised(run, 2, cpus=cores[-1:], cpu_weight=50, memory_bytes=1 << 30))
    after = seen(shared, name, 2)
    assert (after.pid, after.pid_start, after.notes) == (before.pid, before.pid_start, [])
    assert os.sched_getaffinity(before.pid) == set(cores[-1:])
    if shared.yard.side(shared.name).inventory.isolation == "none":  # else its group has the weight
        assert os.getpriority(os.PRIO_PROCESS, before.pid) == adjust.nice_of(50)
    shared.yard.want(shared.name, stop(name, 0.0))
    shared.yard.ended(shared.name, name)


def test_a_lower_class_yields_from_its_start_and_a_revision_is_the_last_word(shared: Hands, part: Names) -> None:
    """A part of weight 50 begins so, keeps that without a revision, and gets it back when one says nothing of it."""
    name = part()
    run = order(
        name, sys.executable, "-c", f"import os\nprint(os.nice(0), flush=True)\n{FOREVER}\ntime.sleep(300)", weight=50
    )
    shared.yard.want(shared.name, run)
    here = shared.yard.phase(shared.name, name, Phase.RUNNING)
    shared.yard.wait(lambda: b"\n" in shared.yard.logs[(name, 0, "out")])
    assert int(shared.yard.logs[(name, 0, "out")]) == adjust.nice_of(50) > 0
    for rev, share, weight in ((2, {"cpu_weight": 20}, 20), (3, {}, 50)):
        shared.yard.want(shared.name, revised(run, rev, **share))
        assert seen(shared, name, rev).notes == []
        if shared.yard.side(shared.name).inventory.isolation == "none" and os.geteuid() == 0:
            assert os.getpriority(os.PRIO_PROCESS, here.pid) == adjust.nice_of(weight)
    shared.yard.want(shared.name, stop(name, 0.0))
    shared.yard.ended(shared.name, name)


def test_a_phase_of_input_has_more_of_the_disks(shared: Hands, part: Names) -> None:
    name = part()
    script = (
        "import os, time, switchyard.runtime as job\n"
        "def meet(name):\n    while not os.path.exists(name): time.sleep(0.02)\n"
        "job.phase('load shards')\nmeet('on')\njob.phase('train')\ntime.sleep(300)"
    )
    shared.yard.want(shared.name, order(name, sys.executable, "-c", script))
    pid = shared.yard.phase(shared.name, name, Phase.RUNNING).pid
    level = {weight: adjust.io_level_of(weight) for weight in (100, 200)}
    shared.yard.wait(lambda: psutil.Process(pid).ionice().value == level[200])
    Path(shared.state, "parts", name, "work", "on").touch()
    shared.yard.wait(lambda: psutil.Process(pid).ionice().value == level[100])
    shared.yard.want(shared.name, stop(name, 0.0))
    shared.yard.ended(shared.name, name)


def test_a_raised_memory_limit_holds_and_a_lowered_one_bites(shared: Hands, part: Names) -> None:
    """The limit moves while it runs: what would have ended it does not, and the new limit does."""
    name = part()
    script = (
        "import os, time\nx = []\n"
        "def grow(to):\n    while len(x) < to: x.append(b'x' * (8 << 20)); time.sleep(0.01)\n"
        "print('ready', flush=True)\n"
        "while not os.path.exists('go'): time.sleep(0.02)\n"
        "grow(16); print('grown', flush=True); time.sleep(1.0); print('lived', flush=True)\ngrow(64); time.sleep(300)"
    )
    run = order(name, sys.executable, "-c", script, memory_bytes=96 << 20)
    shared.yard.want(shared.name, run)
    shared.yard.wait(lambda: b"ready" in shared.yard.logs[(name, 0, "out")])
    shared.yard.want(shared.name, revised(run, 2, memory_bytes=256 << 20))
    assert seen(shared, name, 2).notes == []
    Path(shared.state, "parts", name, "work", "go").touch()
    end = shared.yard.ended(shared.name, name).exit
    assert b"lived" in shared.yard.logs[(name, 0, "out")]
    assert end is not None
    # Who sees it first says it: the kernel by its group, or the shim.
    assert (end.cause, "it asked for 256 MiB" in end.detail) == ("OUT_OF_MEMORY", True), end


def test_a_memory_limit_that_is_taken_back_is_that_of_the_start(shared: Hands, part: Names) -> None:
    """Under the limit of its start it may use 96 MiB, under the revision's it may not; and nothing stays of that."""
    name = part()
    script = "until [ -e go ]; do sleep 0.02; done; exec python3 -c 'x = bytearray(96 << 20); print(len(x))'"
    run = order(name, "sh", "-c", script, memory_bytes=512 << 20)
    shared.yard.want(shared.name, run)
    shared.yard.phase(shared.name, name, Phase.RUNNING)
    limits = Path(shared.state, "parts", name, adjust.LIMITS_FILE)
    for rev, share, limit in ((2, {"memory_bytes": 64 << 20}, 64 << 20), (3, {}, 512 << 20)):
        shared.yard.want(shared.name, revised(run, rev, **share))
        assert seen(shared, name, rev).notes == []
        assert json.loads(limits.read_text()) == {"memory_bytes": limit}
    (limits.parent / "work" / "go").touch()
    end = shared.yard.ended(shared.name, name).exit
    assert end is not None
    assert (end.code, end.cause) == (0, "")


def test_a_suspended_part_keeps_its_pid_and_still_hears_a_stop(shared: Hands, part: Names) -> None:
    name = part()
    run = order(name, "sh", "-c", 'trap "exit 7" TERM; while :; do echo x; sleep 0.02; done')
    shared.yard.want(shared.name, run)
    shared.yard.wait(lambda: shared.yard.logs[(name, 0, "out")])
    shared.yard.want(shared.name, revised(run, 2, suspended=True))
    here = seen(shared, name, 2)
    assert here.pid is not None
    used = procfs.cpu_s([here.pid])
    time.sleep(0.3)
    assert procfs.cpu_s([here.pid]) == used
    shared.yard.want(shared.name, stop(name, 20.0))
    end = shared.yard.ended(shared.name, name).exit
    assert end is not None
    assert (end.code, end.stopped) == (7, True)


def test_what_could_not_be_applied_is_reported_and_tried_again(shared: Hands, part: Names) -> None:
    name = part()
    run = order(name, "sleep", "300")
    shared.yard.want(shared.name, run)
    shared.yard.phase(shared.name, name, Phase.RUNNING)
    shared.yard.want(shared.name, revised(run, 2, cpus=[4000]))
    (note,) = seen(shared, name, 2).notes
    assert "cores 4000 could not be set" in note
    shared.yard.want(shared.name, revised(run, 3, cpus=sorted(os.sched_getaffinity(0))))
    assert seen(shared, name, 3).notes == []
    shared.yard.want(shared.name, stop(name, 0.0))
    shared.yard.ended(shared.name, name)


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores to lend one")
def test_idle_cores_are_lent_to_who_waits_for_input_and_come_back_for_a_claim(shared: Hands, part: Names) -> None:
    inventory = shared.yard.wait(lambda: shared.yard.side(shared.name).inventory)
    cpu = next(device for device in inventory.devices if device.kind == "cpu")
    cores = [int(core) for core in cpu.attributes["cores"].split(",")]
    milli = (len(cores) - 1) * 1000

    def claim(share: int) -> list[DeviceClaim]:
        return [DeviceClaim(cpu.uuid, "cpu", cpu.vendor, cpu.model, cpu.index, share, 1 << 20)]

    starved, other = part(), part()
    script = 'echo \'{"report": {"values": {"input_wait": 0.7}}}\' >> "$YARD_REPORT_FILE"; sleep 300'
    shared.yard.want(shared.name, order(starved, "sh", "-c", f"sleep 0.5; {script}", devices=claim(milli)))
    pid = shared.yard.phase(shared.name, starved, Phase.RUNNING).pid
    assert pid is not None
    assert os.sched_getaffinity(pid) == set(cores[:-1])
    shared.yard.wait(lambda: os.sched_getaffinity(pid) == set(cores))
    shared.yard.want(shared.name, order(other, "sleep", "300", devices=claim(1000)))
    second = shared.yard.phase(shared.name, other, Phase.RUNNING).pid
    assert second is not None
    shared.yard.wait(lambda: len(os.sched_getaffinity(pid)) == len(cores) - 1)
    assert os.sched_getaffinity(second).isdisjoint(os.sched_getaffinity(pid))
    shared.yard.want(shared.name, stop(other, 0.0))
    shared.yard.ended(shared.name, other)
    shared.yard.wait(lambda: os.sched_getaffinity(pid) == set(cores))
    shared.yard.want(shared.name, stop(starved, 0.0))
    shared.yard.ended(shared.name, starved)


def test_parts_of_a_queued_device_take_turns_and_both_end(hands: Hands, part: Names, tmp_path: Path) -> None:
    """One of them runs at a time, and none of them is forgotten. They go on until both were seen waiting."""
    hands.start("--queued", "gpu")
    device = [DeviceClaim("GPU-1", "gpu", "nvidia", "m", 0, 500, 0, simulated=True)]
    over = tmp_path / "over"
    script = f"until [ -e {over} ]; do sleep 0.02; done"
    names = [part(), part()]
    hands.yard.want(hands.name, *(order(name, "sh", "-c", script, devices=device) for name in names))
    pids = [hands.yard.phase(hands.name, name, Phase.RUNNING).pid for name in names]

    def frozen(pid: int | None) -> bool:
        events = Path(f"/proc/{pid}/cgroup").read_text()
        group = next(line[3:] for line in events.splitlines() if line.startswith("0::"))
        freeze = next(Path("/sys/fs/cgroup").glob(f"**{group}/cgroup.freeze"), None) if "switchyard" in group else None
        return stopped(pid or 0) or (freeze is not None and freeze.read_text().strip() == "1")

    held: set[int | None] = set()

    def both_waited() -> bool:
        held.update(pid for pid in pids if frozen(pid))
        return len(held) == 2

    hands.yard.wait(both_waited, 60)
    over.touch()
    for name in names:
        end = hands.yard.ended(hands.name, name, 30).exit
        assert end is not None
        assert end.code == 0


def test_a_suspended_part_goes_on_when_an_agent_that_never_suspended_it_is_told_so(hands: Hands, part: Names) -> None:
    """The agent that suspended it is gone; the next one must not leave it stopped for ever."""
    name = part()
    run = order(name, "sh", "-c", "while :; do echo x; sleep 0.02; done")
    hands.start()
    hands.yard.want(hands.name, run)
    hands.yard.wait(lambda: hands.yard.logs[(name, 0, "out")])
    hands.yard.want(hands.name, revised(run, 2, suspended=True))
    before = seen(hands, name, 2)
    hands.end(9)
    hands.start()
    after = seen(hands, name, 2)
    assert (after.pid, after.pid_start) == (before.pid, before.pid_start)
    hands.yard.want(hands.name, revised(run, 3, suspended=False))
    seen(hands, name, 3)
    size = len(hands.yard.logs[(name, 0, "out")])
    hands.yard.wait(lambda: len(hands.yard.logs[(name, 0, "out")]) > size + 20)
