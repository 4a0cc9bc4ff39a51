"""Traces of jobs, sent to a real receiver: what hangs below what, with which times, and once only."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from controlplane.jobs.models import Attempt, Event
from controlplane.jobs.trace_ids import span_id
from controlplane.observability import traces
from controlplane.observability.models import TraceCursor
from tests.record.yard import Agent, Yard, stage, states


class Collector(http.server.ThreadingHTTPServer):
    """A server that reads what exporters of OpenTelemetry send, and answers with ``status``."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answer)
        self.spans: list[Span] = []
        self.status = 200


class _Answer(http.server.BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        assert self.path == "/v1/traces"
        if self.server.status == 200:
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                for scope in resource.scope_spans:
                    self.server.spans += scope.spans
        self.send_response(self.server.status)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def collector(settings: Any) -> Iterator[Collector]:
    with Collector() as server:
        settings.TRACES_URL = f"http://127.0.0.1:{server.server_port}/"
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        traces.export(timezone.now())
        yield server
        server.shutdown()
        thread.join()


def settled() -> int:
    """Send what happened so far, as of a minute from now."""
    return traces.export(timezone.now() + timedelta(minutes=1))


def ran(yard: Yard, agent: Agent, **how: Any) -> Any:
    job = yard.submit()
    yard.cycle()
    agent.start()
    agent.end(stage(job), **how)
    return job


def test_a_job_is_a_trace_from_its_submission_to_its_end(yard: Yard, collector: Collector) -> None:
    agent = yard.agent("a")
    job = yard.submit()
    yard.cycle()
    agent.start()
    assert settled() == 2
    assert [span.name for span in collector.spans] == ["wait main", "start main"]
    agent.end(stage(job))
    assert states(job)["job"] == "COMPLETED"
    assert settled() == 3
    assert settled() == 0
    spans = {span.name: span for span in collector.spans}
    assert set(spans) == {"wait main", "start main", "run main", "attempt main", f"job {job.name}"}
    attempt = Attempt.objects.get()
    assert {span.trace_id.hex() for span in collector.spans} == {job.id.hex}
    root, of_attempt = (span_id(row).to_bytes(8, "big") for row in (job.id, attempt.id))
    parents = {name: span.parent_span_id for name, span in spans.items()}
    assert parents == {
        f"job {job.name}": b"",
        "wait main": root,
        "attempt main": root,
        "start main": of_attempt,
        "run main": of_attempt,
    }
    assert spans["attempt main"].span_id == of_attempt
    assert spans["wait main"].end_time_unix_nano == spans["start main"].start_time_unix_nano
    assert spans["start main"].end_time_unix_nano == spans["run main"].start_time_unix_nano
    assert all(span.start_time_unix_nano <= span.end_time_unix_nano for span in collector.spans)
    assert len({span.span_id for span in collector.spans}) == 5


def test_a_job_that_ends_before_its_start_was_reported_is_traced_as_a_whole(yard: Yard, collector: Collector) -> None:
    agent = yard.agent("a")
    job = yard.submit()
    yard.cycle()
    agent.look()
    agent.end(stage(job), ran_s=0.01)
    assert states(job)["job"] == "COMPLETED"
    assert settled() == 5
    assert [span.name for span in collector.spans][:3] == ["wait main", "start main", "run main"]


def test_a_failed_attempt_is_an_error_with_its_cause(yard: Yard, collector: Collector) -> None:
    ran(yard, yard.agent("a"), code=3, cause="EXIT_CODE")
    settled()
    (attempt,) = [span for span in collector.spans if span.name == "attempt main"]
    assert attempt.status.code == Status.STATUS_CODE_ERROR
    said = {each.key: each.value for each in attempt.attributes}
    assert (said["switchyard.cause"].string_value, said["switchyard.exit_code"].int_value) == ("EXIT_CODE", 3)


def test_what_a_collector_refuses_is_sent_again(yard: Yard, collector: Collector) -> None:
    collector.status = 400
    ran(yard, yard.agent("a"))
    assert settled() == 0
    collector.status = 200
    assert settled() == 5
    assert len(collector.spans) == 5


def test_what_nobody_took_for_a_day_is_left_out(
    yard: Yard, collector: Collector, caplog: pytest.LogCaptureFixture
) -> None:
    ran(yard, yard.agent("a"))
    assert traces.export(timezone.now() + timedelta(days=2)) == 0
    assert "older than a day" in caplog.text
    assert TraceCursor.objects.get().event == Event.objects.order_by("-id")[0].id


def test_events_count_only_once_their_transactions_are_over(yard: Yard, collector: Collector) -> None:
    ran(yard, yard.agent("a"))
    assert traces.export(timezone.now()) == 0
    assert settled() == 5


def test_a_stages_processes_know_the_span_they_hang_below(yard: Yard, collector: Collector) -> None:
    agent = yard.agent("a")
    job = yard.submit()
    yard.cycle()
    (wanted,) = agent.look()
    assert wanted.spec is not None
    attempt = Attempt.objects.get()
    assert wanted.spec.env["TRACEPARENT"] == f"00-{job.id.hex}-{span_id(attempt.id):016x}-01"
