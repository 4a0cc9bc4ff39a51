"""A stop reaches its part on a disk that is full."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from agents.isolation.prctl import CHILD_SUBREAPER, prctl
from agents.supervisor import life, procfs
from agents.supervisor.record import claim, read_whole, stop_order, tell_stop, write_whole


def run_a_life(folder: Path, during: Callable[[], None] = lambda: None, **told: object) -> dict[str, object]:
    """Have a shim of this test's own, in a fork, run a part to its end; answers its exit file."""
    (folder / "work").mkdir(parents=True)
    (folder / "lease").write_text(f"{procfs.boottime():.3f}")
    made = {
        "part": "p", "argv": ["sh", "-c", "echo ran >> ran; sleep 60"], "env": {"PATH": os.environ["PATH"]},
        "cwd": str(folder / "work"), "bell": str(folder / "bell"), "notice": str(folder / "notice"),
        "reports": str(folder / "report.jsonl"), "lease": str(folder / "lease"), "grace_s": 0.2, **told,
    }  # fmt: skip
    write_whole(str(folder / "order.json"), made)
    pid = os.fork()
    if pid == 0:
        try:
            prctl(CHILD_SUBREAPER, 1)
            wake, writer = os.pipe()
            os.set_blocking(wake, False)
            os.set_blocking(writer, False)
            signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
            signal.signal(signal.SIGCHLD, lambda *_: None)
            claimed = claim(str(folder), {"pid": os.getpid()})
            assert claimed is not None
            life.Life(str(folder), claimed[1], {"pid": os.getpid()}, claimed[0], wake).live()
        finally:
            os._exit(0)
    during()
    os.waitpid(pid, 0)
    found = read_whole(str(folder / "exit.json"))
    assert found is not None
    return found


def test_a_stop_is_told_on_a_disk_that_is_full(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root may mount a disk to fill")
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "none", str(disk)], check=False)
    if mounted.returncode:
        pytest.skip("no disk can be mounted here")
    folder = disk / "part"

    def fill_and_stop() -> None:
        while not (folder / "work" / "ran").exists():
            time.sleep(0.01)
        with contextlib.suppress(OSError), open(disk / "filler", "wb", buffering=0) as filler:
            while True:
                filler.write(b"x" * 4096)
        with pytest.raises(OSError, match="No space"):
            write_whole(str(folder / "any.json"), {"is": "x" * 5000})
        tell_stop(str(folder), 0.1, "CANCELLED", save=False)
        assert stop_order(str(folder)) == {"grace_s": 0.1, "why": "CANCELLED", "save": False}
        while (folder / "exit.json.draft").exists() is False and not (folder / "exit.json").exists():
            time.sleep(0.01)
        (disk / "filler").unlink()

    try:
        end = run_a_life(folder, during=fill_and_stop)
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)
    assert end["stopped"]
