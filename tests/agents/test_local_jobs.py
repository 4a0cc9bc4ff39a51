"""Jobs that are submitted on a node while it is cut off, with a real agent and the real command."""

from __future__ import annotations

import base64
import json
import os
import pwd
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agents.protocol import DeviceClaim, Phase, Timers, local_ids
from switchyard import node_socket
from switchyard.problem import ApiProblem, NotFound, Unreachable
from tests.agents.conftest import ROOT, Hands
from tests.agents.yard import Side, Yard, order, yard

ME = pwd.getpwuid(os.geteuid()).pw_name
ALLOW = f"""
[[allow]]
account = "{ME}"
project = "lab"
cpus = 0.5
hours = 2
running = 2
waiting = 3
"""


def as_account(uid: int, path: str, request: dict[str, Any]) -> bytes:
    """Ask as another account: a child of this process, which the kernel names by its own uid."""
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setgid(uid)
            os.setuid(uid)
            link = socket.socket(socket.AF_UNIX)
            link.connect(path)
            link.sendall(json.dumps(request).encode() + b"\n")
            os.write(writes, link.recv(4_096))
        finally:
            os._exit(0)
    os.close(writes)
    with os.fdopen(reads, "rb") as answer:
        said = answer.read()
    os.waitpid(child, 0)
    return said


class Box(Hands):
    """An agent that takes jobs on its own node."""

    @property
    def socket(self) -> str:
        return str(self.state / "edge.sock")

    def ask(self, do: str, **fields: Any) -> Any:
        return node_socket.ask(self.socket, do, **fields)

    def submit(self, run: str, job: str = "", **spec: Any) -> str:
        job = job or node_socket.uuid7()
        told = self.ask("submit", id=job, job={"name": "weld", "run": run, "cpus": 0.1, "memory": "64MiB", **spec})
        assert told["id"] == job
        return job

    def until(self, job: str, *states: str) -> dict[str, Any]:
        found: dict[str, Any] = self.yard.wait(
            lambda: next((one for one in [self.ask("show", id=job)] if one["state"] in states), None)
        )
        return found

    def silence(self) -> None:
        """Cut the node off, and wait until it knows that."""
        self.yard.is_deaf = True

        self.yard.wait(lambda: not self.is_refused())

    def is_refused(self) -> bool:
        """Whether jobs go to the control plane now."""
        try:
            self.submit("true")
        except ApiProblem as refused:
            return "in contact" in str(refused)
        return False


@pytest.fixture
def model() -> Iterator[Yard]:
    with yard(timers=Timers(report_s=0.3, telemetry_s=0.5, suspect_s=1.0)) as made:
        yield made


@pytest.fixture
def box(model: Yard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Box]:
    made = Box(model, tmp_path, "box")
    made.state.mkdir()
    (tmp_path / "edge.toml").write_text(ALLOW)
    made.start("--edge", str(tmp_path / "edge.toml"))
    yield made
    model.is_deaf = False
    made.clear()


def test_a_job_runs_while_the_node_is_cut_off_and_is_in_the_record_once_it_is_not(box: Box, tmp_path: Path) -> None:
    box.yard.wait(box.is_refused)
    box.silence()
    file = tmp_path / "job.yaml"
    file.write_text("name: weld\nrun: echo hot; echo $YARD_LOCAL_JOB >&2\ncpus: 0.1\nmemory: 64MiB\n")
    command = [sys.executable, "-m", "switchyard", "edge"]
    environment = {**os.environ, "YARD_EDGE_SOCKET": box.socket}

    def yard_edge(*words: str) -> str:
        done = subprocess.run([*command, *words], cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
        return done.stdout

    job = yard_edge("submit", str(file), "-o", "name").strip()
    assert box.until(job, "COMPLETED")["number"] is None
    assert yard_edge("logs", job) == "hot\n"
    assert yard_edge("logs", job, "--stderr") == f"{job}\n"
    assert json.loads(yard_edge("list", "--json"))[0]["id"] == job
    assert "not in the record yet" in yard_edge("show", job)
    part = local_ids(job).part
    assert not box.yard.logs
    box.yard.is_deaf = False
    side = box.sides[0]
    box.yard.wait(lambda: job in side.local)
    assert _code(side, job) == 0
    box.yard.wait(lambda: box.yard.logs[part, 0, "out"] == b"hot\n")
    box.yard.wait(lambda: part not in side.here)
    assert box.ask("show", id=job)["number"] == 100 + list(side.local).index(job)
    with pytest.raises(ApiProblem, match=r"with the control plane by now: yard logs 10"):
        box.ask("logs", id=job)


def test_a_kill_at_any_moment_loses_and_doubles_nothing(box: Box, tmp_path: Path) -> None:
    box.silence()
    ran = tmp_path / "ran"
    ran.mkdir()
    jobs = []
    for turn in range(3):
        jobs.append(box.submit(f"mktemp {ran}/{turn}.XXXX; sleep 0.{turn}"))
        box.end(signal.SIGKILL)
        box.launch()
        box.yard.wait(lambda: _answers(box))
    again = node_socket.uuid7()
    assert box.submit("true", again) == box.submit("true", again), "the same submission is the same job"
    for job in (*jobs, again):
        box.until(job, "COMPLETED", "FAILED")
    box.yard.is_deaf = False
    side = box.sides[0]
    box.yard.wait(lambda: {*jobs, again} <= side.local.keys())
    names = sorted(path.name[0] for path in ran.iterdir())
    assert names == sorted(set(names)), "nothing ran twice"
    ended = {turn for turn, job in enumerate(jobs) if side.local[job].exit.cause == ""}  # type: ignore[union-attr]
    assert {int(name) for name in names} >= ended, "what is said to have run did"


def _code(side: Side, job: str) -> int | None:
    end = side.local[job].exit
    assert end is not None
    return end.code


def _answers(box: Box) -> bool:
    try:
        box.ask("list")
    except Unreachable:
        return False
    return True


def test_what_the_record_lost_in_a_restore_is_told_once_more(box: Box) -> None:
    box.silence()
    job = box.submit("exit 3")
    box.until(job, "FAILED")
    box.yard.is_deaf = False
    side = box.sides[0]
    box.yard.wait(lambda: job in side.local and local_ids(job).part not in side.here)
    with box.yard.lock:
        side.local.clear()
    box.end()
    box.start()
    box.yard.wait(lambda: job in side.local)
    assert _code(side, job) == 3
    assert [claim.milli for claim in side.local[job].claims] == [100]


def test_it_takes_only_what_nobody_holds(box: Box) -> None:
    side = box.sides[0]
    cores = sum(one.capacity_milli for one in side.inventory.devices if one.kind == "cpu")  # type: ignore[union-attr]
    claims = [
        {"uuid": one.uuid, "kind": "cpu", "vendor": "", "model": "", "index": 0, "milli": one.capacity_milli,
         "memory_bytes": 1 << 20}
        for one in side.inventory.devices  # type: ignore[union-attr]
        if one.kind == "cpu"
    ]  # fmt: skip
    assert cores
    holder = order("holder", "/bin/sleep", "600", devices=msgspec.convert(claims, list[DeviceClaim]))
    box.yard.want("box", holder)
    box.yard.phase("box", "holder", Phase.RUNNING)
    box.silence()
    job = box.submit("true")
    box.yard.wait(lambda: [one["note"][:4] for one in box.ask("list")] == ["it i", "its "])
    assert {one["state"] for one in box.ask("list")} == {"PENDING"}
    assert box.ask("cancel", id=job)["state"] == "CANCELLED"
    assert box.ask("show", id=job)["devices"] == []


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        ({"cpus": 1}, "more than the 0.5"),
        ({"time_limit": "3h"}, "more than the 2"),
        ({"project": "other"}, "only to lab"),
        ({"image": "ubuntu"}, "not for a local job"),
        ({"devices": {"kind": "gpu"}}, "you may use cpu"),
        ({"env": {"API_TOKEN": "x"}}, "looks like a secret"),
        ({"env": {"YARD_X": "x"}}, "cannot name a variable"),
        ({"run": ""}, "must be a script"),
        ({"run": "x" * 70_000}, "64 KiB at most"),
        ({"memory": 5}, "write it as"),
    ],
)
def test_what_may_not_be_is_refused_with_a_sentence(box: Box, spec: dict[str, Any], why: str) -> None:
    with pytest.raises(ApiProblem, match=why):
        box.ask("submit", id=node_socket.uuid7(), job={"run": "true", "cpus": 0.1, **spec})


def test_no_more_wait_than_an_account_may(box: Box) -> None:
    box.silence()
    long = [box.submit("sleep 600") for _ in range(2)]
    for job in long:
        box.until(job, "RUNNING")
    for _ in range(3):
        box.submit("true")
    with pytest.raises(ApiProblem, match="wait here already"):
        box.submit("true")
    for job in long:
        box.ask("cancel", id=job)
        assert box.until(job, "CANCELLED")["cause"] in ("SIGNAL", "CANCELLED", "")


def test_nonsense_on_the_socket_ends_that_connection_and_nothing_else(box: Box) -> None:
    for raw in (b"\n", b"{}\n", b"[" * 100_000 + b"\n", b'{"do":"format"}\n', b"\xff\xfe\n", b"x" * 300_000):
        with socket.socket(socket.AF_UNIX) as link:
            link.settimeout(10)
            link.connect(box.socket)
            try:
                link.sendall(raw)
                assert link.recv(4_096).startswith(b'{"refused"') or len(raw) > 200_000
            except OSError:
                assert len(raw) > 200_000
    with pytest.raises(NotFound):
        box.ask("show", id="nothing")
    assert box.ask("list") == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be several accounts")
def test_a_job_runs_as_the_account_that_submitted_it_and_others_may_not(model: Yard, open_path: Path) -> None:
    box = Box(model, open_path, "rooted")
    box.state.mkdir(mode=0o711)
    (open_path / "edge.toml").write_text(ALLOW.replace(f'"{ME}"', '"nobody"'))
    box.start("--run-as", "nobody", "--edge", str(open_path / "edge.toml"))
    try:
        model.is_deaf = True
        with pytest.raises(ApiProblem, match="root may not submit"):
            box.submit("true")
        job = node_socket.uuid7()

        request = {"do": "submit", "id": job, "job": {"run": "id -u", "cpus": 0.1, "memory": "64MiB"}}
        assert b"may not submit jobs on this node" in as_account(12_345, box.socket, request)
        model.wait(lambda: b'"ok"' in as_account(65_534, box.socket, request))
        assert box.until(job, "COMPLETED")["account"] == "nobody"
        assert base64.b64decode(box.ask("logs", id=job)["data"]) == b"65534\n"
    finally:
        model.is_deaf = False
        box.clear()
