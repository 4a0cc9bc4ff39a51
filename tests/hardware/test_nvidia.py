"""A whole stack on a machine with an NVIDIA card: what no stand-in of the library can prove.

Run it by hand there, and keep what it prints: ``./script/test tests/hardware -s``. Stages compute with PyTorch, by the
interpreter that ``YARD_TEST_TORCH`` names (default: the first ``python3`` on the PATH). The card must be free.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from deploy.local.service import ROOT
from switchyard import jobfile
from switchyard.client import Client, JobRecord
from tests.chaos.stack import Up, eventually, standing, words_of
from tests.chaos.test_job import connect

TORCH = os.environ.get("YARD_TEST_TORCH", "python3")
RELEASE = Path("/run/switchyard/release-devices")
GIB = 2**30


def has_card() -> bool:
    """Tell whether NVIDIA's library is here and lists a card."""
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return False
    count = ctypes.c_uint()
    found = library.nvmlInit_v2() == 0 and library.nvmlDeviceGetCount_v2(ctypes.byref(count)) == 0 and count.value > 0
    library.nvmlShutdown()
    return found


pytestmark = pytest.mark.skipif(not has_card(), reason="no NVIDIA card here")

MULTIPLY = """
import os, sys, time, torch
seconds, gib = float(sys.argv[1]), float(sys.argv[2])
kept = torch.empty(int(gib * 2**30), dtype=torch.uint8, device="cuda").fill_(1) if gib else None
a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
print("computing on", torch.cuda.get_device_name(), "of", torch.cuda.device_count(), flush=True)
until, products = time.time() + seconds, 0
while time.time() < until:
    for _ in range(20):
        a @ b
    torch.cuda.synchronize()
    products += 20
print(f"{products * 2 * 8192**3 / seconds / 1e12:.0f} TFLOP/s", flush=True)
"""
LOOK = """
import os, torch
seen = [str(torch.cuda.get_device_properties(i).uuid) for i in range(torch.cuda.device_count())]
names = ("CUDA_VISIBLE_DEVICES", "YARD_DEVICE_KIND", "YARD_DEVICE_MODEL", "YARD_DEVICE_MEMORY_BYTES")
print("SEES", seen, {name: os.environ.get(name) for name in names}, flush=True)
"""


class Card:
    """The card under test, its stack, and what NVIDIA's own tool says of it."""

    def __init__(self, up: Up, client: Client) -> None:
        self.up, self.client = up, client

    @property
    def device(self) -> dict[str, Any]:
        (found,) = self.client.devices(kind="gpu")
        return found

    def tool(self, *fields: str) -> dict[str, str]:
        """Ask ``nvidia-smi``, which is no part of Switchyard."""
        command = ["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"]
        told = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[0]
        return dict(zip(fields, (each.strip() for each in told.split(",")), strict=True))

    def run(self, name: str, script: str, *words: object, devices: dict[str, Any], **more: Any) -> JobRecord:
        """Submit a stage that runs a script with PyTorch."""
        quoted = " ".join(f"'{word}'" for word in words)
        run = f"exec {TORCH} - {quoted} <<'SCRIPT'\n{script}\nSCRIPT"
        spec = {"apiVersion": "v1", "kind": "Job", "name": name, "run": run, "devices": devices, "cpus": 1}
        return self.client.jobs.submit(spec | {"time_limit": "5m", "memory": "6GiB"} | more)

    def output(self, job: JobRecord, stage: str | None = None) -> str:
        return "".join(self.client.jobs.logs(job.number, stage=stage))

    def ended(self, job: JobRecord, state: str) -> JobRecord:
        job.wait(timeout_s=180)
        job.refresh()
        assert job.state == state, (
            [(s["name"], s["state"], s["cause"], s["detail"]) for s in job.stages],
            self.output(job),
        )
        return job

    def running(self, job: JobRecord, says: str = "") -> None:
        """Wait until it runs, and has said this."""

        def holds() -> bool:
            job.refresh()
            return job.is_final or (job.state == "RUNNING" and (not says or says in self.output(job)))

        assert eventually(holds), (job.stages, self.output(job))
        assert not job.is_final, (job.stages, self.output(job))

    def released(self, job: JobRecord) -> list[dict[str, Any]]:
        return [each for attempt in job.attempts() for part in attempt["parts"] for each in part["released"]]


@pytest.fixture(scope="module")
def card() -> Iterator[Card]:
    with standing() as up:
        up.started_anew()
        client = connect(up.home, up.port)
        card = Card(up, client)
        assert eventually(lambda: any(client.devices(kind="gpu")))
        yield card
        client.close()


def told(*words: object) -> None:
    """Print what was seen: the transcript."""
    print("   ", *words, flush=True)


def holders() -> dict[str, list[int]]:
    """Who has a file of the driver open, by command line."""
    found: dict[str, list[int]] = {}
    for process in psutil.process_iter():
        try:
            files = {os.readlink(each) for each in Path(f"/proc/{process.pid}/fd").iterdir()}
        except OSError:
            continue
        if any(re.match(r"/dev/nvidia(\d|ctl)", file) for file in files):
            found.setdefault(words_of(process)[:90], []).append(process.pid)
    return found


def test_the_probe_tells_what_the_vendors_own_tool_tells(card: Card) -> None:
    told(f"driver {card.tool('driver_version')['driver_version']}")
    survey = subprocess.run(
        [sys.executable, "-m", "agents", "survey"], check=True, capture_output=True, text=True, cwd=ROOT
    )
    told(survey.stdout)
    device, tool = card.device, card.tool("uuid", "name", "memory.total", "pci.bus_id", "temperature.gpu", "power.draw")
    told("nvidia-smi:", tool)
    told(
        "Switchyard:", {name: device[name] for name in ("uuid", "model", "vendor", "health", "sharing", "memory_bytes")}
    )
    assert device["uuid"] == tool["uuid"]
    assert device["vendor"] == "nvidia"
    assert device["health"] == "OK"
    assert not device["simulated"]
    assert device["sharing"] == "soft"
    assert device["model"] in tool["name"]
    assert abs(device["memory_bytes"] / 2**20 - float(tool["memory.total"])) < 2
    assert eventually(lambda: card.device["sample"] is not None)
    told("measured:  ", card.device["sample"])
    assert abs(card.device["sample"]["temperature_c"] - float(tool["temperature.gpu"])) < 15
    assert card.device["sample"]["memory_used_bytes"] < 2**25


def test_a_stage_sees_the_card_that_it_holds_and_no_other(card: Card) -> None:
    whole = card.ended(card.run("whole", LOOK, devices={"kind": "gpu"}), "COMPLETED")
    none = card.ended(card.run("none", LOOK, devices={"kind": "cpu"}), "COMPLETED")
    half = card.ended(card.run("half", LOOK, devices={"kind": "gpu", "milli": 500, "memory": "8GiB"}), "COMPLETED")
    outputs = {job.name: card.output(job).strip() for job in (whole, none, half)}
    told(outputs)
    plain = card.device["uuid"].removeprefix("GPU-")
    assert plain in outputs["whole"]
    assert plain in outputs["half"]
    assert "SEES []" in outputs["none"]
    assert f"'YARD_DEVICE_MEMORY_BYTES': '{8 * GIB}'" in outputs["half"]


def test_load_power_and_energy_are_measured_while_it_computes(card: Card) -> None:
    before = card.device["sample"]
    job = card.run("multiply", MULTIPLY, 15, 20, devices={"kind": "gpu"})
    card.running(job, "computing on")
    assert eventually(lambda: (card.device["sample"]["utilisation"] or 0) > 0.9)
    busy, tool = card.device["sample"], card.tool("utilization.gpu", "memory.used", "power.draw", "clocks.sm")
    card.ended(job, "COMPLETED")
    assert eventually(lambda: job.attempts()[0]["energy_j"])
    (attempt,) = job.attempts()
    told("before:", before)
    told("busy:  ", busy)
    told("nvidia-smi while busy:", tool)
    told(card.output(job).strip().splitlines())
    told("energy:", attempt["energy_j"], "J, measured for", attempt["energy_measured_s"], "s")
    assert busy["memory_used_bytes"] > 20 * GIB
    assert busy["power_w"] > 200
    assert abs(busy["memory_used_bytes"] / 2**20 - float(tool["memory.used"])) < 64
    assert attempt["energy_j"]["gpu"] > 15 * 200


def test_two_halves_share_the_card_at_the_same_time(card: Card) -> None:
    half = {"kind": "gpu", "milli": 500, "memory": "30GiB", "sharing": "soft"}
    pair = [card.run(f"half-{i}", MULTIPLY, 12, 20, devices=half) for i in (1, 2)]
    third = card.run("third", MULTIPLY, 1, 1, devices=half)
    for job in pair:
        card.running(job, "computing on")
    assert eventually(lambda: card.device["sample"]["memory_used_bytes"] > 40 * GIB)
    third.refresh()
    device, why = card.device, card.client.jobs.why(third.number)
    told("claimed:", device["claimed_milli"], "of", device["capacity_milli"], "sample:", device["sample"])
    told("the third:", third.state, json.dumps(why)[:300])
    assert device["claimed_milli"] == 1000
    assert third.state == "PENDING"
    for job in pair:
        told(card.output(card.ended(job, "COMPLETED")).strip().splitlines())
    card.ended(third, "COMPLETED")


def test_a_stage_that_takes_more_memory_than_its_share_ends_and_its_neighbour_goes_on(card: Card) -> None:
    good = card.run("neighbour", MULTIPLY, 30, 4, devices={"kind": "gpu", "milli": 500, "memory": "10GiB"})
    card.running(good, "computing on")
    greedy = card.run("greedy", MULTIPLY, 120, 20, devices={"kind": "gpu", "milli": 250, "memory": "8GiB"})
    card.ended(greedy, "FAILED")
    told(greedy.cause, "|", greedy.stages[0]["detail"])
    told(*card.output(greedy).strip().splitlines())
    assert greedy.cause == "OUT_OF_MEMORY"
    card.ended(good, "COMPLETED")


def test_memory_is_given_back_and_measured_after_an_end_and_after_a_kill(card: Card) -> None:
    ended = card.ended(card.run("ends", MULTIPLY, 3, 40, devices={"kind": "gpu"}), "COMPLETED")
    cancelled = card.run("cancelled", MULTIPLY, 100, 60, devices={"kind": "gpu"})
    card.running(cancelled, "computing on")
    assert eventually(lambda: card.device["sample"]["memory_used_bytes"] > 60 * GIB)
    cancelled.cancel("to see what it leaves")
    card.ended(cancelled, "CANCELLED")
    for job, gib in ((ended, 40), (cancelled, 60)):
        (left,) = card.released(job)
        told(job.name, left)
        assert left["is_back"]
        assert left["most_bytes"] > gib * GIB
        assert left["left_bytes"] < 2**25
    told("nvidia-smi:", card.tool("memory.used"))


def test_a_process_of_nobodys_is_noticed_and_forgotten(card: Card) -> None:
    foreign = subprocess.Popen([TORCH, "-c", MULTIPLY, "60", "1"], stdout=subprocess.DEVNULL)
    try:
        seen = eventually(lambda: card.device["health"] == "DEGRADED")
        told(card.device["health"], card.device["health_reason"])
        assert seen, holders()
        assert str(foreign.pid) in card.device["health_reason"]
    finally:
        foreign.kill()
        foreign.wait()
    assert eventually(lambda: card.device["health"] == "OK")


def test_the_example_fine_tune_computes_on_the_card(card: Card) -> None:
    spec = jobfile.read(str(ROOT / "examples" / "finetune" / "job.yaml"))
    began = time.monotonic()
    job = card.client.jobs.submit({**spec, "env": {"FINETUNE_PYTHON": TORCH, "FINETUNE_STEPS": "300"}})
    card.ended(job, "COMPLETED")
    took_s = time.monotonic() - began
    told(f"{took_s:.0f} s", [(stage["name"], stage["state"], stage["placed"]) for stage in job.stages])
    for stage in ("pretrain", "train", "validate", "infer"):
        lines = card.output(job, stage).strip().splitlines()
        told(stage, lines[:3], lines[-3:])
        assert "cuda" in "\n".join(lines).lower(), lines


def test_work_on_the_card_gives_way_to_urgent_work_and_resumes(card: Card) -> None:
    spec = jobfile.read(str(ROOT / "examples" / "finetune" / "job.yaml"))
    spec["stages"] = spec["stages"][:2]
    job = card.client.jobs.submit(
        {**spec, "name": "gives-way", "priority": "low", "env": {"FINETUNE_PYTHON": TORCH, "FINETUNE_STEPS": "12000"}}
    )

    def trained() -> bool:
        job.refresh()
        stage = next(stage for stage in job.stages if stage["name"] == "pretrain")
        return job.is_final or (stage["state"] == "RUNNING" and stage["checkpoint"] is not None)

    assert eventually(trained)
    urgent = card.run("urgent", MULTIPLY, 3, 1, devices={"kind": "gpu"}, priority="urgent")
    card.ended(urgent, "COMPLETED")
    card.ended(job, "COMPLETED")
    stage = next(stage for stage in job.stages if stage["name"] == "pretrain")
    events = [event["text"] for event in job.events() if event.get("stage") == "pretrain"]
    told(stage["preemptions"], "preemption,", stage["attempts"], "attempts;", events[-12:])
    told(*[line for line in card.output(job, "pretrain").splitlines() if "resum" in line.lower()][:3])
    assert stage["preemptions"] == 1


def test_work_outlives_a_kill_of_the_agent(card: Card) -> None:
    job = card.run("outlives", MULTIPLY, 15, 4, devices={"kind": "gpu"})
    card.running(job, "computing on")
    agent = next(each for each in card.up.processes() if re.search(r"-m agents( |$)", words_of(each)))
    agent.send_signal(signal.SIGKILL)
    card.ended(job, "COMPLETED")
    (attempt,) = job.attempts()
    told("one attempt, exit", attempt["exit_code"], "released:", card.released(job))


def test_the_agent_lets_go_of_the_driver_where_an_operator_asks(card: Card) -> None:
    told("holds the driver:", holders())
    RELEASE.parent.mkdir(parents=True, exist_ok=True)
    RELEASE.touch()
    try:
        assert eventually(lambda: not holders()), holders()
        assert eventually(lambda: card.device["health"] == "UNHEALTHY")
        told("asked to let go:", holders(), card.device["health"], "|", card.device["health_reason"])
    finally:
        RELEASE.unlink()
    back: Callable[[], bool] = lambda: card.device["health"] == "OK"  # noqa: E731
    assert eventually(back) or eventually(back)
