"""The fine-tune learns, can be interrupted without a trace in its result, and is refused when it did not help."""

from __future__ import annotations

import errno
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from finetune import checkpoint, corpus, framework, model_numpy, training, weights
from finetune.perplexity import perplexity
from finetune.quantised import Quantised
from finetune.settings import Settings
from finetune.tokens import Vocabulary
from hypothesis import given
from hypothesis import strategies as st

from switchyard import jobfile, runtime

EXAMPLE = Path(__file__).parents[2] / "examples" / "finetune"
STAGES = ("preprocess", "pretrain", "train", "validate", "infer")
TINY = weights.Shape(vocabulary=29, context=7, width=8, heads=2, layers=2)
SMALL = Settings(steps=24, batch=4, context=7, width=8, heads=2, checkpoint_every_s=1e9)
# A model that is learned in a second, for tests that run the stages themselves.
QUICK = {"FINETUNE_STEPS": "60", "FINETUNE_WIDTH": "32", "FINETUNE_CONTEXT": "32", "FINETUNE_FRAMEWORK": "numpy"}


def tokens(seed: int, *dims: int) -> Any:
    return np.random.default_rng(seed).integers(0, TINY.vocabulary, dims).astype(np.uint16)


# ------------------------------------------------------------------------------------------------------- the parts


@given(st.text())
def test_any_text_survives_the_vocabulary(text: str) -> None:
    vocabulary = Vocabulary.learn("the cat, the hat; 字字字", 300)
    assert vocabulary.decode([int(number) for number in vocabulary.encode(text)]) == text


def test_the_vocabulary_merges_what_is_frequent_and_is_kept(tmp_path: Path) -> None:
    vocabulary = Vocabulary.learn("banana " * 50, 1000)
    assert len(vocabulary.encode("banana")) == 1
    assert len(vocabulary) < 1000  # nothing is left to merge
    vocabulary.save(tmp_path / "v.json")
    assert Vocabulary.load(tmp_path / "v.json").encode("a banana").tolist() == vocabulary.encode("a banana").tolist()


def test_the_held_out_part_is_a_tenth_and_not_learned_from() -> None:
    text = "".join(f"{number:08d}" for number in range(50_000))
    kept, held = corpus.split(text)
    assert len(kept) + len(held) == len(text)
    assert len(held) == pytest.approx(len(text) / 10, rel=0.01)
    assert not set(re.findall("." * 8, kept)) & set(re.findall("." * 8, held))


def test_the_two_texts_differ_in_kind() -> None:
    texts = corpus.texts(50_000, 50_000)
    assert {name: len(text) for name, text in texts.items()} == {"code": 50_000, "prose": 50_000}
    assert texts["code"].count("self.") > 20 * texts["prose"].count("self.")
    assert texts["prose"].count(" the ") > 20 * texts["code"].count(" the ")


# ------------------------------------------------------------------------------------------------------- the model


def test_the_gradient_is_that_of_the_loss() -> None:
    flat = weights.fresh(TINY, 1).astype(np.float64)
    flat += np.random.default_rng(2).normal(0, 0.1, flat.size)
    text = tokens(3, 3, 8)
    _, gradient = model_numpy.Model(TINY, flat, dtype=np.float64).gradient(text)
    dice = np.random.default_rng(4)
    for place in weights.layout(TINY):
        for at in dice.integers(place.start, place.stop, 6):
            step = np.zeros_like(flat)
            step[at] = 1e-5
            above = model_numpy.Model(TINY, flat + step, dtype=np.float64).loss(text)
            below = model_numpy.Model(TINY, flat - step, dtype=np.float64).loss(text)
            assert gradient[at] == pytest.approx((above - below) / 2e-5, rel=1e-4, abs=1e-8), place.name


def test_no_token_sees_what_comes_after_it() -> None:
    model = model_numpy.Model(TINY, weights.fresh(TINY, 1))
    text = tokens(5, 1, 8)
    scores = model.scores(text[0, :6]).astype(np.float64)
    last = np.log(np.exp(scores).sum()) - scores[text[0, 6]]
    assert model.loss(text[:, :6]) * 5 + last == pytest.approx(model.loss(text[:, :7]) * 6, rel=1e-5)


def test_the_text_of_a_step_depends_on_seed_and_step_alone() -> None:
    def read(seed: int, step: int) -> Any:
        return training.batch(tokens(9, 500), replace(SMALL, seed=seed), 7, step).tolist()

    assert read(1, 5) == read(1, 5)
    assert len({str(read(seed, step)) for seed in range(3) for step in range(10)}) == 30


def test_the_model_learns_a_rhyme_by_heart() -> None:
    shape = replace(TINY, width=16)
    model = model_numpy.Model(shape, weights.fresh(shape, 1))
    rhyme = np.arange(400) * 3 % 7
    start = perplexity(model, rhyme)
    for step in range(80):
        model.train_step(training.batch(rhyme.astype(np.uint16), SMALL, 7, step), 1e-2)
    assert start > 20
    assert perplexity(model, rhyme) < 1.2


def test_both_implementations_compute_the_same() -> None:
    pytest.importorskip("torch", reason="torch is not installed: pip install torch")
    from finetune import model_torch

    flat, text = weights.fresh(TINY, 1), tokens(3, 3, 8)
    ours, theirs = model_numpy.Model(TINY, flat), model_torch.Model(TINY, flat)
    assert ours.loss(text) == pytest.approx(theirs.loss(text), rel=1e-5)
    np.testing.assert_allclose(ours.gradient(text)[1], theirs.gradient(text)[1], rtol=1e-3, atol=1e-6)
    np.testing.assert_allclose(ours.scores(text[0, :5]), theirs.scores(text[0, :5]), rtol=1e-4, atol=1e-5)
    for step in range(5):
        batch = tokens(step, 3, 8)
        assert ours.train_step(batch, 1e-3) == pytest.approx(theirs.train_step(batch, 1e-3), rel=1e-4)
    # Either goes on from the state of the other.
    theirs.restore(ours.state())
    assert theirs.state().updates == 5
    assert ours.train_step(text, 1e-3) == pytest.approx(theirs.train_step(text, 1e-3), rel=1e-5)
    assert ours.loss(text) == pytest.approx(theirs.loss(text), rel=1e-4)


def test_int8_is_the_nearest_of_its_levels() -> None:
    flat = weights.fresh(TINY, 1)
    small = Quantised.of(TINY, flat)
    restored = weights.views(small.restored(), TINY)
    for name, matrix in weights.views(flat, TINY).items():
        if matrix.ndim == 1:
            assert np.array_equal(restored[name], matrix)
        else:
            assert small.codes[name].dtype == np.int8
            assert np.all(np.abs(restored[name] - matrix) <= small.scales[name] * 0.5001)
    assert small.size_bytes < flat.nbytes / 2


# ------------------------------------------------------------------------------------------------------- interruptions


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """The folders of a stage, and the signal handling of the test run put back afterwards."""
    former = signal.getsignal(signal.SIGTERM)
    monkeypatch.setenv("YARD_CHECKPOINT_DIR", str(tmp_path / "checkpoints"))
    monkeypatch.setenv("YARD_STOP_FILE", str(tmp_path / "stop-notice.json"))
    monkeypatch.setenv("YARD_REPORT_FILE", str(tmp_path / "report.jsonl"))
    yield tmp_path
    signal.signal(signal.SIGTERM, former)


class Interrupted(model_numpy.Model):
    """A model during whose update number ``at`` something happens."""

    def __init__(self, at: int, happens: Any) -> None:
        super().__init__(TINY, weights.fresh(TINY, 1))
        self.at, self.happens = at, happens

    def train_step(self, text: Any, rate: float) -> float:
        if self.state().updates == self.at:
            self.happens()
        return super().train_step(text, rate)


class Killed(BaseException):
    """What ends a process without asking it."""


def killed() -> None:
    raise Killed


TEXT = tokens(9, 500)


def undisturbed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, float]:
    with monkeypatch.context() as patch:
        patch.setenv("YARD_CHECKPOINT_DIR", str(folder / "undisturbed"))
        model = model_numpy.Model(TINY, weights.fresh(TINY, 1))
        loss = training.run("train", model, TEXT, SMALL)
    return model.state().flat, loss


def test_asked_to_stop_it_saves_and_ends_where_an_undisturbed_run_does(
    stage: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notice = stage / "stop-notice.json"
    model = Interrupted(9, lambda: notice.write_text('{"reason": "PREEMPTED"}'))
    with pytest.raises(SystemExit) as ended:
        training.run("train", model, TEXT, SMALL)
    assert ended.value.code == runtime.EXIT_CHECKPOINTED
    assert json.loads((stage / "checkpoints" / runtime.MARKER).read_text())["step"] == 10

    notice.unlink()
    again = model_numpy.Model(TINY, weights.fresh(TINY, 1))
    loss = training.run("train", again, TEXT, SMALL)
    flat, expected = undisturbed(stage, monkeypatch)
    assert loss == pytest.approx(expected, abs=1e-6)
    np.testing.assert_allclose(again.state().flat, flat, rtol=0, atol=1e-6)


def test_killed_again_and_again_it_ends_where_an_undisturbed_run_does(
    stage: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    often = replace(SMALL, checkpoint_every_s=0.0)
    for at in (0, 5, 6, 17):
        with pytest.raises(Killed):
            training.run("train", Interrupted(at, killed), TEXT, often)
    model = model_numpy.Model(TINY, weights.fresh(TINY, 1))
    loss = training.run("train", model, TEXT, often)
    assert "resuming from the checkpoint of step 17" in capsys.readouterr().out
    flat, expected = undisturbed(stage, monkeypatch)
    assert loss == pytest.approx(expected, abs=1e-6)
    np.testing.assert_allclose(model.state().flat, flat, rtol=0, atol=1e-6)
    # A retry after the last step only repeats the end.
    assert training.run("train", Interrupted(0, killed), TEXT, often) == loss


def test_only_the_newest_checkpoints_are_kept(stage: Path) -> None:
    (stage / "checkpoints").mkdir()
    (stage / "checkpoints" / "notes.npz").write_text("somebody's")
    training.run("train", model_numpy.Model(TINY, weights.fresh(TINY, 1)), TEXT, replace(SMALL, checkpoint_every_s=0.0))
    names = {path.name for path in (stage / "checkpoints").iterdir()}
    assert names == {"notes.npz", "train-000023.npz", "train-000024.npz", runtime.MARKER}


def test_a_checkpoint_of_another_run_is_not_resumed(stage: Path, capsys: pytest.CaptureFixture[str]) -> None:
    training.run("pretrain", model_numpy.Model(TINY, weights.fresh(TINY, 1)), TEXT, SMALL)
    model = model_numpy.Model(TINY, weights.fresh(TINY, 1))
    training.run("train", model, TEXT, SMALL)
    assert "belongs to another run" in capsys.readouterr().out
    assert model.state().updates == SMALL.steps


def test_a_damaged_checkpoint_costs_the_work_not_the_run(stage: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (stage / "checkpoints").mkdir()
    path = stage / "checkpoints" / "train-000005.npz"
    path.write_bytes(b"PK\x03\x04 and then nothing")
    assert runtime.checkpoint(5, str(path))
    model = model_numpy.Model(TINY, weights.fresh(TINY, 1))
    training.run("train", model, TEXT, SMALL)
    assert "cannot be read" in capsys.readouterr().out
    assert model.state().updates == SMALL.steps


def test_a_full_disk_costs_the_checkpoint_not_the_run(
    stage: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(checkpoint.np, "savez", full)
    model = model_numpy.Model(TINY, weights.fresh(TINY, 1))
    training.run("train", model, TEXT, SMALL)
    assert "no checkpoint at step 24: [Errno 28]" in capsys.readouterr().out
    assert list((stage / "checkpoints").iterdir()) == []
    assert model.state().updates == SMALL.steps


def test_frozen_weights_do_not_move(stage: Path) -> None:
    model = model_numpy.Model(TINY, weights.fresh(TINY, 1))
    training.run("train", model, TEXT, replace(SMALL, freeze=True))
    assert np.array_equal(model.state().flat, weights.fresh(TINY, 1))


# ------------------------------------------------------------------------------------------------------- the device


@pytest.mark.parametrize(
    ("environment", "sentence"),
    [
        ({}, "given: the CPU\n"),
        (
            {"YARD_DEVICE_KIND": "npu", "YARD_DEVICE_MODEL": "Ascend910B", "YARD_DEVICE_SIMULATED": "1"},
            "given: NPU Ascend910B, which is simulated and computes nothing\n",
        ),
        (
            {"YARD_DEVICE_KIND": "npu", "YARD_DEVICE_MODEL": "Ascend910B"},
            "given: NPU Ascend910B, but numpy here cannot use it\n",
        ),
    ],
)
def test_the_log_says_what_was_given_and_what_computes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], environment: dict[str, str], sentence: str
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    framework.build(TINY, weights.fresh(TINY, 1), "numpy")
    assert capsys.readouterr().out == sentence + "computing with numpy on cpu, fp32\n"


# ------------------------------------------------------------------------------------------------------- the stages


def environment(folder: Path, name: str, **more: str) -> dict[str, str]:
    """What an agent would give to stage ``name`` of a job whose files are in ``folder``."""
    own = {name: value for name, value in os.environ.items() if not name.startswith(("YARD_", "FINETUNE_"))}
    return {
        **own,
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": f"{EXAMPLE}{os.pathsep}{EXAMPLE.parents[1]}",
        "YARD_STAGE": name,
        "YARD_INPUT_DIR": str(folder / "outputs"),
        "YARD_OUTPUT_DIR": str(folder / "outputs" / name),
        "YARD_CHECKPOINT_DIR": str(folder / "checkpoints" / name),
        "YARD_REPORT_FILE": str(folder / f"{name}.jsonl"),
        **QUICK,
        **more,
    }


def run(folder: Path, name: str, *flags: str, **more: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", f"finetune.{name}", *flags]
    return subprocess.run(command, env=environment(folder, name, **more), cwd=folder, capture_output=True, text=True)


def told(folder: Path, name: str) -> dict[str, Any]:
    reports = [json.loads(line) for line in (folder / f"{name}.jsonl").read_text().splitlines()]
    last: dict[str, Any] = [line["report"] for line in reports if "report" in line][-1]
    return last


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a job whose first two stages are done."""
    folder = tmp_path_factory.mktemp("job")
    for name in STAGES[:2]:
        done = run(folder, name)
        assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_the_stages_after_one_another_reach_the_margin(pretrained: Path) -> None:
    for name in STAGES[2:]:
        done = run(pretrained, name)
        assert done.returncode == 0, done.stdout + done.stderr
    values = told(pretrained, "validate")["values"]
    assert values["perplexity_after"] < values["perplexity_before"]
    assert values["improvement"] >= Settings().margin
    assert Path(values["model"]) == pretrained / "outputs" / "train" / "tuned.npz"
    assert told(pretrained, "train")["step"] == told(pretrained, "train")["total"] == 60
    assert told(pretrained, "infer")["values"]["perplexity_int8"] == pytest.approx(values["perplexity_after"], rel=0.02)
    assert (pretrained / "outputs" / "infer" / "sample.txt").read_text().startswith(Settings().prompt)
    assert done.stdout.endswith(f"model={pretrained / 'outputs' / 'infer' / 'tuned.int8.npz'}\n")


@pytest.mark.parametrize("way", ["flag", "environment"])
def test_a_fine_tune_that_learned_nothing_is_refused(pretrained: Path, tmp_path: Path, way: str) -> None:
    (tmp_path / "outputs").mkdir()
    for name in STAGES[:2]:
        (tmp_path / "outputs" / name).symlink_to(pretrained / "outputs" / name)
    frozen = run(tmp_path, "train", "--freeze") if way == "flag" else run(tmp_path, "train", FREEZE="1")
    assert frozen.returncode == 0, frozen.stderr
    judged = run(tmp_path, "validate", "--margin", "0.25")
    assert judged.returncode == 1
    assert re.fullmatch(
        r"the fine-tune is refused: perplexity ([\d.]+) after is 0\.0% below \1 before, and at least 25% was required "
        r"\(--margin\)\n",
        judged.stderr,
    )


def test_a_signal_makes_a_stage_save_and_the_next_attempt_resume(pretrained: Path, tmp_path: Path) -> None:
    inputs = str(pretrained / "outputs")
    endless = environment(tmp_path, "train", FINETUNE_STEPS="1000000", YARD_INPUT_DIR=inputs)
    first_lines = []
    for _ in range(2):
        process = subprocess.Popen(
            [sys.executable, "-m", "finetune.train"], env=endless, cwd=tmp_path, stdout=subprocess.PIPE, text=True
        )
        try:
            assert process.stdout is not None
            seen = ""
            while not seen.startswith("step "):
                seen = process.stdout.readline()
                first_lines.append(seen)
            process.terminate()
            rest = process.communicate(timeout=60)[0]
            assert process.returncode == runtime.EXIT_CHECKPOINTED
            assert "asked to stop (SIGTERM)" in rest
        finally:
            process.kill()
    assert any(line.startswith("resuming from the checkpoint of step ") for line in first_lines)


def test_a_stage_without_its_inputs_says_what_to_run_first(tmp_path: Path) -> None:
    done = run(tmp_path, "validate")
    assert done.returncode == 1
    assert done.stderr.endswith("run the stage that makes it first\n")


def test_the_job_file_names_stages_that_exist_and_flags_that_they_take() -> None:
    job = jobfile.read(str(EXAMPLE / "job.yaml"))
    assert tuple(stage["name"] for stage in job["stages"]) == STAGES
    done: set[str] = set()
    for stage in job["stages"]:
        assert set(stage.get("needs", [])) <= done
        done.add(stage["name"])
        words = shlex.split(stage["run"], comments=True)
        assert words[:4] == ["exec", "${FINETUNE_PYTHON:-python3}", "-m", f"finetune.{stage['name']}"]
        assert {word[2:] for word in words if word.startswith("--")} <= set(asdict(Settings()))
