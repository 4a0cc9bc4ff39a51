"""``stop-all``: ends every part of a state folder, with or without a running agent, so that no process stays behind."""

from __future__ import annotations

import argparse
import concurrent.futures
import sys
import time
from pathlib import Path

from agents import cgroup, journal, procfs
from agents.bundle import BundleCache
from agents.executors.process import Ground, ProcessExecutor
from agents.journal import Intent
from agents.record import read_whole, take
from agents.run_as import RunAs
from agents.server import Server
from agents.warm_parent import WarmParent


def _executor(state: Path) -> ProcessExecutor:
    return ProcessExecutor(
        Ground(
            boot_id=procfs.boot_id(),
            bell=state / "bell",
            lease=state / "lease",
            warm_parent=WarmParent(state / "shim.log"),
            bundles=BundleCache(state / "bundles", Server("http://127.0.0.1")),
            run_as=RunAs(name="self"),
            cgroup=cgroup.base(),
        )
    )


def _stop(executor: ProcessExecutor, intent: Intent, grace_s: float) -> None:
    """End one part and return when nothing of it is left."""
    folder = Path(intent.folder)
    if not folder.is_dir() or intent.boot_id != executor.ground.boot_id:
        return
    take(str(folder))
    executor.stop(intent, grace_s, "NODE_STOP")
    deadline = time.monotonic() + grace_s + 5
    while time.monotonic() < deadline:
        record = read_whole(f"{folder}/shim.json")
        if (folder / "exit.json").exists() or record is None or not procfs.is_alive(record["pid"], record["born"]):
            break
        time.sleep(0.02)
    if not (folder / "exit.json").exists():
        record = read_whole(f"{folder}/shim.json")
        if record is not None and procfs.is_alive(record["pid"], record["born"]):
            procfs.send(record["pid"], 9)
        executor.bury(intent)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m agents stop-all", description=__doc__)
    parser.add_argument("--state", required=True, help="the agent's state folder")
    parser.add_argument("--grace", type=float, default=5.0, help="seconds a part has to end by itself (default 5)")
    options = parser.parse_args(arguments)
    state = Path(options.state).expanduser().resolve()
    work = []
    with concurrent.futures.ThreadPoolExecutor(max_workers=32) as pool:
        for folder in [state, *sorted((state / "nodes").glob("*"))]:
            past, _ = journal.read(folder / "journal.jsonl")
            live = [intent for part, intent in past.intents.items() if part not in past.ends]
            if live:
                executor = _executor(folder)
                work += [pool.submit(_stop, executor, intent, options.grace) for intent in live]
    for done in work:
        done.result()
    print(f"{len(work)} part(s) stopped", file=sys.stderr)
    return 0
