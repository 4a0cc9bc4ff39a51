"""The trace readers take what is documented and say line and column of everything else."""

from __future__ import annotations

import gzip
import json
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.sim import traces
from scheduler.sim.traces import TraceError, generic, history, philly, read, slurm, swf

PHILLY = "timestamp,duration,num_gpus,gpu_time,cluster\n"
SLURM = "submit_s,run_s,user,nodes,tasks,limit_s,qos,partition,mem,gres\n"
SWF = "{job} {submit} -1 {run} {procs} -1 -1 {asked} -1 -1 1 3 -1 -1 0 -1 -1 -1\n"


def parse(lines: list[str]) -> traces.Trace:
    return generic.read(lines, "csv")


def test_columns_are_read_by_name_and_sorted_by_submission_and_that_is_said() -> None:
    trace = parse(["x,gpus,submit_s,duration_s,project,needs,id\n", "?,8,20,5,lab,,a\n", "?,0.5,10,7,,,b\n"])
    first, second = trace
    assert (first.id, first.gpus, first.submit_s, first.project) == ("b", 0.5, 10, "default")
    assert (second.gpus, second.project) == (8, "lab")
    assert trace.notes == ('1 row came after later ones; all were sorted by "submit_s"',)


def test_an_ordered_trace_has_nothing_to_say() -> None:
    assert parse(["submit_s,duration_s,gpus\n", "0,1,1\n", "0,2,1\n"]).notes == ()


@pytest.mark.parametrize(
    ("row", "column", "problem"),
    [
        ("0,soon,1", "duration_s", '"soon" must be a number of at least 0 and at most 315,360,000'),
        ("-1,5,1", "submit_s", '"-1" must be a number of at least 0'),
        ("0,nan,1", "duration_s", '"nan" must be'),
        ("0,1_0,1", "duration_s", '"1_0" must be'),
        ("0,4e8,1", "duration_s", "at most 315,360,000"),
        ("0,5,", "gpus", "is empty; it must be a number"),
        ("0,5,1.5", "gpus", "a whole number, or a share below 1"),
        ("0,5,0.0001", "gpus", "below the least share"),
        ("0,5,9999999", "gpus", "at most 1,000,000"),
        ("0,5", "", "has 2 fields; the header names 3 columns"),
        ("0,5,1,9", "", "has 4 fields; the header names 3 columns"),
        ("0,5,1", "", 'is the same as line 2; if both are meant, tell them apart in a column "id"'),
        ('0,5,"1', "", "is not CSV"),
    ],
)
def test_a_wrong_field_is_named_by_line_and_column(row: str, column: str, problem: str) -> None:
    with pytest.raises(TraceError) as found:
        parse(["submit_s,duration_s,gpus\n", "0,5,1\n", row + "\n"])
    assert (found.value.line, found.value.column) == (3, column)
    assert problem in str(found.value)


def test_a_missing_or_doubled_column_is_named_with_what_may_be_there() -> None:
    with pytest.raises(TraceError, match='line 1, column "gpus": is missing; this table needs submit_s, duration_s'):
        parse(["submit_s,duration_s\n", "0,1\n"])
    with pytest.raises(TraceError, match='line 1, column "gpus": is there 2 times'):
        parse(["submit_s,duration_s,gpus,gpus\n", "0,1,1,2\n"])
    with pytest.raises(TraceError, match="is missing"):
        parse([])


def test_needs_must_name_earlier_lines_and_ids_are_used_once() -> None:
    with pytest.raises(TraceError, match='"b" is not the id of an earlier line'):
        parse(["id,submit_s,duration_s,gpus,needs\n", "a,0,1,1,b\n"])
    with pytest.raises(TraceError, match='line 3, column "id": "a" was already used in line 2'):
        parse(["id,submit_s,duration_s,gpus\n", "a,0,1,1\n", "a,0,1,1\n"])


# -- files ------------------------------------------------------------------------------------------------------------


def test_a_packed_file_is_unpacked_and_a_broken_one_is_told(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv.gz"
    whole = gzip.compress(b"submit_s,duration_s,gpus\n" + b"".join(b"%d,1,1\n" % i for i in range(999)))
    path.write_bytes(whole)
    assert len(read(path)) == 999
    for broken in (whole[:-9], b"submit_s,duration_s,gpus\n", whole[:40] + b"\0\0\0\0" + whole[44:]):
        path.write_bytes(broken)
        with pytest.raises(TraceError, match="is not a whole gzip file"):
            read(path)


def test_a_file_in_another_encoding_is_told(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_bytes("submit_s,duration_s,gpus,user\n0,1,1,Zoë\n".encode("latin-1"))
    with pytest.raises(TraceError, match="save the file as UTF-8"):
        read(path)


def test_the_format_is_known_by_name_and_header(tmp_path: Path) -> None:
    texts = {
        "a.csv": "submit_s,duration_s,gpus\n0,7,1\n",
        "b.csv": PHILLY + "2017-10-03 00:00:00,7.0,1,7.0,vc\n",
        "c.csv": SLURM + "0,7,ann,1,4,60,normal,main,1G,\n",
        "d.swf": "; MaxProcs: 4\n" + SWF.format(job=1, submit=0, run=7, procs=1, asked=1),
        "e.jsonl": '{"id": "1", "submitted_at": 1, "started_at": 3, "ended_at": 10, "project": "p", "user": "u"}\n',
        "f.jsonl": '{"submit_s": 0, "duration_s": 7, "gpus": 1}\n',
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
        assert [one.duration_s for one in read(tmp_path / name)] == [7.0], name
    with pytest.raises(ValueError, match="there are auto, families, generic, history, philly, slurm, swf"):
        read(tmp_path / "a.csv", "excel")


# -- formats ----------------------------------------------------------------------------------------------------------


def test_philly_is_sorted_its_equal_rows_kept_and_its_virtual_clusters_are_projects() -> None:
    rows = ["2017-10-09 00:00:10,60,1,60,a\n", "2017-10-09 00:00:00,60,20,60,b\n", "2017-10-09 00:00:10,60,1,60,a\n"]
    trace = philly.read([PHILLY, *rows])
    assert [(one.submit_s, one.project, one.nodes, one.gpus) for one in trace] == [
        (0.0, "b", 3, 8),
        (10.0, "a", 1, 1),
        (10.0, "a", 1, 1),
    ]
    assert trace.notes[0].startswith("1 row said the same as an earlier one")
    assert "sorted" in trace.notes[1]
    outside = philly.read([PHILLY, *rows], first_day="2017-10-10")
    assert (len(outside), outside.notes[-1]) == (0, "3 rows lie outside the days that were asked for")
    with pytest.raises(TraceError, match='"soon" must be a number of seconds, or a date and time such as'):
        philly.read([PHILLY, "soon,60,1,60,a\n"])
    with pytest.raises(ValueError, match="write it as 2017-10-02"):
        philly.read([PHILLY, *rows], first_day="tuesday")
    assert philly.virtual_clusters(["vc,node num\n", "a,4\n"]) == {"a": 4}


def test_slurm_jobs_are_one_machine_or_nodes_and_those_of_zero_time_are_counted() -> None:
    rows = ["0,50,ann,2,8,60,normal,main,1G,gpu:2\n", "1,0,ann,1,1,60,normal,main,1G,\n", "2,70,bob,1,1,60,,,,\n"]
    trace = slurm.read([SLURM, *rows], enforce_limits=True)
    assert [(one.nodes, one.cpus, one.gpus, one.limit_s) for one in trace] == [(2, 4.0, 2, 60.0), (1, 1.0, 0, 60.0)]
    assert trace.left_out == 1
    assert trace.notes == (
        "1 row cannot run and was left out: zero run time (first: line 3)",
        "1 ran longer than their limit",
    )
    one = slurm.read([SLURM, *rows], one_machine=True)[0]
    assert (one.nodes, one.cpus, one.gpus, one.limit_s, one.expected_s) == (1, 8.0, 0, None, 60.0)
    with pytest.raises(TraceError, match="such as gpu:2"):
        slurm.read([SLURM, "0,50,ann,1,8,60,normal,main,1G,license:7\n"])


def test_swf_knows_minus_one_and_counts_what_never_ran() -> None:
    lines = [
        SWF.format(job=1, submit=9, run=5, procs=4, asked=-1),
        SWF.format(job=2, submit=3, run=-1, procs=4, asked=4),
        SWF.format(job=3, submit=4, run=5, procs=-1, asked=-1),
        SWF.format(job=4, submit=5, run=5, procs=-1, asked=2),
    ]
    trace = swf.read(["; a comment\n", *lines])
    assert [(one.id, one.cpus, one.user) for one in trace] == [("4", 2.0, "user3"), ("1", 4.0, "user3")]
    assert trace.left_out == 2
    assert len(trace.notes) == 3
    with pytest.raises(TraceError, match='line 2, column "job": "1" was already used in line 1'):
        swf.read([lines[0], lines[0]])
    with pytest.raises(TraceError, match="has 3 fields; a line of SWF has 18"):
        swf.read(["1 2 3\n"])
    with pytest.raises(TraceError, match='column "run_s": "-5" must be a number of at least 0'):
        swf.read([SWF.format(job=1, submit=9, run=-5, procs=4, asked=-1)])


def test_history_can_be_lived_again() -> None:
    first = {"id": "a", "submitted_at": "2026-01-01T00:00:00Z", "started_at": "2026-01-01T00:01:00Z", "project": "p"}
    first |= {
        "ended_at": "2026-01-01T00:02:00+00:00",
        "user": "u",
        "job": "tune",
        "name": "train",
        "speed": 2,
        "gpus": 1,
    }
    second = {**first, "id": "b", "submitted_at": "2026-01-01T00:00:30Z", "needs": ["a", "gone"]}
    killed = {**first, "id": "c", "state": "CANCELLED"}
    trace = history.read([history.line(one) + "\n" for one in (second, killed, first)])
    assert [(one.id, one.submit_s, one.duration_s, one.needs) for one in trace] == [
        ("a", 0.0, 120.0, ()),
        ("b", 30.0, 120.0, ("a",)),
    ]
    assert trace[0].name == "tune/train"
    assert trace.left_out == 1
    assert "do not wait for those" in trace.notes[-1]
    with pytest.raises(TraceError, match='line 1, column "ended_at": must not lie before started_at'):
        history.read([json.dumps({**first, "ended_at": 5}) + "\n"])
    with pytest.raises(ValueError, match='has no key "colour"'):
        history.line({"colour": "red"})


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("{", "is not JSON"),
        ("[]", "must be a JSON object"),
        ('{"id": "a"}', 'column "submitted_at": is missing'),
        ('{"id": "a", "submitted_at": true, "project": "p", "user": "u"}', 'column "submitted_at": "true" must be'),
        ('{"id": {}, "submitted_at": 1, "project": "p", "user": "u", "nodes": 1.5}', 'column "nodes": "1.5" must be'),
    ],
)
def test_a_broken_line_of_history_is_told(line: str, problem: str) -> None:
    with pytest.raises(TraceError, match="line 1") as found:
        history.read([line])
    assert problem in str(found.value)


# -- whatever comes ---------------------------------------------------------------------------------------------------

ANY_TEXT = st.text(st.characters(blacklist_categories=["Cs"]), max_size=200)
FIELD = st.one_of(
    st.integers(-3, 2000).map(str),
    st.floats(-10, 1e9).map(repr),
    st.sampled_from(["", "-1", "nan", "inf", "1e999", "0x1", "a;b", "2017-10-09", '"', " 7 ", "١"]),
)


@given(text=ANY_TEXT)
def test_any_text_is_a_trace_or_a_trace_error(text: str) -> None:
    """No input, however broken, ends in another exception."""
    lines = text.splitlines(keepends=True)
    for reader in (generic.read, history.read, philly.read, philly.virtual_clusters, slurm.read, swf.read):
        with suppress(TraceError):
            reader(lines)  # type: ignore[operator]


@given(rows=st.lists(st.tuples(FIELD, FIELD, FIELD), max_size=8))
def test_every_row_is_read_or_named(rows: list[tuple[str, str, str]]) -> None:
    """Nothing is lost: all rows arrive, in order and with sane values, or the error names a line that is there."""
    wrong, trace = 0, None
    try:
        trace = parse(["submit_s,duration_s,gpus\n", *(",".join(row) + "\n" for row in rows)])
    except TraceError as error:
        wrong = error.line
    if trace is None:
        assert 2 <= wrong <= len(rows) + 1
        return
    assert len(trace) + trace.left_out == len(rows)
    assert [one.submit_s for one in trace] == sorted(one.submit_s for one in trace)
    assert all(one.submit_s >= 0 and one.duration_s >= 0 and one.gpus >= 0 for one in trace)


@given(st.permutations(range(6)))
def test_order_of_lines_does_not_matter(order: list[int]) -> None:
    rows = [f"{at * 10},{at + 1},1,job{at}\n" for at in range(6)]
    trace = parse(["submit_s,duration_s,gpus,id\n", *(rows[at] for at in order)])
    assert [one.id for one in trace] == [f"job{at}" for at in range(6)]
    assert bool(trace.notes) == (order != sorted(order))
