"""Kinds of failures: judged by the recorded cause and the end of the output, and shown on the job's page."""

from __future__ import annotations

import pytest
from django.test import Client

from controlplane.jobs.failures import MOST_CHARACTERS, Failure, kind_of
from controlplane.queries.failures import KINDS
from tests.controlplane.people import Town, write_log
from tests.record.yard import stage

CASES = (
    ("OUT_OF_MEMORY", "", Failure.HOST_MEMORY),
    ("TIMEOUT", "CUDA out of memory", Failure.TIME_LIMIT),
    ("PREEMPTED", "", Failure.PREEMPTED),
    ("NODE_FAIL", "", Failure.NODE),
    ("DEVICE_ERROR", "", Failure.DEVICE),
    ("LAUNCH_FAILED", "", Failure.LAUNCH),
    ("DEPENDENCY", "CUDA out of memory", Failure.OTHER),
    ("EXIT_CODE", "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB", Failure.DEVICE_MEMORY),
    ("EXIT_CODE", "RuntimeError: NPU out of memory. Tried to allocate 1.00 GiB", Failure.DEVICE_MEMORY),
    ("EXIT_CODE", "NCCL timed out\nHIP out of memory", Failure.DEVICE_MEMORY),
    ("EXIT_CODE", "OSError: [Errno 28] No space left on device", Failure.DISK_FULL),
    ("EXIT_CODE", "MemoryError", Failure.HOST_MEMORY),
    ("SIGNAL", "terminate called after throwing an instance of 'std::bad_alloc'", Failure.HOST_MEMORY),
    ("EXIT_CODE", "ModuleNotFoundError: No module named 'flash_attn'", Failure.IMPORT),
    ("EXIT_CODE", "libcudart.so.12: cannot open shared object file: No such file", Failure.IMPORT),
    ("EXIT_CODE", "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7)", Failure.COLLECTIVE),
    ("EXIT_CODE", "HCCL function error: hcclAllReduce, error code is 9", Failure.COLLECTIVE),
    ("EXIT_CODE", "CUDA error: an illegal memory access was encountered", Failure.DEVICE),
    ("EXIT_CODE", "NCCL INFO Bootstrap: using eth0\nValueError: no such dataset", Failure.EXIT_CODE),
    ("SIGNAL", "", Failure.SIGNAL),
    ("EXIT_CODE", "MemoryError" + " " * MOST_CHARACTERS, Failure.EXIT_CODE),
)


@pytest.mark.parametrize(("cause", "output", "kind"), CASES)
def test_a_failure_is_judged_by_cause_and_output(cause: str, output: str, kind: Failure) -> None:
    assert kind_of(cause, output) is kind


def test_every_kind_has_a_title() -> None:
    assert set(KINDS) == set(Failure)


def test_the_page_of_a_failed_job_begins_with_its_last_errors(town: Town) -> None:
    agent = town.machine()
    job = town.running(agent)
    write_log(job, ("out", b"loading\n"), ("err", b"\x1b[31mModuleNotFoundError: No module named '<b>x</b>'\x1b[0m\n"))
    agent.end(stage(job), code=1)
    client = Client()
    assert town.owner.user is not None
    client.force_login(town.owner.user)
    page = client.get(f"/jobs/{job.number}").content.decode()
    assert "A module or a library is missing" in page
    assert "ModuleNotFoundError: No module named &#x27;&lt;b&gt;x&lt;/b&gt;&#x27;" in page
    assert "\x1b" not in page
    (told,) = town.viewer.read(f"/jobs/{job.number}/failures")["results"]
    assert (told["kind"], told["exit_code"], told["attempt"], told["rank"], told["node"]) == ("import", 1, 1, 0, "n1")
    assert told["lines"] == "ModuleNotFoundError: No module named '<b>x</b>'"
    assert town.viewer.read(f"/jobs/{town.job().number}/failures") == {"results": []}
    assert town.stranger.get(f"/jobs/{job.number}/failures").status_code == 404
