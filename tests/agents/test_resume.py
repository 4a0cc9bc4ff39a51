"""What a stage saved is found on its disk, whatever framework wrote it, and the next attempt goes on from there."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from agents.protocol import Checkpoint, Exit, PartSpec
from agents.storage import checkpoint_watch, checkpoints
from agents.tasks import local
from tests.agents.conftest import Hands
from tests.agents.test_checkpoints import put
from tests.agents.test_process import output, ran
from tests.agents.writers import accelerate, confirmed, hugging_face
from tests.agents.yard import order, stop

Names = Callable[[], str]


def spec(**changes: object) -> PartSpec:
    made = order("p", "true").spec
    assert made is not None
    return msgspec.structs.replace(made, **changes)


# -- what the node decides


def test_without_a_shared_disk_a_stage_finds_its_folders_on_the_node(tmp_path: Path) -> None:
    own = local.localised("p", spec(), tmp_path)
    assert own.checkpoint_dir == str(tmp_path / "7" / "checkpoints" / "train")
    assert Path(own.output_dir).parent == Path(own.input_dir)
    shared = spec(checkpoint_dir="/shared/c", output_dir="/shared/o", input_dir="/shared")
    assert local.localised("p", shared, tmp_path).checkpoint_dir == "/shared/c"


def test_what_no_part_has_used_for_long_goes_and_what_one_uses_stays(tmp_path: Path) -> None:
    old, used = (local.localised(name, spec(job=job), tmp_path) for name, job in (("p", 7), ("q", 8)))
    assert local.job_folder(used.checkpoint_dir, tmp_path) == str(tmp_path / "8")
    assert local.job_folder("/shared/8/checkpoints", tmp_path) == ""
    for each in (old, used):
        Path(each.checkpoint_dir).mkdir(parents=True)
        os.utime(tmp_path / str(each.job), (1, 1))
    (tmp_path / "run").mkdir()
    checkpoint_watch.begin(str(tmp_path / "run"), used, str(tmp_path / "8"))
    checkpoint_watch.CheckpointWatch(str(tmp_path / "run")).look()
    (tmp_path / "run").rename(tmp_path.parent / "run-elsewhere")
    assert local.expire(tmp_path) == ["7"]
    assert not Path(old.checkpoint_dir).exists()
    assert Path(used.checkpoint_dir).exists()


def test_parts_that_start_together_meet_on_different_ports() -> None:
    ports = {local.localised(f"part-{number}", spec(), None).master_port for number in range(20)}
    assert len(ports) > 15
    assert local.localised("p", spec(nodes=["a", "b"], master_port=29_507), None).master_port == 29_507


def test_a_later_attempt_resumes_from_the_newest_that_is_complete_here(tmp_path: Path) -> None:
    put(tmp_path, hugging_face(10))
    first = spec(checkpoint_dir=str(tmp_path))
    assert local.localised("p", first, None).resume_from == ""
    later = msgspec.structs.replace(first, attempt_number=2)
    assert local.localised("p", later, None).resume_from == str(tmp_path / "checkpoint-10")


def test_what_a_job_named_as_its_checkpoint_counts_only_beneath_its_own_folder(tmp_path: Path) -> None:
    folder, outside = tmp_path / "own", tmp_path / "own-other"
    for place in (folder / "mine", outside / "theirs"):
        place.mkdir(parents=True)
    (folder / "link").symlink_to(outside)
    os.mkfifo(folder / "pipe")
    (folder / "loop").symlink_to("loop")
    led_out = ("/", "/etc", str(outside), str(outside / "theirs"), "../own-other", f"{folder}/../own-other/theirs")
    no_place = ("link", "link/theirs", f"{folder}/link/theirs", "pipe", "loop", "gone", "a\0b", "\udcff", "x/" * 500)
    for told in (*led_out, *no_place):
        assert checkpoints.resume_path(str(folder), told, 9) == "", told
        assert checkpoints.resume_path("", told, 9) == "", told
    for told in ("mine", str(folder / "mine"), "./mine/../mine", f"{outside}/../own/mine"):
        assert checkpoints.resume_path(str(folder), told, 9) == str(folder / "mine"), told
    assert checkpoints.resume_path(str(folder), str(folder), 9) == str(folder)


# -- watching


def watched(run: Path, folder: Path, **changes: object) -> checkpoint_watch.CheckpointWatch:
    run.mkdir(exist_ok=True)
    checkpoint_watch.begin(str(run), spec(checkpoint_dir=str(folder), **changes))
    return checkpoint_watch.CheckpointWatch(str(run))


def told(seen: checkpoint_watch.CheckpointWatch) -> list[tuple[int, str]]:
    return [(each.step, os.path.basename(each.path)) for each in seen.checkpoints]


def test_only_what_this_attempt_completed_is_told(tmp_path: Path) -> None:
    folder = tmp_path / "ckpt"
    put(folder, hugging_face(10))
    seen = watched(tmp_path / "run", folder, attempt_number=2, resume_from=str(folder / "checkpoint-10"))
    assert not seen.look()
    put(folder, hugging_face(20))
    (folder / "checkpoint-20" / "trainer_state.json").rename(folder / "held")
    assert not seen.look()
    (folder / "held").rename(folder / "checkpoint-20" / "trainer_state.json")
    assert seen.look()
    assert told(seen) == [(20, "checkpoint-20")]
    assert not seen.look()


def test_what_need_not_be_kept_goes_but_not_what_the_attempt_resumed_from(tmp_path: Path) -> None:
    folder = tmp_path / "ckpt"
    for step in (10, 20, 30):
        put(folder, hugging_face(step))
    (folder / "checkpoint-10" / "optimizer.pt").write_bytes(b"PK torn")
    resume = str(folder / "checkpoint-20")
    seen = watched(tmp_path / "run", folder, attempt_number=2, resume_from=resume, keep_checkpoints=1)
    put(folder, hugging_face(40))
    seen.look()
    assert sorted(path.name for path in folder.iterdir()) == ["checkpoint-10", "checkpoint-20", "checkpoint-40"]
    calm = watched(tmp_path / "other", folder)
    calm.look()
    assert len(list(folder.iterdir())) == 3


def test_a_restarted_agent_goes_on_watching(tmp_path: Path) -> None:
    folder, run = tmp_path / "ckpt", tmp_path / "run"
    put(folder, accelerate(1))
    watched(run, folder, attempt_number=2)
    put(folder, accelerate(2))
    again = checkpoint_watch.CheckpointWatch(str(run))
    assert again.look()
    assert told(again) == [(2, "checkpoint_2")]


def test_other_ranks_and_parts_without_a_folder_are_not_watched(tmp_path: Path) -> None:
    put(tmp_path / "ckpt", confirmed(3))
    seen = watched(tmp_path / "run", tmp_path / "ckpt", rank=1)
    assert not seen.look()
    assert not seen.is_due()
    (tmp_path / "bare").mkdir()
    assert not checkpoint_watch.CheckpointWatch(str(tmp_path / "bare")).look()


# -- with a real agent

LOOP = """
trap 'echo asked >&2; asked=1' TERM
step=0
[ -n "$YARD_RESUME_FROM" ] && step=$(cat "$YARD_RESUME_FROM") && echo "resumed at $step"
save() {
    echo "$step" > "$YARD_CHECKPOINT_DIR/state-$step"
    printf '{"step": %d, "path": "state-%d"}' "$step" "$step" > "$YARD_CHECKPOINT_DIR/.marker"
    mv "$YARD_CHECKPOINT_DIR/.marker" "$YARD_CHECKPOINT_DIR/yard-checkpoint.json"
}
while [ $step -lt 60 ]; do
    step=$((step + 1))
    sleep 0.05
    if [ -n "$asked" ] || [ -e "$YARD_STOP_FILE" ]; then save; exit 85; fi
done
echo "done at $step"
"""


def test_a_loop_in_plain_shell_stops_saves_and_goes_on(shared: Hands, part: Names, tmp_path: Path) -> None:
    hands, first, second = shared, part(), part()
    folders = {"checkpoint_dir": str(tmp_path / "ckpt"), "output_dir": str(tmp_path / "out")}
    hands.yard.want(hands.name, order(first, "sh", "-c", LOOP, **folders))
    hands.yard.phase(hands.name, first, 40)
    time.sleep(0.3)
    hands.yard.want(hands.name, stop(first, 10.0, "PREEMPTED"))
    end = hands.yard.ended(hands.name, first).exit
    assert end is not None
    assert (end.code, end.cause, end.stopped) == (85, "CHECKPOINTED", True)
    saved_at = int(json.loads((tmp_path / "ckpt" / "yard-checkpoint.json").read_text())["step"])
    again = ran(hands, second, "sh", "-c", LOOP, attempt_number=2, **folders)
    assert again.code == 0
    assert output(hands, second).splitlines() == [f"resumed at {saved_at}", "done at 60"]


SLOW_SAVE = """
trap 'for i in 1 2 3 4 5 6 7 8 9 10 11 12; do echo more >> "$YARD_CHECKPOINT_DIR/big"; sleep 0.1; done; exit 85' TERM
echo ready
while :; do sleep 0.02; done
"""
STUCK = """
trap 'echo once > "$YARD_CHECKPOINT_DIR/small"; while :; do sleep 0.05; done' TERM
echo ready
while :; do sleep 0.02; done
"""


@pytest.mark.parametrize(("script", "code", "grace_s"), [(SLOW_SAVE, 85, 0.6), (STUCK, None, 0.6)])
def test_the_grace_is_longer_while_a_checkpoint_grows_and_only_then(
    shared: Hands, part: Names, tmp_path: Path, script: str, code: int | None, grace_s: float
) -> None:
    hands, name = shared, part()
    hands.yard.want(hands.name, order(name, "sh", "-c", script, checkpoint_dir=str(tmp_path / "ckpt")))
    hands.yard.wait(lambda: hands.yard.logs[(name, 0, "out")])
    hands.yard.want(hands.name, stop(name, grace_s))
    end = hands.yard.ended(hands.name, name).exit
    assert isinstance(end, Exit)
    assert end.code == code


def test_what_a_framework_saved_is_reported_with_the_end(hands: Hands, part: Names, tmp_path: Path) -> None:
    hands.environment["YARD_AGENT_CHECKPOINTS_S"] = "0.5"
    hands.start()
    name = part()
    put(tmp_path / "made", hugging_face(70))
    # Longer than the first look is away, so that its end waits for a last one.
    script = f'cp -r {tmp_path}/made/checkpoint-70 "$YARD_CHECKPOINT_DIR/"; sleep 0.8'
    hands.yard.want(hands.name, order(name, "sh", "-c", script, checkpoint_dir=str(tmp_path / "ckpt")))
    here = hands.yard.ended(hands.name, name)
    assert here.checkpoints == [Checkpoint(70, str(tmp_path / "ckpt" / "checkpoint-70"), here.checkpoints[0].age_s)]
    assert checkpoints.resume_path(str(tmp_path / "ckpt"), "", None).endswith("checkpoint-70")


def test_a_checkpoint_outside_of_its_folder_is_told_to_lead_nowhere(tmp_path: Path) -> None:
    seen = watched(tmp_path / "run", tmp_path / "own", attempt_number=1)
    assert not seen.is_foreign(str(tmp_path / "own" / "step-5"))
    assert not seen.is_foreign("step-5")
    assert not seen.is_foreign(str(tmp_path / "own"))
    for path in (str(tmp_path / "owner"), "../step-5", "/", f"{tmp_path}/own/../other"):
        assert seen.is_foreign(path), path
