"""Jobs that promote their models to a service, on a real stack: what passes answers, what does not changes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from deploy.local.service import ROOT
from switchyard import jobfile
from tests.chaos.stack import eventually, standing
from tests.chaos.test_job import Yard, on
from tests.chaos.test_services import Serving, serving_of, token_of

pytestmark = pytest.mark.chaos

EXAMPLE = ROOT / "examples" / "promote"
# Leaves a model as the small server reads it, which either cannot be loaded, or loads and fails whenever it
# is asked: its vocabulary is smaller than its weights say.
MAKE = """
import json, os, sys
from pathlib import Path
import numpy as np
kind = sys.argv[1]
sizes = {"vocabulary": 2000, "context": 16, "width": 8, "heads": 2, "layers": 0}
folder = Path(os.environ["YARD_OUTPUT_DIR"]) / "model"
folder.mkdir()
flat = np.zeros((2000 + 16 + 1) * 8, np.float32)
flat[-8:] = 1
# The last token is the likeliest, and the vocabulary has no such token.
flat[1999 * 8 : 2000 * 8] = 50
flat[2000 * 8 : 2016 * 8] = 1
(folder / "vocabulary.json").write_text(json.dumps({"merges": []}))
if kind != "unloadable":
    np.savez(folder / "tuned.npz", flat=flat, **sizes)
from switchyard import runtime
runtime.report(step=1, total=1, improvement=0.9)
"""


@pytest.fixture(scope="module")
def yard() -> Iterator[Yard]:
    """One stack for all of these tests."""
    with standing() as up:
        up.started()
        yield from on(up)


@pytest.fixture
def service(yard: Yard) -> Iterator[Serving]:
    """The service of the example, with a replica that answers."""
    file = jobfile.read(str(EXAMPLE / "service.yaml"))
    file["template"] |= {"memory": "128MiB", "workdir": str(ROOT / "examples" / "serve")}
    with serving_of(yard, file) as serving:
        yield serving


def ask(serving: Serving) -> httpx.Response:
    own = {"Authorization": f"Bearer {token_of(serving.yard.client)}"}
    asked = {"prompt": "The function returns", "max_tokens": 8, "temperature": 0}
    return httpx.post(f"{serving.address}/completions", headers=own, json=asked, timeout=60)


def promotion(serving: Serving) -> Any:
    """The newest promotion; a worker notes it within a second of the end of its stage."""
    found = serving.now["promotions"]
    return found[0] if found else {"state": "", "job": None, "ended_at": None, "detail": ""}


def tuned(yard: Yard, **env: str) -> Any:
    """Submit the example, shortened, and wait for its end."""
    spec = jobfile.read(str(EXAMPLE / "job.yaml"))
    spec["env"] = {"FINETUNE_STEPS": "60", **env}
    spec["workdir"] = str(ROOT / "examples" / "finetune")
    spec["stages"][-1]["promote"]["canary"]["for"] = "5s"
    job = yard.client.jobs.submit(spec)
    job.wait(timeout_s=400)
    job.refresh()
    assert job.state == "COMPLETED", [(s["name"], s["state"], s["cause"], s["detail"]) for s in job.stages]
    return job


def spoilt(yard: Yard, folder: Path, kind: str) -> Any:
    """Submit a job that leaves a spoilt model and says that it is good."""
    (folder / "make.py").write_text(MAKE)
    gate = {"metric": "improvement", "at_least": 0.5}
    canary = {"percent": "50%", "for": "5m", "errors_at_most": "10%"}
    spec = {
        "name": kind, "workdir": str(folder), "cpus": 0.2, "outputs": ["model"], "time_limit": "5m",
        "run": f"exec python3 make.py {kind}",
        "promote": {"service": "chat", "model": "model", "when": gate, "canary": canary},
    }  # fmt: skip
    job = yard.client.jobs.submit(spec)
    job.wait(timeout_s=120)
    return job


def test_a_fine_tune_is_trained_validated_promoted_and_answers(yard: Yard, service: Serving) -> None:
    before = ask(service).json()["choices"][0]["text"]
    job = tuned(yard)
    assert eventually(lambda: promotion(service)["state"] == "PROMOTED"), service.now["promotions"]
    assert eventually(service.settled), service.now
    now = service.now
    assert (now["service"]["revision"], now["service"]["former"], now["service"]["canary"]) == (2, 1, 100)
    assert (now["promotions"][0]["job"], now["revisions"][0]["model_job"]) == (job.number, job.number)
    after = ask(service)
    assert after.status_code == 200
    assert after.json()["choices"][0]["text"] != before
    # The same numbers once more are no better, and the model that nobody taught is worse.
    frozen = tuned(yard, FINETUNE_FREEZE="1")
    assert eventually(lambda: promotion(service)["job"] == frozen.number and promotion(service)["ended_at"])
    assert promotion(service)["state"] == "REFUSED"
    assert "is below 0.05" in promotion(service)["detail"]
    assert service.now["service"]["revision"] == 2
    assert ask(service).json()["choices"] == after.json()["choices"]
    yard.client.services.roll_back(service.id)
    assert eventually(service.settled), service.now
    assert ask(service).json()["choices"][0]["text"] == before


def test_a_canary_whose_answers_fail_is_taken_back_and_nobody_is_cut_off(
    yard: Yard, service: Serving, tmp_path: Path
) -> None:
    with service.under_load(is_stream=False) as under:
        spoilt(yard, tmp_path, "unusable")
        assert eventually(lambda: promotion(service)["state"] == "ROLLED_BACK"), service.now["promotions"]
        assert eventually(service.settled), service.now
    assert "answers failed, more than 10 %; revision 1 serves again" in promotion(service)["detail"]
    assert service.now["service"]["revision"] == 1
    # What the canary failed before its first byte was asked of the other revision.
    assert (under.load.failed, under.load.cut) == ([], [])


def test_a_model_that_does_not_load_is_taken_back(yard: Yard, service: Serving, tmp_path: Path) -> None:
    with service.under_load() as under:
        spoilt(yard, tmp_path, "unloadable")
        assert eventually(lambda: promotion(service)["state"] == "ROLLED_BACK"), service.now["promotions"]
    assert "its replicas do not serve" in promotion(service)["detail"]
    assert service.now["service"]["revision"] == 1
    assert ask(service).status_code == 200
    assert (under.load.failed, under.load.cut) == ([], [])
