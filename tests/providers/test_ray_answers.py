"""How the provider of Ray reads answers, whatever they are: a scripted server stands for Ray's REST API here.

tests/providers/test_ray.py and test_ray_record.py have a real Ray.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from controlplane.providers import endpoint, kinds
from controlplane.providers.engine import EngineFault, EngineRefused, ForeignPhase
from tests.providers.scripted_http import ScriptedServer, serving
from tests.providers.test_kinds import TAG, order

LABEL = order().label


@pytest.fixture
def server(tmp_path: Path, settings: Any) -> Iterator[ScriptedServer]:
    settings.PROVIDER_ENDPOINTS = str(tmp_path)
    with serving(lambda _: (200, b"{}")) as scripted:
        folder = tmp_path / "ray"
        folder.mkdir()
        (folder / "url").write_text(f"{scripted.url}/behind/\n")
        (folder / "token").write_text("a-bearer-token\n")
        yield scripted


def made(**more: Any) -> Any:
    return kinds.engine("ray", {"endpoint": "ray", "python": "/opt/python", **more})


def job(**more: Any) -> dict[str, Any]:
    return {
        "submission_id": LABEL, "status": "RUNNING", "start_time": 1_000_000, "metadata": {"yard-hours": "0.5"}, **more
    }  # fmt: skip


def test_a_shape_is_what_ray_reserves_and_the_token_is_in_no_command_line(server: ScriptedServer) -> None:
    shape = {
        "name": "a", "cpus": 8, "memory_gib": 0.5, "resources": {"accelerator_type:H100": 0.001},
        "devices": [{"kind": "gpu", "count": 4}, {"kind": "npu", "count": 2}],
    }  # fmt: skip
    one = order()
    assert made().up(type(one)(one.label, one.node, shape, 0.5, one.url, one.token)) == LABEL
    (asked,) = server.asked
    sent = json.loads(asked.body)
    assert (asked.method, asked.path) == ("POST", "/behind/api/jobs/")
    assert asked.headers["authorization"] == "Bearer a-bearer-token"
    assert (sent["submission_id"], sent["entrypoint_num_cpus"], sent["entrypoint_num_gpus"]) == (LABEL, 8, 4)
    assert sent["entrypoint_memory"] == 2**29
    assert sent["entrypoint_resources"] == {"NPU": 2, "accelerator_type:H100": 0.001}
    assert one.token not in sent["entrypoint"]
    assert sent["runtime_env"]["env_vars"]["YARD_JOIN_TOKEN"] == one.token


@pytest.mark.parametrize(
    ("status", "body", "fault"),
    [
        (400, b"no such resource", EngineRefused),
        (401, b"Unauthorized", EngineRefused),
        (500, b"Traceback: GCS is not there", EngineFault),
        (302, b"", EngineFault),
        (0, b"", EngineFault),
    ],
)
def test_only_what_ray_surely_did_not_take_is_a_refusal(
    server: ScriptedServer, status: int, body: bytes, fault: type[EngineFault]
) -> None:
    server.answer = lambda _: (status, body)
    with pytest.raises(EngineFault) as raised:
        made().up(order())
    assert type(raised.value) is fault


def test_a_label_that_is_there_already_is_what_was_asked_for(server: ScriptedServer) -> None:
    said = f"ValueError: Job with submission_id {LABEL} already exists. Please use a different submission_id."
    server.answer = lambda _: (500, said.encode())
    assert made().up(order()) == LABEL


def test_what_is_said_of_a_fault_has_no_secret(server: ScriptedServer) -> None:
    one = order()
    server.answer = lambda _: (400, f"bad env\n{one.token} a-bearer-token\x1b[31m".encode())
    with pytest.raises(EngineRefused) as raised:
        made().up(one)
    assert raised.value.detail == "400 bad env *** *** [31m"


def test_jobs_are_read_and_those_of_others_are_not(server: ScriptedServer) -> None:
    others = [job(submission_id=None, status="ODD"), job(submission_id="raysubmit_1", metadata={"a": "b"})]
    own = [
        job(),
        job(submission_id=order(2).label, status="PENDING"),
        job(submission_id=order(3).label, status="FAILED"),
    ]
    server.answer = lambda _: (200, json.dumps([*others, *own]).encode())
    found = made().list(TAG)
    assert [each.phase for each in found] == [ForeignPhase.RUNNING, ForeignPhase.QUEUED, ForeignPhase.ENDED]
    assert [each.ends_at for each in found] == [1_000 + 1_800, None, None]
    assert all(each.label == each.handle for each in found)


@pytest.mark.parametrize("metadata", [None, {}, {"yard-hours": "soon"}, {"yard-hours": "1e9"}, {"yard-hours": "nan"}])
def test_an_end_that_makes_no_sense_is_none(server: ScriptedServer, metadata: Any) -> None:
    server.answer = lambda _: (200, json.dumps([job(metadata=metadata)]).encode())
    assert made().list(TAG)[0].ends_at is None


@pytest.mark.parametrize(
    ("status", "body", "code"),
    [
        (200, b"<html>", "AnswerUnreadable"),
        (200, b"{}", "AnswerUnreadable"),
        (200, b"\xff", "AnswerUnreadable"),
        (200, b'[{"x":' + b"[" * 100_000, "AnswerUnreadable"),
        (200, json.dumps([job(status="FLYING")]).encode(), "AnswerUnreadable"),
        (200, json.dumps([job(start_time=-1)]).encode(), "AnswerUnreadable"),
        (503, b"starting", "RaySaid"),
        (301, b"", "RaySaid"),
        (0, b"", "EndpointUnreachable"),
    ],
)
def test_nonsense_is_a_fault(server: ScriptedServer, status: int, body: bytes, code: str) -> None:
    server.answer = lambda _: (status, body)
    with pytest.raises(EngineFault) as raised:
        made().list(TAG)
    assert raised.value.code == code


def test_an_answer_is_bounded_in_size_and_in_time(server: ScriptedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "MOST_READ", 10)
    server.answer = lambda _: (200, b" " * 11)
    with pytest.raises(EngineFault, match="EndpointTooLoud"):
        made().list(TAG)
    monkeypatch.setattr(endpoint, "MOST_S", 0.2)
    over = threading.Event()
    server.answer = lambda _: (200, b"[]" if over.wait(60) else b"")
    with pytest.raises(EngineFault, match="EndpointSilent"):
        made().list(TAG)
    over.set()


def test_what_ended_long_ago_is_deleted_a_few_at_a_time(server: ScriptedServer) -> None:
    hour_ms = 3_600_000
    old = [job(submission_id=order(n).label, status="SUCCEEDED", end_time=hour_ms) for n in range(2, 10)]
    recent = job(submission_id=order(10).label, status="STOPPED", end_time=3 * hour_ms)
    strange = job(submission_id="raysubmit_1", status="STOPPED", end_time=1)
    listed = json.dumps([*old, recent, strange, job(start_time=3 * hour_ms)]).encode()
    server.answer = lambda _: (200, listed)
    assert len(made().list(TAG)) == 10
    deleted = [each.path.rpartition("/")[2] for each in server.asked if each.method == "DELETE"]
    assert deleted == [order(n).label for n in range(2, 7)]


def test_one_that_ray_does_not_know_needs_no_end(server: ScriptedServer) -> None:
    server.answer = lambda _: (404, b"Job nope does not exist")
    made().down([LABEL])
    server.answer = lambda _: (500, b"no")
    with pytest.raises(EngineFault, match="RaySaid"):
        made().down([LABEL])


@pytest.mark.parametrize(
    "files",
    [
        {},
        {"url": "ftp://ray"},
        {"url": "http://"},
        {"url": "http://user@ray"},
        {"url": "http://ray:0"},
        {"url": "http://ray:x"},
        {"url": "http://ray/?a=b"},
        {"url": "http://ray/a b"},
        {"url": "http://ray", "token": "two words"},
        {"url": "https://ray", "ca.crt": "no certificate"},
        {"url": "https://ray", "tls.crt": "no certificate"},
        {"url": "http://ray" + "y" * 70_000},
    ],
)
def test_an_endpoint_that_is_not_in_order_is_a_fault(tmp_path: Path, settings: Any, files: dict[str, str]) -> None:
    settings.PROVIDER_ENDPOINTS = str(tmp_path)
    (tmp_path / "ray").mkdir()
    for name, text in files.items():
        (tmp_path / "ray" / name).write_text(text)
    with pytest.raises(EngineFault, match="EndpointMissing"):
        endpoint.of("ray")


def test_only_a_folder_of_the_administrators_is_an_endpoint(tmp_path: Path, settings: Any) -> None:
    (tmp_path / "url").write_text("http://ray")
    for below, name in [
        ("", "ray"),
        (str(tmp_path / "none"), ".."),
        (str(tmp_path / "none"), "../x"),
        (str(tmp_path), "."),
    ]:
        settings.PROVIDER_ENDPOINTS = below
        with pytest.raises(EngineFault, match="EndpointMissing"):
            endpoint.of(name)


def test_a_token_is_shown_by_nothing(server: ScriptedServer) -> None:
    assert "a-bearer-token" not in repr(endpoint.of("ray"))
