"""What a job's record shows in a notebook and in a table, whoever named the job."""

from __future__ import annotations

import io
from datetime import UTC, datetime
from html.parser import HTMLParser

from hypothesis import given, settings
from hypothesis import strategies as st

from switchyard.progress import ProgressLine
from switchyard.record import JobFields
from tests.examples_count import examples

OUR_TAGS = {"div", "b", "table", "thead", "tbody", "tr", "th", "td"}


class Tags(HTMLParser):
    """The tags and the texts of a page."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.found: list[tuple[str, list[tuple[str, str | None]]]] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, attrs))

    def handle_data(self, data: str) -> None:
        self.text += data


HOSTILE = st.text() | st.sampled_from(
    ["<script>alert(1)</script>", "</td><img src=x onerror=alert(1)>", '" onload="x', "&lt;b&gt;", "<!--", "\x1b[2J"]
)


@settings(max_examples=examples(50))
@given(HOSTILE, HOSTILE, HOSTILE)
def test_no_text_of_a_job_becomes_markup_or_moves_a_terminal(name, cause, node):
    stage = {"name": name, "state": "FAILED", "cause": cause, "detail": name, "asks": name, "placed": [{"node": node}]}
    job = JobFields({"number": 7, "name": name, "state": "FAILED", "cause": cause, "stages": [stage]})
    page = Tags()
    page.feed(job._repr_html_())
    page.close()
    assert {tag for tag, _ in page.found} <= OUR_TAGS
    assert not any(attributes for _, attributes in page.found)
    assert repr(job).isprintable()


def test_a_row_of_history_is_flat_with_times_and_spans(as_job):
    told = as_job(state="COMPLETED", started_at="2026-11-21T03:01:00Z", ended_at="2026-11-21T03:03:30+00:00")
    row = JobFields(told).row()
    assert row["submitted_at"] == datetime(2026, 11, 21, 3, tzinfo=UTC)
    assert (row["waited_s"], row["ran_s"], row["priority"]) == (60.0, 150.0, "medium")
    assert all(value is None or isinstance(value, str | int | float | datetime) for value in row.values())
    assert JobFields(as_job()).row()["waited_s"] is None


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_bar_is_drawn_on_a_terminal_and_lines_elsewhere(as_job):
    for stream, wanted in ((Terminal(), "[###############               ]  50% RUNNING"), (io.StringIO(), "RUNNING\n")):
        with ProgressLine(stream=stream) as line:
            for progress in (0.5, 0.5, None):
                line.show(JobFields(as_job(state="RUNNING", progress=progress)))
        assert stream.getvalue().count(wanted) == 1
        assert stream.getvalue().endswith("\n")
    nothing = io.StringIO()
    with ProgressLine(False, nothing) as line:
        line.show(JobFields(as_job()))
    assert nothing.getvalue() == ""
