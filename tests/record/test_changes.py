"""The change feed: what is read as it changes is what a store finds that reads everything."""

from __future__ import annotations

import random
import threading
from datetime import timedelta

import pytest
from django.db import connection, connections, transaction
from django.utils import timezone

from agents.protocol import Phase, Progress
from controlplane.accounts.models import User
from controlplane.fleet import service as fleet
from controlplane.fleet.models import Device, Node
from controlplane.jobs import service
from controlplane.jobs.models import Attempt, Bundle, Change, Job, Stage
from controlplane.pools.models import Pool
from controlplane.scheduling import change_feed
from controlplane.scheduling.change_feed import KEPT_S, ChangeFeed, Changes
from controlplane.scheduling.store import LiveStore, clock
from scheduler.core.model.types import Pool as EnginePool
from scheduler.core.model.types import Snapshot
from scheduler.core.world.view import View
from scheduler.profiles import named
from tests.record.conftest import forget
from tests.record.yard import Yard, cpu, gpu, stage


@pytest.fixture
def yard(transactional_db: None, monkeypatch: pytest.MonkeyPatch) -> Yard:
    """Each change commits, as it does outside of tests."""
    forget(monkeypatch)
    return Yard()


def read(one: ChangeFeed) -> Changes | None:
    with connection.cursor() as cursor:
        found = one.read(cursor)
    one.taken()
    return found


@pytest.mark.parametrize("seed", range(6))
def test_a_world_read_as_it_changes_is_the_world(yard: Yard, seed: int) -> None:
    """Random days of a small cluster; after each event a store that reads everything finds the same."""
    dice = random.Random(seed)
    agents = [yard.agent(name, cpu(name, cores=4), gpu(name, 0), gpu(name, 1)) for name in "abc"]
    jobs: list[Job] = []
    for _ in range(40):
        match dice.randrange(11):
            case 0 | 1:
                jobs.append(yard.submit(devices={"kind": "gpu", "count": dice.choice([1, 2])}, time_limit="1h"))
            case 2:
                both = {"name": "both", "run": "true", "needs": ["one", "two"]}
                jobs.append(yard.submit(stages=[*({"name": name, "run": "true"} for name in ("one", "two")), both]))
            case 3:
                dice.choice(agents).start()
            case 4:
                running = Stage.objects.filter(state="RUNNING").first()
                if running is not None:
                    node = running.attempts.get(ended_at=None).parts.get().node
                    agent = next(one for one in agents if one.node.pk == node.pk)
                    agent.end(running, dice.choice([0, 1]))
            case 5 if jobs:
                service.cancel(dice.choice(jobs), "ada")
            case 6:
                node = Node.objects.get(name=dice.choice("abc"))
                if node.state == "READY":
                    fleet.drain(node, "ada", "cooling")
                elif node.state in {"DRAINING", "DRAINED"}:
                    fleet.resume(node, "ada")
            case 7:
                Device.objects.filter(uuid=f"GPU-{dice.choice('abc')}-1").update(health=dice.choice(["OK", "DEGRADED"]))
            case 8 if jobs:
                Job.objects.filter(pk=dice.choice(jobs).pk).update(priority=dice.choice([250, 500, 750]))
            case 9:
                Pool.objects.update(min_runtime_s=dice.choice([0, 60]))
            case _:
                yard.cycle()
        yard.check_feed(clock())


def test_who_waits_for_two_hears_of_each(yard: Yard) -> None:
    """Nothing is written of a stage when one of those that it needs is done and another is not."""
    agent = yard.agent("a", cpu("a", cores=8))
    both = {"name": "both", "run": "true", "needs": ["one", "two"]}
    job = yard.submit(stages=[{"name": "one", "run": "true"}, {"name": "two", "run": "true"}, both])
    yard.cycle()
    agent.start()
    yard.check_feed(clock())
    agent.end(stage(job, "one"))
    yard.check_feed(clock())
    (waits,) = yard.store.load(clock()).waiting
    assert waits.unmet == (str(stage(job, "two").id),)


def test_a_bundle_that_is_uploaded_again_lets_its_stages_start(yard: Yard) -> None:
    yard.agent("a")
    Bundle.objects.create(sha256="a" * 64, size_bytes=1, user=yard.user)
    job, other = yard.submit(cpus=1, bundle="a" * 64, begin="2099-01-01T00:00:00Z"), yard.submit(cpus=1)
    Bundle.objects.all().delete()
    Stage.objects.update(begin_at=None)
    yard.cycle()
    assert stage(job).reasons[0]["code"] == "BundleUnavailable"
    seen = ChangeFeed()
    read(seen)
    Bundle.objects.create(sha256="a" * 64, size_bytes=1, user=yard.user)
    assert read(seen) == Changes({stage(job).id}, set())
    yard.cycle()
    assert {stage(job).state, stage(other).state} == {"STARTING"}


def test_only_what_changed_is_named(yard: Yard) -> None:
    yard.agent("a")
    one, other = yard.submit(cpus=1), yard.submit(cpus=1)
    seen = ChangeFeed()
    assert read(seen) is None, "who has never looked reads everything"
    assert read(seen) == Changes(set(), set())
    Stage.objects.filter(job=one).update(held_by="ada")
    assert read(seen) == Changes({stage(one).id}, set())
    Job.objects.filter(pk=other.pk).update(priority=750)
    assert read(seen) == Changes({stage(other).id}, set())
    node = Node.objects.get()
    Node.objects.update(load=1.5)
    assert read(seen) == Changes(set(), {node.id})
    # What nobody decides by, and what changes with every report.
    Stage.objects.update(reasons=[{"code": "X"}], evaluated_at=None)
    Node.objects.update(seq=77)
    User.objects.update(last_login=None, first_name="x")
    assert read(seen) == Changes(set(), set())
    for change in (
        lambda: Pool.objects.update(name="other"),
        lambda: User.objects.update(username="other"),
        lambda: Bundle.objects.all().delete(),
    ):
        change()
        assert read(seen) is None
        assert read(seen) == Changes(set(), set())


def test_a_transaction_that_commits_after_a_later_one_is_not_missed(yard: Yard) -> None:
    yard.agent("a")
    early, late = stage(yard.submit(cpus=1)), stage(yard.submit(cpus=1))
    seen = ChangeFeed()
    read(seen)
    began, go_on = threading.Event(), threading.Event()

    def slow() -> None:
        try:
            with transaction.atomic():
                Stage.objects.filter(pk=early.pk).update(held_by="slow")
                began.set()
                go_on.wait(60)
        finally:
            connections.close_all()

    thread = threading.Thread(target=slow)
    thread.start()
    assert began.wait(60)
    Stage.objects.filter(pk=late.pk).update(held_by="fast")
    first = read(seen)
    assert first is not None
    assert first.stages == {late.id}
    go_on.set()
    thread.join()
    second = read(seen)
    assert second is not None
    assert early.id in second.stages


def test_what_was_not_taken_is_given_again_and_who_is_too_late_reads_everything(
    yard: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    yard.agent("a")
    one = stage(yard.submit(cpus=1))
    seen = ChangeFeed()
    read(seen)
    Stage.objects.update(held_by="x")
    with connection.cursor() as cursor:
        for _ in range(2):
            found = seen.read(cursor)
            assert found is not None
            assert found.stages == {one.id}
    seen.taken()
    assert read(seen) == Changes(set(), set())
    seen._since = 2**61  # of another cluster, as after a restore from a backup
    assert read(seen) is None
    Stage.objects.update(held_by="y")
    seen._since_at -= KEPT_S  # as after so long in which every cycle failed between reading and taking
    with connection.cursor() as cursor:
        assert seen.read(cursor) is None
        assert seen.read(cursor) is None
    seen.taken()
    change_feed.forget_old()
    assert Change.objects.exists()
    with connection.cursor() as cursor:
        cursor.execute("UPDATE jobs_change SET at = at - interval '1 day'")
    change_feed.forget_old()
    assert not Change.objects.exists()


def test_who_never_asks_for_news_gathers_none(yard: Yard) -> None:
    """A web process reads the world for years, and no planner of its own hears what changed."""
    agent, asks = yard.agent("a"), LiveStore()
    for _ in range(3):
        job = yard.submit(cpus=2)
        yard.cycle()
        agent.start()
        asks.load(clock())
        agent.end(stage(job))
        asks.load(clock())
    assert not asks.news().waiting
    job = yard.submit(cpus=2)
    asks.load(clock())
    asks.load(clock())
    news = asks.news()
    assert (news.serial, list(news.waiting)) == (2, [str(stage(job).id)])


def test_progress_is_read_again_only_where_it_moves_the_predicted_end(yard: Yard) -> None:
    """Ten thousand trainings that report each second and run as foreseen wake the scheduler for nothing."""
    agent = yard.agent("a")
    job = yard.submit(time_limit="1h")
    yard.cycle()
    agent.start()
    began = timezone.now() - timedelta(seconds=1000)
    Attempt.objects.update(started_at=began)
    follower = ChangeFeed()
    read(follower)

    def told(step: int) -> bool:
        agent.set(stage(job), Phase.RUNNING, progress=Progress(step=step, total=1000))
        found = read(follower)
        return found is not None and stage(job).id in found.stages

    assert not told(49), "too early to say"
    assert told(500)
    assert Attempt.objects.get().progress_share == 0.5
    assert not told(502), "as foreseen"
    assert stage(job).progress["step"] == 502
    assert told(800), "faster than foreseen"
    assert not told(-5)

    (run,) = LiveStore().load(clock()).running
    assert run.progress == 0.8
    view = View(Snapshot((), (), (run,), pools=(EnginePool("default"),)), named("hybrid"), clock())
    ends = [view.predicted_end(run, "p50") for view.now in (view.now, view.now + 100)]
    assert ends == pytest.approx([run.started_at + 1250] * 2, abs=5), "it stands still between two reports"
    view.now += 1000
    assert view.predicted_end(run, "p50") > view.now
