"""The client over real sockets: it tries again where that is safe, and never does a thing twice."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import httpx
import pytest

from switchyard import ApiProblem, Devices, Job, SpecError, Stage, Unreachable, WaitTimeout
from switchyard.bundle import pack
from switchyard.stream import StreamEvent, listen


@pytest.fixture
def client(server: Any, new_client: Any) -> Any:
    with new_client(server.url, "yard_secret") as made:
        yield made


def test_a_submit_that_meets_a_restart_is_sent_again_under_the_same_key(server, client, said, as_problem, as_job):
    server.on("POST", "/jobs", said(0), as_problem(503, "busy", "try again"), said(201, as_job()))
    assert client.jobs.submit({"run": "echo"}).number == 12
    keys = {asked.headers["idempotency-key"] for asked in server.to("POST", "/jobs")}
    assert len(server.to("POST", "/jobs")) == 3
    assert len(keys) == 1


def test_two_submits_have_two_keys_unless_one_is_given(server, client, said, as_job):
    server.on("POST", "/jobs", said(201, as_job()))
    client.jobs.submit({"run": "echo"})
    client.jobs.submit({"run": "echo"})
    client.jobs.submit({"run": "echo"}, idempotency_key="mine")
    keys = [asked.headers["idempotency-key"] for asked in server.to("POST", "/jobs")]
    assert len(set(keys)) == 3
    assert keys[2] == "mine"


def test_an_answer_in_flight_is_asked_for_again(server, client, said, as_problem, as_job):
    server.on("POST", "/jobs", as_problem(409, "in_flight", "still running"), said(201, as_job()))
    assert client.jobs.submit({"run": "echo"}).number == 12


@pytest.mark.parametrize(
    ("status", "code"), [(422, "invalid_spec"), (409, "illegal_transition"), (403, "permission_denied")]
)
def test_a_refusal_is_told_once_in_its_own_words(server, client, as_problem, status, code):
    errors = [{"pointer": "/stages/0", "detail": "no", "code": "x"}]
    server.on("POST", "/jobs", as_problem(status, code, "it cannot be", hint="do else", errors=errors))
    with pytest.raises(ApiProblem, match="it cannot be") as raised:
        client.jobs.submit({"run": "echo"})
    found = raised.value
    assert (found.status, found.code, found.hint, found.trace_id, found.errors) == (
        status,
        code,
        "do else",
        "abc123",
        errors,
    )
    assert len(server.asked) == 1


def test_nobody_at_home_is_unreachable_and_names_the_address(new_client):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    with new_client(url, tries=2) as client, pytest.raises(Unreachable, match=url):
        client.jobs.get(1)


def test_a_proxy_before_nothing_is_unreachable(server, client, said):
    server.on("GET", "/jobs/1", said(502, b"<html>bad gateway</html>", {"Content-Type": "text/html"}))
    with pytest.raises(Unreachable, match="502"):
        client.jobs.get(1)


def test_a_redirect_is_not_followed_with_the_token(server, client, said):
    server.on("GET", "/jobs/1", said(302, None, {"Location": server.url + "/api/v1/jobs/2"}))
    with pytest.raises(Unreachable, match="redirects"):
        client.jobs.get(1)
    assert [asked.path for asked in server.asked] == ["/api/v1/jobs/1"]


def test_a_list_goes_through_all_pages_and_stays_with_its_server(server, client, said, as_job):
    first = {"results": [as_job(3), as_job(2)], "next": "http://elsewhere.invalid/api/v1/jobs?cursor=c2&limit=2"}
    server.on("GET", "/jobs", said(200, first), said(200, {"results": [as_job(1)], "next": None}))
    assert [found.number for found in client.jobs.list(state=["PENDING", "RUNNING"], user="me")] == [3, 2, 1]
    one, two = server.to("GET", "/jobs")
    assert (one.query["state"], one.query["user"]) == ("PENDING,RUNNING", "me")
    assert two.query == {"cursor": "c2", "limit": "2"}
    assert two.headers["authorization"] == "Bearer yard_secret"


def test_a_list_takes_no_more_than_it_was_asked_for(server, client, said, as_job):
    server.on("GET", "/jobs", said(200, {"results": [as_job(n) for n in range(9, 0, -1)], "next": None}))
    assert len(list(client.jobs.list(limit=4))) == 4


def test_a_folder_is_sent_once(server, client, said, as_problem, as_job, tmp_path):
    code = tmp_path / "code"
    code.mkdir()
    (code / "train.py").write_text("print(1)")
    bundle = pack(code)
    server.on("HEAD", f"/bundles/{bundle.sha256}", said(404), said(200))
    server.on("POST", "/bundles", said(201, {"sha256": bundle.sha256, "size_bytes": bundle.size_bytes}))
    server.on("POST", "/jobs", said(201, as_job()))
    client.jobs.submit({"run": "python train.py", "workdir": str(code)})
    client.jobs.submit({"run": "python train.py"}, workdir=code)
    (sent,) = server.to("POST", "/bundles")
    assert sent.body == bundle.content
    assert [asked.json for asked in server.to("POST", "/jobs")] == [
        {"run": "python train.py", "bundle": bundle.sha256}
    ] * 2


def test_a_workdir_and_a_bundle_together_are_refused_before_anything_is_sent(server, client, tmp_path):
    with pytest.raises(SpecError):
        client.jobs.submit({"run": "x", "bundle": "0" * 64}, workdir=tmp_path)
    assert server.asked == []


def test_many_jobs_travel_in_few_calls_and_keep_their_order(server, client, said, monkeypatch):
    monkeypatch.setattr("switchyard.client.BATCH", 2)
    monkeypatch.setattr("switchyard.aio.client.BATCH", 2)
    server.on(
        "POST",
        "/jobs/batch",
        lambda asked: said(201, {"results": [{"id": s["name"], "number": int(s["name"])} for s in asked.json["jobs"]]}),
    )
    made = client.jobs.submit_many({"name": str(n), "run": "x"} for n in range(5))
    assert [one["number"] for one in made] == [0, 1, 2, 3, 4]
    assert [len(asked.json["jobs"]) for asked in server.asked] == [2, 2, 1]


def test_a_wait_outlives_the_absence_of_the_control_plane(server, new_client, said, as_problem, as_job):
    away = as_problem(503, "database_unavailable", "away")
    server.on("GET", "/jobs/12", said(200, as_job()), away, said(0), away, said(200, as_job(state="COMPLETED")))
    told: list[str] = []
    with new_client(server.url, tries=1) as client:
        ended = client.jobs.wait(12, told=lambda found: told.append(found.state))
    assert ended.state == "COMPLETED"
    assert told == ["PENDING"]


def test_a_wait_for_a_job_that_is_not_there_ends_at_once(server, client):
    with pytest.raises(ApiProblem, match="nothing"):
        client.jobs.wait(99)


def test_a_wait_that_runs_out_says_how_the_job_stands(server, client, said, as_job):
    server.on("GET", "/jobs/12", said(200, as_job(state="RUNNING")))
    with pytest.raises(WaitTimeout, match="RUNNING") as raised:
        client.jobs.wait("#12", timeout_s=0.05)
    assert isinstance(raised.value, TimeoutError)


def events(said: Any, *told: tuple[str, str, Any], **headers: str) -> Any:
    """A stream of these events: name, cursor and data."""
    text = "".join(f"id: {cursor}\nevent: {name}\ndata: {json.dumps(data)}\n\n" for name, cursor, data in told)
    return said(200, text.encode(), {"Content-Type": "text/event-stream", **headers})


def test_a_wait_follows_the_stream_and_goes_on_where_it_broke(server, client, said, as_job):
    first = events(said, ("upsert", "5.1", as_job(state="RUNNING")), ("beat", "6.1", {}))
    # It promises more and hangs up.
    broken = events(said, ("upsert", "7.1", as_job(state="STOPPING")), Connection="close", **{"Content-Length": "9999"})
    last = events(said, ("upsert", "8.1", as_job(state="COMPLETED")))
    server.on("GET", "/jobs/12", said(200, as_job()), said(200, as_job(state="STOPPING")))
    server.on("GET", "/jobs/watch", first, broken, last)
    told: list[str] = []
    assert client.jobs.wait(12, 600, told=lambda found: told.append(found.state)).state == "COMPLETED"
    assert told == ["PENDING", "RUNNING", "STOPPING"]
    streams = server.to("GET", "/jobs/watch")
    assert [asked.headers.get("last-event-id") for asked in streams] == [None, "6.1", "7.1"]
    assert {asked.query["number"] for asked in streams} == {"12"}


@pytest.mark.parametrize("told", [("leave", {"number": 12}), ("resync", {}), ("beat", {})])
def test_a_wait_for_a_job_that_goes_out_of_sight_ends(server, client, said, as_problem, as_job, told):
    name, data = told
    gone = as_problem(404, "not_found", "you may see no job 12")
    server.on("GET", "/jobs/12", said(200, as_job(state="RUNNING")), gone)
    server.on("GET", "/jobs/watch", events(said, (name, "6.1", data), ("upsert", "7.1", as_job(state="COMPLETED"))))
    with pytest.raises(ApiProblem, match="no job 12"):
        client.jobs.wait(12)


def test_a_wait_for_a_job_that_is_in_sight_again_goes_on(server, client, said, as_job):
    server.on("GET", "/jobs/12", said(200, as_job(state="RUNNING")))
    left = events(said, ("leave", "6.1", {"number": 12}))
    server.on("GET", "/jobs/watch", left, events(said, ("upsert", "7.1", as_job(state="COMPLETED"))))
    assert client.jobs.wait(12).state == "COMPLETED"


def test_a_wait_asks_where_there_is_no_stream(server, client, said, as_problem, as_job):
    running = said(200, as_job(state="RUNNING"))
    for refusal in (as_problem(400, "invalid", "unknown filter number"), as_problem(404, "not_found", "nothing")):
        server.on("GET", "/jobs/watch", refusal)
        server.on("GET", "/jobs/12", running, running, said(200, as_job(state="FAILED")))
        assert client.jobs.wait(12).state == "FAILED"
    assert len(server.to("GET", "/jobs/watch")) == 2


def test_a_wait_begins_anew_where_its_cursor_is_too_old_and_asks_where_it_hears_nothing(
    server, client, said, as_problem, as_job
):
    running = said(200, as_job(state="RUNNING"))
    heard, gone = events(said, ("beat", "6.1", {})), as_problem(410, "cursor_gone", "too old")
    server.on("GET", "/jobs/watch", heard, gone, events(said, Connection="close", **{"Content-Length": "9"}))
    server.on("GET", "/jobs/12", *[running] * 8, said(200, as_job(state="COMPLETED")))
    assert client.jobs.wait(12).state == "COMPLETED"
    assert [asked.headers.get("last-event-id") for asked in server.to("GET", "/jobs/watch")] == [
        None,
        "6.1",
        None,
        None,
    ]


def test_jobs_are_watched_through_a_break(server, client, said, as_problem, as_job):
    first = events(said, ("upsert", "5.1", as_job(state="RUNNING")), ("beat", "6.1", {}))
    last = events(said, ("leave", "7.1", {"number": 12}), ("upsert", "7.1", as_job(13)))
    refused = as_problem(401, "not_authenticated", "revoked")
    server.on("GET", "/jobs/watch", first, as_problem(503, "busy", "x"), said(0), last, refused)
    found = iter(client.jobs.watch(state="RUNNING", user="me"))
    seen = [(name, one["number"]) for name, one in (next(found), next(found), next(found))]
    assert seen == [("upsert", 12), ("leave", 12), ("upsert", 13)]
    with pytest.raises(ApiProblem, match="revoked"):
        next(found)
    asked = server.to("GET", "/jobs/watch")
    assert asked[0].query == {"state": "RUNNING", "user": "me"}
    assert [each.headers.get("last-event-id") for each in asked] == [None, *["6.1"] * 3, "7.1"]


def test_only_a_line_feed_ends_a_line_of_a_stream_and_what_is_no_json_breaks_it():
    forged = "a\u2028\u2028event: end\u2028data: {}\u2028\u2028\u2029\x85b"
    text = f'id: 1\r\nevent: upsert\r\ndata: {{"label": "{forged}"}}\r\n\r\n: beat\n\ndata: {{"x\n\n'
    found = listen(httpx.Response(200, content=(text[at : at + 7].encode() for at in range(0, len(text), 7))))
    assert next(found) == StreamEvent("upsert", "1", {"label": forged})
    with pytest.raises(httpx.RemoteProtocolError, match="no JSON"):
        next(found)


def test_a_record_can_be_refreshed_held_and_cancelled(server, client, said, as_job):
    server.on("GET", "/jobs/12", said(200, as_job()), said(200, as_job(state="RUNNING")))
    for verb in ("hold", "release", "cancel"):
        server.on("POST", f"/jobs/12/{verb}", said(200, as_job(state="HELD")))
    found = client.jobs.get(12)
    assert found.refresh().state == "RUNNING"
    found.hold("a"), found.release("b"), found.cancel("c")
    assert [asked.json["reason"] for asked in server.asked if asked.method == "POST"] == ["a", "b", "c"]


def test_a_clone_of_a_job_is_its_file_with_changes(server, client, said, as_job):
    server.on("GET", "/jobs/12", said(200, as_job()))
    filed = {"name": "sft", "run": "train", "bundle": "ab" * 32, "hold": True, "time_limit": "1h"}
    server.on("GET", "/jobs/12/spec", said(200, {"number": 12, "spec": filed, "stages": []}))
    server.on("POST", "/jobs", said(201, as_job(number=13)))
    draft = client.jobs.get(12).clone(time_limit="3h", hold=None)
    assert server.to("POST", "/jobs") == []
    assert draft.submit().number == 13
    (asked,) = server.to("POST", "/jobs")
    assert asked.json == {"name": "sft", "run": "train", "bundle": "ab" * 32, "time_limit": "3h"}


def test_a_strange_reference_stays_inside_its_path(server, client):
    with pytest.raises(ApiProblem):
        client.jobs.get("../../admin?x=1")
    assert server.asked[0].path == "/api/v1/jobs/..%2F..%2Fadmin%3Fx%3D1"


def test_a_job_as_an_object_writes_the_same_as_a_job_file():
    written = Job(
        name="sft",
        project="nlp",
        command="torchrun train.py",
        devices=[Devices("H100", 8), Devices(kind="npu", milli=500, command=["python", "npu.py"])],
        time_limit="12h",
        env={"A": "1"},
        stages=[Stage(name="train", kind="train", needs=["prep"])],
    ).to_spec()
    assert written == {
        "apiVersion": "v1",
        "kind": "Job",
        "name": "sft",
        "project": "nlp",
        "run": "torchrun train.py",
        "devices": {
            "any_of": [{"model": "H100", "count": 8}, {"kind": "npu", "milli": 500, "command": ["python", "npu.py"]}]
        },
        "time_limit": "12h",
        "env": {"A": "1"},
        "stages": [{"name": "train", "kind": "train", "needs": ["prep"]}],
    }


def test_the_final_states_are_those_of_the_engine():
    from scheduler.core.model.lifecycle import FINAL
    from switchyard.logs import FINAL as KNOWN

    assert {str(state) for state in FINAL} == KNOWN


def test_the_default_project_is_that_of_the_configuration(server, new_client, said, as_job, no_config: Path):
    server.on("POST", "/jobs", said(201, as_job()))
    (no_config / ".yard.toml").write_text(f'url = "{server.url}"\nproject = "vision"\n')
    with new_client.from_env() as client:
        client.jobs.submit({"run": "x"})
        client.jobs.submit(Job(command="x", project="nlp"))
    assert [asked.json["project"] for asked in server.asked] == ["vision", "nlp"]
