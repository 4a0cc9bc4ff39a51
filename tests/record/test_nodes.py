"""Nodes that join, fall silent, come back, drain, or are copied."""

from datetime import timedelta

import msgspec
import pytest
from django.db.models import F
from django.db.models.functions import Now

from agents.protocol import Conditions, DeviceError, Phase
from controlplane.fleet import fuse, world
from controlplane.fleet import service as fleet
from controlplane.fleet.identity import ReportVerdict
from controlplane.fleet.models import Alarm, Device, Heartbeat, Node
from controlplane.jobs import record
from controlplane.jobs.models import Attempt, Job, Part
from controlplane.jobs.spec import InvalidSpec
from controlplane.operations import watch
from controlplane.pools.models import Pool
from controlplane.queries import nodes
from tests.record.yard import Agent, Yard, cpu, gpu, stage, states


def silence(node: Node, seconds: float) -> None:
    """Lets the node's last report lie that far back."""
    Node.objects.filter(id=node.id).update(last_report_at=F("last_report_at") - timedelta(seconds=seconds))


def look(*, after_outage: bool = False) -> None:
    """One watch; without an outage this side has been looking all the time."""
    Heartbeat.objects.exclude(name__startswith=fuse.BLOWN).delete()
    if not after_outage:
        watch.claim("watch", 0)
        Heartbeat.objects.exclude(name__startswith=fuse.BLOWN).update(at=F("at") - timedelta(seconds=2))
        Heartbeat.objects.create(name="amnesty", at=Heartbeat.objects.get(name="watch").at - timedelta(hours=1))
    watch.watch()


def state(agent: Agent) -> str:
    return str(Node.objects.get(id=agent.node.id).state)


def test_a_join_token_works_as_often_as_it_says_and_not_longer(yard: Yard) -> None:
    token = fleet.make_join_token(yard.pool)
    fleet.enrol(token, "a")
    with pytest.raises(fleet.NodeRefused, match="used up"):
        fleet.enrol(token, "b")
    expired = fleet.make_join_token(yard.pool, life=timedelta(seconds=-1))
    with pytest.raises(fleet.NodeRefused, match="expired"):
        fleet.enrol(expired, "c")
    with pytest.raises(fleet.NodeRefused, match="lower-case"):
        fleet.enrol(fleet.make_join_token(yard.pool), "../etc")


def test_nobody_takes_the_name_of_a_running_node(yard: Yard) -> None:
    yard.agent("a")
    with pytest.raises(fleet.NodeRefused, match="is here already"):
        fleet.enrol(fleet.make_join_token(yard.pool), "a")


def test_a_credential_proves_one_node(yard: Yard) -> None:
    node, credential = fleet.enrol(fleet.make_join_token(yard.pool), "a")
    other, _ = fleet.enrol(fleet.make_join_token(yard.pool), "b")
    assert fleet.authenticate(f"Node {node.id}:{credential}") == node
    for header in (f"Node {other.id}:{credential}", f"Node {node.id}:x", f"Bearer {credential}", "", "Node x:y"):
        assert fleet.authenticate(header) is None


def test_a_silent_node_is_suspect_then_lost_and_gets_no_work(yard: Yard) -> None:
    agent = yard.agent("a")
    silence(agent.node, 20)
    look()
    assert state(agent) == "SUSPECT"
    job = yard.submit()
    yard.cycle()
    assert stage(job).reasons[0]["code"] == "NodesUnavailable"
    silence(agent.node, 40)
    look()
    assert state(agent) == "LOST"
    for expected in ("LOST", "LOST", "READY"):
        agent.report()
        assert state(agent) == expected
    yard.cycle()
    assert agent.start() == ["main"]


def test_a_drain_outlives_the_loss_of_its_node(yard: Yard) -> None:
    """Who drains a node to reboot it, finds it draining when it is back, and not full of new work."""
    agent = yard.agent("a")
    first = yard.submit()
    yard.cycle()
    agent.start()
    fleet.drain(agent.node, "ada", "a new kernel")
    for seconds in (20, 40):
        silence(agent.node, seconds)
        look()
    node = Node.objects.get(id=agent.node.id)
    assert (node.state, "once it reports" in node.reason) == ("LOST", True)
    for expected in ("LOST", "LOST", "DRAINING"):
        agent.report()
        assert state(agent) == expected
    assert Node.objects.get(id=agent.node.id).reason == "a new kernel (ada)"
    agent.end(stage(first))
    look()
    assert state(agent) == "DRAINED"
    later = yard.submit()
    yard.cycle()
    assert states(later)["main"] == "PENDING"
    fleet.resume(node, "ada")
    assert state(agent) == "READY"


def test_a_drain_of_a_lost_node_can_be_lifted_before_it_is_back(yard: Yard) -> None:
    agent = yard.agent("a")
    yard.submit()
    yard.cycle()
    agent.start()
    fleet.drain(agent.node, "ada", "a new kernel")
    for seconds in (20, 40):
        silence(agent.node, seconds)
        look()
    fleet.resume(agent.node, "ada")
    assert state(agent) == "LOST"
    with pytest.raises(fleet.NodeRefused, match="READY again once its agent reports"):
        fleet.resume(agent.node, "ada")
    for _ in range(3):
        agent.report()
    assert state(agent) == "READY"


def test_after_an_outage_of_its_own_the_control_plane_declares_nobody_lost(yard: Yard) -> None:
    agent = yard.agent("a")
    silence(agent.node, 600)
    look(after_outage=True)
    assert state(agent) == "SUSPECT"


def test_under_wait_a_lost_node_costs_no_running_stage(yard: Yard) -> None:
    agent = yard.agent("a")
    job = yard.submit()
    yard.cycle()
    agent.start()
    for seconds in (20, 1000):
        silence(agent.node, seconds)
        look()
    assert state(agent) == "LOST"
    assert states(job)["main"] == "RUNNING"
    for _ in range(3):
        agent.report()
    agent.end(stage(job))
    assert states(job)["job"] == "COMPLETED"


def test_a_clock_that_is_set_gives_up_nobody_early(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    """The node is lost, and the database's clock goes forward: what is left of the lease is waited for all the same."""
    agent = yard.agent("a")
    job = yard.submit(on_node_lost="requeue", preemption={"grace": 20})
    yard.cycle()
    agent.start()
    silence(agent.node, 50)
    look()
    look()
    assert state(agent) == "LOST"
    # All times that were noted lie an hour further back now, and this process knows that no hour has passed.
    silence(agent.node, 3600)
    monkeypatch.setitem(watch._looked, "ahead_s", watch._looked["ahead_s"] - 3600)
    Heartbeat.objects.update(at=F("at") - timedelta(seconds=3600))
    watch.watch()
    assert states(job)["main"] == "RUNNING"
    Heartbeat.objects.filter(name="amnesty").update(at=F("at") - timedelta(seconds=80))
    Heartbeat.objects.filter(name="watch").update(at=F("at") - timedelta(seconds=2))
    watch.watch()
    assert states(job)["main"] == "RUNNING"
    Heartbeat.objects.filter(name="amnesty").update(at=F("at") - timedelta(seconds=15))
    Heartbeat.objects.filter(name="watch").update(at=F("at") - timedelta(seconds=2))
    watch.watch()
    assert states(job)["main"] == "PENDING"


def test_a_clock_that_is_set_back_stops_no_watch(yard: Yard) -> None:
    agent = yard.agent("a")
    silence(agent.node, -3600)
    look()
    Heartbeat.objects.update(at=F("at") + timedelta(seconds=3600))
    watch.watch()
    silence(agent.node, 20)
    look()
    assert state(agent) == "SUSPECT"


def test_under_requeue_the_old_attempt_is_given_up_only_after_lease_and_grace(yard: Yard) -> None:
    a, b = yard.agent("a"), None
    job = yard.submit(on_node_lost="requeue", preemption={"grace": 20})
    yard.cycle()
    a.start()
    part = next(iter(a.here))
    silence(a.node, 50)
    look()
    look()
    assert state(a) == "LOST"
    assert states(job)["main"] == "RUNNING"
    silence(a.node, 45)  # lease 60 + grace 20 + 10 have passed since the last answered report
    look()
    assert states(job)["main"] == "PENDING"
    assert stage(job).attempts.get().cause == "NODE_FAIL"
    b = yard.agent("b")
    yard.cycle()
    assert b.start() == ["main"]
    # The first node comes back with the process that nobody believes in any more: it must end.
    answer = a.report()
    assert [(order.part, order.do) for order in answer.leftovers] == [(part, "stop")]
    assert states(job)["main"] == "RUNNING"
    b.end(stage(job))
    assert states(job)["job"] == "COMPLETED"


def test_when_most_nodes_fall_silent_at_once_nothing_is_requeued(yard: Yard) -> None:
    agents = [yard.agent(name) for name in "abcd"]
    job = yard.submit(on_node_lost="requeue")
    yard.cycle()
    for agent in agents:
        agent.start()
        silence(agent.node, 1000)
    look()
    look()
    assert [state(agent) for agent in agents] == ["LOST"] * 4
    assert states(job)["main"] == "RUNNING"


def test_an_older_process_of_the_same_node_is_fenced(yard: Yard) -> None:
    agent = yard.agent("a")
    agent.start_seq, agent.incarnation = 2, ""
    assert agent.report().verdict is ReportVerdict.TAKEN
    assert agent.report(start_seq=1).verdict is ReportVerdict.FENCED
    assert Node.objects.get(id=agent.node.id).start_seq == 2


def test_drain_lets_what_runs_finish(yard: Yard) -> None:
    agent = yard.agent("a")
    job, later = yard.submit(cpus=2), yard.submit(cpus=2)
    yard.cycle()
    agent.start()
    with pytest.raises(fleet.NodeRefused, match="reason"):
        fleet.drain(agent.node, "ada", " ")
    fleet.drain(agent.node, "ada", "new fans")
    look()
    assert state(agent) == "DRAINING"
    agent.end(stage(job) if states(job)["main"] == "RUNNING" else stage(later))
    look()
    yard.cycle()
    assert state(agent) == "DRAINED"
    assert agent.start() == []
    fleet.resume(agent.node, "ada")
    yard.cycle()
    assert agent.start() == ["main"]


def test_a_device_error_takes_that_device_out_and_no_other(yard: Yard) -> None:
    agent = yard.agent("a", cpu("a"), cpu("a2"))
    agent.report(conditions=Conditions(device_errors=[DeviceError(uuid="cpu-a2", code="XID 79")]))
    health = dict(Device.objects.values_list("uuid", "health"))
    assert health["cpu-a2"] == "UNHEALTHY"
    assert health["cpu-a"] == "OK"


def test_a_device_of_another_node_is_not_taken_over(yard: Yard) -> None:
    yard.agent("a", cpu("shared"))
    b = yard.agent("b", cpu("shared"), cpu("b"))
    assert sorted(b.node.devices.values_list("uuid", flat=True)) == ["cpu-b"]
    assert "belong to another node" in Node.objects.get(id=b.node.id).reason


def test_one_rank_of_a_gang_ends_the_others(yard: Yard) -> None:
    a, b = yard.agent("a"), yard.agent("b")
    job = yard.submit(nodes=2)
    yard.cycle()
    assert a.start() == b.start() == ["main"]
    orders = a.look()
    attempt = stage(job).attempts.get()
    assert attempt.parts.count() == 2
    assert orders
    a.end(stage(job), code=1)
    (order,) = b.look()
    assert (order.do, order.why) == ("stop", "EXIT_CODE")
    assert states(job)["main"] == "STOPPING"
    b.end(stage(job), stopped=True)
    assert states(job) == {"job": "FAILED", "main": "FAILED"}


def test_the_gang_knows_its_nodes_and_one_meeting_point(yard: Yard) -> None:
    a, b = yard.agent("a"), yard.agent("b")
    yard.submit(nodes=2)
    yard.cycle()
    specs = [order.spec for agent in (a, b) for order in agent.look()]
    assert {spec.rank for spec in specs if spec} == {0, 1}
    assert len({(spec.master_addr, spec.master_port, *spec.nodes) for spec in specs if spec}) == 1


def test_contact_lost_is_told_and_nothing_else_changes(yard: Yard) -> None:
    agent = yard.agent("a")
    job = yard.submit()
    yard.cycle()
    agent.start()
    record.mark_contact([agent.node.id], lost=True)
    assert stage(job).attempts.get().contact_lost_at is not None
    agent.set(stage(job), Phase.RUNNING)
    assert states(job)["main"] == "RUNNING"


def four_silent(yard: Yard) -> tuple[list[Agent], list[Job]]:
    """Four nodes that run a stage each and fell silent together; hours have passed since."""
    agents = [yard.agent(name) for name in "abcd"]
    jobs = [yard.submit(on_node_lost="requeue", cpus=2) for _ in agents]
    yard.cycle()
    for agent in agents:
        agent.start()
        silence(agent.node, 1000)
    look()
    look()
    Node.objects.update(state_at=F("state_at") - timedelta(hours=2))
    look()
    return agents, jobs


def come_back(agent: Agent) -> None:
    for _ in range(fleet.GOOD_REPORTS):
        agent.report()


def test_a_mass_loss_holds_although_time_passes_and_most_are_back(yard: Yard) -> None:
    """Time proves nothing, nor do the others: who is still silent may run it all."""
    agents, jobs = four_silent(yard)
    assert [states(job)["main"] for job in jobs] == ["RUNNING"] * 4
    assert "4 of 4 nodes fell silent together" in Alarm.objects.get(kind="fuse").says
    for agent in agents[:3]:
        come_back(agent)
    look()
    assert "1 of 4 nodes" in Alarm.objects.get(kind="fuse").says
    assert [states(job)["main"] for job in jobs] == ["RUNNING"] * 4
    come_back(agents[3])
    look()
    assert fuse.state().blown_at is None
    assert not Alarm.objects.filter(kind="fuse").exists()


def test_a_person_releases_the_fuse_and_who_is_silent_is_given_up(yard: Yard) -> None:
    agents, jobs = four_silent(yard)
    come_back(agents[0])
    Node.objects.filter(state="LOST").update(state_at=Now())
    fuse.release("ada", "the racks burnt")
    look()
    assert not Alarm.objects.filter(kind="fuse").exists(), "they did not fall silent after it was released"
    assert sorted(states(job)["main"] for job in jobs) == ["PENDING"] * 3 + ["RUNNING"]
    with pytest.raises(fleet.NodeRefused, match="not blown"):
        fuse.release("ada", "again")


def test_a_full_disk_gets_nothing_new(yard: Yard) -> None:
    agent = yard.agent("a")
    agent.report(conditions=Conditions(disk_pressure=True))
    job = yard.submit()
    yard.cycle()
    assert states(job)["main"] == "PENDING"
    agent.report()
    yard.cycle()
    assert states(job)["main"] == "STARTING"


@pytest.mark.parametrize("requires", ["none", "user", "private", "full"])
def test_a_pool_runs_nothing_where_projects_are_kept_less_apart_than_it_requires(yard: Yard, requires: str) -> None:
    """Each level of a node against each that a pool can require; a word of an older agent counts as none."""
    yard.agent("a")
    levels = ["cgroup2", "none", "user", "private", "full"]
    Pool.objects.update(isolation=requires)
    for rank, level in enumerate(levels):
        Node.objects.update(isolation=level)
        yard.check_feed(0.0)
        is_enough = requires == "none" or rank >= levels.index(requires)
        assert world.nodes()[0].pools == (("default",) if is_enough else ()), level
        (shown,) = nodes.shown(nodes.all_nodes(), yard.user)
        assert shown.too_open_for == ([] if is_enough else ["default"])
    Node.objects.update(isolation="user")
    Pool.objects.update(isolation="none")
    job = yard.submit()
    Pool.objects.update(isolation="full")
    yard.cycle()
    assert states(job)["main"] == "PENDING"
    Node.objects.update(isolation="full")
    yard.cycle()
    assert states(job)["main"] == "STARTING"


def test_who_asks_where_every_node_is_too_open_is_told_so(yard: Yard) -> None:
    yard.agent("a")
    Pool.objects.update(isolation="private")
    world.recent_nodes(within_s=0.0)
    with pytest.raises(InvalidSpec) as refused:
        yard.submit()
    assert "1 node of it is left out, for it requires isolation private" in str(refused.value)


def test_somebody_confirms_that_a_node_is_gone(yard: Yard) -> None:
    a, b = yard.agent("a"), yard.agent("b")
    job = yard.submit(cpus=2)
    yard.cycle()
    agent = a if a.start() else b
    if agent is b:
        b.start()
    with pytest.raises(fleet.NodeRefused, match="not LOST"):
        record.give_up(Node.objects.get(id=agent.node.id), "ada", "it burnt")
    silence(agent.node, 1000)
    look()
    look()
    assert states(job)["main"] == "RUNNING", "under wait nobody is given up without proof"
    with pytest.raises(fleet.NodeRefused, match="reason"):
        record.give_up(Node.objects.get(id=agent.node.id), "ada", " ")
    assert record.give_up(Node.objects.get(id=agent.node.id), "ada", "it burnt") == 1
    assert states(job)["main"] == "FAILED", "its stage asks for no retry"
    assert stage(job).attempts.get().cause == "NODE_FAIL"


def test_contact_that_is_back_is_told(yard: Yard) -> None:
    agent = yard.agent("a")
    job = yard.submit()
    yard.cycle()
    agent.start()
    silence(agent.node, 1000)
    look()
    look()
    assert stage(job).attempts.get().contact_lost_at is not None
    for _ in range(fleet.GOOD_REPORTS):
        agent.report()
    assert stage(job).attempts.get().contact_lost_at is None


def test_an_end_is_when_it_was_on_its_host(yard: Yard) -> None:
    """The report of it came three minutes late, after an outage: that is no work, and nothing is learned from it."""
    agent = yard.agent("a")
    job = yard.submit()
    yard.cycle()
    agent.start()
    for rows in (Part.objects, Attempt.objects):
        rows.update(started_at=F("started_at") - timedelta(seconds=200))
    Attempt.objects.update(created_at=F("created_at") - timedelta(seconds=200))
    agent.end(stage(job), ran_s=20.0)
    attempt = stage(job).attempts.get()
    assert (attempt.ended_at - attempt.started_at).total_seconds() == pytest.approx(20.0)
    assert attempt.parts.get().ended_at == attempt.ended_at


def test_an_end_that_is_all_that_was_heard_has_a_beginning(yard: Yard) -> None:
    agent = yard.agent("a")
    job = yard.submit()
    yard.cycle()
    agent.look()
    Attempt.objects.update(created_at=F("created_at") - timedelta(seconds=300))
    agent.end(stage(job), ran_s=100.0)
    part = stage(job).attempts.get().parts.get()
    assert (part.ended_at - part.started_at).total_seconds() == pytest.approx(100.0)


def test_a_device_with_a_better_name_keeps_its_claims(yard: Yard) -> None:
    """What an upgraded agent calls otherwise is not free a second time."""
    card = msgspec.structs.replace(gpu("a"), vendor="intel", model="Max 1100", uuid="0000-0029")
    agent = yard.agent("a", cpu("a"), card)
    job = yard.submit(devices={"kind": "gpu"})
    yard.cycle()
    agent.start()
    agent.devices[1] = msgspec.structs.replace(card, uuid="intel-machine-0000-29-00.0")
    agent.report()
    device = Device.objects.get(kind="gpu")
    assert (device.uuid, device.present, device.claimed_milli) == ("intel-machine-0000-29-00.0", True, 1000)
    agent.end(stage(job))
    assert Device.objects.get(kind="gpu").claimed_milli == 0


def test_a_node_whose_operators_check_fails_gets_nothing_new_and_costs_no_retry(yard: Yard) -> None:
    agent, spare = yard.agent("a"), yard.agent("b", cpu("b", 1))
    job = yard.submit(cpus=2)
    yard.cycle()
    agent.end(stage(job), cause="NODE_UNFIT", detail="start-storage: stale")
    agent.report(conditions=Conditions(unfit=["start-storage: stale"]))
    assert states(job)["main"] == "PENDING"
    assert Attempt.objects.get().cause == "NODE_UNFIT"
    yard.cycle()
    assert states(job)["main"] == "PENDING", "the spare is too small, and the other is not fit"
    agent.report()
    yard.cycle()
    assert states(job)["main"] == "STARTING"
    assert not spare.look()
