"""A service on a real stack, with a real agent and a real client under load: it goes on whatever happens."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import httpx
import psutil
import pytest

from bench.serving.load import Load, Under, request
from deploy.local.service import ROOT
from switchyard import jobfile
from switchyard.client import Client
from tests.chaos.stack import eventually, standing
from tests.chaos.test_job import Yard, on, processes_of

pytestmark = pytest.mark.chaos

EXAMPLE = ROOT / "examples" / "serve"


@pytest.fixture(scope="module")
def yard() -> Iterator[Yard]:
    """One stack for all of these tests."""
    with standing() as up:
        up.started()
        yield from on(up)


@dataclass
class Serving:
    """A service of the small server of the example, and who calls it."""

    yard: Yard
    id: int
    file: dict[str, Any]

    @property
    def now(self) -> Any:
        return self.yard.client.services.get(self.id)

    @property
    def address(self) -> str:
        return str(self.now["service"]["address"])

    def change(self, **given: Any) -> None:
        self.file = {**self.file, **given}
        self.yard.client.services.change(self.id, {"file": self.file})

    def settled(self) -> bool:
        """Whether as many answer as are wanted, all of the present revision, and nothing else is there."""
        now = self.now
        one, open_ = now["service"], [each for each in now["replicas"] if each["state"] != "ENDED"]
        is_whole = one["ready"] == one["wanted"] == len(open_)
        return bool(is_whole and all(each["revision"] == one["revision"] for each in open_))

    def under_load(self, *, is_stream: bool = True) -> Under:
        place = urlsplit(self.address)
        asked = request(
            f"{place.path}/completions", place.netloc, token_of(self.yard.client), is_stream=is_stream, tokens=6
        )
        assert place.port is not None
        return Under(place.port, asked, at_once=4, done=b"[DONE]" if is_stream else b"")

    def process(self) -> psutil.Process:
        """The server of one replica that answers."""
        job = next(each["job"] for each in self.now["replicas"] if each["state"] == "READY")
        for process in processes_of("serve.py"):
            words = process.cmdline()
            if any(word.endswith("serve.py") for word in words) and process.environ().get("YARD_JOB_ID") == str(job):
                return process
        pytest.fail("a replica is said to answer, but no process of it is there")


def token_of(client: Client) -> str:
    return client.wire.address[1]


def whole_file(**given: Any) -> dict[str, Any]:
    file = jobfile.read(str(EXAMPLE / "service.yaml"))
    file["template"] |= {"workdir": str(EXAMPLE), "memory": "128MiB"}
    return {**file, **given}


@contextmanager
def serving_of(yard: Yard, file: dict[str, Any]) -> Iterator[Serving]:
    """A service of this file, whose replicas answer; it is gone afterwards."""
    made = yard.client.services.create(file)
    serving = Serving(yard, made["service"]["id"], file)
    try:
        assert eventually(serving.settled), serving.now
        yield serving
    finally:
        yard.client.services.delete(serving.id)
        assert eventually(lambda: not list(yard.client.services.list()))


@pytest.fixture
def service(yard: Yard) -> Iterator[Serving]:
    """A service with two replicas that answer."""
    with serving_of(yard, whole_file(replicas=2)) as serving:
        yield serving
    assert eventually(lambda: not processes_of("serve.py --model"))


def during(serving: Serving, what: Callable[[], None], *, is_stream: bool = True) -> Load:
    """Load a service, do something, and wait until it has settled again."""
    with serving.under_load(is_stream=is_stream) as under:
        assert eventually(lambda: len(under.load.whole) > 20), under.load.failed
        what()
        assert eventually(serving.settled), serving.now
        count = len(under.load.whole)
        assert eventually(lambda: len(under.load.whole) > count + 20), under.load.failed
    return under.load


def test_an_update_under_load_fails_no_request(service: Serving) -> None:
    def update() -> None:
        template = {**service.file["template"], "env": {"ANOTHER": "1"}}
        service.change(template=template)
        assert eventually(lambda: service.now["service"]["revision"] == 2)

    load = during(service, update)
    assert (load.failed, load.cut) == ([], [])
    assert service.now["service"]["former"] == 1


@pytest.mark.long
def test_a_killed_replica_costs_no_request_that_has_no_answer_yet(service: Serving) -> None:
    def kill() -> None:
        process = service.process()
        process.kill()
        assert eventually(lambda: not process.is_running())
        # It is still said to answer until its end has been reported.
        assert eventually(lambda: any(each["state"] == "ENDED" for each in service.now["replicas"]))

    load = during(service, kill, is_stream=False)
    assert (load.failed, load.cut) == ([], [])


def test_a_stranger_and_a_huge_prompt_are_refused(service: Serving) -> None:
    own = {"Authorization": f"Bearer {token_of(service.yard.client)}"}
    assert httpx.get(f"{service.address}/models", timeout=60).status_code == 401
    assert httpx.get(f"{service.address}/models", headers=own, timeout=60).json()["data"][0]["id"] == "tuned"
    # Not read: the answer comes before the body has been sent.
    huge = httpx.post(f"{service.address}/completions", headers=own, content=b"x" * 100_000_000, timeout=60)
    assert huge.status_code == 413
    # What a replica tells its router only is not for callers.
    assert httpx.get(service.address.removesuffix("/v1") + "/metrics", headers=own, timeout=60).status_code == 404


@pytest.mark.long
def test_a_replica_that_hangs_is_taken_out_and_replaced(service: Serving) -> None:
    service.change(limits={"first_byte": "2s"})
    hung = service.process()

    def hang() -> None:
        hung.send_signal(signal.SIGSTOP)
        assert eventually(lambda: any(each["state"] in ("UNHEALTHY", "DRAINING") for each in service.now["replicas"]))

    try:
        load = during(service, hang, is_stream=False)
    finally:
        if hung.is_running():
            hung.send_signal(signal.SIGCONT)
    assert (load.failed, load.cut) == ([], [])


@pytest.mark.long
def test_a_model_that_does_not_load_leaves_the_former_revision_serving(service: Serving) -> None:
    def spoil() -> None:
        service.change(model="/nowhere")
        assert eventually(lambda: service.now["service"]["state"] == "FAILED")

    with service.under_load() as under:
        spoil()
        assert service.now["service"]["ready"] == 2
    assert (under.load.failed, under.load.cut) == ([], [])
    found = service.now
    assert found["service"]["fault"].startswith("revision 2 cannot serve, revision 1 goes on")
    # Bounded: it is not tried again and again.
    assert sum(each["revision"] == 2 for each in found["replicas"]) == 4
    service.yard.client.services.roll_back(service.id)
    assert eventually(service.settled)
    assert service.now["service"]["revision"] == 1


@pytest.mark.long
def test_a_quiet_service_sleeps_and_the_next_request_wakes_it(service: Serving) -> None:
    service.change(replicas={"min": 0, "max": 2}, target={"idle": "3s"})
    assert eventually(lambda: service.now["service"]["state"] == "ASLEEP"), service.now
    own = {"Authorization": f"Bearer {token_of(service.yard.client)}"}
    asked = {"prompt": "to be", "max_tokens": 2}
    answer = httpx.post(f"{service.address}/completions", headers=own, json=asked, timeout=240)
    assert answer.status_code == 200, (answer.text, service.now)
    assert service.now["service"]["cold_start_s"] > 0
