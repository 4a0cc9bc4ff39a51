"""``demo``: starts the stack, submits the example fine-tune, shows its progress, and prints its result."""

from __future__ import annotations

import argparse
import importlib.util
import os
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from deploy.local import board
from deploy.local.home import Home
from deploy.local.launcher import Access, Interrupted, NotUp, Stack, interrupt_on_signals
from deploy.local.service import ROOT
from deploy.local.sign_in import running
from deploy.local.up import EXIT_INTERRUPTED, chosen, describe, introduce, readiness, refuse_second, wait_until_up
from switchyard.client import Client, JobRecord
from switchyard.logs import LogQuery
from switchyard.problem import ApiProblem, SwitchyardError, Unreachable

JOB_FILE = ROOT / "examples" / "finetune" / "job.yaml"
POLL_S = 0.5
MODEL_SUFFIXES = frozenset({".npz", ".safetensors", ".pt", ".bin"})


def main(arguments: argparse.Namespace) -> int:
    """Run ``demo``; return the exit status: with ``--exit`` the job's own."""
    home, options = Home.from_environment(), chosen(arguments)
    interrupt_on_signals()
    try:
        if access := running(home):
            refuse_second(access, options)
            print("The stack runs already; the job goes there.")
            introduce(access, home)
            return Demo(home, access, lambda: None).run()
        print(f"Starting Switchyard in {home.path}", flush=True)
        with Stack(home, options) as stack:
            status = EXIT_INTERRUPTED
            try:
                access = wait_until_up(stack)
                print(f"  up         {access.took_s:5.1f} s")
                introduce(access, home)
                if access.missing:
                    print(f"\n{readiness(access)}", flush=True)
                status = Demo(home, access, lambda: stack_lines(stack)).run()
                if not arguments.exit:
                    print(f"\nThe stack stays up at {access.url} until Ctrl-C.", flush=True)
                    for word in stack.events():
                        if line := describe(word):
                            print(line, flush=True)
            except Interrupted:
                status = EXIT_INTERRUPTED if arguments.exit else status
            print("\nStopping ...", flush=True)
        print("Stopped; no process is left.")
        return status
    except Interrupted:
        return EXIT_INTERRUPTED
    except (NotUp, SwitchyardError) as reason:
        print(f"switchyard: {reason}", file=sys.stderr)
        for error in getattr(reason, "errors", ()):
            print(f"  {error.get('pointer', '')}: {error.get('detail', '')}", file=sys.stderr)
        return 1


def stack_lines(stack: Stack) -> list[str]:
    """Return lines for the keeper's events since the last call. Raises :class:`NotUp` at its end."""
    return [line for word in stack.events(timeout_s=0.001) if (line := describe(word))]


class Demo:
    """One run of the example job on a running stack. ``stack_news`` returns lines about the stack itself."""

    def __init__(self, home: Home, access: Access, stack_news: Callable[[], list[str] | None]) -> None:
        self._home = home
        self._access = access
        self._heard = stack_news
        self._client = Client(access.url, access.token)
        self._lines: deque[str] = deque(maxlen=2000)
        self._notes: deque[str] = deque(maxlen=3)

    def run(self) -> int:
        """Submit the job, show it to its end, and return its exit status."""
        from switchyard import jobfile

        spec = jobfile.read(str(JOB_FILE))
        if python := python_with_torch():
            spec["env"] = {**(spec.get("env") or {}), "FINETUNE_PYTHON": python}
        job = self._client.jobs.submit(spec)
        print(f"\nJob {job.number} {job.name}: {self._access.url}/jobs/{job.number}\n", flush=True)
        threading.Thread(target=self._follow, args=(job.number,), daemon=True).start()
        job = self._watch_live(job) if sys.stdout.isatty() else self._watch_plain(job)
        return self._conclude(job)

    def _follow(self, number: int) -> None:
        """Collect the job's output as it grows."""
        try:
            rest: dict[str, str] = {}
            for chunk in self._client.jobs.chunks(number, LogQuery(rank=0), follow=True):
                *lines, rest[chunk.stage] = (rest.get(chunk.stage, "") + chunk.text).split("\n")
                # Overwritten states of a progress bar are not shown.
                self._lines.extend(f"{chunk.stage} | {line.rsplit(chr(13), 1)[-1].rstrip()}" for line in lines)
        except SwitchyardError as error:
            self._notes.append(f"the logs cannot be followed: {error}")

    def _ask(self, job: JobRecord) -> JobRecord:
        """Return the job as it is now, or its last known state while the server does not answer."""
        for line in self._heard() or ():
            self._notes.append(line.strip())
        try:
            return self._client.jobs.get(job)
        except Unreachable as error:
            self._notes.append(str(error))
            return job
        except ApiProblem as problem:
            if not problem.is_passing:
                raise
            self._notes.append(str(problem))
            return job

    def _watch_live(self, job: JobRecord) -> JobRecord:
        """Repaint a table until the job has ended."""
        from rich.live import Live

        def draw() -> Any:
            return board.picture(job, list(self._lines)[-board.LOG_LINES :], self._access.url, list(self._notes))

        with Live(draw(), refresh_per_second=4, transient=False) as live:
            while not job.is_final:
                time.sleep(POLL_S)
                job = self._ask(job)
                live.update(draw())
        return job

    def _watch_plain(self, job: JobRecord) -> JobRecord:
        """Print a line for each change until the job has ended."""
        before: JobRecord | None = None
        while True:
            for line in board.news(before, job, datetime.now(UTC)):
                print(line)
            while self._lines:
                print("    " + self._lines.popleft())
            while self._notes:
                print("  note: " + self._notes.popleft())
            sys.stdout.flush()
            if job.is_final:
                return job
            time.sleep(POLL_S)
            before, job = job, self._ask(job)

    def _conclude(self, job: JobRecord) -> int:
        """Print the result, and return the exit status."""
        print(f"\nJob {job.number} {job.state}" + (f" ({job.cause})" if job.cause and job.state != "COMPLETED" else ""))
        print("\n".join(board.ending(job)))
        if job.state != "COMPLETED":
            failed = [stage for stage in job.stages if stage["state"] == "FAILED"]
            return next((code for stage in failed if (code := stage.get("exit_code"))), 1)
        if model := model_file(self._home.shared / str(job.number) / "outputs", job):
            print(f"\nModel       {model}")
        return 0


def python_with_torch() -> str:
    """Return the path of an interpreter outside this environment that has PyTorch, if this one has none; else empty.

    PyTorch is far too large for the pinned requirements, but the example should use it on a machine that has it.
    """
    if importlib.util.find_spec("torch") is not None:
        return ""
    own = Path(sys.prefix).resolve()
    for folder in os.get_exec_path():
        found = Path(folder) / "python3"
        if not os.access(found, os.X_OK) or own in found.absolute().parents:
            continue
        try:
            asked = [str(found), "-c", "import numpy, torch, sys; sys.exit(sys.version_info < (3, 9))"]
            if subprocess.run(asked, capture_output=True, timeout=60, check=False).returncode == 0:
                return str(found)
        except (OSError, subprocess.TimeoutExpired):
            continue
    return ""


def model_file(outputs: Path, job: dict[str, Any]) -> Path | None:
    """Return the weights that the job's last training stage wrote below ``outputs``; None if there are none."""
    for stage in reversed([stage for stage in job["stages"] if stage["kind"] == "train"]):
        folder: Path = outputs / stage["name"]
        found = [path for path in folder.rglob("*") if path.suffix in MODEL_SUFFIXES]
        if found:
            return max(found, key=lambda path: path.stat().st_size)
    return None
