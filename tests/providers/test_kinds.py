"""Every kind of provider: it says what it takes, and starts, lists and ends what it was asked for; real processes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from controlplane.providers import kinds
from controlplane.providers.engine import EngineFault, EngineRefused, ForeignEngine, ForeignPhase, PilotOrder
from controlplane.providers.kinds import slurm

TAG = "0123456789ab"


def order(number: int = 1, tag: str = TAG) -> PilotOrder:
    label = f"yard-{tag}-{number:032x}"
    return PilotOrder(label, "n-1", {"name": "s", "cpus": 1, "memory_gib": 1}, 0.5, "http://127.0.0.1:1", "s" * 43)


@pytest.mark.parametrize("kind", kinds.found())
def test_every_kind_says_what_it_takes_and_is_an_engine(kind: str) -> None:
    module = kinds.module(kind)
    assert set(module.NEEDED) <= set(module.SETTINGS)
    assert all(callable(check) for check in [*module.SETTINGS.values(), *module.SHAPE.values()])
    made = module.engine({"program": "x", "python": "/x", "most": 3})
    assert made.limits() == 3
    assert made.price({"price": 2}) == 2
    assert all(callable(getattr(made, name)) for name in ("up", "down", "list"))


CLOUD = """#!/bin/sh
# A cloud in a folder: a file for each machine.
read -r given
at={folder}/machines; mkdir -p $at
field() {{ printf %s "$given" | sed "s/.*\\"$1\\":\\"\\([^\\"]*\\)\\".*/\\1/"; }}
case $1 in
up) field label >$at/i-1; printf '{{"handle": "i-1"}}';;
down) rm -f $at/i-1;;
list)
    printf '['
    [ -e $at/i-1 ] && printf '{{"label": "%s", "handle": "i-1", "phase": "running"}}' "$(cat $at/i-1)"
    printf ']';;
esac
"""


@pytest.fixture
def engines(tmp_path: Path, settings: Any) -> Iterator[Callable[[str], ForeignEngine]]:
    settings.PROVIDER_PROGRAMS, settings.HOME = str(tmp_path), tmp_path
    cloud, agent = tmp_path / "cloud", tmp_path / "agent"
    cloud.write_text(CLOUD.format(folder=tmp_path))
    agent.write_text("#!/bin/sh\ncase $* in *stop-all*) exit 0;; esac\nexec sleep 600\n")
    for file in (cloud, agent):
        file.chmod(0o755)
    made: list[ForeignEngine] = []

    def engine(kind: str) -> ForeignEngine:
        made.append(kinds.engine(kind, {"program": "cloud", "python": str(agent)}))
        return made[-1]

    yield engine
    for each in made:
        each.down([one.handle for one in each.list(TAG) if one.phase is not ForeignPhase.ENDED], force=True)


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize("kind", ["command", "local"])
def test_what_was_asked_for_is_found_by_its_label_and_ended(engines: Callable[[str], ForeignEngine], kind: str) -> None:
    one = engines(kind)
    assert one.list(TAG) == []
    handle = one.up(order())
    until(lambda: [each.phase for each in one.list(TAG)] == [ForeignPhase.RUNNING])
    (found,) = one.list(TAG)
    assert (found.label, found.handle) == (order().label, handle)
    # Another process finds the same, and another provider nothing.
    assert [each.label for each in engines(kind).list(TAG)] == [order().label]
    one.down([handle])
    until(lambda: all(each.phase is ForeignPhase.ENDED for each in one.list(TAG)))
    one.down([handle])


def test_the_host_itself_refuses_to_start_a_label_twice(engines: Callable[[str], ForeignEngine]) -> None:
    one = engines("local")
    one.up(order())
    with pytest.raises(EngineFault, match="AskedBefore"):
        one.up(order())


@pytest.mark.parametrize(
    ("script", "code"),
    [
        ("echo", "AnswerUnreadable"),
        ("echo '[1]'", "AnswerUnreadable"),
        ("""echo '[{"label": "yard-ffffffffffff-0", "handle": "i", "phase": "running"}]'""", "AnswerUnreadable"),
        ("""echo '[{"label": "x", "handle": "-x", "phase": "running"}]'""", "AnswerUnreadable"),
        ("printf '\\377'", "AnswerUnreadable"),
        ("head -c 5000000 /dev/zero", "ProgramTooLoud"),
        ("echo no money >&2; exit 1", "ProgramSaid"),
        ("exec /nonexistent", "ProgramMissing"),
    ],
)
def test_what_a_program_answers_is_believed_only_as_far_as_it_makes_sense(
    engines: Callable[[str], ForeignEngine], tmp_path: Path, script: str, code: str
) -> None:
    one = engines("command")
    good = (tmp_path / "cloud").read_text()
    (tmp_path / "cloud").write_text(f"#!/bin/sh\ncat >/dev/null\n{script}\n")
    with pytest.raises(EngineFault) as raised:
        one.list(TAG)
    assert raised.value.code == code
    (tmp_path / "cloud").write_text(good)


def test_a_program_says_by_its_exit_code_that_nothing_was_started(
    engines: Callable[[str], ForeignEngine], tmp_path: Path
) -> None:
    one = engines("command")
    good = (tmp_path / "cloud").read_text()
    (tmp_path / "cloud").write_text("#!/bin/sh\nexit 3\n")
    with pytest.raises(EngineRefused):
        one.up(order())
    (tmp_path / "cloud").write_text(good)


def test_lines_of_squeue_are_read_strictly() -> None:
    label = order().label
    assert slurm._read(f"7|PENDING|N/A|{label}|x").phase is ForeignPhase.QUEUED  # type: ignore[union-attr]
    assert slurm._read(f"7|RUNNING|2026-11-28T05:55:44|{label}|x").ends_at == 1795845344  # type: ignore[union-attr]
    ended = slurm._read(f"7|CANCELLED|2026-11-28T05:55:44|(null)|{label}")
    assert ended is not None
    assert ended.phase is ForeignPhase.ENDED
    assert slurm._read("7_[1-4]|PENDING|N/A|my job|a|b") is None
    for line in ("", "7", f"7_1|RUNNING|N/A|{label}|x", f"7|LOST|N/A|{label}|x", f"7|RUNNING|soon|{label}|x"):
        with pytest.raises(EngineFault):
            slurm._read(line)
