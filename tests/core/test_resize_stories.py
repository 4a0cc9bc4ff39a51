"""Long stories of clusters with elastic stages: whatever comes and goes, every plan keeps the laws."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from scheduler.core.model.lifecycle import NodeState, State
from scheduler.core.model.types import Plan, Quota, Running, Snapshot, Stage
from scheduler.core.planning import engine
from scheduler.profiles import named
from tests.core.worlds import NOW, alternative, begun, check_laws, node, stage

STEPS = 25


class Story:
    """A cluster that lives by dice: stages come, save, stop when they are told, and end; nodes drain and vanish."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.now, self.asked = NOW, dict[str, Stage]()
        nodes = tuple(node(f"n{i}", self.dice.choice([1, 1, 2]), 8) for i in range(self.dice.randint(2, 6)))
        quotas = (Quota("lab", "gpu", 3000),) if self.dice.random() < 0.2 else ()
        self.world = Snapshot(nodes, quotas=quotas)

    def come(self) -> None:
        for _ in range(self.dice.choice([0, 0, 1, 2])):
            least = self.dice.choice([1, 1, 2])
            new = stage(
                len(self.asked) + 1,
                nodes=least,
                most_nodes=self.dice.choice([0, 0, least + 1, least + 3]),
                p50=self.dice.choice([50.0, 2_000.0, 20_000.0]),
                priority=self.dice.choice([250, 500, 500, 750]),
                submitted_at=self.now,
                eligible_at=self.now,
                alternatives=(alternative(1, 1),),
            )
            self.asked[new.id] = new
            self.world = replace(self.world, waiting=(*self.world.waiting, new))

    def obey(self, plan: Plan) -> None:
        told = {one.victim: one for one in plan.preempts}
        resized = {one.victim: one for one in plan.resizes}
        self.world = begun(self.world, plan, self.now)
        running = []
        for one in self.world.running:
            if one.id in resized:
                order = resized[one.id]
                keeps = order.size if order.stage else order.was
                one = self._stopping(one, order.stage or one.id, keeps)
            elif one.id in told:
                one = self._stopping(one, told[one.id].stage, 0)
            elif one.state is State.RUNNING and self.dice.random() < 0.7:
                one = replace(one, checkpoint_at=self.now, checkpoints=True)
            running.append(one)
        self.world = replace(self.world, running=tuple(running))

    def _stopping(self, one: Running, sake: str, keeps: int) -> Running:
        return replace(one, state=State.STOPPING, evicted_for=sake, stop_by_at=self.now + 30, keeps=keeps)

    def go_on(self) -> None:
        self.now += self.dice.choice([1, 5, 20, 70, 400])
        back, running = [], []
        for one in self.world.running:
            if one.state is State.STOPPING and self.dice.random() < 0.7:
                back.append(replace(self.asked[one.id], attempts=1))
            elif one.state is not State.RUNNING or self.dice.random() >= 0.05:
                running.append(one)
        self.world = replace(self.world, running=tuple(running), waiting=(*self.world.waiting, *back))
        if self.dice.random() < 0.15:
            place = self.dice.randrange(len(self.world.nodes))
            state = self.dice.choice([NodeState.DRAINING, NodeState.READY, NodeState.LOST, NodeState.READY])
            nodes = list(self.world.nodes)
            nodes[place] = replace(nodes[place], state=state)
            self.world = replace(self.world, nodes=tuple(nodes))


@pytest.mark.parametrize("profile", ["hybrid", "dynamic"])
def test_every_plan_of_a_story_keeps_the_laws(profile: str) -> None:
    resizes = 0
    for seed in range(25):
        story, planner = Story(seed), engine.Planner()
        for _ in range(STEPS):
            story.come()
            planner.plan(story.world, named(profile), story.now)
            check_laws(story.world, planner.explained())
            fresh = engine.plan(story.world, named(profile), story.now)
            check_laws(story.world, fresh)
            resizes += len(fresh.resizes)
            story.obey(fresh)
            story.go_on()
    assert resizes > 5, "or nothing was tried here"
