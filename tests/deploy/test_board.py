"""What the demo says of a job, from the REST interface's JSON."""

from __future__ import annotations

import io
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from deploy.local import board
from deploy.local.demo import model_file

NOW = datetime(2026, 1, 1, 12, 0, 30, tzinfo=UTC)
CPU = {"kind": "cpu", "model": "EPYC 9654", "index": 0}
H100 = {"kind": "gpu", "model": "H100", "index": 3}


def stage(**facts: Any) -> dict[str, Any]:
    return {
        "id": "a",
        "name": "train",
        "kind": "train",
        "state": "RUNNING",
        "placed": [{"node": "n1", "devices": [H100, CPU]}],
        "why_here": "the fastest device that fits",
        "progress": {"step": 30, "total": 120, "phase": None},
        "started_at": "2026-01-01T12:00:00Z",
        "ended_at": None,
        "reason": None,
        "values": {"loss": 1.23456789},
        "attempts": 1,
        **facts,
    }


def test_a_placed_stage_names_its_accelerators_and_not_the_cpu_beside_them() -> None:
    assert board.where(stage()) == "n1: H100 #3"


def test_a_stage_without_accelerators_names_its_cpu() -> None:
    assert board.where(stage(placed=[{"node": "n1", "devices": [CPU]}])) == "n1: EPYC 9654 #0"


def test_simulated_devices_are_marked() -> None:
    assert "simulated" in board.where(stage(placed=[{"node": "n1", "devices": [H100 | {"simulated": True}]}]))


def test_a_gang_names_each_of_its_nodes() -> None:
    parts = [{"node": "n1", "devices": [H100]}, {"node": "n2", "devices": [H100]}]
    assert board.where(stage(placed=parts)) == "n1: H100 #3; n2: H100 #3"


def test_a_waiting_stage_says_its_reason() -> None:
    waiting = stage(state="PENDING", placed=[], started_at=None, reason={"code": "busy", "text": "both GPUs are taken"})
    assert "both GPUs are taken" in board.line(waiting, NOW)
    assert board.elapsed_s(waiting, NOW) is None


@pytest.mark.parametrize(
    ("facts", "share"),
    [
        ({}, 0.25),
        ({"progress": None}, None),
        ({"progress": {"step": 5, "total": None, "phase": "load"}}, None),
        ({"progress": {"step": 130, "total": 120, "phase": None}}, 1.0),
        ({"state": "COMPLETED", "progress": None}, 1.0),
    ],
)
def test_the_share_that_is_done(facts: dict[str, Any], share: float | None) -> None:
    assert board.share_done(stage(**facts)) == share


def test_an_ended_stage_keeps_its_time() -> None:
    assert board.elapsed_s(stage(ended_at="2026-01-01T12:00:04.5Z"), NOW) == 4.5


def test_news_is_what_changed() -> None:
    before = {"stages": [stage(), stage(id="b", name="infer", state="PENDING", placed=[])]}
    after = {"stages": [stage(progress={"step": 31, "total": 120}), stage(id="b", name="infer", state="RUNNING")]}
    (line,) = board.news(before, after, NOW)
    assert line.startswith("infer")
    assert len(board.news(None, after, NOW)) == 2


def test_the_ending_tells_time_device_and_metrics() -> None:
    text = "\n".join(board.ending({"stages": [stage(state="COMPLETED", ended_at="2026-01-01T12:00:20Z")]}))
    assert "20.0 s" in text
    assert "n1: H100 #3" in text
    assert "loss 1.235" in text


def test_the_picture_shows_stages_logs_and_the_address() -> None:
    from rich.console import Console

    job = {"number": 7, "name": "finetune", "state": "RUNNING", "stages": [stage()]}
    console = Console(width=140, record=True, file=io.StringIO())
    console.print(board.picture(job, ["train | step 30"], "http://127.0.0.1:8470", []))
    shown = console.export_text()
    for words in (
        "finetune",
        "H100 #3",
        "the fastest device",
        "25%",
        "train | step 30",
        "http://127.0.0.1:8470/jobs/7",
    ):
        assert words in shown


def test_the_model_is_what_the_last_training_stage_left(tmp_path: Path) -> None:
    kinds = {"pretrain": "train", "train": "train", "infer": "infer"}
    stages = [{"name": name, "kind": kind} for name, kind in kinds.items()]
    for name in kinds:
        (tmp_path / name).mkdir()
        (tmp_path / name / f"{name}.npz").write_text("weights")
    assert model_file(tmp_path, {"stages": stages}) == tmp_path / "train" / "train.npz"
    assert model_file(tmp_path, {"stages": stages[2:]}) is None
