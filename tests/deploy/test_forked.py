"""Parts that are forked from the keeper: what they have of it, and how they end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.local.service import ROOT
from tests.chaos.stack import eventually

# Forks as the keeper does, from a process with one thread, and says how the part ended.
KEEPER = """
import os, sys, time
from pathlib import Path
from deploy.local import forked
from deploy.local.service import Service
forked.LIBRARIES = ("json",)
forked.load()
folder, how, kill = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
held = open(folder / "lock", "w")
words = ["tests.deploy.forked_part", str(folder / "told"), how]
part = Service("a", words, {"YARD_HOME": str(folder), "ONLY": "this"}, folder / "log", is_forked=True)
part.start()
if kill:
    while not (folder / "told").exists() and part.ended() is None:
        time.sleep(0.01)
    os.kill(part.pid if kill > 0 else os.getpid(), abs(kill))
while part.ended() is None:
    time.sleep(0.01)
print(part.ended(), "the keeper goes on")
"""


def forked(folder: Path, how: str, kill: int = 0) -> str:
    of_the_keeper = {"SECRET": "of the keeper", "PYTHONDONTWRITEBYTECODE": "1"}
    environment = {"PYTHONPATH": str(ROOT), "PATH": os.defpath, **of_the_keeper}
    command = [sys.executable, "-P", "-c", KEEPER, str(folder), how, str(kill)]
    return subprocess.run(command, env=environment, cwd=folder, stdout=subprocess.PIPE, text=True, check=False).stdout


def test_it_runs_as_if_it_had_been_started_by_itself(tmp_path: Path) -> None:
    assert forked(tmp_path, "3") == "3 the keeper goes on\n"
    told = json.loads((tmp_path / "told").read_text())
    log = str(tmp_path / "log")
    assert told == {
        "group": True,
        "environment": {"YARD_HOME": str(tmp_path), "ONLY": "this"},
        "files": ["/dev/null", log, log],
        "folder": "/",
        "threads": 1,
        "blocked": [],
        "compiled": True,
        "title": f"switchyard a of {tmp_path}: tests.deploy.forked_part {tmp_path}/told 3",
    }
    assert (tmp_path / "log").read_text() == "at the end\n"


def test_its_last_words_are_in_its_log(tmp_path: Path) -> None:
    assert forked(tmp_path, "no way") == "1 the keeper goes on\n"
    assert "no way" in (tmp_path / "log").read_text()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_a_signal_ends_it(tmp_path: Path, number: signal.Signals) -> None:
    assert forked(tmp_path, "wait", number) == f"{-number} the keeper goes on\n"


def test_it_ends_with_the_keeper(tmp_path: Path) -> None:
    assert forked(tmp_path, "wait", -signal.SIGKILL) == ""
    words = f"{tmp_path}/told wait"
    assert eventually(lambda: not subprocess.run(["pgrep", "-f", words], stdout=subprocess.PIPE, check=False).stdout)
