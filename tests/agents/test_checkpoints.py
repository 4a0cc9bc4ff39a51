"""A checkpoint is offered when it is complete, and never before; the newest wins; what is in use is never deleted."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.storage import checkpoints, layouts
from agents.storage.layouts import Found
from agents.supervisor import saving as module
from agents.supervisor.saving import Saving
from tests.agents import writers
from tests.agents.writers import WRITERS, Disk, Done, Step, Write

steps = st.lists(st.integers(1, 999), min_size=1, max_size=3, unique=True).map(sorted)


def written(writer: str, at: list[int]) -> list[Step]:
    return [each for step in at for each in WRITERS[writer](step)]


@given(st.data(), st.sampled_from(sorted(WRITERS)), steps)
def test_a_writing_cut_anywhere_never_offers_an_incomplete_checkpoint(
    data: st.DataObject, writer: str, at: list[int]
) -> None:
    script = written(writer, at)
    disk = Disk()
    for each in script[: data.draw(st.integers(0, len(script)))]:
        disk.do(each)
    offered = {each.step for each in layouts.recognise(disk.tree()) if each.is_complete}
    # The last write and its Done are two steps here: what is written whole may count already.
    following = next((each.step for each in script[disk.now_ns : disk.now_ns + 1] if isinstance(each, Done)), None)
    assert offered <= disk.done | {following}


@given(st.sampled_from(sorted(WRITERS)), steps)
def test_the_newest_complete_one_is_offered_under_its_layout(writer: str, at: list[int]) -> None:
    disk = Disk()
    for each in written(writer, at):
        disk.do(each)
    best = checkpoints.newest(layouts.recognise(disk.tree()))
    assert best is not None
    assert (best.layout, best.step) == (writer, at[-1])


@given(st.data(), steps)
def test_one_file_written_over_each_time_is_offered_only_between_two_writings(
    data: st.DataObject, at: list[int]
) -> None:
    script = [each for step in at for each in writers.in_place(step)]
    disk = Disk()
    for each in script[: data.draw(st.integers(0, len(script)))]:
        disk.do(each)
    best = checkpoints.newest(layouts.recognise(disk.tree()))
    if best is not None:
        assert disk.files["weights.bin"] == f"weights of step {best.step}".encode()


@pytest.mark.parametrize("writer", sorted(WRITERS))
def test_a_file_that_lost_its_end_takes_its_checkpoint_with_it(writer: str) -> None:
    """Every file that tells by its structure, cut at every length."""
    disk = Disk()
    for each in written(writer, [7]):
        disk.do(each)
    by_structure = (".pt", ".pth", ".ckpt", ".safetensors", ".bin", ".pkl")
    for path, whole in [(path, content) for path, content in disk.files.items() if path.endswith(by_structure)]:
        for length in range(len(whole)):
            disk.files[path] = whole[:length]
            assert checkpoints.newest(layouts.recognise(disk.tree())) is None, (path, length)
        disk.files[path] = whole


def rewritten() -> Iterator[Step]:
    yield from writers.distributed(5)
    yield from writers.torn("step-5/__0_0.distcp", writers.archive("again"))


def test_a_checkpoint_that_is_being_written_over_is_not_offered() -> None:
    disk = Disk()
    for each in rewritten():
        disk.do(each)
    (found,) = layouts.recognise(disk.tree())
    assert found.lacks == "step-5/__0_0.distcp is newer than .metadata"


def test_a_gang_of_which_one_rank_did_not_save_is_incomplete() -> None:
    disk = Disk()
    for each in [*writers.accelerate(1), *writers.accelerate(2)]:
        disk.do(each)
    disk.do(Write("checkpoints/checkpoint_1/random_states_1.pkl", writers.archive("r")))
    lacks = {each.step: each.lacks for each in layouts.recognise(disk.tree())}
    assert lacks == {1: "", 2: "it has the random state of 1 of 2 processes"}


def test_lightning_prefers_what_it_saved_when_it_was_asked_to_stop() -> None:
    disk = Disk()
    for each in [*writers.lightning(90), Write("hpc_ckpt_1.ckpt", writers.archive("h"))]:
        disk.do(each)
    best = checkpoints.newest(layouts.recognise(disk.tree()))
    assert best is not None
    assert best.resume == "hpc_ckpt_1.ckpt"


@pytest.mark.parametrize(("writer", "handed"), [("deepspeed", ""), ("megatron", ""), ("hf-trainer", "checkpoint-9")])
def test_what_is_handed_over_is_what_the_framework_takes(writer: str, handed: str) -> None:
    disk = Disk()
    for each in written(writer, [5, 9]):
        disk.do(each)
    best = checkpoints.newest(layouts.recognise(disk.tree()))
    assert best is not None
    assert best.resume == handed


def test_folders_that_are_no_checkpoints_are_none() -> None:
    disk = Disk()
    for path in ("2024/report.json", "step_3/notes.txt", "runs/checkpoint/readme", "data/latest", "model.bin"):
        disk.do(Write(path, b"{}"))
    assert [each for each in layouts.recognise(disk.tree()) if each.is_complete] == []


# -- retention


found = st.builds(
    Found,
    layout=st.just("hf-trainer"),
    step=st.integers(0, 50),
    path=st.integers(0, 50).map(lambda step: f"checkpoint-{step}"),
    resume=st.just("x"),
    lacks=st.sampled_from(["", "", "it has no weights"]),
    modified_ns=st.integers(0, 9),
)


@given(st.lists(found, max_size=12, unique_by=lambda each: each.path), st.integers(1, 5), st.data())
def test_retention_keeps_the_newest_and_what_is_in_use_and_never_touches_what_is_incomplete(
    all_found: list[Found], keep: int, data: st.DataObject
) -> None:
    used = data.draw(st.sampled_from([each.path for each in all_found])) if all_found else "none"
    gone = checkpoints.superseded(all_found, keep, [used])
    assert all(each.is_complete and each.path != used for each in gone)
    left = [each for each in checkpoints.ordered(all_found) if each not in gone]
    complete = checkpoints.ordered(all_found)
    assert left[: min(keep, len(complete))] == complete[:keep]
    assert len(left) <= keep + 1


def put(folder: Path, script: Iterator[Step]) -> None:
    disk = Disk()
    for each in script:
        disk.do(each)
    for path, content in disk.files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)


def test_a_removed_checkpoint_is_gone_and_its_neighbours_and_what_links_lead_to_are_not(tmp_path: Path) -> None:
    folder, outside = tmp_path / "ckpt", tmp_path / "outside"
    (outside / "checkpoint-3").mkdir(parents=True)
    (outside / "checkpoint-3" / "precious").touch()
    put(folder, writers.hugging_face(1))
    put(folder, writers.hugging_face(2))
    (folder / "checkpoint-3").symlink_to(outside / "checkpoint-3")
    (folder / "link").symlink_to(outside)
    assert checkpoints.remove(str(folder), "checkpoint-1")
    assert not checkpoints.remove(str(folder), "link/checkpoint-3")
    assert [each.step for each in checkpoints.discover(str(folder))] == [2]
    assert (outside / "checkpoint-3" / "precious").exists()


# -- where an attempt resumes


def test_the_newest_of_the_disk_and_the_record_wins_and_what_is_torn_or_gone_does_not(tmp_path: Path) -> None:
    folder = tmp_path / "ckpt"
    put(folder, writers.hugging_face(100))
    put(folder, writers.hugging_face(200))
    (folder / "checkpoint-200" / "trainer_state.json").write_text('{"global')
    first, torn = str(folder / "checkpoint-100"), str(folder / "checkpoint-200")
    assert checkpoints.resume_path(str(folder), "", None) == first
    assert checkpoints.resume_path(str(folder), torn, 200) == first
    assert checkpoints.resume_path(str(folder), "/nowhere", 900) == first
    own, elsewhere = folder / "own-layout", tmp_path / "elsewhere"
    own.mkdir()
    elsewhere.mkdir()
    assert checkpoints.resume_path(str(folder), str(own), 150) == str(own)
    assert checkpoints.resume_path(str(folder), str(own), 50) == first
    assert checkpoints.resume_path(str(folder), str(elsewhere), 150) == first
    assert checkpoints.resume_path(str(tmp_path / "none"), "", None) == ""


def test_a_marker_that_a_script_wrote_is_found(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("41")
    (tmp_path / "yard-checkpoint.json").write_text(json.dumps({"step": 41, "path": "./state"}))
    assert checkpoints.resume_path(str(tmp_path), "", None) == str(tmp_path / "state")


# -- is it being written


def test_saving_is_under_way_only_after_something_changed(tmp_path: Path) -> None:
    (tmp_path / "old").write_text("x")
    saving = Saving(str(tmp_path))

    def seen() -> bool:
        # True while nobody knows yet: whoever looks is back when there is nothing more to take.
        told = True
        for _ in range(2):
            while (told := saving.is_under_way()) and saving._answer is not None:
                time.sleep(0.01)
        return told

    assert not seen()
    (tmp_path / "new").write_text("y")
    assert seen()
    assert not Saving("").is_under_way()


def test_a_folder_that_does_not_answer_is_waited_for_by_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever looks hangs, as on a disk that is gone: for a moment it may be saving, after that it is not."""
    monkeypatch.setattr(module, "signature", lambda *_: signal.pause())
    saving = Saving(str(tmp_path))
    assert saving.is_under_way()
    monkeypatch.setattr(module, "QUIET_S", 0.0)
    assert not saving.is_under_way()
    saving.close()
    assert os.waitpid(saving.looker, 0)[1] == signal.SIGKILL
