"""A batch script runs once, on the first node, and srun in it starts one process for each task on every node."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from switchyard import step
from switchyard.slurm.sbatch import convert

FILE = Path(step.__file__)


@pytest.fixture
def port() -> int:
    """A port such that the one at which the first node listens is free."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1]) + step.PORTS_BELOW


@pytest.fixture(autouse=True)
def started() -> Iterator[list[subprocess.Popen[str]]]:
    """What a test has started; nothing of it is left behind."""
    yield STARTED
    while STARTED:
        made = STARTED.pop()
        if made.poll() is None:
            made.kill()
            made.wait()
        for pipe in (made.stdout, made.stderr):
            if pipe:
                pipe.close()


STARTED: list[subprocess.Popen[str]] = []


def start(folder: Path, script: str, *options: str, rank: int = 0, nodes=("node1",), port: int = 0, **more: str):
    own = folder / f"rank{rank}"
    (own / "tmp").mkdir(parents=True)
    (own / "work").mkdir()
    environ = {
        "PATH": os.environ["PATH"], "YARD_JOB_ID": "17", "YARD_NODE_RANK": str(rank), "YARD_NODES": "\n".join(nodes),
        "YARD_TMPDIR": str(own / "tmp"), "YARD_ATTEMPT": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
        "WHERE": nodes[rank], **more,
    }  # fmt: skip
    words = [sys.executable, "-I", str(FILE), "batch", *options, "--", "first", "second"]
    pipe = subprocess.PIPE
    made = subprocess.Popen(words, cwd=own / "work", env=environ, text=True, stdin=pipe, stdout=pipe, stderr=pipe)
    STARTED.append(made)
    assert made.stdin
    made.stdin.write("#!/bin/sh\n" + script)
    made.stdin.close()
    made.stdin = None
    return made


def ran(made: subprocess.Popen[str]) -> tuple[int, list[str], str]:
    out, err = made.communicate(timeout=60)
    return made.returncode, out.splitlines(), err


def test_a_script_has_its_arguments_its_variables_and_its_code(tmp_path):
    said = "echo $0 $1 $2 $SLURM_JOB_ID $SLURM_JOB_NODELIST $SLURM_NNODES ${SLURM_PROCID-none} ${SLURM_NTASKS-none}"
    code, out, _ = ran(start(tmp_path, f"{said}; scontrol show hostnames; exit 7"))
    assert code == 7
    assert out[0].split()[1:] == ["first", "second", "17", "node1", "1", "none", "none"]
    assert out[1] == "node1"


def test_srun_starts_each_task_and_gives_the_highest_code(tmp_path):
    script = """
srun sh -c 'echo $SLURM_PROCID/$SLURM_NTASKS $SLURM_LOCALID $SLURM_STEP_ID'
srun -n 3 -l sh -c 'echo hello; exit $SLURM_PROCID'
echo code $?
"""
    code, out, err = ran(start(tmp_path, script, SLURM_NTASKS="4"))
    assert code == 0
    assert sorted(out[:4]) == ["0/4 0 0", "1/4 1 0", "2/4 2 0", "3/4 3 0"]
    assert sorted(out[4:7]) == ["0: hello", "1: hello", "2: hello"]
    assert out[7] == "code 2"
    assert "task 2: Exited with exit code 2" in err


def test_a_task_that_is_killed_and_one_that_cannot_start_have_slurms_codes(tmp_path):
    script = "srun sh -c 'kill -9 $$'; echo $?; srun ./nothing; echo $?; srun --nope x; echo $?; srun --pty sh; echo $?"
    _, out, err = ran(start(tmp_path, script))
    assert out == ["137", "127", "1", "1"]
    assert "task 0: Killed" in err
    assert "unrecognized option '--nope'" in err


def test_a_signal_reaches_every_task_and_the_script_waits_for_them(tmp_path):
    script = """
trap 'echo script' TERM
srun -n 2 sh -c 'trap "echo saved; exit 3" TERM; echo ready; while :; do sleep 0.05; done'
echo code $?
"""
    made = start(tmp_path, script)
    assert made.stdout
    assert [made.stdout.readline() for _ in range(2)] == ["ready\n"] * 2
    made.send_signal(signal.SIGTERM)
    code, out, _ = ran(made)
    assert sorted(out) == ["code 3", "saved", "saved", "script"]
    assert code == 0


def test_a_script_that_a_signal_ends_ends_so_but_after_its_tasks(tmp_path):
    made = start(tmp_path, "srun sh -c 'trap \"echo saved; exit\" TERM; echo ready; while :; do sleep 0.05; done'")
    assert made.stdout
    assert made.stdout.readline() == "ready\n"
    made.send_signal(signal.SIGTERM)
    code, out, _ = ran(made)
    assert (code, out) == (-signal.SIGTERM, ["saved"])


def test_the_signal_before_the_time_limit_is_for_the_tasks_or_for_the_script_alone(tmp_path, monkeypatch):
    monkeypatch.setenv("YARD_TIME_LIMIT_S", "60")
    script = """
trap 'echo script' USR1
echo $$
srun -n 2 sh -c 'trap "echo task; exit" USR1; echo ready; while :; do sleep 0.05; done'
"""
    made = start(tmp_path, script)
    assert made.stdout
    said = [made.stdout.readline() for _ in range(3)]
    assert said[1:] == ["ready\n"] * 2
    for word in ("B:USR1@60", "USR1@60"):
        # The limit is as near as the signal is to come before it.
        timer = step._early(word, SimpleNamespace(pid=int(said[0])))
        assert timer
        timer.join()
    assert sorted(ran(made)[1]) == ["script", "task", "task"]
    monkeypatch.delenv("YARD_TIME_LIMIT_S")
    assert step._early("USR1@60", SimpleNamespace(pid=1)) is None


def test_what_is_printed_is_copied_to_the_files_that_the_script_names(tmp_path):
    made = start(tmp_path, "echo out; echo err >&2", "--output", f"{tmp_path}/%x-%j.%N.out", YARD_JOB_NAME="name")
    code, out, err = ran(made)
    assert (code, out, err) == (0, ["out"], "err\n")
    assert sorted((tmp_path / "name-17.node1.out").read_text().splitlines()) == ["err", "out"]


def test_a_task_sees_its_own_devices(tmp_path):
    script = "srun -n 2 --gpus-per-task=2 sh -c 'echo $CUDA_VISIBLE_DEVICES'"
    assert sorted(ran(start(tmp_path, script, CUDA_VISIBLE_DEVICES="a,b,c,d"))[1]) == ["a,b", "c,d"]


def test_what_a_converted_script_runs_finds_the_file_of_the_agent(tmp_path):
    (tmp_path / "given" / "switchyard").mkdir(parents=True)
    (tmp_path / "given" / "switchyard" / "step.py").write_text(FILE.read_text())
    head = f"#!/bin/bash\n#SBATCH -n 2 -o {tmp_path}/copy.txt\n"
    text = head + """srun echo 'a  b' "$1" $'c'\n"""
    spec = convert(text, arguments=["it's"]).spec
    environ = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": f"/mine:{tmp_path}/given",
        "YARD_NODES": "node1",
        **spec["env"],
    }
    environ["YARD_TMPDIR"] = str(tmp_path)
    made = subprocess.run(["/bin/sh", "-c", spec["run"]], env=environ, capture_output=True, text=True, cwd=tmp_path)
    assert (made.returncode, made.stdout, made.stderr) == (0, "a  b it's c\n" * 2, "")
    assert (tmp_path / "copy.txt").read_text() == made.stdout
    old = subprocess.run(
        ["/bin/sh", "-c", spec["run"]], env={**environ, "PYTHONPATH": "/mine"}, capture_output=True, text=True
    )
    assert (old.returncode, "agent is too old" in old.stderr) == (1, True)


def test_salloc_enters_with_the_variables_of_the_script_and_srun(tmp_path):
    holds = start(tmp_path, "trap 'exit 0' TERM; echo ready; while :; do sleep 0.05; done", SLURM_NTASKS="2")
    environ = {"PATH": os.environ["PATH"], "YARD_TMPDIR": str(tmp_path / "rank0" / "tmp")}
    words = [sys.executable, "-I", str(FILE), "enter", "srun", "sh", "-c", "echo $SLURM_JOB_ID $SLURM_PROCID; exit 3"]
    inside = subprocess.run(words, env=environ, capture_output=True, text=True, cwd=tmp_path, timeout=60)
    assert (inside.returncode, sorted(inside.stdout.splitlines())) == (3, ["17 0", "17 1"])
    holds.send_signal(signal.SIGTERM)
    assert ran(holds)[0] == 0


# -------------------------------------------------------------------------------------------------------- several nodes

NODES = ("node1", "node2", "node3")


def gang(folder: Path, port: int, script: str, **more: str) -> list[subprocess.Popen[str]]:
    given = {step.KEY: "0" * 64, **more}
    return [start(folder, script, rank=rank, nodes=NODES, port=port, **given) for rank in range(3)]


def test_tasks_are_on_every_node_and_the_script_on_the_first_alone(tmp_path, port):
    script = """
echo script $SLURM_JOB_NODELIST $SLURM_TASKS_PER_NODE
export CHANGED=yes; unset GONE; cd sub 2>/dev/null
srun sh -c 'echo $SLURM_PROCID $SLURM_NODEID $SLURM_LOCALID $WHERE $CHANGED ${GONE-gone} ${SLURM_STEP_KEY-unknown}'
srun -N 2 -n 2 sh -c 'echo $SLURM_STEP_NODELIST; exit $((SLURM_NODEID * 9))'
echo code $?
srun -w node3 sh -c 'echo $WHERE $SLURM_PROCID'
"""
    first, *others = gang(tmp_path, port, script, SLURM_NTASKS="5", SLURM_NTASKS_PER_NODE="2", GONE="there")
    code, out, err = ran(first)
    assert code == 0
    assert out[0] == "script node[1-3] 2(x2),1"
    assert sorted(out[1:6]) == [
        "0 0 0 node1 yes gone unknown",
        "1 0 1 node1 yes gone unknown",
        "2 1 0 node2 yes gone unknown",
        "3 1 1 node2 yes gone unknown",
        "4 2 0 node3 yes gone unknown",
    ]
    assert out[6:9] == ["node[1-2]", "node[1-2]", "code 9"]
    assert sorted(out[9:]) == ["node3 0", "node3 1"]
    assert "node2: task 1: Exited with exit code 9" in err
    assert [ran(other)[:2] for other in others] == [(0, []), (0, [])]


def test_a_stop_reaches_tasks_on_every_node_once(tmp_path, port):
    script = "srun -n 3 sh -c 'trap \"echo asked; exit\" TERM; echo ready; while :; do sleep 0.05; done'"
    made = gang(tmp_path, port, script)
    assert made[0].stdout
    assert [made[0].stdout.readline() for _ in range(3)] == ["ready\n"] * 3
    for each in made:
        each.send_signal(signal.SIGTERM)
    code, out, _ = ran(made[0])
    assert (code, out) == (-signal.SIGTERM, ["asked"] * 3)
    assert [ran(other)[0] for other in made[1:]] == [0, 0]


def test_nobody_without_the_secret_gives_orders(tmp_path, port):
    first, other, third = gang(tmp_path, port, "srun -w node2 sh -c 'echo ready; sleep 60'")
    assert first.stdout
    assert first.stdout.readline() == "ready\n"
    known = step.json.loads((tmp_path / "rank0" / "tmp" / "slurm" / "nodes.json").read_text())
    with socket.create_connection(tuple(known["stations"]["1"])) as line:
        with pytest.raises(step.BrokenLink):
            step.greet(line, b"another key", is_listener=False)
    first.kill()
    # Without the first node nobody is served any more.
    assert [ran(each)[0] for each in (first, other, third)] == [-signal.SIGKILL, 1, 1]


def test_a_message_that_was_changed_is_refused():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        sender, receiver = step.Link(ours, b"k", b"k"), step.Link(theirs, b"k", b"k")
        sender.send("order", b"content", ranks=[1])
        assert receiver.receive() == ({"kind": "order", "ranks": [1]}, b"content")
        sender._sends = b"another"
        sender.send("order")
        with pytest.raises(step.BrokenLink, match="not from this job"):
            receiver.receive()


def test_a_script_and_a_task_have_the_variables_that_slurm_gives(tmp_path):
    """Compared with what the real Slurm gave to a script that asks for tasks, and to a task of its srun."""
    real = json.loads((Path(__file__).parent / "slurm_fixtures" / "slurm.json").read_text())["variables"]
    given = {"SLURM_NTASKS": "2", "SLURM_CPUS_PER_TASK": "1", "SLURM_JOB_PARTITION": "p", "SLURM_MEM_PER_CPU": "1"}
    script = "env | grep ^SLURM; echo; srun -n 2 sh -c 'test $SLURM_PROCID = 1 || exit 0; env | grep ^SLURM'"
    _, out, _ = ran(start(tmp_path, script, **given))
    ours = [{line.partition("=")[0] for line in part.split("\n")} for part in "\n".join(out).split("\n\n")]
    # Which rank a process has is said to tasks alone: frameworks take it for a sign that srun has started them.
    ranks = {"SLURM_PROCID", "SLURM_LOCALID", "SLURM_GTIDS", "SLURM_TASK_PID"}
    own = {
        "SLURM_CONF", "SLURM_CPUS_ON_NODE", "SLURM_JOB_CPUS_PER_NODE", "SLURM_JOB_GID", "SLURM_JOB_QOS",
        "SLURM_JOB_UID",
        "SLURM_NODE_ALIASES", "SLURM_PRIO_PROCESS", "SLURM_SUBMIT_HOST", "SLURM_TOPOLOGY_ADDR", "SLURM_UMASK",
        "SLURM_TOPOLOGY_ADDR_PATTERN", "SLURM_WORKING_CLUSTER", "SLURM_DISTRIBUTION", "SLURM_LAUNCH_NODE_IPADDR",
        "SLURM_JOB_CPUS_PER_NODE_PACK_GROUP_0", "SLURM_SRUN_COMM_HOST", "SLURM_SRUN_COMM_PORT",
        "SLURM_STEP_LAUNCHER_PORT", "SLURM_TASK_PID",
    }  # fmt: skip
    assert set(real["batch"]) - own - ranks <= ours[0]
    assert set(real["task"]) - own <= ours[1]
    assert ours[0] - set(real["batch"]) == {"SLURM_RESTART_COUNT"}
    assert not ranks & ours[0]
