"""The trace reader takes what is documented and says line and column of everything else."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from scheduler.sim.traces import TraceError, parse, read


def test_columns_are_read_by_name_and_sorted_by_submission() -> None:
    first, second = parse(["x,gpus,submit_s,duration_s,project,needs,id\n", "?,8,20,5,lab,,a\n", "?,0.5,10,7,,,b\n"])
    assert (first.id, first.gpus, first.submit_s, first.project) == ("b", 0.5, 10, "default")
    assert (second.gpus, second.project) == (8, "lab")


def test_a_packed_file_is_unpacked(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv.gz"
    path.write_bytes(gzip.compress(b"submit_s,duration_s,gpus\n0,1,1\n"))
    assert len(read(path)) == 1


@pytest.mark.parametrize(
    ("row", "column", "problem"),
    [
        ("0,soon,1", "duration_s", '"soon" must be a number of at least 0'),
        ("-1,5,1", "submit_s", '"-1" must be a number of at least 0'),
        ("0,nan,1", "duration_s", '"nan" must be'),
        ("0,5,", "gpus", "is empty"),
        ("0,5,1.5", "gpus", "a whole number, or a share below 1"),
    ],
)
def test_a_wrong_field_is_named_by_line_and_column(row: str, column: str, problem: str) -> None:
    with pytest.raises(TraceError) as found:
        parse(["submit_s,duration_s,gpus\n", "0,5,1\n", row + "\n"])
    assert (found.value.line, found.value.column) == (3, column)
    assert problem in str(found.value)


def test_a_missing_column_is_named_with_what_may_be_there() -> None:
    with pytest.raises(TraceError, match='line 1, column "gpus": is missing; a trace needs submit_s'):
        parse(["submit_s,duration_s\n", "0,1\n"])


def test_needs_must_name_earlier_lines_and_ids_are_used_once() -> None:
    with pytest.raises(TraceError, match='"b" is not the id of an earlier line'):
        parse(["id,submit_s,duration_s,gpus,needs\n", "a,0,1,1,b\n"])
    with pytest.raises(TraceError, match='"a" was already used'):
        parse(["id,submit_s,duration_s,gpus\n", "a,0,1,1\n", "a,0,1,1\n"])
