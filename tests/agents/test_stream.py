"""A command's output: kept up to a cap, never blocking, with a marker wherever bytes are missing."""

from __future__ import annotations

import os
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agents.supervisor.stream import OutputStream


def pumped(pieces: list[bytes], sink: Path, cap: int) -> None:
    """Send pieces through a stream, each pumped before the next is written."""
    reader, writer = os.pipe()
    stream = OutputStream(reader, str(sink), cap)
    for piece in pieces:
        os.write(writer, piece)
        stream.pump()
    os.close(writer)
    stream.drain()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], deadline=None)
@given(st.lists(st.binary(min_size=1, max_size=60), min_size=1, max_size=20), st.integers(1, 400))
def test_the_first_bytes_up_to_the_cap_are_kept_as_they_were(tmp_path: Path, pieces: list[bytes], cap: int) -> None:
    sink = tmp_path / "0.out"
    sink.unlink(missing_ok=True)
    pumped(pieces, sink, cap)
    whole = b"".join(pieces)
    written = sink.read_bytes()
    if len(whole) <= cap:
        assert written == whole
    else:
        assert written[:cap] == whole[:cap]
        assert f"{len(whole) - cap} bytes dropped here: the cap of {cap} bytes is reached".encode() in written


def test_a_full_disk_never_blocks_the_command(tmp_path: Path) -> None:
    sink = tmp_path / "0.out"
    sink.symlink_to("/dev/full")
    pumped([b"x" * 60000] * 50, sink, 1 << 30)


def test_what_a_full_disk_swallowed_is_marked_once_there_is_room(tmp_path: Path) -> None:
    sink = tmp_path / "0.out"
    reader, writer = os.pipe()
    stream = OutputStream(reader, str(sink), 1 << 30)
    room, full = os.open(sink, os.O_WRONLY | os.O_CREAT | os.O_APPEND), os.open("/dev/full", os.O_WRONLY)
    for target, piece in ((room, b"before\n"), (full, b"lost\n"), (full, b"lost too\n"), (room, b"after\n")):
        stream.sink = target
        os.write(writer, piece)
        stream.pump()
    os.close(full)
    os.close(writer)
    stream.drain()
    marker = b"\n[switchyard: 14 bytes dropped here: the disk did not take them]\n"
    assert sink.read_bytes() == b"before\n" + marker + b"after\n"


def test_a_stream_that_stays_empty_leaves_no_file(tmp_path: Path) -> None:
    sink = tmp_path / "0.out"
    pumped([], sink, 100)
    assert not sink.exists()
    pumped([b"a word"], sink, 100)
    assert sink.read_bytes() == b"a word"
