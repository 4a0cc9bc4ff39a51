"""Builds the environment of a stage's process: its identity, its folders, and its visible devices.

Pure. The user's variables come first, and are overridden by those that describe the placement. The agent's own
environment is passed on only by the short list ``INHERITED``, so that nothing of the privileged side leaks into a job
and nothing of a job ever reaches the privileged side.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from agents.devices import visible
from agents.protocol import DeviceClaim, PartSpec, Wanted
from agents.supervisor.procfs import MARK
from agents.supervisor.secret_file import GIVEN
from agents.tasks import gang

SAVE_NOTICE: Final = "save-notice.json"
INHERITED: Final = ("PATH", "LANG", "LC_ALL", "TZ", "SSL_CERT_FILE", "SSL_CERT_DIR")


@dataclass(frozen=True, slots=True)
class PartPaths:
    """The paths of a part's files. ``folder`` is the agent's; ``work``, ``scratch`` and ``reports`` are the job's."""

    folder: Path

    @property
    def work(self) -> Path:
        return self.folder / "work"

    @property
    def secrets(self) -> Path:
        """Return the secrets that the job gets as files."""
        return self.folder / GIVEN

    @property
    def scratch(self) -> Path:
        return self.folder / "tmp"

    @property
    def reports(self) -> Path:
        return self.folder / "report.jsonl"

    @property
    def trace(self) -> Path:
        """Return where a request for a trace lies; its user writes it, and what comes of it beside it."""
        return self.scratch / ".trace"

    @property
    def notice(self) -> Path:
        return self.folder / "stop-notice.json"

    def save_notice(self, *, is_boxed: bool = False) -> Path:
        """Return where the stage is asked to save ahead of a planned stop. A container sees a folder of its own,
        because notices are created by rename."""
        return self.folder / "notice" / SAVE_NOTICE if is_boxed else self.folder / SAVE_NOTICE


def accelerators(spec: PartSpec) -> list[DeviceClaim]:
    return [claim for claim in spec.devices if claim.kind != "cpu"]


def environment(
    wanted: Wanted, places: PartPaths, own: Mapping[str, str], runtime: Path | None, home: str
) -> dict[str, str]:
    """Return all variables of the process. ``own`` is the agent's environment, ``runtime`` the value for PYTHONPATH."""
    spec = wanted.spec
    assert spec is not None, "only a run order has an environment"
    devices = accelerators(spec)
    shown = devices or spec.devices
    per_node = max(1, len(devices))
    node_count = max(1, len(spec.nodes))
    env = {name: own[name] for name in INHERITED if name in own}
    env.setdefault("PATH", "/usr/local/bin:/usr/bin:/bin")
    env.update(HOME=home, PYTHONUNBUFFERED="1", OMP_NUM_THREADS=str(max(1, spec.cpus_milli // 1000 // per_node)))
    env.update(spec.env)
    env.update({name: str(places.secrets / name) for name in spec.secret_files})
    if runtime is not None:
        env["PYTHONPATH"] = f"{env['PYTHONPATH']}:{runtime}" if env.get("PYTHONPATH") else str(runtime)
    env.update(visible.variables(spec.devices))
    env.update(
        {
            MARK: wanted.part,
            "YARD_JOB_ID": str(spec.job),
            "YARD_JOB_NAME": spec.job_name,
            "YARD_STAGE": spec.stage,
            "YARD_STAGE_KIND": spec.stage_kind,
            "YARD_PROJECT": spec.project,
            "YARD_ATTEMPT": str(spec.attempt_number),
            "YARD_EPOCH": str(wanted.epoch),
            "YARD_NNODES": str(node_count),
            "YARD_NODE_RANK": str(spec.rank),
            "YARD_NODES": "\n".join(spec.nodes),
            "YARD_DEVICES_PER_NODE": str(per_node),
            "YARD_DEVICE_KIND": shown[0].kind if shown else "cpu",
            "YARD_DEVICE_MODEL": shown[0].model if shown else "",
            "YARD_DEVICE_VENDOR": shown[0].vendor if shown else "",
            "YARD_CHECKPOINT_DIR": spec.checkpoint_dir,
            "YARD_OUTPUT_DIR": spec.output_dir,
            "YARD_INPUT_DIR": spec.input_dir,
            "YARD_RESUME_FROM": spec.resume_from,
            "YARD_TMPDIR": str(places.scratch),
            "TMPDIR": str(places.scratch),
            "YARD_GRACE_S": f"{spec.grace_s:g}",
            "YARD_STOP_FILE": str(places.notice),
            "YARD_SAVE_FILE": str(places.save_notice()),
            "YARD_REPORT_FILE": str(places.reports),
            "YARD_TRACE_FILE": str(places.trace),
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
            "MASTER_ADDR": spec.master_addr,
            "MASTER_PORT": str(spec.master_port),
            "NNODES": str(node_count),
            "NODE_RANK": str(spec.rank),
            "PET_NNODES": str(node_count),
            "PET_NODE_RANK": str(spec.rank),
            "PET_NPROC_PER_NODE": str(per_node),
            "PET_MASTER_ADDR": spec.master_addr,
            "PET_MASTER_PORT": str(spec.master_port),
        }
    )
    env.update(gang.variables(spec, places.scratch))
    if spec.time_limit_s is not None:
        env["YARD_TIME_LIMIT_S"] = f"{spec.time_limit_s:g}"
    if spec.checkpoint_every_s is not None:
        env["YARD_CHECKPOINT_EVERY_S"] = f"{spec.checkpoint_every_s:g}"
    if held := [claim.partition.profile for claim in devices if claim.partition is not None]:
        env["YARD_DEVICE_PARTITION"] = ",".join(held)
    if memory := min((claim.memory_bytes for claim in devices), default=0):
        env["YARD_DEVICE_MEMORY_BYTES"] = str(memory)
    if any(claim.simulated for claim in devices):
        env["YARD_DEVICE_SIMULATED"] = "1"
    return env
