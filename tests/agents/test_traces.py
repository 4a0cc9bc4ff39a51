"""Profiles of parts that run: a real agent, real programs and py-spy, with the model control plane as the asker."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from agents.link.traces import py_spy
from agents.protocol import MOST_TRACE_BYTES, Phase, TraceNews
from tests.agents.conftest import Hands
from tests.agents.test_sessions import finish, running
from tests.client.test_runtime import TORCH
from tests.pytorch import interpreter, needs_pytorch

Names = Callable[[], str]
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root changes its user")
BUSY = """
import threading
def dig():
    while True:
        sum(range(500))
threading.Thread(target=dig, daemon=True).start()
def wait_for_ever():
    threading.Event().wait()
wait_for_ever()
"""


def of(asked: TraceNews) -> str:
    return asked.said[0][0] if asked.said else asked.detail


def begin_python(hands: Hands, name: str, folder: Path, **spec: object) -> None:
    """Have a part run a Python program below a shell, as job files do."""
    program = folder / "busy.py"
    program.write_text(BUSY)
    program.chmod(0o644)
    shell = f'/usr/bin/env python3 {program} & echo "$!" > started; wait'
    running(hands, name, "sh", "-c", shell, **spec)
    hands.yard.wait(lambda: (hands.state / "parts" / name / "work" / "started").exists())


def functions(content: bytes) -> set[str]:
    told = json.loads(content)
    assert told["$schema"] == "https://www.speedscope.app/file-format-schema.json"
    assert all(profile["samples"] for profile in told["profiles"])
    return {frame["name"] for frame in told["shared"]["frames"]}


def test_py_spy_tells_what_the_programs_of_a_part_do(shared: Hands, part: Names, tmp_path: Path) -> None:
    name = part()
    begin_python(shared, name, tmp_path)
    asked = shared.yard.trace(shared.name, name, "py-spy", 1)
    assert [news.state for news in asked.news] == ["RUNNING"]
    assert {"dig", "wait_for_ever"} <= functions(asked.content)
    assert shared.yard.side(shared.name).here[name].phase == Phase.RUNNING
    # Nothing of it stays where the job is.
    assert list((shared.state / "parts" / name / "tmp").iterdir()) == []
    finish(shared, name)


@as_root
def test_it_runs_as_the_user_of_the_part(root_agent: Hands, part: Names, open_path: Path) -> None:
    name = part()
    root_agent.end()
    open_path.joinpath("py-spy").symlink_to(shutil.copy(py_spy(), open_path / "copied"))
    root_agent.environment["PATH"] = f"{open_path}:/usr/bin:/bin"
    root_agent.start()
    begin_python(root_agent, name, open_path)
    asked = root_agent.yard.trace(root_agent.name, name, "py-spy", 1)
    assert asked.content, asked.news
    assert "dig" in functions(asked.content)
    open_path.joinpath("copied").chmod(0o700)
    assert of(root_agent.yard.trace(root_agent.name, name, "py-spy", 1).news[-1]) == "ToolForbidden"
    finish(root_agent, name)


def test_why_there_is_no_trace_is_told(shared: Hands, part: Names) -> None:
    name = part()
    running(shared, name)
    for tool, epoch, code in (("py-spy", 1, "TraceRefused"), ("gdb", 1, "NoTool"), ("py-spy", 2, "NotEntered")):
        asked = shared.yard.trace(shared.name, name, tool, 1, epoch)
        assert of(asked.news[-1]) == code
        assert asked.content == b""
    refused = shared.yard.trace(shared.name, name, "py-spy", 1).news[-1]
    assert "No python processes found" in refused.detail
    finish(shared, name)
    assert of(shared.yard.trace(shared.name, name, "py-spy", 1).news[-1]) == "NotEntered"


def standing_in(hands: Hands, folder: Path, script: str) -> None:
    """Put a program in the place of py-spy."""
    program = folder / "py-spy"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    hands.environment["PATH"] = f"{folder}:{hands.environment['PATH']}"
    hands.start()


# What it writes is in the argument after --output.
WRITES = 'while test "$1" != --output; do shift; done'


@pytest.mark.parametrize(
    ("script", "code"),
    [
        (f'{WRITES}; head -c {MOST_TRACE_BYTES + 1} /dev/zero > "$2"', "TraceTooLarge"),
        # The job's user may put a link to what never ends in the place of the file.
        (f'{WRITES}; ln -sf /dev/zero "$2"', "TraceTooLarge"),
        ("true", "TraceEmpty"),
        ("echo 'Error: Permission Denied: try sudo' >&2; exit 1", "TraceForbidden"),
        ("kill -9 $$", "TraceRefused"),
    ],
)
def test_what_py_spy_may_do_is_bounded(hands: Hands, part: Names, tmp_path: Path, script: str, code: str) -> None:
    standing_in(hands, tmp_path, script)
    name = part()
    running(hands, name)
    asked = hands.yard.trace(hands.name, name, "py-spy", 1)
    assert of(asked.news[-1]) == code
    assert asked.content == b""
    finish(hands, name)


def test_a_part_that_ends_takes_its_trace_along(hands: Hands, part: Names, tmp_path: Path) -> None:
    standing_in(hands, tmp_path, "touch begun; sleep 100")
    name = part()
    running(hands, name, "sh", "-c", "while test ! -e begun; do sleep 0.1; done")
    assert of(hands.yard.trace(hands.name, name, "py-spy", 100).news[-1]) == "TraceCut"
    hands.yard.ended(hands.name, name)


def test_a_node_without_py_spy_says_so(hands: Hands, part: Names, tmp_path: Path) -> None:
    links = tmp_path / "bin"
    links.mkdir()
    for tool in ("sh", "sleep"):
        (links / tool).symlink_to(shutil.which(tool) or tool)
    python = links / "python"
    python.symlink_to(os.path.realpath(sys.executable))
    hands.environment |= {"PATH": str(links), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "executable", str(python))
        hands.start()
    name = part()
    running(hands, name)
    assert of(hands.yard.trace(hands.name, name, "py-spy", 1).news[-1]) == "NoPySpy"
    finish(hands, name)


LOOP = """
import sys, time
sys.path.insert(0, ".")
import torch
from switchyard import runtime
step = 0
while True:
    step += 1
    runtime.report(step=step)
    time.sleep(0.05)
"""


def test_torch_is_asked_through_the_runtime_of_a_loop(shared: Hands, part: Names, tmp_path: Path) -> None:
    package = tmp_path / "torch"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "profiler.py").write_text(TORCH)
    (tmp_path / "loop.py").write_text(LOOP)
    name = part()
    running(shared, name, sys.executable, str(tmp_path / "loop.py"))
    asked = shared.yard.trace(shared.name, name, "torch", 1)
    assert json.loads(asked.content)["traceEvents"], asked.news
    assert list((shared.state / "parts" / name / "tmp").iterdir()) == []
    finish(shared, name)


WORK = """
import sys
sys.path.insert(0, {root!r})
import torch
from switchyard import runtime
layer = torch.nn.Linear(32, 32)
better = torch.optim.SGD(layer.parameters(), lr=0.1)
step = 0
while True:
    step += 1
    better.zero_grad()
    layer(torch.ones(8, 32)).sum().backward()
    better.step()
    runtime.report(step=step)
"""


@needs_pytorch
def test_pytorch_itself_is_traced_and_the_loop_goes_on(shared: Hands, part: Names, tmp_path: Path) -> None:
    (tmp_path / "work.py").write_text(WORK.format(root=str(Path(__file__).parents[2])))
    name = part()
    running(shared, name, interpreter(), str(tmp_path / "work.py"))
    for _ in range(2):  # it is asked again, as a loop goes on
        asked = shared.yard.trace(shared.name, name, "torch", 1)
        assert asked.content, asked.news
        told = json.loads(gzip.decompress(asked.content))
        names = {event.get("name", "") for event in told["traceEvents"]}
        assert {"aten::linear", "aten::addmm"} <= names
        assert any(one.startswith("ProfilerStep#") for one in names), "each report is a step"
        assert list((shared.state / "parts" / name / "tmp").glob(".trace*")) == []
    finish(shared, name)
