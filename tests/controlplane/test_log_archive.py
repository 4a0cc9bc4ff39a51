"""Logs of ended parts move from files to blocks in the archive, and are read, go on, break off and go as before."""

from __future__ import annotations

import gzip
import json
import random
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.core.files.base import ContentFile
from django.core.files.storage import storages
from django.db import connection
from django.test import Client
from django.utils import timezone

from controlplane.jobs import log_archive, log_blocks, logs
from controlplane.jobs.log_blocks import StorageSilent
from controlplane.jobs.models import Job, LogSpan, Part, PartLog
from controlplane.operations import invariants
from controlplane.retention import tasks
from controlplane.retention.kinds import NAMED
from controlplane.storage import Pieces
from tests.controlplane.people import Town, write_log

Place = tuple[str, Path]
BLOCK = 1_000
FILES_ONLY = pytest.mark.parametrize("place", ["files"], indirect=True)


@pytest.fixture(autouse=True)
def soon(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A log is due at once, also in the transaction of a test; blocks are small."""
    settings.LOG_ARCHIVE_AFTER_S = -60
    monkeypatch.setattr(log_blocks, "BLOCK_BYTES", BLOCK)


def part_of(job: Job) -> Part:
    return Part.objects.get(attempt__stage__job=job)


def lines(seed: int, count: int) -> bytes:
    dice = random.Random(seed)
    return b"".join(b"%d %s\n" % (n, b"x" * dice.randrange(60)) for n in range(count))


def ended(town: Town, *chunks: tuple[str, bytes]) -> Job:
    agent = getattr(town, "_machine", None) or town.machine()
    town._machine = agent  # type: ignore[attr-defined]
    job = town.running(agent)
    write_log(job, *(chunks or [(logs.STREAMS[n % 2], lines(n, 30)) for n in range(7)]))
    agent.end(job.stages.get())
    return job


def whole(part: Part, stream: str) -> bytes:
    return b"".join(logs.pieces(part, stream))


def blocks(part: Part) -> list[str]:
    """The names of the blocks that are there."""
    folder = part.id.hex[-2:]
    try:
        there = storages["archive"].listdir(folder)[1]
    except FileNotFoundError:
        return []
    return sorted(f"{folder}/{name}" for name in there if name.startswith(str(part.id)))


def bytes_of(block: str) -> bytes:
    with storages["archive"].open(block) as file:
        content: bytes = file.read()
    return content


@pytest.fixture
def due(town: Town, place: Place) -> Job:
    return ended(town)


def browser(town: Town) -> Client:
    client = Client()
    assert town.owner.user is not None
    client.force_login(town.owner.user)
    return client


def answers(town: Town, job: Job) -> list[Any]:
    """All that the API and the pages tell of a log: ranges, tails, lists, downloads."""
    dice, base = random.Random(3), f"/jobs/{job.number}/logs"
    asked = [f"{base}?tail={n}&stream={s}" for n in (0, 40, 5_000) for s in ("out", "err", "both")]
    for _ in range(15):
        stream = dice.choice(("out", "err", "both"))
        asked.append(f"{base}?stream={stream}&offset={dice.randrange(9_000)}&limit={dice.randrange(1, 3_000)}")
    told: list[Any] = []
    for path in asked:
        answer = town.owner.get(path)
        assert answer.status_code == 200, (path, answer.content)
        told.append((path, answer.content, answer["X-Log-Next-Offset"], answer["X-Log-Size"]))
    told.append(town.owner.read(f"/jobs/{job.number}/streams"))
    for stream in ("out", "err", "both"):
        page = browser(town).get(f"/jobs/{job.number}/log?stage=main&attempt=1&rank=0&stream={stream}")
        told.append(b"".join(page))
    return told


def test_a_log_that_moved_is_read_as_before(town: Town, due: Job, place: Place) -> None:
    part, before = part_of(due), answers(town, due)
    assert log_archive.move_due() == 1
    assert not logs.folder(part.id).exists()
    assert answers(town, due) == before
    sizes = {stream: logs.size(part, stream) for stream in logs.STREAMS}
    assert len(blocks(part)) == sum(-(-size // BLOCK) for size in sizes.values()) > 4
    packed = [bytes_of(name) for name in blocks(part) if "-out-" in name]
    assert gzip.decompress(b"".join(packed)) == whole(part, "out"), "zcat reads them"
    files = [path for path in place[1].rglob("*") if path.is_file()]
    assert len(files) == (0 if place[0] else len(blocks(part)))
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in files)
    assert log_archive.move_due() == 0, "it is due no more"


@FILES_ONLY
def test_what_lives_or_has_just_ended_stays_in_files(town: Town, place: Place, settings: Any) -> None:
    lives = town.running(town.machine())
    write_log(lives, ("out", b"still here\n"))
    assert log_archive.move_due() == 0
    town_job = part_of(lives)
    assert (logs.folder(town_job.id) / "out").read_bytes() == b"still here\n"
    settings.LOG_ARCHIVE_AFTER_S = 3_600
    Part.objects.filter(id=town_job.id).update(ended_at=timezone.now())
    assert log_archive.move_due() == 0
    Part.objects.filter(id=town_job.id).update(ended_at=None)


def test_what_comes_late_is_appended_and_moves_too(
    town: Town, due: Job, django_capture_on_commit_callbacks: Any
) -> None:
    part = part_of(due)
    truth = {stream: whole(part, stream) for stream in logs.STREAMS}
    for late in (b"late\n", lines(9, 60)):
        assert log_archive.move_due() == 1
        write_log(due, ("out", late), ("err", b"!"))
        truth = {"out": truth["out"] + late, "err": truth["err"] + b"!"}
        assert {stream: whole(part, stream) for stream in logs.STREAMS} == truth
        assert logs.tail(part, "both", 3) == logs.last_lines(whole(part, "both"), 3)
        assert invariants.broken() == []
        # An hour later.
        assert log_archive.move_due() == 0
        PartLog.objects.update(archive_tried_at=None)
    with django_capture_on_commit_callbacks(execute=True):
        assert log_archive.move_due() == 1
    assert {stream: whole(part, stream) for stream in logs.STREAMS} == truth
    assert not logs.folder(part.id).exists()
    last = (len(truth["out"]) - 1) // BLOCK
    mine = [name for name in blocks(part) if f"-out-{last:06}-" in name]
    assert mine == [log_blocks.names(part.id, "out", len(truth["out"]))[-1]]


@FILES_ONLY
def test_a_log_that_grows_while_it_moves_stays(town: Town, due: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    part, write = part_of(due), log_blocks.write
    left = iter([b"late\n"])

    def meanwhile(*args: Any) -> None:
        write(*args)
        if late := next(left, b""):
            write_log(due, ("out", late))

    monkeypatch.setattr(log_blocks, "write", meanwhile)
    before = whole(part, "out")
    assert log_archive.move(part.id) is False
    assert whole(part, "out") == before + b"late\n"
    assert log_archive.move(part.id) is True
    assert whole(part, "out") == before + b"late\n"
    assert not logs.folder(part.id).exists()


class Killed(BaseException):
    """The process ends here."""


@FILES_ONLY
@pytest.mark.parametrize("at", [0, 1, 5, "before the row", "before the files go"])
def test_a_move_that_is_killed_loses_nothing_and_is_done_again(
    town: Town, due: Job, monkeypatch: pytest.MonkeyPatch, at: int | str
) -> None:
    part, before = part_of(due), answers(town, due)
    written, write = iter(range(1_000)), log_blocks.write

    def killed(*args: Any) -> None:
        if next(written) == at:
            raise Killed
        write(*args)

    def dead(*_: Any) -> bool:
        raise Killed

    with monkeypatch.context() as patched:
        if isinstance(at, int):
            patched.setattr(log_blocks, "write", killed)
        else:
            patched.setattr(logs, "lock" if at == "before the row" else "clear", dead)
        with pytest.raises(Killed):
            log_archive.move_due()
    assert answers(town, due) == before
    # The next run goes on with others first; an hour later it is due again.
    moved = at == "before the files go"
    assert log_archive.move_due() == 0
    PartLog.objects.update(archive_tried_at=None)
    assert log_archive.move_due() == (0 if moved else 1)
    assert answers(town, due) == before
    assert logs.sweep(int(part.id.hex[-2:], 16)) == (1 if moved else 0)
    assert not logs.folder(part.id).exists()
    assert answers(town, due) == before


@FILES_ONLY
def test_files_do_not_go_while_something_was_appended(town: Town, due: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the row that says that all has moved and the removal of files."""
    part, clear = part_of(due), logs.clear

    def late(name: Any) -> bool:
        write_log(due, ("out", b"late\n"))
        return clear(name)

    monkeypatch.setattr(logs, "clear", late)
    before = whole(part, "out")
    assert log_archive.move(part.id) is False
    assert whole(part, "out") == before + b"late\n"


@FILES_ONLY
def test_a_reader_goes_on_while_it_moves_and_grows(town: Town, due: Job) -> None:
    part, before = part_of(due), whole(part_of(due), "out")
    with logs.Reader(part.id) as reader:
        assert reader.exactly("out", 0, 10) == before[:10]
        log_archive.move(part.id)
        assert reader.exactly("out", 10, 100) == before[10:110]
        write_log(due, ("out", b"late\n"))
        assert reader.exactly("out", 10, len(before) - 5) == before[10:] + b"late\n"
        log_archive.move(part.id)
        assert reader.exactly("out", 0, len(before) + 5) == before + b"late\n"


@FILES_ONLY
def test_a_restored_record_that_knows_of_no_move_finds_the_blocks(town: Town, due: Job) -> None:
    before = answers(town, due)
    log_archive.move_due()
    PartLog.objects.update(archived_out=0, archived_err=0, archived_at=None, archive_tried_at=None)
    assert answers(town, due) == before
    assert log_archive.move_due() == 1
    assert answers(town, due) == before


@pytest.mark.parametrize("kind", ["logs", "jobs"])
def test_blocks_go_with_their_log(town: Town, due: Job, kind: str, django_capture_on_commit_callbacks: Any) -> None:
    stays = ended(town)
    assert log_archive.move_due() == 2
    part = part_of(due)
    with django_capture_on_commit_callbacks(execute=True):
        NAMED[kind].remove([part.id if kind == "logs" else due.pk])
    assert blocks(part) == []
    assert town.owner.get(f"/jobs/{due.number}/logs").status_code == (410 if kind == "logs" else 404)
    assert len(blocks(part_of(stays))) > 4
    assert whole(part_of(stays), "out")


@FILES_ONLY
def test_a_log_that_goes_while_it_moves_leaves_no_blocks(
    town: Town, due: Job, monkeypatch: pytest.MonkeyPatch, django_capture_on_commit_callbacks: Any
) -> None:
    part, lock = part_of(due), logs.lock

    def gone(name: Any) -> None:
        logs.remove([name])
        lock(name)

    monkeypatch.setattr(logs, "lock", gone)
    with django_capture_on_commit_callbacks(execute=True):
        assert log_archive.move(part.id) is False
    assert blocks(part) == []
    assert not logs.folder(part.id).exists()


def test_blocks_of_no_log_are_swept_and_no_others(
    town: Town, due: Job, django_capture_on_commit_callbacks: Any
) -> None:
    part = part_of(due)
    log_archive.move_due()
    mine, shard = blocks(part), part.id.hex[-2:]
    other = f"{shard}/00000000-0000-4000-8000-0000000000{shard}-out-000000-5"
    storages["archive"].save(other, ContentFile(b"x"))
    young = storages["archive"].save(f"{shard}/.saving-x", ContentFile(b"x"))
    with django_capture_on_commit_callbacks(execute=True):
        assert log_blocks.sweep(int(shard, 16)) == 1
    assert not storages["archive"].exists(other)
    assert storages["archive"].exists(young)
    assert blocks(part) == mine
    storages["archive"].delete(young)


def test_a_block_that_is_harmed_is_said_to_be_lost(town: Town, due: Job) -> None:
    log_archive.move_due()
    name = blocks(part_of(due))[0]
    content = bytes_of(name)
    bomb = gzip.compress(bytes(50_000_000))
    for harmed in (content[:-9], b"no block", bomb, gzip.compress(b"short"), None):
        storages["archive"].delete(name)
        if harmed is not None:
            storages["archive"].save(name, ContentFile(harmed))
        answer = town.owner.get(f"/jobs/{due.number}/logs?stream=err")
        assert (answer.status_code, json.loads(answer.content)["code"]) == (410, "log_lost")
    assert town.owner.get(f"/jobs/{due.number}/logs?stream=out").status_code == 200


def test_a_storage_that_does_not_answer_loses_nothing(town: Town, due: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    part, before = part_of(due), whole(part_of(due), "both")
    place = storages["archive"]

    def away(*_: Any, **__: Any) -> Any:
        raise ConnectionError("no route to host")

    with monkeypatch.context() as patched:
        patched.setattr(type(place), "_save", away)
        with pytest.raises(ConnectionError):
            log_archive.move_due()
    assert whole(part, "both") == before
    PartLog.objects.update(archive_tried_at=None)
    assert log_archive.move_due() == 1
    with monkeypatch.context() as patched:
        patched.setattr(type(place), "_open", away)
        with pytest.raises(StorageSilent):
            whole(part, "both")
        answer = town.owner.get(f"/jobs/{due.number}/logs")
        assert (answer.status_code, json.loads(answer.content)["code"]) == (503, "storage_unavailable")
    assert whole(part, "both") == before


@FILES_ONLY
def test_a_log_that_cannot_be_moved_lets_the_others_go_first(town: Town, place: Place) -> None:
    broken, good = ended(town), ended(town)
    PartLog.objects.filter(part=part_of(broken)).update(written_at=timezone.now() - timedelta(days=9))
    (logs.folder(part_of(broken).id) / "out").unlink()
    assert log_archive.move_due() == 1
    assert PartLog.objects.get(part=part_of(good)).archived_at is not None
    assert PartLog.objects.get(part=part_of(broken)).archived_at is None


@FILES_ONLY  # the object store of these tests lies in the memory of this process
def test_memory_does_not_grow_with_the_log(town: Town, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    size = 2**18
    monkeypatch.setattr(log_blocks, "BLOCK_BYTES", size)
    job = ended(town, *((logs.STREAMS[n % 2], random.Random(n).randbytes(size)) for n in range(40)))
    part, lengths = part_of(job), []
    tracemalloc.start()
    try:
        assert log_archive.move_due() == 1
        lengths += map(len, logs.pieces(part, "both"))
        logs.tail(part, "both", 2)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert sum(lengths) == 40 * size
    assert peak < 20 * size, "of 40 blocks"


@FILES_ONLY
@pytest.mark.django_db(transaction=True)
def test_several_workers_move_each_log_once(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    town = Town()
    jobs = [ended(town, ("out", lines(n, 50))) for n in range(12)]
    truth = {job.pk: whole(part_of(job), "out") for job in jobs}
    counted: list[int] = []

    def work() -> None:
        try:
            counted.append(log_archive.move_due())
        finally:
            connection.close()

    run(work, 3)
    assert sum(counted) == 12
    assert {job.pk: whole(part_of(job), "out") for job in jobs} == truth
    assert LogSpan.objects.count() == 12


def run(work: Callable[[], None], times: int) -> None:
    threads = [threading.Thread(target=work) for _ in range(times)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@FILES_ONLY
def test_the_task_moves_what_is_due_once_a_minute(town: Town, due: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    tasks.archive_logs()
    assert PartLog.objects.get(part=part_of(due)).archived_at is not None
    later = ended(town)
    tasks.archive_logs()
    assert PartLog.objects.get(part=part_of(later)).archived_at is None, "another did it within the minute"


def test_the_way_back_puts_logs_into_files(town: Town, due: Job, django_capture_on_commit_callbacks: Any) -> None:
    part, before = part_of(due), answers(town, due)
    log_archive.move_due()
    write_log(due, ("out", b"late\n"))
    with django_capture_on_commit_callbacks(execute=True):
        log_archive.bring_back(part.id)
    assert blocks(part) == []
    assert (logs.folder(part.id) / "out").read_bytes() == whole(part, "out")
    assert whole(part, "out").endswith(b"late\n")
    assert answers(town, due) != before


async def test_a_download_is_made_piece_by_piece() -> None:
    made: list[int] = []

    def pieces() -> Iterator[bytes]:
        for n in range(3):
            made.append(n)
            yield b"%d" % n

    seen = [(piece, len(made)) async for piece in Pieces(pieces())]
    assert seen == [(b"0", 1), (b"1", 2), (b"2", 3)]
