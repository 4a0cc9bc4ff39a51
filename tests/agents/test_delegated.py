"""Delegated executors: what is decided about a part, what its labels and its file say, and how answers are read."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.delegated import (
    EngineGround,
    EngineSilent,
    ForeignJob,
    ForeignOrder,
    ForeignState,
    SubmissionRefused,
    decision,
    label,
)
from agents.delegated.capacity import Delegation, ForeignCapacity, ForeignShape, read_delegation
from agents.delegated.decision import Do, PartState, decide
from agents.delegated.executor import DelegatedExecutor, best
from agents.delegated.logs import LogCopy
from agents.delegated.slurm import SlurmEngine
from agents.ends import clause, say, told
from agents.isolation import run_as
from agents.link.server import Server
from agents.protocol import Clause, DeviceClaim, Exit, Phase, Wanted
from agents.runtimes import Sighting, Unlaunchable
from agents.runtimes.process import Ground
from agents.storage.bundle import BundleCache
from agents.supervisor import procfs
from agents.supervisor.record import ordered, shim_record, take
from agents.tasks.journal import Intent
from tests.agents.yard import order

ROOT = Path(__file__).resolve().parents[2]
JOBS = [ForeignJob("p", 1, "f", "1", state) for state in ForeignState]
SECONDS = st.one_of(st.none(), st.floats(0, 1000))
STATES = st.builds(
    PartState,
    job=st.sampled_from([None, *JOBS]),
    was_tried=st.booleans(),
    has_begun=st.booleans(),
    has_older=st.booleans(),
    is_excused=st.booleans(),
    is_asked=st.booleans(),
    stop_s=SECONDS,
    grace_s=st.floats(0, 100),
    absent_s=SECONDS,
    ended_s=SECONDS,
)


# -- what is decided


@given(STATES)
def test_nothing_is_submitted_while_it_may_be_there_or_while_an_older_epoch_is(state: PartState) -> None:
    if decide(state) is Do.SUBMIT:
        assert state.job is None or (state.job.state is ForeignState.ENDED and state.is_excused)
        assert not state.has_older
        assert state.stop_s is None
        assert not state.has_begun or not state.was_tried
        assert not state.was_tried or state.job is not None or state.absent_s is not None


@given(STATES)
def test_what_is_unknown_is_never_ended(state: PartState) -> None:
    """A part that the engine may have ends by its word, or once it has answered for long without knowing the job."""
    done = decide(state)
    if state.was_tried and state.job is None and done in (Do.LOST, Do.NEVER, Do.ENDED):
        assert state.absent_s is not None
        assert state.absent_s >= decision.AGAIN_S
    if done is Do.ENDED:
        assert state.job is not None
        assert state.job.state is ForeignState.ENDED
    if done is Do.NEVER and state.job is None and state.was_tried:
        assert not state.has_begun


@given(STATES)
def test_who_is_asked_to_stop_has_its_grace(state: PartState) -> None:
    if decide(state) is Do.KILL:
        assert state.stop_s is not None
        assert state.stop_s >= state.grace_s


# -- labels


@given(
    st.integers(0, 2**31 - 1),
    st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}", fullmatch=True),
    st.integers(1, 10**6),
    st.text(max_size=20),
)
def test_a_label_is_read_as_it_was_written(epoch: int, part: str, job: int, stage: str) -> None:
    one = label.Label(label.tag_of("node"), label.fence_of(job, stage, 0), epoch, part)
    assert label.read(str(one)) == one


@pytest.mark.parametrize(
    "text", ["", "yard-", "yard-0123abcd-0123456789ab-1-", "yard-0123abcd-0123456789ab-1-a b", "x"]
)
def test_another_text_is_no_label(text: str) -> None:
    assert label.read(text) is None


# -- the file


def test_shapes_become_devices_that_are_the_same_after_a_restart(tmp_path: Path) -> None:
    file = tmp_path / "slurm.toml"
    file.write_text(
        'engine = "slurm"\n[[shape]]\nname = "h100"\nnodes = 2\ncpus = 8\nmemory_gib = 64\n'
        'model = "H100"\ndevices = 4\n'
    )
    capacity = ForeignCapacity("login", read_delegation(file))
    found = capacity.discover()
    assert [device.kind for device in found] == ["cpu", *["gpu"] * 4] * 2
    assert [device.uuid for device in found] == [
        device.uuid for device in ForeignCapacity("login", read_delegation(file)).discover()
    ]
    assert len({device.uuid for device in found}) == len(found)
    assert [device.index for device in found if device.kind == "gpu"] == list(range(8))
    assert {device.attributes["executor"] for device in found} == {"slurm"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('engine = "pbs"\n[[shape]]\nname = "a"\ncpus = 1\nmemory_gib = 1', 'no engine is called "pbs"'),
        ('engine = "slurm"', "shape"),
        ('engine = "slurm"\n[[shape]]\nname = "a"\ncpus = 0\nmemory_gib = 1', "cpus"),
        ('engine = "slurm"\n[[shape]]\nname = "a"\ncpus = 1\nmemory_gib = 1\nmodel = "H100"', "both model and devices"),
        (
            'engine = "slurm"\n[[shape]]\nname = "a"\ncpus = 1\nmemory_gib = 1\nmodel = "X1"\ndevices = 1',
            'no model is called "X1"',
        ),
        ('engine = "slurm"\n[[shape]]\nname = "a"\ncpus = 1\nmemory_gib = 1\n' * 2, ""),
        ("engine = ", "refused"),
        ('engine = "slurm"\nmore = 1\n[[shape]]\nname = "a"\ncpus = 1\nmemory_gib = 1', "more"),
    ],
)
def test_a_file_that_makes_no_sense_is_refused_by_name(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "slurm.toml"
    file.write_text(text)
    with pytest.raises(ValueError, match=said or "."):
        read_delegation(file)


@pytest.mark.parametrize(
    "options",
    [
        {"partition": "a b"},
        {"partition": "--wrap=x"},
        {"python": "python3"},
        {"account": "x;rm"},
        {"nothing": 1},
        {"exclusive": "yes"},
    ],
)
def test_no_free_words_reach_sbatch(tmp_path: Path, options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="an option of Slurm is refused"):
        SlurmEngine(EngineGround("0123abcd", tmp_path, options, {}))


def held(capacity: ForeignCapacity, *places: int, milli: int = 1000) -> list[DeviceClaim]:
    devices = [capacity.discover()[place] for place in places]
    return [DeviceClaim(d.uuid, d.kind, d.vendor, d.model, d.index, milli, 0) for d in devices]


def test_a_part_gets_whole_devices_of_one_shape() -> None:
    shapes = [ForeignShape("a", 4, 8.0, model="H100", devices=2), ForeignShape("b", 4, 8.0, model="H100", devices=1)]
    capacity = ForeignCapacity("login", Delegation("slurm", shapes))

    def placed(claims: list[DeviceClaim]) -> tuple[str, int]:
        spec = order("p", "true", devices=claims).spec
        assert spec is not None
        return capacity.placed(spec)

    assert placed(held(capacity, 0, 1, 2)) == ("a", 2)
    assert placed(held(capacity, 3)) == ("b", 0)
    with pytest.raises(Unlaunchable, match="whole devices"):
        placed(held(capacity, 1, milli=500))
    with pytest.raises(Unlaunchable, match="several shapes"):
        placed(held(capacity, 1, 4))


# -- what Slurm says


@pytest.fixture
def says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Let a program of Slurm print something."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")

    def program(name: str, out: str = "", err: str = "", code: int = 0) -> None:
        (folder / f"{name}.out").write_text(out)
        (folder / f"{name}.err").write_text(err)
        file = folder / name
        script = (
            f'echo "$@" >> {folder}/{name}.words\ncat {folder}/{name}.out; cat {folder}/{name}.err >&2\nexit {code}'
        )
        file.write_text(f"#!/bin/sh\n{script}\n")
        file.chmod(0o755)

    program("sinfo", "up|idle\n")
    program("sacct", err="Slurm accounting storage is disabled", code=1)
    return program


TAG = "0123abcd"
MARK = f"yard-{TAG}-0123456789ab-3-part-1"


@pytest.fixture
def engine(tmp_path: Path) -> SlurmEngine:
    return SlurmEngine(EngineGround(TAG, tmp_path, {"partition": "main"}, {"gpu": {"gres": "gpu:h100"}}))


def foreign_order(folder: Path, **more: Any) -> ForeignOrder:
    spec = order("part-1", "true", **{"time_limit_s": 90.0, **more}).spec
    assert spec is not None
    return ForeignOrder("part-1", 3, "0123456789ab", MARK, str(folder), "gpu", 4, 1 << 30, 2, spec)


def test_jobs_of_others_are_passed_over_and_ours_are_read(says: Callable[..., None], engine: SlurmEngine) -> None:
    other = MARK.replace(TAG, "99999999")
    says(
        "squeue",
        f"1|RUNNING|2030-01-01T00:00:00|None|{MARK}\n2|RUNNING|N/A|None|{other}\n3|WHAT|N/A|None|their job\n"
        f"4|PENDING|2130-01-01T00:00:00|Resources|{MARK.replace('-3-', '-4-')}\n5|CANCELLED|N/A|None|{MARK}\n",
    )
    found = {job.handle: job for job in engine.jobs()}
    assert set(found) == {"1", "4", "5"}
    assert (found["1"].part, found["1"].epoch, found["1"].state) == ("part-1", 3, ForeignState.RUNNING)
    assert (found["4"].epoch, found["4"].why) == (4, "Resources")
    assert (found["4"].starts_in_s or 0) > 86_400
    assert found["5"].exit is not None
    assert found["5"].exit.cause == "SUPERVISOR_LOST"
    assert best([found["5"], found["1"]]) is found["1"]


@pytest.mark.parametrize(
    "line",
    [
        f"x|RUNNING|N/A|None|{MARK}",
        f"1|SPLENDID|N/A|None|{MARK}",
        f"1;2|PENDING|N/A|None|{MARK}",
        f"99999999999|PENDING|N/A|None|{MARK}",
    ],
)
def test_nonsense_is_no_answer_and_no_end(says: Callable[..., None], engine: SlurmEngine, line: str) -> None:
    says("squeue", line + "\n")
    with pytest.raises(EngineSilent, match="makes no sense"):
        engine.jobs()


@pytest.mark.parametrize(
    ("out", "err", "code"),
    [
        ("", "slurm_load_jobs error: Unable to contact slurm controller (connect failure)", 1),
        ("\udcff" * 3, "", 0),
        ("x" * (5 << 20), "", 0),
    ],
    ids=["down", "no text", "endless"],
)
def test_an_engine_that_does_not_answer_is_silent(
    tmp_path: Path, says: Callable[..., None], engine: SlurmEngine, out: str, err: str, code: int
) -> None:
    says("squeue", "", err, code)
    (tmp_path / "bin" / "squeue.out").write_bytes(out.encode(errors="surrogateescape"))
    with pytest.raises(EngineSilent):
        engine.jobs()


def test_a_program_that_is_not_there_is_named(
    tmp_path: Path, engine: SlurmEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EngineSilent, match="squeue could not be started"):
        engine.jobs()


@pytest.mark.parametrize(
    ("err", "is_sure"),
    [
        ("sbatch: error: Batch job submission failed: Requested node configuration is not available", True),
        ("sbatch: error: Batch job submission failed: Unable to contact slurm controller (connect failure)", False),
        ("sbatch: error: Batch job submission failed: Socket timed out on send/recv operation", False),
        ("sbatch: error: Batch job submission failed: Job violates accounting/QOS policy (job submit limit)", False),
        ("killed", False),
    ],
)
def test_only_a_sure_refusal_is_one(
    tmp_path: Path, says: Callable[..., None], engine: SlurmEngine, err: str, is_sure: bool
) -> None:
    says("sbatch", "", err, 1)
    with pytest.raises(EngineSilent) as caught:
        engine.submit(foreign_order(tmp_path))
    assert isinstance(caught.value, SubmissionRefused) is is_sure


def test_what_is_asked_of_sbatch(tmp_path: Path, says: Callable[..., None], engine: SlurmEngine) -> None:
    says("sbatch", "77;cluster\n")
    assert engine.submit(foreign_order(tmp_path)) == "77"
    words = (tmp_path / "bin" / "sbatch.words").read_text().split()
    assert {
        f"--job-name={MARK}", f"--comment={MARK}", "--cpus-per-task=4", "--mem=1024M", "--gres=gpu:h100:2",
        "--partition=main", "--no-requeue", "--time=4",
    } <= set(words)  # fmt: skip
    says("sbatch", "Submitted batch job 77\n")
    with pytest.raises(EngineSilent, match="makes no sense"):
        engine.submit(foreign_order(tmp_path))


def test_the_accounting_is_asked_for_what_the_queue_has_forgotten(
    tmp_path: Path, says: Callable[..., None], engine: SlurmEngine
) -> None:
    says("sacct", f"12|TIMEOUT|{MARK}\n13|CANCELLED by 1000|{MARK}\n14|RUNNING|other\n")
    found = engine.find(foreign_order(tmp_path))
    assert found is not None
    assert (found.handle, found.state) == ("13", ForeignState.ENDED)
    says("sacct", err="Slurm accounting storage is disabled", code=1)
    assert engine.find(foreign_order(tmp_path)) is None


@pytest.mark.parametrize(
    ("nodes", "is_open"),
    [
        ("up|idle\nup|down*\n", True),
        ("up|drained\nup|down\n", False),
        ("down|idle\n", False),
        ("up|allocated\n", True),
        ("", False),
    ],
)
def test_a_cluster_that_takes_no_job_is_a_condition(
    says: Callable[..., None], engine: SlurmEngine, nodes: str, is_open: bool
) -> None:
    says("squeue")
    says("sinfo", nodes)
    engine.jobs()
    assert (not engine.troubles()) is is_open


# -- the executor, over an engine that is a table of real processes


@dataclass
class TableEngine:
    """An engine small enough to read: a submission is a supervisor on this host, unless it is held back."""

    ground: EngineGround
    title: str = "table"
    shares_folder: bool = True
    takes_again: bool = True
    lacks: tuple[Clause, ...] = ()
    settle_s: float = 0.0
    table: list[ForeignJob] = field(default_factory=list)
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    submitted: list[str] = field(default_factory=list)
    killed: list[str] = field(default_factory=list)
    is_down: bool = False
    is_deaf: bool = False
    loses_answers: bool = False
    holds: bool = False
    text: dict[str, bytes] = field(default_factory=dict)
    numbers: Any = field(default_factory=lambda: itertools.count(1))

    def lay_out(self, order: ForeignOrder) -> None:
        pass

    def _check(self) -> None:
        if self.is_down:
            raise EngineSilent(clause("AsTold", words="nobody is there"))

    def submit(self, order: ForeignOrder) -> str:
        self._check()
        handle = str(next(self.numbers))
        self.submitted.append(order.label)
        state = ForeignState.QUEUED if self.holds else ForeignState.RUNNING
        self.table.append(ForeignJob(order.part, order.epoch, order.fence, handle, state))
        if not self.holds and self.shares_folder:
            self.processes[handle] = subprocess.Popen(
                [sys.executable, "-m", "agents.supervisor.foreign", order.folder], cwd=ROOT, start_new_session=True
            )
        if self.loses_answers:
            raise EngineSilent(clause("AsTold", words="the answer was lost"))
        return handle

    def jobs(self) -> list[ForeignJob]:
        self._check()
        for place, job in enumerate(self.table):
            process = self.processes.get(job.handle)
            if process is not None and process.poll() is not None:
                self.table[place] = replace(job, state=ForeignState.ENDED)
        return list(self.table)

    def find(self, order: ForeignOrder) -> ForeignJob | None:
        return None

    def ask_to_stop(self, job: ForeignJob, order: ForeignOrder, grace_s: float) -> None:
        self._check()

    def kill(self, job: ForeignJob) -> None:
        self._check()
        if self.is_deaf:
            raise EngineSilent(clause("AsTold", words="it hears nothing"))
        self.killed.append(job.handle)
        if process := self.processes.get(job.handle):
            process.kill()
        self.table = [replace(one, state=ForeignState.ENDED) if one.handle == job.handle else one for one in self.table]

    def signal(self, job: ForeignJob, order: ForeignOrder, name: str) -> None:
        pass

    def read(self, job: ForeignJob, order: ForeignOrder, stream: str, offset: int, most: int) -> bytes:
        return self.text.get(stream, b"")[offset : offset + most]

    def last_words(self, order: ForeignOrder) -> Sequence[Clause]:
        return ()

    def troubles(self) -> Sequence[Clause]:
        return ()


@dataclass
class Desk:
    """An executor whose turns a test takes one by one, at times that it sets."""

    executor: DelegatedExecutor
    engine: TableEngine
    folder: Path
    now: float = 1000.0

    def part(self, script: str = "exit 0", *, epoch: int = 1, **spec: Any) -> Intent:
        wanted = order(uuid.uuid4().hex, "sh", "-c", script, **spec)
        wanted = Wanted(wanted.part, wanted.attempt, epoch, "run", spec=wanted.spec)
        intent = Intent(wanted.part, wanted.attempt, epoch, procfs.boot_id(), str(self.folder / wanted.part))
        self.executor.prepare(wanted, intent)
        self.executor.launch(intent)
        return intent

    def turns(self, count: int = 1, seconds: float = 2.0) -> None:
        for _ in range(count):
            self.now += seconds
            self.executor.turn()

    def ends(self, intent: Intent) -> Exit:
        deadline = time.monotonic() + 30
        while (seen := self.executor.look(intent)).exit is None:
            assert time.monotonic() < deadline, seen
            self.turns()
            time.sleep(0.02)
        return seen.exit

    def looks(self, intent: Intent) -> Sighting:
        return self.executor.look(intent)

    def again(self) -> None:
        """A new agent on the same folder."""
        self.executor = made(self.folder, self.engine, lambda: self.now)


def made(folder: Path, engine: TableEngine, now: Callable[[], float]) -> DelegatedExecutor:
    ground = Ground(
        boot_id=procfs.boot_id(),
        bell=folder / "bell",
        lease=folder / "lease",
        fork_client=None,  # type: ignore[arg-type]  # nothing is forked here
        bundles=BundleCache(folder / "bundles", Server("http://127.0.0.1:1")),
        run_as=run_as.parse(str(os.geteuid())),
    )
    capacity = ForeignCapacity("login", Delegation("table", [ForeignShape("small", 2, 1.0)]))
    return DelegatedExecutor(ground, engine, capacity, TAG, now)


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    engine = TableEngine(EngineGround(TAG, tmp_path, {}, {}))
    found = Desk(made(tmp_path, engine, lambda: 0.0), engine, tmp_path)
    found.again()
    yield found
    for process in engine.processes.values():
        process.kill()
        process.wait()
    left = [pid for folder in tmp_path.iterdir() for pid in procfs.marked(folder.name)]
    assert procfs.end_all(lambda: [pid for pid in left if procfs.start_time(pid) is not None]) == []


def test_a_part_is_submitted_once_and_its_end_is_its_supervisors(desk: Desk) -> None:
    intent = desk.part("echo out; exit 3")
    assert desk.ends(intent).code == 3
    assert len(desk.engine.submitted) == 1
    assert Path(intent.folder, "0.out").read_text() == "out\n"


def test_after_a_lost_answer_the_job_is_found_and_not_submitted_again(desk: Desk, tmp_path: Path) -> None:
    desk.engine.loses_answers = True
    intent = desk.part(f"echo ran >> {tmp_path}/ran; exit 4")
    desk.turns()
    desk.engine.loses_answers = False
    desk.again()
    assert desk.ends(intent).code == 4
    assert len(desk.engine.submitted) == 1
    assert (tmp_path / "ran").read_text() == "ran\n"


def test_a_submission_that_was_lost_is_repeated_and_of_two_only_one_runs(desk: Desk, tmp_path: Path) -> None:
    desk.engine.is_down = True
    intent = desk.part(f"echo ran >> {tmp_path}/ran; sleep 0.5; exit 4")
    desk.turns(3)
    assert desk.engine.submitted == []
    assert desk.looks(intent).phase is Phase.STARTING
    desk.engine.is_down = False
    deadline = time.monotonic() + 30
    while desk.looks(intent).phase is not Phase.RUNNING:
        assert time.monotonic() < deadline
        desk.turns()
        time.sleep(0.02)
    # The first one comes after all.
    process = subprocess.run([sys.executable, "-m", "agents.supervisor.foreign", intent.folder], cwd=ROOT, check=False)
    assert process.returncode == 0
    assert desk.ends(intent).code == 4
    assert (tmp_path / "ran").read_text() == "ran\n"


def test_what_a_dead_supervisor_leaves_is_ended_where_it_ran(desk: Desk) -> None:
    intent = desk.part("sleep 300 & echo ready; sleep 300")
    deadline = time.monotonic() + 30
    while desk.looks(intent).phase is not Phase.RUNNING or not procfs.marked(intent.part):
        assert time.monotonic() < deadline
        desk.turns()
        time.sleep(0.02)
    record = shim_record(intent.folder)
    assert record is not None
    os.kill(record["pid"], signal.SIGKILL)
    end = desk.ends(intent)
    assert (end.cause, end.detail) == ("SUPERVISOR_LOST", say([clause("SupervisorGone")]))
    assert procfs.marked(intent.part) == []


def test_a_silent_engine_ends_nothing_is_asked_ever_later_and_is_a_condition(desk: Desk) -> None:
    intent = desk.part("sleep 300")
    desk.turns()
    desk.engine.is_down = True
    desk.engine.settle_s = 0.0
    asked = 0
    for _ in range(300):
        before = desk.executor._asked_at
        desk.turns()
        asked += desk.executor._asked_at != before
    assert desk.looks(intent).exit is None
    assert asked < 40
    (trouble,) = desk.executor.troubles()
    assert trouble == "table does not answer: nobody is there"
    assert "unknown" in desk.looks(intent).substate
    desk.engine.is_down = False
    desk.turns(40)
    assert desk.executor.troubles() == []
    desk.executor.stop(intent, 0.0, "CANCELLED")
    assert desk.ends(intent).stopped


def test_a_job_that_the_engine_has_forgotten_is_lost_only_after_many_answers(desk: Desk) -> None:
    intent = desk.part("sleep 300")
    desk.turns()
    desk.engine.processes["1"].kill()
    desk.engine.table.clear()
    take(intent.folder)  # its command may have begun
    desk.turns(int(decision.LOST_S / 2) - 2)
    assert desk.looks(intent).exit is None
    end = desk.ends(intent)
    assert end.cause == "SUPERVISOR_LOST"
    assert "does not know it any more" in end.detail
    assert len(desk.engine.submitted) == 1


def test_a_stop_before_the_start_needs_no_command(desk: Desk) -> None:
    desk.engine.holds = True
    intent = desk.part("exit 0")
    desk.turns()
    desk.executor.stop(intent, 30.0, "CANCELLED")
    end = desk.ends(intent)
    assert (end.stopped, end.code) == (True, None)
    assert desk.engine.killed == ["1"]
    assert not take(intent.folder)


def test_a_stop_that_the_engine_does_not_hear_ends_the_part_and_later_its_job(desk: Desk) -> None:
    desk.engine.holds = True
    intent = desk.part("exit 0")
    other = desk.part("exit 0")
    desk.turns()
    desk.engine.is_deaf = True
    desk.executor.stop(intent, 30.0, "CANCELLED")
    desk.turns()
    assert desk.looks(intent).exit == Exit(stopped=True, **told(clause("NeverStarted")))
    desk.engine.is_deaf = False
    desk.turns(10)
    assert desk.engine.killed == ["1"]
    assert desk.looks(other).exit is None


def test_what_a_controller_ends_before_it_began_is_submitted_again_and_not_for_ever(desk: Desk) -> None:
    desk.engine.holds = True
    intent = desk.part("exit 0")
    desk.turns()
    desk.again()
    desk.looks(intent)

    def end_all() -> None:
        desk.engine.table = [replace(job, state=ForeignState.ENDED) for job in desk.engine.table]

    end_all()
    desk.turns(2)
    assert len(desk.engine.submitted) == 2
    # Nothing was out since: whoever ended this one meant it.
    end_all()
    assert desk.ends(intent).cause == "LAUNCH_FAILED"
    assert len(desk.engine.submitted) == 2


def test_an_older_epoch_is_ended_before_a_newer_one_starts(desk: Desk) -> None:
    old = desk.part("sleep 300", epoch=1)
    desk.turns()
    deadline = time.monotonic() + 30
    while desk.looks(old).phase is not Phase.RUNNING:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    new = desk.part("exit 0", epoch=2, attempt_number=2)
    desk.turns()
    assert desk.engine.killed == ["1"]
    assert len(desk.engine.submitted) == 1 or desk.engine.jobs()[0].state is ForeignState.ENDED
    assert desk.ends(new).code == 0
    assert desk.ends(old).cause == "SUPERVISOR_LOST"


def test_a_job_that_nobody_waits_for_is_ended(desk: Desk) -> None:
    intent = desk.part("exit 0")
    desk.engine.table.append(ForeignJob("forgotten", 1, "f" * 12, "99", ForeignState.RUNNING))
    desk.ends(intent)
    desk.part("sleep 0.1")
    desk.turns(2)
    assert "99" in desk.engine.killed


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({"nodes": ["a", "b"]}, "several nodes"),
        ({"lease_s": 60.0}, "on_node_lost"),
        ({"image": "registry.local/a:1"}, "runs no containers"),
        ({"argv": []}, "no command"),
    ],
)
def test_what_the_engine_cannot_give_is_refused_in_a_sentence(desk: Desk, spec: dict[str, Any], said: str) -> None:
    wanted = order("refused", "true", **spec)
    intent = Intent("refused", "a", 1, procfs.boot_id(), str(desk.folder / "refused"))
    with pytest.raises(Unlaunchable, match=said):
        desk.executor.prepare(wanted, intent)


def test_a_part_that_was_never_prepared_to_its_end_is_an_orphan(desk: Desk) -> None:
    intent = Intent("half", "a", 1, procfs.boot_id(), str(desk.folder / "half"))
    Path(intent.folder).mkdir()
    assert desk.looks(intent).is_orphan
    assert desk.executor.reap(intent).cause == "SUPERVISOR_LOST"
    assert desk.engine.submitted == []


def test_no_secret_lies_in_an_order_and_its_file_is_gone_once_it_runs(desk: Desk) -> None:
    desk.engine.holds = True
    intent = desk.part("exit 0", env={"API_TOKEN": "canary-4711"}, secrets=["API_TOKEN"])
    with_it = [path.name for path in Path(intent.folder).iterdir() if path.is_file() and b"canary" in path.read_bytes()]
    assert with_it == ["secrets.json"]
    assert Path(intent.folder, "secrets.json").stat().st_mode & 0o077 == 0
    assert "API_TOKEN" not in ordered(intent.folder)["env"]
    subprocess.run([sys.executable, "-m", "agents.supervisor.foreign", intent.folder], cwd=ROOT, check=True)
    assert not Path(intent.folder, "secrets.json").exists()


# -- logs by offset, where no folder is shared


def test_streams_are_copied_by_offset_and_a_new_agent_reads_on(desk: Desk, tmp_path: Path) -> None:
    engine = replace(desk.engine, shares_folder=False, text={"out": b"a" * 300_000, "err": b""})
    job, told = ForeignJob("p", 1, "f", "1", ForeignState.RUNNING), foreign_order(tmp_path)
    LogCopy(str(tmp_path), 0, 1 << 20).turn(engine, job, told)
    assert (tmp_path / "0.out").stat().st_size > 0
    # Bytes that were written and not noted are written again, and once.
    with (tmp_path / "0.out").open("ab") as file:
        file.write(b"lost")
    engine.text["out"] += b"b" * 10
    copy = LogCopy(str(tmp_path), 0, 1 << 20)
    assert copy.finish(engine, job, told)
    assert (tmp_path / "0.out").read_bytes() == engine.text["out"]


def test_a_secret_across_two_pieces_is_masked_and_the_copy_is_bounded(desk: Desk, tmp_path: Path) -> None:
    (tmp_path / "secrets.json").write_text('{"env": {}, "mask": ["canary-4711"]}')
    engine = replace(desk.engine, shares_folder=False, text={"out": b"x canar"})
    job, told = ForeignJob("p", 1, "f", "1", ForeignState.RUNNING), foreign_order(tmp_path)
    LogCopy(str(tmp_path), 0, 12).turn(engine, job, told)
    engine.text["out"] += b"y-4711 and much more"
    assert LogCopy(str(tmp_path), 0, 12).finish(engine, job, told)
    assert (tmp_path / "0.out").read_bytes() == b"x *** and mu"
