"""``yard port-forward`` over real WebSockets and local connections, with a stage that this test plays."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.server import ServerConnection, serve

from switchyard import ApiProblem
from switchyard.cli.main import main


class Stage:
    """Listens on every port; ``over`` ends the session that holds one, ``refusal`` refuses all connections."""

    def __init__(self) -> None:
        self.over: dict[int, threading.Event] = {}
        self.refusal: dict[str, Any] = {}

    def serve(self, line: ServerConnection) -> None:
        ask = json.loads(line.recv())
        if ask.get("of") and self.refusal:
            line.send(json.dumps({"refused": self.refusal}))
            return
        line.send(json.dumps({"opened": {"session": "s1", "stage": "main", "rank": 0, "node": "n1"}}))
        line.send(b"\1")
        if ask.get("of"):
            line.send(b"\1hello")
            line.send(json.dumps({"end": {"code": 0}}))
            return
        assert self.over.setdefault(ask["port"], threading.Event()).wait(30)
        try:
            line.send(json.dumps({"end": {"cut": "part", "error": f"the stage of {ask['port']} ended"}}))
            for _ in line:
                pass
        except ConnectionClosed:
            return


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    made = Stage()
    with serve(made.serve, "127.0.0.1", 0, compression=None) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        monkeypatch.setenv("YARD_URL", f"http://127.0.0.1:{server.socket.getsockname()[1]}")
        monkeypatch.setenv("YARD_TOKEN", "t")
        yield made
        for event in made.over.values():
            event.set()
        server.shutdown()
        thread.join()


@pytest.fixture
def over(stage: Stage) -> dict[int, threading.Event]:
    stage.over = {port: threading.Event() for port in (8001, 8002)}
    return stage.over


def test_each_port_that_ends_is_told_and_the_last_ends_the_command(over, capfd, no_config):
    codes: list[int] = []
    command = threading.Thread(target=lambda: codes.append(main(["port-forward", "17", ":8001", ":8002"])))
    command.start()
    told = ""
    over[8001].set()
    while "8001" not in told:
        told += capfd.readouterr().err
        assert command.is_alive()
    over[8002].set()
    command.join(30)
    told += capfd.readouterr().err
    assert "port 8001 is not forwarded any more: the stage of 8001 ended\n" in told
    assert "error: the stage of 8002 ended (session_ended)" in told
    assert codes == [5]


def test_one_port_ends_the_command_whichever_it_is(over, capfd, no_config):
    over[8001].set()
    assert main(["port-forward", "17", ":8001"]) == 5
    assert "the stage of 8001 ended" in capfd.readouterr().err


def test_many_connections_that_fail_for_one_reason_are_told_once(stage, new_client, no_config):
    told: list[str] = []
    with new_client.from_env() as client, client.jobs.forward(17, 8001, told=told.append) as there:
        for status, detail in ((429, "too many new connections"), (409, "the port is not forwarded any more")):
            stage.refusal = {"status": status, "code": "x", "detail": detail}
            for _ in range(5):
                with socket.create_connection(("127.0.0.1", there.local_port), 30) as link:
                    assert link.recv(9) == b""
        stage.refusal = {}
        with socket.create_connection(("127.0.0.1", there.local_port), 30) as link:
            assert link.recv(9) == b"hello"
        stage.over[8001].set()
        with pytest.raises(ApiProblem, match="8001 ended"):
            there.wait()
    assert told == ["too many new connections", "the port is not forwarded any more"]
