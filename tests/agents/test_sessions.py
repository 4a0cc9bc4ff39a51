"""Entering a part that runs: a real agent, its shims and real commands, with the model control plane as the caller."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from agents.isolation.view import why_not
from agents.protocol import WINDOW_BYTES, Phase, SessionEnd
from agents.supervisor import procfs
from tests.agents.conftest import Hands
from tests.agents.yard import Guest, order, stop

Names = Callable[[], str]
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root changes its user")


def running(hands: Hands, name: str, *argv: str, **spec: object) -> None:
    """Have a part run, in which others are entered."""
    hands.yard.want(hands.name, order(name, *(argv or ("sleep", "300")), **spec))
    hands.yard.phase(hands.name, name, Phase.RUNNING)


def ended(hands: Hands, guest: Guest) -> SessionEnd:
    hands.yard.wait(lambda: guest.is_over)
    assert guest.end is not None
    return guest.end


def finish(hands: Hands, name: str) -> None:
    hands.yard.want(hands.name, stop(name, grace_s=0.0))
    hands.yard.ended(hands.name, name)


def test_a_command_has_what_the_stage_has_and_its_exit_code_comes_back(shared: Hands, part: Names) -> None:
    name = part()
    running(shared, name, env={"COLOUR": "blue"})
    script = 'echo "$COLOUR $YARD_PART_ID"; pwd; echo oops >&2; exit 7'
    guest = shared.yard.enter(shared.name, name, "sh", "-c", script)
    assert ended(shared, guest) == SessionEnd(code=7)
    assert guest.out.decode().split() == ["blue", name, f"{shared.state}/parts/{name}/work"]
    assert bytes(guest.streams[2]) == b"oops\n"
    finish(shared, name)


def test_input_is_passed_on_to_its_end_however_much_it_is(shared: Hands, part: Names) -> None:
    name = part()
    running(shared, name)
    guest = shared.yard.enter(shared.name, name, "sh", "-c", "sleep 0.2; wc -c", stdin=True)
    shared.yard.wait(lambda: guest.is_open)
    for _ in range(16):
        guest.type(b"x" * 10_000)
    guest.type(b"")
    assert ended(shared, guest) == SessionEnd(code=0)
    assert guest.out.strip() == b"160000"
    assert guest.taken == 160_000
    finish(shared, name)


def test_a_terminal_has_a_size_that_follows_and_passes_ctrl_c_on(shared: Hands, part: Names) -> None:
    name = part()
    running(shared, name)
    guest = shared.yard.enter(shared.name, name, "bash", "--norc", tty=True, stdin=True, rows=33, columns=101)
    shared.yard.wait(lambda: guest.is_open)
    guest.type(b"stty size; tty\n")
    shared.yard.wait(lambda: b"33 101" in guest.out and b"/dev/pts/" in guest.out)
    guest.say(rows=20, columns=44)
    guest.type(b"stty size\n")
    shared.yard.wait(lambda: b"20 44" in guest.out)
    guest.type(b"sleep 200; echo ended with $?\n")
    shared.yard.wait(lambda: b"echo ended with" in guest.out)
    shared.yard.wait(lambda: any(each.name() == "sleep" for each in beneath(shared, name, ["sleep", "200"])))
    guest.type(b"\x03")
    shared.yard.wait(lambda: b"^C" in guest.out)
    guest.type(b"exit 9\n")
    assert ended(shared, guest) == SessionEnd(code=9)
    finish(shared, name)


def beneath(hands: Hands, name: str, words: list[str]) -> list[psutil.Process]:
    """The processes of a part with this command line."""
    found = []
    for process in psutil.Process(hands.shim_of(name)["pid"]).children(recursive=True):
        try:
            if process.cmdline() == words:
                found.append(process)
        except psutil.Error:
            continue
    return found


def test_a_signal_reaches_a_command_without_a_terminal(shared: Hands, part: Names) -> None:
    name = part()
    running(shared, name)
    guest = shared.yard.enter(shared.name, name, "sleep", "201")
    shared.yard.wait(lambda: beneath(shared, name, ["sleep", "201"]))
    guest.say(signal="SIGINT")
    assert ended(shared, guest) == SessionEnd(signal=signal.SIGINT)
    finish(shared, name)


def test_who_enters_ends_with_the_part(shared: Hands, part: Names) -> None:
    name = part()
    running(shared, name)
    script = "(setsid sleep 202 &) ; trap '' HUP TERM; sleep 203"
    guest = shared.yard.enter(shared.name, name, "sh", "-c", script)
    shared.yard.wait(lambda: beneath(shared, name, ["sleep", "202"]) and beneath(shared, name, ["sleep", "203"]))
    assert len(procfs.marked(name)) >= 4
    finish(shared, name)
    assert procfs.marked(name) == []
    assert ended(shared, guest).cut == "part"


def test_who_leaves_takes_all_along_that_they_started(shared: Hands, part: Names) -> None:
    name = part()
    running(shared, name)
    guest = shared.yard.enter(shared.name, name, "sh", "-c", "(setsid sleep 204 &) ; trap '' HUP TERM; sleep 205")
    shared.yard.wait(lambda: beneath(shared, name, ["sleep", "204"]) and beneath(shared, name, ["sleep", "205"]))
    guest.leave()
    shared.yard.wait(lambda: len(procfs.marked(name)) == 1)
    assert shared.yard.side(shared.name).here[name].phase == Phase.RUNNING
    finish(shared, name)


def test_nothing_of_it_outlives_a_killed_shim(shared: Hands, part: Names) -> None:
    name = part()
    running(shared, name)
    guest = shared.yard.enter(shared.name, name, "sh", "-c", "(setsid sleep 206 &) ; sleep 207")
    shared.yard.wait(lambda: beneath(shared, name, ["sleep", "206"]) and beneath(shared, name, ["sleep", "207"]))
    os.kill(shared.shim_of(name)["pid"], signal.SIGKILL)
    assert shared.yard.ended(shared.name, name).exit.cause == "SUPERVISOR_LOST"  # type: ignore[union-attr]
    assert procfs.marked(name) == []
    assert ended(shared, guest).cut == "part"


def test_a_slow_reader_is_waited_for_and_no_more_is_sent_than_fits(shared: Hands, part: Names) -> None:
    name = part()
    running(shared, name)
    guest = shared.yard.enter(shared.name, name, "sh", "-c", "head -c 1000000 /dev/zero; echo done")
    guest.is_slow = True
    shared.yard.wait(lambda: len(guest.out) > WINDOW_BYTES - 32_768)
    # Others are served meanwhile, and nothing more comes.
    other = shared.yard.enter(shared.name, name, "true")
    assert ended(shared, other) == SessionEnd(code=0)
    assert len(guest.out) <= WINDOW_BYTES
    assert not guest.is_over
    with shared.yard.lock:
        guest.is_slow = False
        guest.say(taken=len(guest.out))
    assert ended(shared, guest) == SessionEnd(code=0)
    assert guest.out.endswith(b"done\n")
    assert len(guest.out) == 1_000_005
    finish(shared, name)


def test_what_cannot_be_entered_is_refused_in_words(shared: Hands, part: Names) -> None:
    name = part()
    assert ended(shared, shared.yard.enter(shared.name, name, "true")).cut == "part"
    running(shared, name)
    assert ended(shared, shared.yard.enter(shared.name, name, "true", epoch=2)).cut == "part"
    end = ended(shared, shared.yard.enter(shared.name, name, "no-such-command"))
    assert end.cut == "refused"
    assert 'command "no-such-command" was not found' in end.error
    finish(shared, name)


@as_root
def test_who_enters_is_the_parts_user_and_never_root(root_agent: Hands, part: Names) -> None:
    name = part()
    running(root_agent, name)
    script = f"id -u; id -G; grep NoNewPrivs /proc/self/status; cat {root_agent.state}/node.json; exit 0"
    guest = root_agent.yard.enter(root_agent.name, name, "sh", "-c", script, tty=True)
    assert ended(root_agent, guest) == SessionEnd(code=0)
    said = guest.out.decode().split()
    assert said[:4] == ["65534", "65534", "NoNewPrivs:", "1"]
    assert "credential" not in guest.out.decode()
    assert "Permission denied" in guest.out.decode()
    finish(root_agent, name)


@as_root
@pytest.mark.skipif(bool(why_not()), reason=f"no views here: {why_not()}")
def test_who_enters_sees_the_host_as_the_stage_does(root_agent: Hands, part: Names) -> None:
    name = part()
    running(root_agent, name, "sh", "-c", "echo of-the-stage > /dev/shm/mine; exec sleep 300")
    script = "cat /dev/shm/mine; [ -e /proc/1 ] && echo seen; id -u"
    guest = root_agent.yard.enter(root_agent.name, name, "sh", "-c", script)
    assert ended(root_agent, guest) == SessionEnd(code=0)
    assert guest.out.decode().split() == ["of-the-stage", "65534"]
    finish(root_agent, name)


def test_no_secret_of_the_order_is_left_in_a_file_or_in_the_agents_log(shared: Hands, part: Names) -> None:
    name = part()
    running(shared, name, env={"API_TOKEN": "a-secret-of-the-job"})
    guest = shared.yard.enter(shared.name, name, "sh", "-c", "echo $API_TOKEN")
    assert ended(shared, guest) == SessionEnd(code=0)
    assert guest.out == b"a-secret-of-the-job\n"
    assert "a-secret-of-the-job" not in shared.log
    folder = Path(shared.state) / "parts" / name
    assert not [each.name for each in folder.iterdir() if b"a-secret-of-the-job" in read(each)]
    finish(shared, name)


def read(path: Path) -> bytes:
    return path.read_bytes() if path.is_file() else b""


def test_what_goes_in_comes_out_both_ways_at_once(shared: Hands, part: Names) -> None:
    name = part()
    running(shared, name)
    guest = shared.yard.enter(shared.name, name, "cat", stdin=True)
    shared.yard.wait(lambda: guest.is_open)
    whole = bytes(range(256)) * 8_000
    for at in range(0, len(whole), 16_384):
        shared.yard.wait(lambda at=at: at - guest.taken <= WINDOW_BYTES - 16_384)  # type: ignore[misc]
        guest.type(whole[at : at + 16_384])
    guest.type(b"")
    assert ended(shared, guest) == SessionEnd(code=0)
    assert guest.out == whole
    finish(shared, name)


def test_what_the_caller_takes_is_heard_while_the_command_takes_nothing(shared: Hands, part: Names) -> None:
    """A command that has ended takes no input, but what it printed before still has to come."""
    name = part()
    running(shared, name)
    guest = shared.yard.enter(shared.name, name, "sh", "-c", "head -c 1000000 /dev/zero & sleep 0.5", stdin=True)
    guest.is_slow = True
    shared.yard.wait(lambda: len(guest.out) > WINDOW_BYTES - 32_768)
    shared.yard.wait(lambda: not beneath(shared, name, ["head", "-c", "1000000", "/dev/zero"]))
    for _ in range(16):
        guest.type(b"x" * 16_384)
    for rows in range(6_000):
        guest.say(rows=1 + rows, columns=80)
    with shared.yard.lock:
        guest.is_slow = False
        guest.say(taken=len(guest.out))
    assert ended(shared, guest) == SessionEnd(code=0)
    finish(shared, name)


def test_a_caller_who_leaves_a_command_that_is_stopped_leaves_nothing_open(shared: Hands, part: Names) -> None:
    name = part()
    running(shared, name)
    guest = shared.yard.enter(shared.name, name, "sleep", "208", stdin=True)
    shared.yard.wait(lambda: beneath(shared, name, ["sleep", "208"]))
    (command,) = beneath(shared, name, ["sleep", "208"])
    session = command.parent()
    assert session is not None
    session.suspend()
    for _ in range(16):
        guest.type(b"x" * 16_384)
    for rows in range(6_000):
        guest.say(rows=1 + rows, columns=80)
    held = sockets(shared)
    guest.leave()
    shared.yard.wait(lambda: sockets(shared) < held - 1)
    session.resume()
    shared.yard.wait(lambda: not beneath(shared, name, ["sleep", "208"]))
    finish(shared, name)


def sockets(hands: Hands) -> int:
    """How many sockets the agent has open."""
    folder = f"/proc/{hands.process.pid}/fd"
    found = 0
    for each in os.listdir(folder):
        with contextlib.suppress(FileNotFoundError):
            found += os.readlink(f"{folder}/{each}").startswith("socket:")
    return found
