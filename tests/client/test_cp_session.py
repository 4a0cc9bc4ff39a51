"""``yard cp`` and sessions of both clients, over a real WebSocket to commands that really run."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.server import ServerConnection, serve

from switchyard import SwitchyardError


def work(line: ServerConnection, folder: Path) -> None:
    """Run what is asked for in a folder, as an agent does in a stage."""
    ask = json.loads(line.recv())
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen(ask["command"], cwd=folder, **pipes) as process:  # type: ignore[call-overload]
        line.send(json.dumps({"opened": {"node": "n1"}}))

        def tell(number: int, pipe: Any) -> None:
            while piece := pipe.read1(16_384):
                with contextlib.suppress(ConnectionClosed):  # the caller may have left
                    line.send(bytes([number]) + piece)

        def end() -> None:
            readers = [threading.Thread(target=tell, args=each) for each in ((1, process.stdout), (2, process.stderr))]
            for reader in readers:
                reader.start()
            for reader in readers:
                reader.join()
            with contextlib.suppress(ConnectionClosed):
                code = process.wait()
                line.send(json.dumps({"end": {"signal": -code} if code < 0 else {"code": code}}))
                line.close()

        ending = threading.Thread(target=end)
        ending.start()
        try:
            for message in line:
                if isinstance(message, bytes) and len(message) > 1:
                    with contextlib.suppress(BrokenPipeError):  # input after the command's end is dropped
                        process.stdin.write(message[1:])
                    line.send(json.dumps({"taken": len(message) - 1}))
                elif isinstance(message, bytes):
                    with contextlib.suppress(BrokenPipeError):
                        process.stdin.close()
        except ConnectionClosed:
            pass
        ending.join()


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of a stage in which commands can be run."""
    folder = tmp_path / "stage"
    folder.mkdir()
    with serve(lambda line: work(line, folder), "127.0.0.1", 0, compression=None) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        monkeypatch.setenv("YARD_URL", f"http://127.0.0.1:{server.socket.getsockname()[1]}")
        monkeypatch.setenv("YARD_TOKEN", "t")
        yield folder
        server.shutdown()
        thread.join()


def test_a_command_says_something_and_ends(stage, new_client):
    with new_client.from_env() as client, client.jobs.enter(17, ["sh", "-c", "echo hi; exit 3"]) as inside:
        assert list(inside) == [(1, b"hi\n")]
        assert (inside.code, inside.opened["node"]) == (3, "n1")


def test_a_folder_comes_out_and_goes_back_in(stage, yard_alone, no_config):
    whole = os.urandom(700_000)  # more than a session takes unread
    (stage / "out/deep").mkdir(parents=True)
    (stage / "out/deep/model").write_bytes(whole)
    (stage / "out/deep/model").chmod(0o640)
    (stage / "latest").symlink_to("out/deep")
    assert yard_alone("cp", "17:out", ".")[0] == 0
    assert (no_config / "out/deep/model").read_bytes() == whole
    assert yard_alone("cp", "17:latest", "got")[0] == 0
    assert (no_config / "got/model").stat().st_mode & 0o777 == 0o640
    (stage / "into").mkdir()
    assert yard_alone("cp", "got", "17:into/")[0] == 0
    assert yard_alone("cp", "got", "17:into/other")[0] == 0
    assert [(stage / name / "model").read_bytes() == whole for name in ("into/got", "into/other")] == [True, True]


def test_what_leads_out_is_left_out_and_what_is_missing_is_told(stage, yard_alone, no_config):
    (stage / "out").mkdir()
    (stage / "out/evil").symlink_to("/etc/passwd")
    code, _, err = yard_alone("cp", "17:out", ".")
    assert (code, "left out: out/evil" in err) == (1, True)
    assert list((no_config / "out").iterdir()) == []
    for words in (["17:nothing", "."], ["missing", "17:x"], ["out", "17:no/such/folder"], ["17:out", "no/such"]):
        code, _, err = yard_alone("cp", *words)
        assert (code, err.startswith("error: ")) == (1, True), words


@pytest.fixture
def yard_alone(stage, capsys):
    """Runs the command with no other server than the stage's."""
    from switchyard.cli.main import main

    def run(*words: str) -> tuple[int, str, str]:
        code = main(list(words))
        out, err = capsys.readouterr()
        return code, out, err

    return run


def test_both_clients_copy_out_and_in(stage, new_client, tmp_path):
    (stage / "out").mkdir()
    (stage / "out/model").write_bytes(b"weights")
    (stage / "out/evil").symlink_to("/etc/passwd")
    with new_client.from_env() as client:
        told = client.jobs.copy_from(17, "out", tmp_path / "got")
        assert (told.files, told.size_bytes, told.left_out) == (1, 7, 1)
        assert (tmp_path / "got/model").read_bytes() == b"weights"
        assert client.jobs.copy_to({"number": 17}, tmp_path / "got", "again").files == 1
        with pytest.raises(SwitchyardError, match="larger"):
            client.jobs.copy_from(17, "again", tmp_path / "small", most_bytes=3)
    assert (stage / "again/model").read_bytes() == b"weights"


@pytest.fixture
def breaking_tar(stage: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Puts a tar into the stage that ends early: what it does, in words of the shell."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")

    def put(script: str) -> None:
        (folder / "tar").write_text(f"#!/bin/sh\n{script}\n")
        (folder / "tar").chmod(0o755)

    return put


SHORT = "head -c 9000 >/dev/null;"


@pytest.mark.parametrize(
    ("size", "script", "said"),
    [
        (3, f"{SHORT} echo 'tar: x: No space left on device' >&2; exit 2", "No space left on device"),
        (2_000_000, f"{SHORT} echo 'tar: x: No space left on device' >&2; exit 2", "No space left on device"),
        (3, f"{SHORT} kill -9 $$", "tar was ended by signal 9 inside the job"),
        (2_000_000, f"{SHORT} echo 'tar: soon' >&2; kill -9 $$", "tar: soon; tar was ended by signal 9 inside the job"),
        (2_000_000, f"{SHORT} echo odd >&2; exit 0", "ended before it had read all; odd"),
        (2_000_000, "exec <&-; sleep 0.3; exit 2", "tar ended with 2"),
    ],
)
def test_a_copy_into_a_stage_whose_tar_ends_early_is_an_error_with_its_words(
    breaking_tar, new_client, tmp_path, size, script, said
):
    breaking_tar(script)
    (tmp_path / "got").write_bytes(os.urandom(size))
    with new_client.from_env() as client, pytest.raises(SwitchyardError, match=said):
        client.jobs.copy_to(17, tmp_path / "got", "there")
