"""What outlives what: agents, shims and machines end in every order, and the record stays true."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from agents.protocol import Phase
from agents.supervisor import procfs
from agents.supervisor.record import read_whole
from tests.agents.conftest import ROOT, Hands
from tests.agents.yard import Yard, order, stop

Names = Callable[[], str]

COUNT = "i=0; while [ $i -lt {limit} ]; do echo $i; i=$((i+1)); sleep 0.01; done"


def running(hands: Hands, name: str, *argv: str, **spec: object) -> tuple[int, int]:
    """Start a part and answer its process, once it runs."""
    hands.yard.want(hands.name, order(name, *argv, **spec))
    here = hands.yard.phase(hands.name, name, Phase.RUNNING)
    assert here.pid is not None
    assert here.pid_start is not None
    return here.pid, here.pid_start


def agent(state: Path, url: str, *options: str) -> subprocess.CompletedProcess[str]:
    """An agent that is expected to end by itself, at once."""
    command = [
        sys.executable,
        "-m",
        "agents",
        "--url",
        url,
        "--state",
        str(state),
        "--run-as",
        str(os.geteuid()),
        *options,
    ]
    return subprocess.run(command, cwd=ROOT, input="wrong\n", capture_output=True, text=True, check=False, timeout=60)


def wait_gone(pid: int, born: int) -> None:
    deadline = time.monotonic() + 60
    while procfs.is_alive(pid, born):
        assert time.monotonic() < deadline, f"pid {pid} is still there"
        time.sleep(0.01)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_parts_live_on_and_are_adopted_as_the_same_processes(hands: Hands, part: Names, how: int) -> None:
    hands.start()
    names = [part() for _ in range(5)]
    before = {name: running(hands, name, "sh", "-c", COUNT.format(limit=100000)) for name in names}
    hands.end(how)
    assert all(procfs.is_alive(*process) for process in before.values())
    hands.start()
    for name, process in before.items():
        here = hands.yard.phase(hands.name, name, Phase.RUNNING)
        assert (here.pid, here.pid_start) == process
    report = hands.yard.side(hands.name).report
    assert report is not None
    assert report.start_seq == 2
    hands.yard.want(hands.name, *(stop(name, 1.0) for name in names))
    for name in names:
        end = hands.yard.ended(hands.name, name).exit
        assert end is not None
        assert (end.signal, end.stopped) == (signal.SIGTERM, True)


def test_an_end_that_no_agent_saw_is_known_and_its_log_has_no_gap(hands: Hands, part: Names) -> None:
    hands.start()
    name = part()
    process = running(hands, name, "sh", "-c", COUNT.format(limit=60) + "; exit 7")
    hands.yard.wait(lambda: hands.yard.logs[(name, 0, "out")])
    hands.end(signal.SIGKILL)
    wait_gone(*process)
    hands.start()
    end = hands.yard.ended(hands.name, name).exit
    assert end is not None
    assert (end.code, end.cause) == (7, "EXIT_CODE")
    whole = "".join(f"{number}\n" for number in range(60)).encode()
    hands.yard.wait(lambda: hands.yard.logs[(name, 0, "out")] == whole)


def test_a_part_whose_shim_is_killed_ends_as_supervisor_lost_with_all_it_started(hands: Hands, part: Names) -> None:
    hands.start()
    name = part()
    script = "(setsid sleep 300 &) ; setsid sleep 301 & sleep 302"
    process = running(hands, name, "sh", "-c", script)
    shim = hands.shim_of(name)
    procfs.send(shim["pid"], signal.SIGKILL)
    end = hands.yard.ended(hands.name, name).exit
    assert end is not None
    assert end.cause == "SUPERVISOR_LOST"
    assert not procfs.is_alive(*process)
    assert procfs.marked(name) == []


def test_shim_and_agent_killed_together_leave_no_process_behind(hands: Hands, part: Names) -> None:
    hands.start()
    name = part()
    running(hands, name, "sh", "-c", "setsid sleep 300 & sleep 301")
    shim = hands.shim_of(name)
    hands.end(signal.SIGKILL)
    procfs.send(shim["pid"], signal.SIGKILL)
    wait_gone(shim["pid"], shim["born"])
    hands.start()
    end = hands.yard.ended(hands.name, name).exit
    assert end is not None
    assert end.cause == "SUPERVISOR_LOST"
    assert procfs.marked(name) == []


def test_a_dead_fork_server_is_replaced(hands: Hands, part: Names) -> None:
    hands.start()
    first, second = part(), part()
    running(hands, first, "sleep", "300")
    assert hands.process is not None
    for pid in procfs.descendants(hands.process.pid):
        if (
            b"agents.supervisor.fork_server" in Path(f"/proc/{pid}/cmdline").read_bytes()
            and pid != hands.shim_of(first)["pid"]
        ):
            procfs.send(pid, signal.SIGKILL)
    running(hands, second, "sleep", "300")
    assert procfs.marked(first) != []


def test_after_a_reboot_nothing_is_rerun_and_every_part_is_told(hands: Hands, part: Names, tmp_path: Path) -> None:
    boot = tmp_path / "boot_id"
    boot.write_text("first-boot\n")
    hands.environment["AGENT_BOOT_ID_PATH"] = str(boot)
    hands.start()
    name, done = part(), part()
    pid, born = running(hands, name, "sleep", "300")
    hands.yard.forget = False
    hands.yard.want(hands.name, order(done, "sh", "-c", "exit 4"))
    hands.yard.ended(hands.name, done)
    hands.end(signal.SIGKILL)
    shim = hands.shim_of(name)
    procfs.send(shim["pid"], signal.SIGKILL)
    wait_gone(pid, born)
    boot.write_text("second-boot\n")
    hands.start()
    end = hands.yard.ended(hands.name, name).exit
    assert end is not None
    assert end.cause == "NODE_REBOOT"
    told = hands.yard.phase(hands.name, done, Phase.ENDED).exit
    assert told is not None
    assert told.code == 4
    assert procfs.marked(name) == []
    hands.yard.forget = True


def test_a_second_agent_on_the_same_folder_is_refused(hands: Hands) -> None:
    hands.start()
    second = agent(hands.state, hands.yard.url)
    assert second.returncode == 1
    assert f'state folder "{hands.state}" is in use by the agent with pid' in second.stderr


def test_plain_http_to_another_host_is_refused(tmp_path: Path) -> None:
    refused = agent(tmp_path, "http://192.0.2.1", "--join-token-file", "-")
    assert refused.returncode == 1
    assert "only over https://" in refused.stderr


def test_the_credential_is_kept_private_and_enrolment_happens_once(hands: Hands) -> None:
    hands.start()
    known = read_whole(str(hands.state / "node.json"))
    assert (hands.state / "node.json").stat().st_mode & 0o777 == 0o600
    hands.end()
    hands.start()
    assert read_whole(str(hands.state / "node.json")) == known


def test_a_wrong_token_and_a_silent_address_are_told_in_sentences(model: Yard, tmp_path: Path) -> None:
    refused = agent(tmp_path / "a", model.url, "--join-token-file", "-", "--name", "x")
    assert refused.returncode == 1
    assert 'node "x" could not join' in refused.stderr
    assert "an administrator makes a new join token" in refused.stderr
    silent = agent(tmp_path / "b", "http://127.0.0.1:9", "--join-token-file", "-")
    assert "nobody answers at http://127.0.0.1:9" in silent.stderr
    assert "give --join-token-file" in agent(tmp_path / "c", model.url).stderr


def test_an_agent_whose_credential_is_not_known_any_more_says_so_and_keeps_what_runs(hands: Hands, part: Names) -> None:
    hands.start()
    name = part()
    process = running(hands, name, "sleep", "300")
    hands.end()
    known = dict(hands.yard.credentials)
    hands.yard.credentials.clear()
    try:
        hands.launch()
        deadline = time.monotonic() + 60
        while "does not know this node's credential" not in hands.log:
            assert time.monotonic() < deadline
            time.sleep(0.05)
    finally:
        hands.yard.credentials.update(known)
    assert procfs.is_alive(*process)


def test_a_deaf_control_plane_costs_no_part_and_what_happened_is_told_later(hands: Hands, part: Names) -> None:
    hands.start()
    name, other = part(), part()
    running(hands, name, "sh", "-c", "sleep 0.5; exit 9")
    process = running(hands, other, "sleep", "300")
    hands.yard.is_deaf = True
    try:
        deadline = time.monotonic() + 60
        while not (hands.state / "parts" / name / "exit.json").exists():
            assert time.monotonic() < deadline
            time.sleep(0.02)
    finally:
        hands.yard.is_deaf = False
    end = hands.yard.ended(hands.name, name).exit
    assert end is not None
    assert end.code == 9
    assert procfs.is_alive(*process)


def test_stop_all_ends_everything_without_an_agent(hands: Hands, part: Names) -> None:
    hands.start("--simulate", "laptop,laptop")
    sides = [f"{hands.name}-laptop-1", f"{hands.name}-laptop-2"]
    hands.yard.wait(lambda: all(hands.yard.side(side).report for side in sides))
    names = {side: part() for side in sides}
    for side, name in names.items():
        hands.yard.want(side, order(name, "sh", "-c", "setsid sleep 300 & sleep 301"))
        hands.yard.phase(side, name, Phase.RUNNING)
    hands.end(signal.SIGKILL)
    command = [sys.executable, "-m", "agents", "stop-all", "--state", str(hands.state), "--grace", "1"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert "2 part(s) stopped" in done.stderr
    # What was killed leaves the table of processes a moment later.
    hands.yard.wait(lambda: not any(procfs.marked(name) for name in names.values()))


def test_an_output_flood_is_capped_with_a_marker_and_never_blocks(hands: Hands, part: Names) -> None:
    hands.environment["YARD_AGENT_LOG_CAP_BYTES"] = str(1 << 20)
    hands.start()
    name = part()
    hands.yard.want(hands.name, order(name, "sh", "-c", "head -c 50000000 /dev/zero; echo end >&2; exit 5"))
    here = hands.yard.ended(hands.name, name)
    assert here.exit is not None
    assert here.exit.code == 5
    assert here.logs["0.out"] < (1 << 20) + 500
    hands.yard.wait(lambda: len(hands.yard.logs[(name, 0, "out")]) == here.logs["0.out"])
    written = hands.yard.logs[(name, 0, "out")]
    assert written[: 1 << 20] == bytes(1 << 20)
    assert b"output beyond 1048576 bytes is dropped" in written
    assert f"{50000000 - (1 << 20)} bytes dropped here".encode() in written


def test_a_hundred_parts_are_adopted(hands: Hands, part: Names) -> None:
    hands.start()
    names = [part() for _ in range(100)]
    hands.yard.want(hands.name, *(order(name, "sleep", "300") for name in names))
    before = {name: hands.yard.phase(hands.name, name, Phase.RUNNING).pid for name in names}
    hands.end(signal.SIGKILL)
    hands.start()
    hands.yard.wait(lambda: len(hands.yard.side(hands.name).here) == 100)
    assert {name: hands.yard.phase(hands.name, name, Phase.RUNNING).pid for name in names} == before
    hands.yard.want(hands.name, *(stop(name, 0.0) for name in names))
    for name in names:
        hands.yard.ended(hands.name, name)


def test_a_shim_serves_one_part_after_the_other_and_never_two(hands: Hands, part: Names) -> None:
    hands.start()
    hands.yard.forget = False
    first, second, third = part(), part(), part()
    shims = []
    for name in (first, second):
        hands.yard.want(hands.name, order(name, "sh", "-c", f"echo of {name}; exit 3"))
        end = hands.yard.ended(hands.name, name).exit
        assert end is not None
        assert end.code == 3
        shims.append(hands.shim_of(name)["pid"])
    assert shims[0] == shims[1]
    running(hands, third, "sleep", "300")
    other = part()
    running(hands, other, "sleep", "300")
    assert hands.shim_of(third)["pid"] == shims[0] != hands.shim_of(other)["pid"]
    for name in (first, second):
        hands.yard.wait(lambda name=name: hands.yard.logs[(name, 0, "out")] == f"of {name}\n".encode())
    hands.yard.forget = True


def test_what_ends_a_shim_ends_the_part_it_has_and_no_word_of_those_it_had(hands: Hands, part: Names) -> None:
    hands.start()
    hands.yard.forget = False
    had, has = part(), part()
    hands.yard.want(hands.name, order(had, "sh", "-c", "exit 6"))
    hands.yard.ended(hands.name, had)
    process = running(hands, has, "sleep", "300")
    assert hands.shim_of(had)["pid"] == hands.shim_of(has)["pid"]
    procfs.send(hands.shim_of(has)["pid"], signal.SIGKILL)
    end = hands.yard.ended(hands.name, has).exit
    assert end is not None
    assert end.cause == "SUPERVISOR_LOST"
    assert not procfs.is_alive(*process)
    told = hands.yard.phase(hands.name, had, Phase.ENDED).exit
    assert told is not None
    assert told.code == 6
    hands.yard.forget = True


def test_a_shim_that_dies_idle_costs_no_part(hands: Hands, part: Names) -> None:
    hands.start()
    hands.yard.forget = False
    first, second = part(), part()
    hands.yard.want(hands.name, order(first, "true"))
    hands.yard.ended(hands.name, first)
    shim = hands.shim_of(first)
    procfs.send(shim["pid"], signal.SIGKILL)
    running(hands, second, "sleep", "300")
    assert hands.shim_of(second)["pid"] != shim["pid"]
    hands.yard.forget = True


def test_idle_shims_go_with_the_fork_server_and_busy_ones_when_their_part_has_ended(hands: Hands, part: Names) -> None:
    hands.start()
    hands.yard.forget = False
    done, busy = part(), part()
    hands.yard.want(hands.name, order(busy, "sleep", "300"), order(done, "true"))
    hands.yard.ended(hands.name, done)
    hands.yard.phase(hands.name, busy, Phase.RUNNING)
    idle, working = hands.shim_of(done), hands.shim_of(busy)
    hands.end(signal.SIGKILL)
    wait_gone(idle["pid"], idle["born"])
    assert procfs.is_alive(working["pid"], working["born"])
    hands.start()
    hands.yard.want(hands.name, stop(busy, 1.0))
    hands.yard.ended(hands.name, busy)
    wait_gone(working["pid"], working["born"])
    hands.yard.forget = True


def test_a_shim_whose_folder_was_removed_does_not_wait_for_it_for_ever(hands: Hands, part: Names) -> None:
    hands.start()
    name = part()
    process = running(hands, name, "sleep", "300")
    shim = hands.shim_of(name)
    shutil.rmtree(hands.state / "parts" / name)
    procfs.send(process[0], signal.SIGKILL)
    wait_gone(*process)
    hands.end(signal.SIGKILL)
    wait_gone(shim["pid"], shim["born"])
