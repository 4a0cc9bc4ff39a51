"""What becomes of a part, told by a real agent over a real wire: exits, stops, limits, families that will not go."""

from __future__ import annotations

import hashlib
import io
import json
import os
import signal
import sys
import tarfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from agents.protocol import DeviceClaim, Exit, Phase, Wanted
from agents.supervisor import procfs
from tests.agents.conftest import Hands
from tests.agents.yard import order, stop

Names = Callable[[], str]


def ran(hands: Hands, name: str, *argv: str, **spec: object) -> Exit:
    """Run a part to its end and answer how it ended."""
    hands.yard.want(hands.name, order(name, *argv, **spec))
    end = hands.yard.ended(hands.name, name).exit
    assert end is not None
    return end


def output(hands: Hands, name: str, stream: str = "out") -> str:
    """What the control plane holds of a stream, once all of it has arrived."""
    here = hands.yard.ended(hands.name, name)
    size = here.logs.get(f"0.{stream}", 0)
    hands.yard.wait(lambda: len(hands.yard.logs[(name, 0, stream)]) >= size)
    return hands.yard.logs[(name, 0, stream)].decode(errors="replace")


@pytest.mark.parametrize(
    ("script", "code", "number", "cause"),
    [
        ("exit 0", 0, None, ""),
        ("exit 3", 3, None, "EXIT_CODE"),
        ("exit 85", 85, None, "CHECKPOINTED"),
        ("exit 75", 75, None, "CHECKPOINTED"),
        ("kill -SEGV $$", None, signal.SIGSEGV, "SIGNAL"),
        ("kill -KILL $$", None, signal.SIGKILL, "SIGNAL"),
    ],
)
def test_an_end_is_told_as_it_was(
    shared: Hands, part: Names, script: str, code: int | None, number: int | None, cause: str
) -> None:
    end = ran(shared, part(), "sh", "-c", script)
    assert (end.code, end.signal, end.cause, end.stopped) == (code, number, cause, False)


def test_both_streams_arrive_whole_and_apart(shared: Hands, part: Names) -> None:
    name = part()
    script = "i=0; while [ $i -lt 20000 ]; do echo line-$i; echo word-$i >&2; i=$((i+1)); done"
    assert ran(shared, name, "sh", "-c", script).code == 0
    assert output(shared, name) == "".join(f"line-{number}\n" for number in range(20000))
    assert output(shared, name, "err") == "".join(f"word-{number}\n" for number in range(20000))


def test_an_unknown_command_is_refused_in_a_sentence(shared: Hands, part: Names) -> None:
    end = ran(shared, part(), "no-such-command-here")
    assert end.cause == "LAUNCH_FAILED"
    assert 'command "no-such-command-here" was not found; PATH is /' in end.detail


def test_a_file_that_is_no_program_is_refused_in_a_sentence(shared: Hands, part: Names, tmp_path: Path) -> None:
    text = tmp_path / "notes.txt"
    text.write_text("plain words")
    assert "may not be executed" in ran(shared, part(), str(text)).detail
    text.chmod(0o755)
    assert "neither a program nor a script" in ran(shared, part(), str(text)).detail


def test_a_name_that_leaves_the_run_folder_is_refused(shared: Hands) -> None:
    assert ran(shared, "../../outside", "true").cause == "LAUNCH_FAILED"
    assert not (shared.state.parent / "outside").exists()


def test_a_stop_is_told_by_file_and_signal_and_an_exit_0_is_a_stop(shared: Hands, part: Names) -> None:
    name = part()
    script = 'trap "cat $YARD_STOP_FILE; exit 0" TERM; echo ready; while :; do sleep 0.02; done'
    shared.yard.want(shared.name, order(name, "sh", "-c", script))
    shared.yard.wait(lambda: shared.yard.logs[(name, 0, "out")])
    shared.yard.want(shared.name, stop(name, 7.0, "PREEMPTED"))
    end = shared.yard.ended(shared.name, name).exit
    assert end is not None
    assert (end.code, end.cause, end.stopped) == (0, "", True)
    assert json.loads(output(shared, name).splitlines()[1]) == {"reason": "PREEMPTED", "deadline_s": 7.0, "save": False}


def test_a_command_that_ignores_sigterm_is_killed_after_its_grace(shared: Hands, part: Names) -> None:
    name = part()
    shared.yard.want(shared.name, order(name, "sh", "-c", 'trap "" TERM; echo ready; while :; do sleep 0.02; done'))
    shared.yard.wait(lambda: shared.yard.logs[(name, 0, "out")])
    shared.yard.want(shared.name, stop(name, 0.3))
    end = shared.yard.ended(shared.name, name).exit
    assert end is not None
    assert (end.signal, end.stopped) == (signal.SIGKILL, True)
    assert "had not ended within its grace after CANCELLED" in end.detail


def test_a_second_stop_shortens_the_grace(shared: Hands, part: Names) -> None:
    name = part()
    shared.yard.want(shared.name, order(name, "sh", "-c", 'trap "" TERM; echo ready; while :; do sleep 0.02; done'))
    shared.yard.wait(lambda: shared.yard.logs[(name, 0, "out")])
    shared.yard.want(shared.name, stop(name, 600.0))
    shared.yard.phase(shared.name, name, Phase.STOPPING)
    shared.yard.want(shared.name, stop(name, 0.0))
    assert shared.yard.ended(shared.name, name).exit


def test_a_stop_for_a_part_that_never_started_ends_it_for_good(shared: Hands, part: Names) -> None:
    name = part()
    shared.yard.want(shared.name, stop(name))
    end = shared.yard.ended(shared.name, name).exit
    assert end == Exit(stopped=True, detail="stopped before it started", said=[("NeverStarted", {})])
    late = Wanted(f"{name}-other", "a", 1, "stop")
    del shared.yard.side(shared.name).ended[name]
    shared.yard.want(shared.name, order(name, "sh", "-c", "echo ran"), late)
    again = shared.yard.ended(shared.name, name)
    assert again.exit == end
    assert shared.yard.logs[(name, 0, "out")] == b""


def test_a_stop_on_the_heels_of_a_start_leaves_nothing(shared: Hands, part: Names) -> None:
    names = [part() for _ in range(12)]
    for name in names:
        shared.yard.want(shared.name, order(name, "sleep", "300"))
        shared.yard.want(shared.name, stop(name, 1.0))
    for name in names:
        end = shared.yard.ended(shared.name, name).exit
        assert end is not None
        assert end.stopped
        assert procfs.marked(name) == []


FAMILY = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
for level in range(3):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            for name in list(os.environ):
                del os.environ[name]
            os.execve("/bin/sh", ["sh", "-c", "trap '' TERM HUP; echo up; while :; do sleep 1; done"], {})
        os._exit(0)
while not os.path.exists("may-end"):
    time.sleep(0.02)
"""


@pytest.mark.parametrize("stopped", [False, True])
def test_daemons_that_left_session_and_environment_end_with_their_part(
    shared: Hands, part: Names, stopped: bool
) -> None:
    name = part()
    shared.yard.want(shared.name, order(name, sys.executable, "-c", FAMILY))
    shared.yard.wait(lambda: shared.yard.logs[(name, 0, "out")].count(b"up") == 3)
    family = procfs.descendants(shared.shim_of(name)["pid"])
    births = {pid: procfs.start_time(pid) for pid in family}
    assert len(births) >= 3
    if stopped:
        shared.yard.want(shared.name, stop(name, 0.2))
    else:
        (shared.state / "parts" / name / "work" / "may-end").touch()
    assert shared.yard.ended(shared.name, name).exit
    assert [pid for pid, born in births.items() if born is not None and procfs.is_alive(pid, born)] == []


def test_a_fork_bomb_of_short_lives_is_outrun(shared: Hands, part: Names) -> None:
    name = part()
    script = "import os, time\nprint('up', flush=True)\nwhile True:\n    if os.fork(): time.sleep(0.005); os._exit(0)"
    parent = f"import subprocess, sys, time\nsubprocess.Popen([sys.executable, '-c', {script!r}])\ntime.sleep(300)"
    shared.yard.want(shared.name, order(name, sys.executable, "-c", parent))
    shared.yard.wait(lambda: shared.yard.logs[(name, 0, "out")])
    shared.yard.want(shared.name, stop(name, 0.0))
    assert shared.yard.ended(shared.name, name).exit
    assert procfs.marked(name) == []


def test_the_time_limit_ends_a_part(shared: Hands, part: Names) -> None:
    end = ran(shared, part(), "sleep", "300", time_limit_s=0.3, grace_s=1.0)
    assert (end.cause, end.signal) == ("TIMEOUT", signal.SIGTERM)
    assert end.detail == "ran into its limit of 0.3 s"


def test_a_part_whose_time_is_up_is_asked_to_save(shared: Hands, part: Names) -> None:
    name = part()
    script = 'trap "cat $YARD_STOP_FILE; exit 0" TERM; while :; do sleep 0.02; done'
    ran(shared, name, "sh", "-c", script, time_limit_s=0.3, grace_s=5.0)
    assert json.loads(output(shared, name)) == {"reason": "TIMEOUT", "deadline_s": 5.0, "save": True}


def test_more_memory_than_asked_for_ends_a_part(shared: Hands, part: Names) -> None:
    script = "import time\nheld = bytearray(b'x' * (200 << 20))\ntime.sleep(300)"
    end = ran(shared, part(), sys.executable, "-c", script, memory_bytes=64 << 20)
    assert end.cause == "OUT_OF_MEMORY"
    assert "it asked for 64 MiB" in end.detail
    assert end.peak_memory_bytes > 64 << 20


def test_a_whole_device_is_handed_over_only_when_its_last_part_is_gone(shared: Hands, part: Names) -> None:
    gpu = DeviceClaim(f"GPU-{part()}", "gpu", "nvidia", "H100", 0, 1000, 1 << 30, simulated=True)
    first, second = part(), part()
    shared.yard.want(shared.name, order(first, "sleep", "300", devices=[gpu]))
    shared.yard.phase(shared.name, first, Phase.RUNNING)
    shared.yard.want(shared.name, order(second, "sh", "-c", "exit 0", devices=[gpu]))
    held = shared.yard.phase(shared.name, second, Phase.ASSIGNED)
    assert held.substate == f"waits for device {gpu.uuid}, which part {first} still holds"
    shared.yard.want(shared.name, stop(first, 1.0))
    gone = shared.yard.ended(shared.name, first)
    here = shared.yard.ended(shared.name, second)
    assert here.exit is not None
    assert here.exit.code == 0
    assert gone.pid is not None


def test_progress_and_checkpoints_travel(shared: Hands, part: Names) -> None:
    name = part()
    words = [
        {"report": {"step": 1, "total": 10, "values": {"loss": 2.5, "note": "warm", "bad": float("nan")}}},
        *({"checkpoint": {"step": step, "path": f"/ckpt/{step}"}} for step in range(5)),
        {"phase": {"name": "update", "critical": False}},
        {"report": {"step": 9, "total": 10, "values": {"loss": 0.5}}},
    ]
    lines = "\n".join(json.dumps(word) for word in words) + "\nnot json\n[1]\n"
    ran(shared, name, "sh", "-c", 'printf "%s" "$LINES_TO_TELL" >> "$YARD_REPORT_FILE"', env={"LINES_TO_TELL": lines})
    here = shared.yard.ended(shared.name, name)
    assert here.progress is not None
    assert (here.progress.step, here.progress.total, here.progress.phase) == (9, 10, "update")
    assert here.progress.values == {"loss": 0.5, "note": "warm"}
    assert [(checkpoint.step, checkpoint.path) for checkpoint in here.checkpoints] == [
        (2, "/ckpt/2"),
        (3, "/ckpt/3"),
        (4, "/ckpt/4"),
    ]


def test_a_critical_phase_stretches_the_grace(shared: Hands, part: Names) -> None:
    name = part()
    script = (
        'trap "" TERM; echo \'{"phase": {"name": "save", "critical": true}}\' >> "$YARD_REPORT_FILE"; echo ready; '
        'while [ ! -e "$YARD_STOP_FILE" ]; do sleep 0.02; done; sleep 1; echo saved; '
        'echo \'{"phase": {"name": "", "critical": false}}\' >> "$YARD_REPORT_FILE"; exit 85'
    )
    shared.yard.want(shared.name, order(name, "sh", "-c", script))
    shared.yard.wait(lambda: shared.yard.logs[(name, 0, "out")])
    shared.yard.want(shared.name, stop(name, 0.6, "PREEMPTED"))
    end = shared.yard.ended(shared.name, name).exit
    assert end is not None
    assert (end.code, end.cause) == (85, "CHECKPOINTED")
    assert output(shared, name).endswith("saved\n")


TRAINER = """
import os, sys, time
from switchyard import runtime
runtime.install_signal()
step = 0
while True:
    step += 1
    time.sleep(0.01)
    if runtime.save_due():
        with runtime.saving(step, os.path.join(runtime.checkpoint_dir(), f"step-{step}")) as path:
            open(path, "w").write("weights")
    if runtime.should_stop():
        sys.exit(runtime.EXIT_CHECKPOINTED)
    if step == 1:
        print("ready", flush=True)
"""


@pytest.mark.parametrize("save", [True, False])
def test_a_stage_saves_at_its_next_step_where_its_stop_asks_for_it(shared: Hands, part: Names, save: bool) -> None:
    name = part()
    shared.yard.want(shared.name, order(name, sys.executable, "-c", TRAINER))
    shared.yard.wait(lambda: shared.yard.logs[(name, 0, "out")])
    shared.yard.want(shared.name, stop(name, 30.0, "PREEMPTED", save=save))
    here = shared.yard.ended(shared.name, name)
    assert here.exit is not None
    assert (here.exit.code, here.exit.cause, here.exit.stopped) == (85, "CHECKPOINTED", True), here
    kept = [each for each in here.checkpoints if each.took_s is not None]
    assert len(kept) == save
    assert all(Path(each.path).read_text() == "weights" for each in kept)


def test_a_stage_that_does_not_answer_a_wish_to_save_is_stopped_at_the_deadline(shared: Hands, part: Names) -> None:
    name = part()
    script = 'trap "" TERM; echo ready; while :; do sleep 0.02; done'
    shared.yard.want(shared.name, order(name, "sh", "-c", script))
    shared.yard.wait(lambda: shared.yard.logs[(name, 0, "out")])
    shared.yard.want(shared.name, stop(name, 0.3, "PREEMPTED", save=True))
    here = shared.yard.ended(shared.name, name)
    assert here.exit is not None
    assert (here.exit.signal, here.exit.stopped) == (9, True)
    assert here.checkpoints == []


def test_a_bundle_is_unpacked_where_the_command_runs(shared: Hands, part: Names) -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        script = b"#!/bin/sh\npwd; cat inner/words\n"
        for path, content, mode in (("run.sh", script, 0o755), ("inner/words", b"of the bundle\n", 0o644)):
            member = tarfile.TarInfo(path)
            member.size, member.mode = len(content), mode
            archive.addfile(member, io.BytesIO(content))
    digest = shared.yard.bundle(packed.getvalue())
    for _ in range(2):
        name = part()
        assert ran(shared, name, "./run.sh", bundle=digest).code == 0
        assert output(shared, name) == f"{shared.state}/parts/{name}/work\nof the bundle\n"


@pytest.mark.parametrize("trick", ["../outside", "/tmp/outside", "link"])
def test_a_bundle_cannot_leave_its_folder(shared: Hands, part: Names, trick: str) -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        member = tarfile.TarInfo(trick)
        if trick == "link":
            member.type, member.linkname = tarfile.SYMTYPE, "../../../../etc"
        archive.addfile(member)
    end = ran(shared, part(), "true", bundle=shared.yard.bundle(packed.getvalue()))
    assert end.cause == "LAUNCH_FAILED" or trick == "/tmp/outside"
    assert not Path("/tmp/outside").exists()


def test_a_missing_bundle_is_named(shared: Hands, part: Names) -> None:
    digest = hashlib.sha256(b"never uploaded").hexdigest()
    end = ran(shared, part(), "true", bundle=digest)
    assert end.cause == "LAUNCH_FAILED"
    assert f"bundle {digest[:12]} could not be fetched" in end.detail


def test_a_signal_is_delivered_once(shared: Hands, part: Names) -> None:
    name = part()
    script = 'trap "echo poked" USR1; trap "exit 0" TERM; echo ready; while :; do sleep 0.02; done'
    shared.yard.want(shared.name, order(name, "sh", "-c", script))
    shared.yard.wait(lambda: b"ready" in shared.yard.logs[(name, 0, "out")])
    poke = Wanted(name, f"attempt-of-{name}", 1, "run", signal="SIGUSR1", signal_rev=1)
    shared.yard.want(shared.name, poke)
    shared.yard.wait(lambda: b"poked" in shared.yard.logs[(name, 0, "out")])
    for _ in range(3):
        shared.yard.want(shared.name, poke)
    shared.yard.want(shared.name, stop(name))
    shared.yard.ended(shared.name, name)
    assert output(shared, name).count("poked") == 1


def test_a_stage_is_asked_to_save_and_goes_on(shared: Hands, part: Names) -> None:
    name = part()
    script = (
        'trap "exit 0" TERM; echo ready; while [ ! -e "$YARD_SAVE_FILE" ]; do sleep 0.02; done; '
        'cat "$YARD_SAVE_FILE"; test -e "$YARD_STOP_FILE" || echo "goes on"; while :; do sleep 0.02; done'
    )
    shared.yard.want(shared.name, order(name, "sh", "-c", script))
    shared.yard.wait(lambda: b"ready" in shared.yard.logs[(name, 0, "out")])
    shared.yard.want(shared.name, Wanted(name, f"attempt-of-{name}", 1, "run", save_rev=7))
    shared.yard.wait(lambda: b"goes on" in shared.yard.logs[(name, 0, "out")])
    shared.yard.want(shared.name, stop(name))
    shared.yard.ended(shared.name, name)
    assert '{"rev":7}' in output(shared, name).replace(" ", "")


@pytest.mark.skipif(os.geteuid() != 0, reason="changing users needs root (run the tests as root)")
def test_a_root_agent_drops_to_another_user_for_good(root_agent: Hands, part: Names) -> None:
    hands, name = root_agent, part()
    script = 'id -u; id -G; touch made && echo "$(stat -c %u made)"; grep NoNewPrivs /proc/self/status | cut -f2'
    assert ran(hands, name, "sh", "-c", script).code == 0
    assert output(hands, name).split() == ["65534", "65534", "65534", "1"]
    missing = ran(hands, part(), "no-such-command-here")
    assert "was not found; PATH is" in missing.detail
    thief = part()
    files = " ".join(f"{hands.state}/{file}" for file in ("node.json", "journal.jsonl", f"parts/{thief}/taken"))
    ran(hands, thief, "sh", "-c", f"cat {files}; ls {hands.state}/parts; kill -9 $PPID || echo refused")
    assert output(hands, thief) == "refused\n"


def test_the_environment_tells_the_truth_and_hides_the_agent(hands: Hands, part: Names) -> None:
    hands.environment["SECRET_OF_THE_AGENT"] = "hidden"
    hands.start()
    name = part()
    claim = DeviceClaim("GPU-x", "gpu", "nvidia", "H100", 0, 1000, 1 << 30)
    ran(
        hands,
        name,
        "env",
        env={"MINE": "kept", "YARD_JOB_ID": "forged", "CUDA_VISIBLE_DEVICES": "all", "OMP_NUM_THREADS": "3"},
        devices=[claim],
        nodes=["one", "two"],
        rank=0,
    )
    told = output(hands, name)
    seen = dict(line.split("=", 1) for line in told.splitlines() if "=" in line)
    assert "hidden" not in told
    assert (seen["MINE"], seen["OMP_NUM_THREADS"]) == ("kept", "3")
    assert (seen["YARD_JOB_ID"], seen["CUDA_VISIBLE_DEVICES"], seen["YARD_DEVICE_KIND"]) == ("7", "GPU-x", "gpu")
    assert (seen["NNODES"], seen["PET_NPROC_PER_NODE"], seen["YARD_NNODES"]) == ("2", "1", "2")
    assert "one\ntwo" in told


def test_a_job_imports_the_runtime_without_installing_it(shared: Hands, part: Names) -> None:
    name = part()
    script = "from switchyard import runtime; runtime.report(step=3, total=4, loss=0.25)"
    assert ran(shared, name, sys.executable, "-I", "-c", "pass").code == 0
    end = ran(shared, part(), sys.executable, "-c", script)
    assert (end.code, end.detail) == (0, "")


def test_a_lease_that_ran_out_ends_its_part_and_no_other(hands: Hands, part: Names) -> None:
    hands.start()
    leased, patient = part(), part()
    hands.yard.want(hands.name, order(leased, "sleep", "300", lease_s=1.5, grace_s=1.0), order(patient, "sleep", "300"))
    for name in (leased, patient):
        hands.yard.phase(hands.name, name, Phase.RUNNING)
    hands.end(signal.SIGKILL)
    shim = hands.shim_of(leased)
    deadline = time.monotonic() + 60
    while procfs.is_alive(shim["pid"], shim["born"]) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert procfs.marked(leased) == []
    assert procfs.marked(patient) != []
    hands.start()
    end = hands.yard.ended(hands.name, leased).exit
    assert end is not None
    assert end.cause == "LEASE_EXPIRED"
