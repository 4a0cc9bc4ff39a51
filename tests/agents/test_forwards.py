"""Ports of a part that runs: a real agent, real sockets, and what must not be reached."""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator

import pytest

from agents.protocol import WINDOW_BYTES, Phase, SessionEnd
from agents.supervisor import listeners
from agents.supervisor.listeners import listener_at, listeners_of
from tests.agents.conftest import Hands
from tests.agents.test_sessions import ended, finish
from tests.agents.yard import Guest, order

Names = Callable[[], str]

ECHO = """
import socket, sys, threading
listener = socket.create_server((sys.argv[2], int(sys.argv[1])), family=getattr(socket, sys.argv[3]))
def serve(link):
    whole = b""
    while piece := link.recv(65536):
        link.sendall(piece)
    link.close()
while True:
    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
"""


DEAF = """
import socket, sys
listener = socket.create_server((sys.argv[2], int(sys.argv[1])), family=getattr(socket, sys.argv[3]))
links = []
while True:
    links.append(listener.accept())
"""


@pytest.fixture
def free() -> int:
    """A port on which nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


@pytest.fixture
def others() -> Iterator[int]:
    """A port of somebody else on this host."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield int(listener.getsockname()[1])


def serving(
    hands: Hands, name: str, port: int, host: str = "127.0.0.1", family: str = "AF_INET", program: str = ECHO
) -> None:
    """Have a part run that sends back what it gets at a port."""
    hands.yard.want(hands.name, order(name, sys.executable, "-c", program, str(port), host, family))
    hands.yard.phase(hands.name, name, Phase.RUNNING)
    hands.yard.wait(lambda: connects(host, port))


def connects(host: str, port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1" if host == "0.0.0.0" else host, port), 1).close()
    except OSError:
        return False
    return True


def joined(hands: Hands, name: str, port: int) -> Guest:
    guest = hands.yard.enter(hands.name, name, "false", port=port, stdin=True)
    hands.yard.wait(lambda: 1 in guest.streams or guest.is_over)
    return guest


@pytest.mark.parametrize(
    ("host", "family"),
    [("127.0.0.1", "AF_INET"), ("0.0.0.0", "AF_INET"), ("::1", "AF_INET6")],
)
def test_bytes_go_both_ways_to_a_port_of_the_part(
    shared: Hands, part: Names, free: int, host: str, family: str
) -> None:
    name = part()
    serving(shared, name, free, host, family)
    guest = joined(shared, name, free)
    whole = bytes(range(256)) * 4_000
    for at in range(0, len(whole), 16_384):
        shared.yard.wait(lambda at=at: at - guest.taken <= WINDOW_BYTES - 16_384)  # type: ignore[misc]
        guest.type(whole[at : at + 16_384])
    guest.type(b"")
    assert ended(shared, guest) == SessionEnd(code=0)
    assert guest.out == whole
    finish(shared, name)


def test_ports_of_others_and_of_the_agent_are_not_reached(shared: Hands, part: Names, free: int, others: int) -> None:
    name = part()
    assert ended(shared, joined(shared, name, others)).cut == "part"
    serving(shared, name, free)
    for port in (others, int(shared.yard.url.rpartition(":")[2])):
        end = ended(shared, joined(shared, name, port))
        assert end.cut == "refused"
        assert end.error == f"the stage does not listen on port {port} of its node; it listens on {free}"
    # Nor by the part beside it.
    beside = part()
    shared.yard.want(shared.name, order(name, sys.executable, "-c", ECHO, str(free), "127.0.0.1", "AF_INET"))
    shared.yard.want(shared.name, order(beside, "sleep", "300"))
    shared.yard.phase(shared.name, beside, Phase.RUNNING)
    assert "nor on any other" in ended(shared, joined(shared, beside, free)).error
    finish(shared, beside)
    finish(shared, name)


def test_a_held_port_ends_with_its_caller_and_connections_with_the_part(shared: Hands, part: Names, free: int) -> None:
    name = part()
    serving(shared, name, free)
    held = shared.yard.enter(shared.name, name, "false", port=free)
    shared.yard.wait(lambda: 1 in held.streams)
    assert not held.is_over
    held.leave()
    guest = joined(shared, name, free)
    finish(shared, name)
    assert ended(shared, guest).code == 0


def test_a_slow_reader_holds_up_only_itself(shared: Hands, part: Names, free: int) -> None:
    name = part()
    serving(shared, name, free)
    slow, other = joined(shared, name, free), joined(shared, name, free)
    slow.is_slow = True
    for _ in range(16):
        slow.type(b"x" * 16_384)
    shared.yard.wait(lambda: len(slow.out) > WINDOW_BYTES - 32_768)
    other.type(b"hello")
    other.type(b"")
    assert ended(shared, other) == SessionEnd(code=0)
    assert other.out == b"hello"
    assert len(slow.out) <= WINDOW_BYTES
    finish(shared, name)


def filled(hands: Hands, guest: Guest) -> int:
    """Send until nothing more is taken for a second; return how much was sent, in bytes."""
    sent, moved = 0, time.monotonic()
    while time.monotonic() - moved < 1:
        if sent - guest.taken <= WINDOW_BYTES - 16_384:
            guest.type(b"x" * 16_384)
            sent, moved = sent + 16_384, time.monotonic()
        else:
            time.sleep(0.01)
    return sent


def connected(port: int) -> bool:
    """Whether a connection to this port is open at the side that made it."""
    with open("/proc/self/net/tcp") as table:
        return any(line.split()[2].endswith(f":{port:04X}") and line.split()[3] == "01" for line in table)


def test_a_stage_that_does_not_read_holds_up_nobody(shared: Hands, part: Names, free: int) -> None:
    name = part()
    serving(shared, name, free, program=DEAF)
    guest = joined(shared, name, free)
    filled(shared, guest)
    assert connected(free)
    guest.leave()
    shared.yard.wait(lambda: not connected(free))
    wrong = joined(shared, name, free)
    wrong.type(b"")
    wrong.type(b"more")
    shared.yard.wait(lambda: wrong.is_over)
    finish(shared, name)


def test_what_the_caller_takes_is_heard_while_the_stage_takes_nothing(shared: Hands, part: Names, free: int) -> None:
    name = part()
    serving(shared, name, free)
    guest = joined(shared, name, free)
    guest.is_slow = True
    sent = filled(shared, guest)
    guest.is_slow = False
    guest.say(taken=len(guest.out))
    shared.yard.wait(lambda: len(guest.out) == sent)
    guest.type(b"")
    assert ended(shared, guest) == SessionEnd(code=0)
    finish(shared, name)


def test_a_look_at_very_many_files_ends(monkeypatch: pytest.MonkeyPatch, others: int) -> None:
    found = listener_at(others, [os.getpid()])
    assert found is not None
    assert found == listeners_of([os.getpid()])[others]
    monkeypatch.setattr(listeners, "MOST_FILES", 1)
    assert listener_at(others, [os.getpid()]) is None
    assert others not in listeners_of([os.getpid()])


def test_a_port_that_somebody_else_shares_is_nobodys() -> None:
    with socket.socket() as one, socket.socket() as two:
        for each in (one, two):
            each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
        two.bind(("127.0.0.1", port))
        one.listen()
        two.listen()
        assert port in listeners_of([os.getpid()])
        assert listener_at(port, [os.getpid()]) is not None
        assert port not in listeners_of([])
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            one.close()  # the child has the other alone
            os.write(writer, b".")
            signal.pause()
        os.read(reader, 1)
        try:
            assert port not in listeners_of([child])
            assert listener_at(port, [child]) is None
        finally:
            os.kill(child, 9)
            os.waitpid(child, 0)
            os.close(reader)
            os.close(writer)


def test_named_ports_are_reported_while_the_part_listens(shared: Hands, part: Names, free: int, others: int) -> None:
    name = part()
    program = f"import socket, time; time.sleep(1); s = socket.create_server(('127.0.0.1', {free})); time.sleep(600)"
    shared.yard.want(shared.name, order(name, sys.executable, "-c", program, ports=[free, others]))
    shared.yard.phase(shared.name, name, Phase.RUNNING)
    shared.yard.wait(lambda: shared.yard.side(shared.name).here[name].listens == [free])
    finish(shared, name)
