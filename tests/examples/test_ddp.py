"""The data-parallel example computes the same bits on one, two or four processes, and all of them stop at once."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from switchyard import jobfile, runtime

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "ddp"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def started(
    folder: Path, size: int, *, pause: str = "0", steps: str = "60", resume: str = ""
) -> list[subprocess.Popen[str]]:
    """All processes of a run, each as its node's agent would start it."""
    port = str(free_port())
    (folder / "out").mkdir(parents=True, exist_ok=True)
    ranks = []
    for rank in range(size):
        environment = {
            **os.environ,
            "NNODES": str(size),
            "NODE_RANK": str(rank),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": port,
            "DDP_STEPS": steps,
            "DDP_PAUSE": pause,
            "DDP_FRAMEWORK": "numpy",
            "DDP_WIDTH": "16",
            "DDP_CHECKPOINT_EVERY": "0.05",
            "DDP_RESUME": resume,
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": f"{EXAMPLE}:{ROOT}",
            "YARD_CHECKPOINT_DIR": str(folder / "ckpt"),
            "YARD_OUTPUT_DIR": str(folder / "out"),
            "YARD_REPORT_FILE": str(folder / f"report-{rank}.jsonl"),
            "YARD_STOP_FILE": str(folder / f"stop-{rank}"),
        }
        command = [sys.executable, "-m", "ddp.train"]
        ranks.append(subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True))
    return ranks


def finished(ranks: list[subprocess.Popen[str]]) -> tuple[list[int], str]:
    """The exit codes, and what the first rank said."""
    said = [rank.communicate(timeout=120)[0] for rank in ranks]
    return [rank.returncode for rank in ranks], said[0]


def weights(folder: Path) -> bytes:
    return (folder / "out" / "model.npy").read_bytes()


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder = tmp_path_factory.mktemp("alone")
    assert finished(started(folder, 1))[0] == [0]
    return weights(folder)


@pytest.mark.parametrize("size", [2, 4])
def test_several_processes_compute_what_one_does(tmp_path: Path, alone: bytes, size: int) -> None:
    codes, said = finished(started(tmp_path, size))
    assert codes == [0] * size
    assert f"rank 0 of {size} (ring, Model)" in said
    assert weights(tmp_path) == alone


def until_saved(folder: Path) -> None:
    deadline = time.monotonic() + 60
    while not (folder / "ckpt" / "yard-checkpoint.json").exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_notice_to_any_rank_stops_all_at_the_same_step_and_fewer_go_on(tmp_path: Path, alone: bytes) -> None:
    ranks = started(tmp_path, 2, pause="0.01")
    until_saved(tmp_path)
    (tmp_path / "stop-1").write_text(json.dumps({"reason": "PREEMPTED", "deadline_s": 30}))
    codes, said = finished(ranks)
    assert codes == [runtime.EXIT_CHECKPOINTED] * 2
    assert "was asked to stop (elsewhere)" in said
    (tmp_path / "stop-1").unlink()
    codes, said = finished(started(tmp_path, 1))
    assert codes == [0]
    assert "resuming from step" in said
    assert weights(tmp_path) == alone


def test_when_one_rank_is_killed_the_others_leave_and_more_go_on(tmp_path: Path, alone: bytes) -> None:
    ranks = started(tmp_path, 2, pause="0.01")
    until_saved(tmp_path)
    ranks[1].send_signal(signal.SIGKILL)
    codes, _ = finished(ranks)
    assert codes[0] != 0
    assert codes[1] == -signal.SIGKILL
    codes, said = finished(started(tmp_path, 4))
    assert codes == [0] * 4
    assert "on 4 process(es)" in said
    assert weights(tmp_path) == alone


def test_the_job_file_is_accepted_as_it_is() -> None:
    spec = jobfile.read(str(EXAMPLE / "job.yaml"))
    (stage,) = spec["stages"]
    assert stage["nodes"] == {"min": 1, "max": 2}
