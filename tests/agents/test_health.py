"""The operator's checks keep tasks away with their reason; prolog and epilog are run around each task."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agents.main import main
from agents.protocol import Phase
from agents.supervisor import procfs
from agents.tasks import scripts
from agents.tasks.health import HealthChecks
from tests.agents.conftest import Hands
from tests.agents.yard import Yard, order

Names = Callable[[], str]


def program(path: Path, text: str, mode: int = 0o755) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(".draft")
    draft.write_text(f"#!/bin/sh\n{text}\n")
    draft.chmod(mode)
    draft.rename(path)
    return path


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("exit 0", ""),
        ("echo all is well; exit 0", ""),
        ("exit 3", "exit status 3"),
        ("echo; echo 'no such mount'; echo more; exit 1", "no such mount (exit status 1)"),
        ("echo oops >&2; kill -9 $$", "oops (ended by signal 9)"),
        ("printf 'a\\033[31mb\\n'; exit 1", "a?[31mb (exit status 1)"),
        ("exec sleep 60", "did not end within 0.4 s"),
        ("sleep 60 & exit 0", ""),
        ("yes", "did not end within 0.4 s"),
        ('[ -z "$LD_PRELOAD$SECRET" ] && [ "$YARD_JOB" = 7 ]', ""),
    ],
)
def test_a_program_is_run_to_its_end_and_heard_briefly(
    tmp_path: Path, text: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET", "of-the-agent")
    mark = f"check-{uuid.uuid4().hex}"
    path = program(tmp_path / "check", text)
    timeout_s = 0.4 if "did not" in said else 30.0
    assert scripts.run(path, {"YARD_JOB": "7", procfs.MARK: mark}, timeout_s) == said
    deadline = time.monotonic() + 60
    while procfs.marked(mark) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert procfs.marked(mark) == [], "nothing of it is left"


def test_what_others_could_change_is_not_run(tmp_path: Path) -> None:
    path = program(tmp_path / "check", "exit 0", 0o777)
    assert "could be changed by others" in scripts.run(path, {}, 5.0)
    path.chmod(0o755)
    assert scripts.run(path, {}, 5.0) == ""
    tmp_path.chmod(0o777)
    assert "could be changed by others" in scripts.run(path, {}, 5.0)
    with pytest.raises(ValueError, match="chmod go-w"):
        HealthChecks(tmp_path, None, lambda: None)
    tmp_path.chmod(0o700)
    assert "No such file" in scripts.run(tmp_path / "gone", {}, 5.0)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_a_folder_of_somebody_else_keeps_the_agent_from_starting(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    os.chown(tmp_path, 1234, 1234)
    words = ["--url", "http://127.0.0.1:1", "--state", str(tmp_path / "s"), "--health-checks", str(tmp_path)]
    assert main(words) == 1
    assert "could be changed by others" in capsys.readouterr().err


def test_a_check_that_is_taken_away_fails_no_more(tmp_path: Path) -> None:
    changes: list[None] = []
    health = HealthChecks(tmp_path, None, lambda: changes.append(None))
    path = program(tmp_path / "mount", "echo stale; exit 1")
    health.look()
    assert health.sentences() == ["mount: stale (exit status 1)"]
    health.look()
    assert len(changes) == 1, "the same again is no news"
    path.unlink()
    health.look()
    assert health.sentences() == []


@pytest.fixture
def node(model: Yard, tmp_path: Path) -> Iterator[Hands]:
    """An agent with checks every second, and hooks."""
    made = Hands(model, tmp_path, f"health-{uuid.uuid4().hex[:8]}")
    made.state.mkdir()
    made.environment["YARD_AGENT_HEALTH_S"] = "1"
    for folder in ("checks", "hooks"):
        (tmp_path / folder).mkdir(mode=0o755)
    words = ["--run-as", "root" if os.geteuid() == 0 else "self"]
    made.start(*words, "--health-checks", str(tmp_path / "checks"), "--hooks", str(tmp_path / "hooks"))
    yield made
    made.clear()


def unfit(node: Hands) -> list[str]:
    report = node.yard.side(node.name).report
    assert report is not None
    return report.conditions.unfit


def test_a_failing_check_is_told_until_it_passes(node: Hands, tmp_path: Path) -> None:
    check = program(tmp_path / "checks" / "mount", "echo stale; exit 1")
    node.yard.wait(lambda: unfit(node) == ["mount: stale (exit status 1)"])
    program(check, "exit 0")
    node.yard.wait(lambda: unfit(node) == [])


def test_a_start_that_meets_a_failing_check_is_not_the_tasks_fault(node: Hands, part: Names, tmp_path: Path) -> None:
    refused, ran = part(), part()
    check = program(tmp_path / "checks" / "start-storage", '[ -z "$YARD_PART" ] || { echo "no storage"; exit 1; }')
    node.yard.want(node.name, order(refused, "true"))
    end = node.yard.ended(node.name, refused).exit
    assert end is not None
    assert (end.cause, end.stopped) == ("NODE_UNFIT", False)
    assert end.detail == "this node is not fit for it: start-storage: no storage (exit status 1)"
    program(check, "exit 0")
    node.yard.want(node.name, order(ran, "true"))
    end = node.yard.ended(node.name, ran).exit
    assert end is not None
    assert end.code == 0


def test_prolog_and_epilog_are_run_around_each_task_and_know_nothing_of_it(
    node: Hands, part: Names, tmp_path: Path
) -> None:
    said = tmp_path / "said"
    for hook in ("prolog", "epilog", "fast/prolog"):
        text = f'echo "{hook} $YARD_JOB $YARD_STAGE $YARD_POOL [$MINE$LD_PRELOAD]" >> {said}'
        program(tmp_path / "hooks" / hook, text)
    one, other = part(), part()
    env = {"MINE": "x", "LD_PRELOAD": "/tmp/evil.so"}
    node.yard.want(node.name, order(one, "sh", "-c", f"echo task >> {said}", job=5, stage="train", env=env))
    node.yard.ended(node.name, one)
    assert said.read_text().splitlines() == ["prolog 5 train  []", "task", "epilog 5 train  []"]
    node.yard.want(node.name, order(other, "true", job=6, stage="load", pool="fast"))
    node.yard.ended(node.name, other)
    assert said.read_text().splitlines()[3:] == ["fast/prolog 6 load fast []", "epilog 6 load fast []"]


def test_a_prolog_that_fails_keeps_tasks_away_for_a_while(node: Hands, part: Names, tmp_path: Path) -> None:
    program(tmp_path / "hooks" / "prolog", "echo no licence; exit 2")
    name = part()
    node.yard.want(node.name, order(name, "true"))
    end = node.yard.ended(node.name, name).exit
    assert end is not None
    assert end.cause == "NODE_UNFIT"
    assert "prolog: no licence (exit status 2)" in end.detail
    node.yard.wait(lambda: unfit(node) == ["prolog: no licence (exit status 2)"])
    node.yard.wait(lambda: unfit(node) == [])


def test_an_agent_that_was_killed_leaves_the_epilog_to_the_next(node: Hands, part: Names, tmp_path: Path) -> None:
    said = tmp_path / "said"
    program(tmp_path / "hooks" / "epilog", f"echo over >> {said}")
    name = part()
    node.yard.want(node.name, order(name, "sleep", "2"))
    node.yard.phase(node.name, name, Phase.RUNNING)
    node.end(9)
    node.start()
    end = node.yard.ended(node.name, name).exit
    assert end is not None
    assert end.code == 0
    assert said.read_text() == "over\n"
