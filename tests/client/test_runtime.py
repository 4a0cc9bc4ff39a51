"""The in-job module: a stage learns where it is, when to stop, and what of its work is safe."""

from __future__ import annotations

import ast
import errno
import importlib
import importlib.util
import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

SOURCE = Path(__file__).parents[2] / "switchyard" / "runtime.py"


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    """The one file, loaded by itself as the agent ships it, in an empty folder and outside any job."""
    for name in [name for name in os.environ if name.startswith("YARD_") or name == "LOCAL_RANK"]:
        monkeypatch.delenv(name)
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    return load()


@pytest.fixture
def job(runtime: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The folders and names of a job; returns its folder."""
    places = {"CHECKPOINT_DIR": "checkpoints", "OUTPUT_DIR": "outputs", "INPUT_DIR": "inputs"}
    files = {"STOP_FILE": "stop-notice.json", "SAVE_FILE": "save-notice.json", "REPORT_FILE": "report.jsonl"}
    names = {"JOB_ID": "12", "STAGE": "train", "ATTEMPT": "1", "EPOCH": "3", "RESUME_FROM": ""}
    for name, value in {**places, **files}.items():
        monkeypatch.setenv(f"YARD_{name}", str(tmp_path / value))
    for name, value in names.items():
        monkeypatch.setenv(f"YARD_{name}", value)
    return tmp_path


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("runtime_under_test", SOURCE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "report.jsonl").read_text().splitlines()]


def saved(folder: Path, name: str) -> str:
    path = folder / "checkpoints" / name
    path.parent.mkdir(exist_ok=True)
    path.write_text("weights")
    return str(path)


def test_it_is_one_file_of_the_standard_library_and_of_python_3_9() -> None:
    tree = ast.parse(SOURCE.read_text(), feature_version=(3, 9))
    imported = {
        name.split(".")[0]
        for node in ast.walk(tree)
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }
    assert imported <= sys.stdlib_module_names


def test_outside_a_job_everything_is_quiet(
    runtime: ModuleType, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    device = runtime.device()
    assert (device.kind, device.framework_device, device.simulated, device.count) == ("cpu", "cpu", False, 1)
    assert not runtime.should_stop()
    assert runtime.stop_reason() == ""
    assert (runtime.output_dir(), runtime.checkpoint_dir(), runtime.input_dir("train")) == (".", ".", ".")
    assert runtime.latest_checkpoint() is None
    runtime.report(step=1, total=2, loss=0.5)
    with runtime.phase("update", critical=True):
        pass
    assert list((tmp_path / "empty").iterdir()) == []
    assert capfd.readouterr() == ("", "")


def test_outside_a_job_a_checkpoint_is_found_again(runtime: ModuleType, tmp_path: Path) -> None:
    model = tmp_path / "empty" / "model.bin"
    model.write_text("weights")
    assert runtime.checkpoint(5, "model.bin")
    assert os.path.samefile(runtime.latest_checkpoint(), model)


@pytest.mark.parametrize(
    ("kind", "model", "rank", "expected"),
    [
        ("cpu", "EPYC 9654", "0", "cpu"),
        ("gpu", "NVIDIA H100 80GB HBM3", "0", "cuda:0"),
        ("gpu", "NVIDIA H100 80GB HBM3", "3", "cuda:3"),
        ("gpu", "AMD Instinct MI300X", "0", "cuda:0"),
        ("gpu", "Intel Data Center GPU Max 1550", "0", "xpu:0"),
        ("npu", "Ascend910B", "1", "npu:1"),
        ("npu", "MLU370-X8", "0", "mlu:0"),
        ("npu", "Gaudi 3", "0", "hpu:0"),
        ("fpga", "U250", "0", "cpu"),
    ],
)
def test_a_device_has_the_name_that_frameworks_take(
    runtime: ModuleType, monkeypatch: pytest.MonkeyPatch, kind: str, model: str, rank: str, expected: str
) -> None:
    monkeypatch.setenv("YARD_DEVICE_KIND", kind)
    monkeypatch.setenv("YARD_DEVICE_MODEL", model)
    monkeypatch.setenv("LOCAL_RANK", rank)
    device = runtime.device()
    assert (device.kind, device.model, device.framework_device) == (kind, model, expected)


def test_every_vendor_that_an_agent_finds_has_a_name_in_frameworks(
    runtime: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The vendor decides, whatever its models are called."""
    folder = SOURCE.parents[1] / "agents" / "devices" / "vendors"
    told = dict(
        re.findall(r'^VENDOR = "(\w+)".*?Maker\(VENDOR, "(\w+)"', file.read_text(), re.DOTALL | re.MULTILINE)[0]
        for file in sorted(folder.glob("*.py"))
        if "Maker(VENDOR" in file.read_text()
    )
    assert len(told) > 10
    names = {}
    for vendor, kind in told.items():
        monkeypatch.setenv("YARD_DEVICE_KIND", kind)
        monkeypatch.setenv("YARD_DEVICE_MODEL", "X1")
        monkeypatch.setenv("YARD_DEVICE_VENDOR", vendor)
        names[vendor] = runtime.device().framework_device.partition(":")[0]
    assert "cpu" not in names.values()
    assert (names["mthreads"], names["enflame"], names["google"], names["metax"]) == ("musa", "gcu", "xla", "cuda")


def test_a_simulated_device_sends_the_framework_to_the_cpu(
    runtime: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("YARD_DEVICE_KIND", "npu")
    monkeypatch.setenv("YARD_DEVICE_MODEL", "Ascend910B")
    monkeypatch.setenv("YARD_DEVICE_SIMULATED", "1")
    device = runtime.device()
    assert (device.kind, device.framework_device, device.simulated) == ("npu", "cpu", True)


def test_precisions_tell_what_the_hardware_has(runtime: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    def of(kind: str, model: str) -> tuple[str, ...]:
        monkeypatch.setenv("YARD_DEVICE_KIND", kind)
        monkeypatch.setenv("YARD_DEVICE_MODEL", model)
        precisions: tuple[str, ...] = runtime.device().precisions
        return precisions

    assert of("gpu", "NVIDIA H100 80GB HBM3")[0] == "bf16"
    assert "fp8" in of("gpu", "NVIDIA H200")
    assert "fp8" not in of("gpu", "NVIDIA A100-SXM4-80GB")
    assert "bf16" not in of("gpu", "Tesla V100-SXM2-32GB")
    assert of("npu", "Ascend310P3") == ("fp16", "int8")
    assert of("cpu", "")[0] == "fp32"


def test_the_memory_share_is_told_or_unknown(runtime: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    assert runtime.device().memory_bytes is None
    monkeypatch.setenv("YARD_DEVICE_MEMORY_BYTES", str(20 << 30))
    assert runtime.device().memory_bytes == 20 << 30


def test_the_stop_file_is_the_notice(runtime: ModuleType, job: Path) -> None:
    assert not runtime.should_stop()
    (job / "stop-notice.json").write_text('{"reason": "PREEMPTED", "deadline_s": 20}')
    assert runtime.should_stop()
    assert runtime.stop_reason() == "PREEMPTED"


@pytest.mark.parametrize("content", ["", "{", "[]", '{"deadline_s": 3}'])
def test_an_unreadable_notice_is_a_notice(runtime: ModuleType, job: Path, content: str) -> None:
    (job / "stop-notice.json").write_text(content)
    assert runtime.should_stop()
    assert runtime.stop_reason() == "unknown"


def test_a_signal_is_a_notice_once_and_ends_the_process_the_second_time(job: Path) -> None:
    program = (
        f"import sys, time; sys.path.insert(0, {str(SOURCE.parent)!r}); import runtime\n"
        "runtime.install_signal(); print('ready', flush=True)\n"
        "while not runtime.should_stop(): time.sleep(0.01)\n"
        "print(runtime.stop_reason(), flush=True); time.sleep(60)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.terminate()
        assert process.stdout.readline() == "SIGTERM\n"
        process.terminate()
        assert process.wait(30) == -signal.SIGTERM
    finally:
        process.kill()
        process.communicate()


def test_a_save_is_due_when_one_is_asked_for_before_a_stop_until_one_is_confirmed(
    runtime: ModuleType, job: Path
) -> None:
    assert not runtime.save_due()
    (job / "stop-notice.json").write_text('{"reason": "PREEMPTED", "deadline_s": 20, "save": true}')
    assert runtime.save_due()
    with runtime.saving(3, str(job / "checkpoints" / "not-written")):
        pass
    assert runtime.save_due()
    with runtime.saving(3, saved(job, "three")):
        pass
    assert not runtime.save_due()
    assert runtime.should_stop()


def test_a_stop_after_which_nobody_goes_on_asks_for_no_save(runtime: ModuleType, job: Path) -> None:
    notice = {"reason": "CANCELLED", "deadline_s": 20, "save": False}
    (job / "stop-notice.json").write_text(json.dumps(notice))
    assert not runtime.save_due(every_s=0.0)
    # What an agent of an earlier release writes.
    del notice["save"]
    (job / "stop-notice.json").write_text(json.dumps(notice))
    assert runtime.save_due()


def test_a_save_that_is_asked_for_ahead_of_a_stop_is_due_once(runtime: ModuleType, job: Path) -> None:
    runtime.checkpoint(1, saved(job, "one"))
    assert not runtime.save_due(every_s=3600.0)
    (job / "save-notice.json").write_text('{"rev": 1}')
    assert runtime.save_due(every_s=3600.0)
    assert not runtime.should_stop()
    runtime.checkpoint(2, saved(job, "two"))
    assert not runtime.save_due(every_s=3600.0)
    (job / "save-notice.json").write_text('{"rev": 2}')
    with runtime.saving(3, saved(job, "three")):
        # One that comes while it saves is about what it does afterwards.
        (job / "save-notice.json").write_text('{"rev": 3}')
    assert runtime.save_due(every_s=3600.0)
    with pytest.raises(OSError, match="full"), runtime.saving(4, str(job / "checkpoints" / "four")):
        raise OSError("the disk is full")
    assert not runtime.save_due(every_s=3600.0), "one that failed is tried again after the interval"
    (job / "save-notice.json").write_text("[]")
    assert not runtime.save_due(every_s=3600.0)


def test_the_interval_is_the_callers_or_else_the_one_that_was_told(
    runtime: ModuleType, job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1_000.0
    monkeypatch.setattr(runtime.time, "monotonic", lambda: now)
    runtime.checkpoint(1, saved(job, "one"))
    now += 60.0
    assert not runtime.save_due()
    assert runtime.save_due(every_s=60.0)
    monkeypatch.setenv("YARD_CHECKPOINT_EVERY_S", "90")
    assert not runtime.save_due()
    assert runtime.save_due(every_s=60.0)
    now += 30.0
    assert runtime.save_due()
    assert not runtime.save_due(every_s=91.0)
    runtime.checkpoint(2, saved(job, "two"))
    assert not runtime.save_due()


@pytest.mark.parametrize("told", ["", "soon", "nan", "inf", "-1", "0"])
def test_an_interval_that_is_none_is_passed_over(
    runtime: ModuleType, job: Path, monkeypatch: pytest.MonkeyPatch, told: str
) -> None:
    monkeypatch.setenv("YARD_CHECKPOINT_EVERY_S", told)
    assert not runtime.save_due()


def test_a_save_tells_how_long_it_took_and_that_it_must_not_be_cut(
    runtime: ModuleType, job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1_000.0
    monkeypatch.setattr(runtime.time, "monotonic", lambda: now)
    with runtime.saving(7, str(job / "checkpoints" / "seven")) as path:
        assert lines(job) == [{"phase": {"name": "save", "critical": True}}]
        saved(job, "seven")
        now += 2.5
    assert lines(job)[1:] == [
        {"checkpoint": {"step": 7, "path": path, "took_s": 2.5}},
        {"phase": {"name": "", "critical": False}},
    ]


def test_a_save_that_failed_is_not_confirmed_and_tried_again_after_the_interval(
    runtime: ModuleType, job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1_000.0
    monkeypatch.setattr(runtime.time, "monotonic", lambda: now)
    runtime.checkpoint(1, saved(job, "one"))
    now += 60.0
    with pytest.raises(OSError, match="no room"), runtime.saving(2, saved(job, "two")):
        raise OSError("no room")
    assert runtime.latest_checkpoint() == str(job / "checkpoints" / "one")
    assert lines(job)[-1] == {"phase": {"name": "", "critical": False}}
    assert not runtime.save_due(every_s=60.0)
    now += 60.0
    assert runtime.save_due(every_s=60.0)


def test_folders_are_made_and_inputs_are_named_by_stage(runtime: ModuleType, job: Path) -> None:
    assert Path(runtime.checkpoint_dir()).is_dir()
    assert Path(runtime.output_dir()) == job / "outputs"
    assert Path(runtime.output_dir()).is_dir()
    assert Path(runtime.input_dir("preprocess")) == job / "inputs" / "preprocess"


def test_a_report_carries_all_that_was_told(runtime: ModuleType, job: Path) -> None:
    runtime.report(step=1, total=10, loss=2.5)
    runtime.report(step=10, tokens_per_s=900)
    values = {"loss": 2.5, "tokens_per_s": 900}
    assert lines(job)[-1] == {"report": {"step": 10, "total": 10, "values": values, "values_at": {"loss": 1}}}


def test_a_value_keeps_the_step_with_which_it_was_named(runtime: ModuleType, job: Path) -> None:
    told = []
    for named in ({"lr": 1}, {"step": 5, "loss": 2.5}, {"loss": 2.25}, {"step": 10, "input_wait": 0.5}):
        runtime._sent_at = -math.inf
        runtime.report(**named)
        told.append(lines(job)[-1]["report"].get("values_at"))
    assert told == [None, {"lr": 0}, {"lr": 0}, {"lr": 0, "loss": 5}]


def test_a_fast_loop_writes_few_lines_and_loses_nothing(job: Path) -> None:
    program = (
        f"import sys; sys.path.insert(0, {str(SOURCE.parent)!r}); import runtime\n"
        "for step in range(2000): runtime.report(step=step, total=5000, loss=step)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
    found = lines(job)
    assert found[-1]["report"] == {"step": 1999, "total": 5000, "values": {"loss": 1999}}
    assert len(found) < 1000


def test_values_become_plain(runtime: ModuleType, job: Path) -> None:
    runtime.report(
        step=1, total=1, a=np.float32(0.5), b=np.array([3]), c=float("nan"), d="x" * 9999, e=Path("/m"), f=True, g=None
    )
    (line,) = lines(job)
    values = line["report"]["values"]
    assert (values["a"], values["b"], values["c"], values["e"], values["f"]) == (0.5, 3, "nan", "/m", True)
    assert len(values["d"]) < 9999
    assert values["g"] == "None"


def test_a_phase_ends_with_its_block(runtime: ModuleType, job: Path) -> None:
    runtime.phase("rollout")
    with pytest.raises(KeyError):
        with runtime.phase("update", critical=True):
            raise KeyError
    assert [line["phase"] for line in lines(job)] == [
        {"name": "rollout", "critical": False},
        {"name": "update", "critical": True},
        {"name": "rollout", "critical": False},
    ]


def test_a_confirmed_checkpoint_is_reported_and_found_by_the_next_attempt(runtime: ModuleType, job: Path) -> None:
    path = saved(job, "step-7.bin")
    assert runtime.checkpoint(7, path)
    assert lines(job)[-1] == {"checkpoint": {"step": 7, "path": path}}
    assert load().latest_checkpoint() == path
    assert [entry.name for entry in (job / "checkpoints").iterdir() if entry.name.startswith(".")] == []


def test_a_file_without_the_marker_is_no_checkpoint(runtime: ModuleType, job: Path) -> None:
    saved(job, "step-7.bin")
    assert runtime.latest_checkpoint() is None


def test_a_folder_can_be_a_checkpoint(runtime: ModuleType, job: Path) -> None:
    saved(job, "ignored")
    folder = job / "checkpoints" / "step-9"
    (folder / "shards").mkdir(parents=True)
    (folder / "shards" / "0.distcp").write_text("weights")
    assert runtime.checkpoint(9, str(folder))
    assert runtime.latest_checkpoint() == str(folder)


def test_the_marker_survives_a_move_of_the_storage(
    runtime: ModuleType, job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert runtime.checkpoint(7, saved(job, "step-7.bin"))
    (job / "checkpoints").rename(job / "elsewhere")
    monkeypatch.setenv("YARD_CHECKPOINT_DIR", str(job / "elsewhere"))
    assert runtime.latest_checkpoint() == str(job / "elsewhere" / "step-7.bin")


def test_what_switchyard_names_comes_before_the_marker_unless_it_is_gone(
    runtime: ModuleType, job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    older, newer = saved(job, "step-5.bin"), saved(job, "step-7.bin")
    assert runtime.checkpoint(7, newer)
    monkeypatch.setenv("YARD_RESUME_FROM", older)
    assert runtime.latest_checkpoint() == older
    os.unlink(older)
    assert runtime.latest_checkpoint() == newer


def test_what_is_missing_is_not_confirmed(runtime: ModuleType, job: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert runtime.checkpoint(5, saved(job, "step-5.bin"))
    assert not runtime.checkpoint(7, str(job / "checkpoints" / "step-7.bin"))
    assert runtime.latest_checkpoint() == str(job / "checkpoints" / "step-5.bin")
    assert "step 7 is not confirmed" in capfd.readouterr().err


def test_an_attempt_that_was_given_up_cannot_confirm(
    runtime: ModuleType, job: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("YARD_EPOCH", "4")
    newer = saved(job, "step-9.bin")
    assert runtime.checkpoint(9, newer)
    monkeypatch.setenv("YARD_EPOCH", "3")
    assert not runtime.checkpoint(8, saved(job, "step-8.bin"))
    assert runtime.latest_checkpoint() == newer
    assert "epoch 4" in capfd.readouterr().err
    # Another stage that was told to use the same folder is not held up.
    monkeypatch.setenv("YARD_STAGE", "other")
    assert runtime.checkpoint(8, saved(job, "step-8.bin"))


def test_a_full_disk_warns_once_and_the_loop_goes_on(
    runtime: ModuleType, job: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    path = saved(job, "step-5.bin")

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(runtime.os, "write", full)
        patch.setattr(runtime.os, "fsync", full)
        for step in range(3):
            runtime.report(step=step, total=2, loss=1.0)
            runtime.phase("update")
            assert not runtime.checkpoint(step, path)
    warned = capfd.readouterr().err.splitlines()
    assert len(warned) == 2
    assert all("No space left" in line for line in warned)
    assert runtime.checkpoint(5, path)


def test_folders_that_cannot_be_made_warn_and_do_not_raise(
    runtime: ModuleType, job: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (job / "file").write_text("")
    monkeypatch.setenv("YARD_CHECKPOINT_DIR", str(job / "file" / "checkpoints"))
    assert runtime.latest_checkpoint() is None
    assert runtime.latest_checkpoint() is None
    assert capfd.readouterr().err.count("cannot be made") == 1


def test_a_checkpoint_that_was_written_to_after_it_was_confirmed_is_not_resumed_from(
    runtime: ModuleType, job: Path
) -> None:
    path = saved(job, "weights.bin")
    assert runtime.checkpoint(5, path)
    assert runtime.latest_checkpoint() == path
    Path(path).write_text("weig")
    assert runtime.latest_checkpoint() is None
    Path(path).write_text("weights")
    later = os.stat(job / "checkpoints" / runtime.MARKER).st_mtime_ns + 1
    os.utime(path, ns=(later, later))
    assert runtime.latest_checkpoint() is None


def test_a_folder_may_hold_its_own_marker(runtime: ModuleType, job: Path) -> None:
    saved(job, "weights.bin")
    assert runtime.checkpoint(5, runtime.checkpoint_dir())
    assert os.path.samefile(runtime.latest_checkpoint(), job / "checkpoints")


TORCH = """
import json
class ProfilerAction:
    RECORD = "record"
class profile:
    def __init__(self, schedule):
        assert schedule(0) == "record"
        self.steps = 0
    def start(self): pass
    def step(self): self.steps += 1
    def stop(self): pass
    def export_chrome_trace(self, path):
        with open(path, "w") as file:
            json.dump({"traceEvents": [{"name": "ProfilerStep", "steps": self.steps}]}, file)
"""


@pytest.fixture
def asks(runtime: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """Where a trace is asked for, of a process with a stand-in for torch, which no test has."""
    package = tmp_path / "torch"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "profiler.py").write_text(TORCH)
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("torch", "torch.profiler"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setattr(runtime, "REPORT_EVERY_S", 0.0)
    monkeypatch.setenv("YARD_TRACE_FILE", str(tmp_path / ".trace"))
    yield tmp_path
    for name in ("torch", "torch.profiler"):
        sys.modules.pop(name, None)


def test_a_loop_that_reports_is_traced_for_so_many_steps(runtime: ModuleType, asks: Path) -> None:
    importlib.import_module("torch")
    runtime.report(step=0)
    (asks / ".trace").write_text("60")
    for step in range(1, runtime.MOST_TRACED_STEPS + 1):
        runtime.report(step=step)
        assert not (asks / ".trace.json.gz").exists()
    runtime.report(step=step + 1)
    told = json.loads((asks / ".trace.json.gz").read_text())
    assert told["traceEvents"][0]["steps"] == runtime.MOST_TRACED_STEPS - 1
    # Another process finds nothing that it could take up as well.
    assert not (asks / ".trace").exists()


def test_a_trace_ends_with_its_seconds(runtime: ModuleType, asks: Path) -> None:
    importlib.import_module("torch")
    (asks / ".trace").write_text("0.01")
    runtime.report(step=1)
    time.sleep(0.02)
    runtime.report(step=2)
    assert (asks / ".trace.json.gz").exists()


def test_whatever_hinders_a_trace_is_told_and_hinders_no_loop(runtime: ModuleType, asks: Path) -> None:
    (asks / ".trace").write_text("1")
    runtime.report(step=1)
    assert "has not imported torch" in (asks / ".trace.why").read_text()
    assert "torch" not in sys.modules
    (asks / "torch/profiler.py").write_text("raise RuntimeError('no kineto')")
    importlib.import_module("torch")
    (asks / ".trace").write_text("1")
    runtime.report(step=2)
    assert (asks / ".trace.why").read_text() == "no kineto"
    (asks / ".trace").write_text("soon")
    runtime.report(step=3)
    assert "soon" in (asks / ".trace.why").read_text()
