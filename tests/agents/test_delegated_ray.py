"""How parts become jobs of a Ray and its answers are read: a scripted server stands for Ray's REST API here.

tests/agents/conformance has a real Ray.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agents.delegated import EngineGround, EngineSilent, ForeignOrder, ForeignState, SubmissionRefused, ray
from agents.delegated.label import Label
from agents.delegated.ray import RayEngine
from tests.agents.yard import order
from tests.providers.scripted_http import ScriptedServer, serving

TAG, FENCE = "01234567", "0123456789ab"


def named(part: str = "part-1", epoch: int = 3, tag: str = TAG) -> str:
    return str(Label(tag, FENCE, epoch, part))


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with serving(lambda _: (200, b"{}")) as scripted:
        yield scripted


@pytest.fixture
def engine(server: ScriptedServer, tmp_path: Path) -> RayEngine:
    (tmp_path / "token").write_text("a-bearer-token\n")
    options = {"url": f"{server.url}/behind", "token_file": str(tmp_path / "token"), "python": "/opt/python"}
    shapes: dict[str, Any] = {"npu": {"device": "NPU", "resources": {"fast": 0.5}}}
    return RayEngine(EngineGround(TAG, tmp_path, options, shapes))


def part(folder: Path, shape: str = "small", devices: int = 0) -> ForeignOrder:
    wanted = order("part-1", "true")
    assert wanted.spec is not None
    return ForeignOrder(
        part="part-1", epoch=3, fence=FENCE, label=named(), folder=str(folder), shape=shape, cpus=2,
        memory_bytes=2**20, devices=devices, spec=wanted.spec,
    )  # fmt: skip


def job(**more: Any) -> dict[str, Any]:
    return {"submission_id": named(), "status": "RUNNING", "start_time": 1_000, "message": None, **more}


def test_a_part_is_a_job_whose_id_is_its_label(engine: RayEngine, server: ScriptedServer, tmp_path: Path) -> None:
    assert engine.submit(part(tmp_path, devices=2)) == named()
    (asked,) = server.asked
    sent = json.loads(asked.body)
    assert (asked.method, asked.path, asked.headers["authorization"]) == (
        "POST", "/behind/api/jobs/", "Bearer a-bearer-token",
    )  # fmt: skip
    assert (sent["submission_id"], sent["entrypoint_num_cpus"], sent["entrypoint_num_gpus"]) == (named(), 2, 2)
    assert sent["entrypoint_memory"] == 2**20
    engine.submit(part(tmp_path, "npu", devices=4))
    sent = json.loads(server.asked[-1].body)
    assert sent["entrypoint_resources"] == {"fast": 0.5, "NPU": 4}
    assert "entrypoint_num_gpus" not in sent


def test_an_id_that_is_taken_is_the_part_itself(engine: RayEngine, server: ScriptedServer, tmp_path: Path) -> None:
    said = f"ValueError: Job with submission_id {named()} already exists. Please use a different submission_id."
    server.answer = lambda _: (500, said.encode())
    assert engine.submit(part(tmp_path)) == named()


@pytest.mark.parametrize(("status", "is_sure"), [(400, True), (422, True), (401, False), (429, False), (500, False)])
def test_only_what_ray_would_refuse_again_ends_a_part(
    engine: RayEngine, server: ScriptedServer, tmp_path: Path, status: int, is_sure: bool
) -> None:
    server.answer = lambda _: (status, b"no")
    with pytest.raises(EngineSilent) as raised:
        engine.submit(part(tmp_path))
    assert isinstance(raised.value, SubmissionRefused) is is_sure


def test_only_jobs_of_this_node_are_listed(engine: RayEngine, server: ScriptedServer) -> None:
    others = [
        job(submission_id=None),
        job(submission_id="raysubmit_1", status="ODD"),
        job(submission_id=named(tag="f" * 8)),
    ]
    own = [job(), job(submission_id=named("b"), status="PENDING"), job(submission_id=named("c"), status="STOPPED")]
    server.answer = lambda _: (200, json.dumps([*others, *own]).encode())
    found = engine.jobs()
    assert [(each.part, each.epoch, each.state) for each in found] == [
        ("part-1", 3, ForeignState.RUNNING), ("b", 3, ForeignState.QUEUED), ("c", 3, ForeignState.ENDED),
    ]  # fmt: skip
    assert found[2].exit is not None
    assert found[2].exit.cause == "SUPERVISOR_LOST"


def test_a_node_that_died_is_told_as_that(engine: RayEngine, server: ScriptedServer, tmp_path: Path) -> None:
    lost = job(status="FAILED", message="Job supervisor actor died: The actor's node was terminated")
    server.answer = lambda _: (200, json.dumps(lost).encode())
    found = engine.find(part(tmp_path))
    assert found is not None
    assert found.exit is not None
    assert found.exit.cause == "NODE_FAIL"
    server.answer = lambda _: (404, b"Job does not exist")
    assert engine.find(part(tmp_path)) is None


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (200, b"<html>"),
        (200, b"{}"),
        (200, b'[{"x":' + b"[" * 100_000),
        (200, json.dumps([job(status="FLYING")]).encode()),
        (200, json.dumps([job(end_time=-1)]).encode()),
        (503, b"starting"),
        (302, b""),
        (0, b""),
    ],
)
def test_nonsense_is_silence_and_never_an_end(
    engine: RayEngine, server: ScriptedServer, status: int, body: bytes
) -> None:
    server.answer = lambda _: (status, body)
    with pytest.raises(EngineSilent):
        engine.jobs()


def test_an_answer_is_bounded(engine: RayEngine, server: ScriptedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "MOST_READ", 10)
    server.answer = lambda _: (200, b" " * 11)
    with pytest.raises(EngineSilent):
        engine.jobs()
    monkeypatch.setattr(ray, "MOST_S", 0.2)
    over = threading.Event()
    server.answer = lambda _: (200, b"[]" if over.wait(60) else b"")
    with pytest.raises(EngineSilent):
        engine.jobs()
    over.set()


def test_a_token_is_read_anew_and_never_said(engine: RayEngine, server: ScriptedServer, tmp_path: Path) -> None:
    server.answer = lambda _: (200, b"[]")
    (tmp_path / "token").write_text("another")
    engine.jobs()
    assert server.asked[-1].headers["authorization"] == "Bearer another"
    (tmp_path / "token").write_text("two words")
    with pytest.raises(EngineSilent) as raised:
        engine.jobs()
    assert "two words" not in str(raised.value)


@pytest.mark.parametrize(
    "options",
    [
        {}, {"url": "ftp://ray"}, {"url": "http://ray/ x"}, {"url": "http://ray", "python": "python3"},
        {"url": "http://ray", "extra": 1}, {"url": "https://ray", "authority": "/nonexistent"},
    ],
)  # fmt: skip
def test_options_that_make_no_sense_are_refused(tmp_path: Path, options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="Ray"):
        RayEngine(EngineGround(TAG, tmp_path, options, {}))
