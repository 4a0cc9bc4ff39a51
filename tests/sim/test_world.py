"""Simulated worlds: the same seed gives the same life, and the profiles do what their names promise."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from scheduler.cli import __main__ as cli
from scheduler.core.model import encode
from scheduler.core.model.lifecycle import State
from scheduler.core.model.types import Snapshot
from scheduler.profiles import PROFILES, named
from scheduler.sim.cluster import cluster
from scheduler.sim.metrics import Metrics, measure
from scheduler.sim.traces import Arrival
from scheduler.sim.world import Chance, Lived, SimulatedWorld
from tests.core.worlds import NOW, node, running, stage


def arrivals() -> list[Arrival]:
    """Forty stages of three projects, more than two nodes can take at once, in a fixed pattern."""
    sizes, lengths = (1, 2, 4, 1, 4), (300.0, 40.0, 1200.0, 90.0, 500.0, 60.0, 2000.0)
    return [
        Arrival(
            f"s{i:03}",
            submit_s=20.0 * i,
            duration_s=lengths[i % 7],
            gpus=sizes[i % 5],
            project="abc"[i % 3],
            priority=(250, 500, 750)[i % 3],
            nodes=2 if i % 10 == 4 else 1,
        )
        for i in range(40)
    ]


def live(profile: str, stages: list[Arrival] | None = None, nodes: str = "2x4", **more: object) -> Lived:
    return SimulatedWorld(cluster(nodes), arrivals() if stages is None else stages, named(profile), **more).run()  # type: ignore[arg-type]


@pytest.mark.parametrize("profile", sorted(PROFILES))
def test_the_same_seed_gives_the_same_life(profile: str) -> None:
    chance = Chance(error=0.7, node_mtbf_s=4000, repair_s=300, checkpoint_s=120)
    first, again = (measure(live(profile, seed=3, chance=chance)) for _ in range(2))
    assert first == again
    assert first != measure(live(profile, seed=4, chance=chance))


@pytest.mark.parametrize("profile", sorted(PROFILES))
def test_everything_ends_and_every_share_is_given_back(profile: str) -> None:
    world = SimulatedWorld(
        cluster("2x4"), arrivals(), named(profile), seed=1, chance=Chance(error=0.5, node_mtbf_s=3000)
    )
    lived = world.run()
    assert {entry.state for entry in lived.entries} == {State.COMPLETED}
    for device in world.store.devices.values():
        assert world.store.free[device.id] == [device.capacity_milli, device.memory_bytes]


def test_with_true_predictions_static_and_hybrid_keep_their_promises() -> None:
    same = [replace(one, priority=500, project="lab") for one in arrivals()]
    for profile in ("static", "hybrid"):
        figures = measure(live(profile, same))
        assert figures.promised > 10
        assert figures.promises_kept == 1.0


def test_hybrid_uses_an_early_end_and_static_does_not() -> None:
    """The first was expected to run 1000 s and runs 100."""
    stages = [Arrival("early", 0, 100, 4, expected_s=1000), Arrival("next", 1, 50, 4, expected_s=800)]

    def began(profile: str) -> float | None:
        return {entry.stage.id: entry for entry in live(profile, stages, "1x4").entries}["next"].started_at

    assert began("hybrid") == 100
    assert began("static") == 1000


def test_hybrid_repairs_an_overrun_on_another_device_and_static_waits_for_its_own() -> None:
    """Two devices; the one that was promised is overrun by far, the other comes free a little later than promised."""
    stages = [
        Arrival("overrun", 0, 5000, 4, expected_s=100),
        Arrival("other", 0, 150, 4, expected_s=150),
        Arrival("next", 1, 50, 4, expected_s=50),
    ]

    def began(profile: str) -> float | None:
        return {entry.stage.id: entry for entry in live(profile, stages, "2x4").entries}["next"].started_at

    assert began("hybrid") == 150
    assert began("static") == 5000


def test_a_lost_node_sends_its_stages_back_and_checkpoints_save_their_work() -> None:
    def lived(checkpoint_s: float) -> Lived:
        world = SimulatedWorld(
            cluster("1x4"),
            [Arrival("a", 0, 1000, 4)],
            named("hybrid"),
            chance=Chance(checkpoint_s=checkpoint_s, repair_s=60),
        )
        world.at(950, lambda: world.lose("node00000"))
        return world.run()

    assert lived(0).ended_at == 950 + 60 + 1000
    assert lived(300).ended_at == 950 + 60 + 100
    assert lived(300).entries[0].lost_device_s == 50 * 4


def test_an_urgent_arrival_preempts_in_two_steps() -> None:
    stages = [Arrival("low", 0, 10_000, 4, priority=250), Arrival("top", 1000, 100, 4, priority=1000)]
    found = {entry.stage.id: entry for entry in live("hybrid", stages, "1x4", chance=Chance(stop_s=10)).entries}
    assert found["low"].preemptions == 1
    assert found["top"].started_at == 1010
    assert found["low"].state is found["top"].state is State.COMPLETED


def test_a_stage_that_can_never_fit_is_refused_and_so_are_those_that_need_it() -> None:
    stages = [Arrival("huge", 0, 10, 64), Arrival("child", 1, 10, 1, needs=("huge",)), Arrival("fine", 2, 10, 1)]
    found = {entry.stage.id: entry.state for entry in live("hybrid", stages).entries}
    assert found == {"huge": State.FAILED, "child": State.FAILED, "fine": State.COMPLETED}


def test_a_time_limit_ends_a_stage() -> None:
    (entry,) = live("hybrid", [Arrival("a", 0, 1000, 1, limit_s=300)]).entries
    assert (entry.state, entry.ended_at) == (State.FAILED, 300)


def test_metrics_of_a_life_that_can_be_checked_by_hand() -> None:
    figures = measure(live("fifo", [Arrival("a", 0, 100, 4), Arrival("b", 0, 100, 4)], "1x4"))
    assert (figures.jct_avg_s, figures.wait_avg_s, figures.makespan_s) == (150, 50, 200)
    assert (figures.utilisation, figures.preemptions, figures.completed) == (1.0, 0, 2)


def test_metrics_of_nothing_are_zeros() -> None:
    assert measure(live("hybrid", [])).completed == 0


def test_cluster_text_is_read_or_refused() -> None:
    assert [len(one.devices) for one in cluster("1x4:H100, 2x0")] == [5, 1, 1]
    with pytest.raises(ValueError, match="8x8:H100"):
        cluster("eight")


# -- the command line -------------------------------------------------------------------------------------------------


@pytest.fixture
def trace(tmp_path: Path) -> str:
    path = tmp_path / "trace.csv"
    path.write_text("submit_s,duration_s,gpus\n0,100,4\n10,50,8\n20,30,1\n")
    return str(path)


def test_compare_prints_the_same_figures_as_json(trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["compare", trace, "--nodes", "1x8", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert list(found) == list(PROFILES)
    assert set(found["hybrid"]) == set(Metrics.__slots__)
    assert cli.main(["simulate", trace, "--nodes", "1x8"]) == 0
    assert "makespan_s" in capsys.readouterr().out


def test_replay_prints_what_the_engine_decides(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    world = Snapshot((node("a", 1),), (stage(1), stage(2)), (running(7, {"a": ["gpu0"]}),))
    path = tmp_path / "snapshot.json"
    path.write_text(encode.dump(world, NOW))
    assert cli.main(["replay", str(path)]) == 0
    assert "wait    #2/train: needs 1 gpu" in capsys.readouterr().out


def test_mistakes_are_told_in_a_sentence(trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["simulate", trace, "--profile", "magic"]) == 2
    assert 'there is no profile "magic"' in capsys.readouterr().err
    assert cli.main(["simulate", trace + ".missing"]) == 2
