"""One credential, one agent: restarts and reboots follow each other; copies of a state folder are refused and told."""

from __future__ import annotations

import dataclasses
import io
import itertools
from datetime import timedelta

import msgspec
import pytest
from django.contrib.sessions.backends.db import SessionStore
from django.contrib.sessions.models import Session
from django.core.management import CommandError, call_command
from django.db.models import F
from django.test import Client
from hypothesis import given
from hypothesis import strategies as st

from agents.protocol import DeviceSample, Exit, Here, HostSample, LogBatch, LogChunk, Phase, TelemetryBatch
from controlplane.accounts import service as accounts
from controlplane.accounts.models import Token
from controlplane.dispatch import desired
from controlplane.fleet import service as fleet
from controlplane.fleet.identity import Caller, Incarnation, ReportVerdict, judge, patience_s
from controlplane.fleet.models import Alarm, Host, Node
from controlplane.fleet.models import DeviceSample as DeviceRow
from controlplane.jobs.models import Part
from tests.record.test_uploads import post
from tests.record.yard import Agent, Yard, stage, states

incarnations = st.builds(
    Incarnation,
    name=st.sampled_from(["", "p", "q"]),
    start_seq=st.integers(0, 3),
    boot_id=st.sampled_from(["b1", "b2"]),
    machine_id=st.sampled_from(["", "m1", "m2"]),
)


@given(incarnations, incarnations, st.integers(0, 3), st.integers(0, 3), st.floats(0, 30), st.booleans(), st.booleans())
def test_the_laws_of_who_speaks(
    one: Incarnation, holder: Incarnation, seq: int, holder_seq: int, silent_s: float, asked: bool, opened: bool
) -> None:
    def verdict(silent_s: float = silent_s) -> ReportVerdict:
        return judge(
            one,
            seq,
            holder,
            holder_seq,
            silent_s=silent_s,
            patience_s=10,
            heard_since_asked=asked,
            opened_since=opened,
        )

    found = verdict()
    known = bool(one.name and holder.name)
    if found is ReportVerdict.TAKEN and known and one.name == holder.name:
        assert seq > holder_seq, "what came before changes nothing"
    if found is ReportVerdict.TAKEN and known:
        assert (
            not (one.machine_id and holder.machine_id) or one.machine_id == holder.machine_id or one.name == holder.name
        )
    if known and one.name != holder.name and one.boot_id != holder.boot_id and silent_s < 10:
        assert found is not ReportVerdict.TAKEN, "the other may be alive"
    if found is ReportVerdict.TAKEN and known and one.name != holder.name:
        assert one.start_seq >= holder.start_seq, "an older process never follows a newer one"
    if found is ReportVerdict.WAITS:
        assert verdict(silent_s=11) is not ReportVerdict.WAITS, "whoever waits is told in the end"


def copy_of(agent: Agent, **changes: object) -> Agent:
    """What the same state folder is somewhere else, started as often as the original."""
    fresh = {"incarnation": "copy", "here": {}, "seq": itertools.count(1), "caller": Caller()}
    return dataclasses.replace(agent, **{**fresh, **changes})  # type: ignore[arg-type]


def fall_silent(agent: Agent) -> None:
    Node.objects.filter(id=agent.node.id).update(
        last_report_at=F("last_report_at") - timedelta(seconds=patience_s() + 1)
    )


def state(agent: Agent) -> str:
    return Node.objects.get(id=agent.node.id).state


def test_a_copy_on_another_machine_runs_nothing_and_ends_nothing(yard: Yard) -> None:
    agent = yard.agent("a")
    job = yard.submit()
    yard.cycle()
    agent.start()
    copy = copy_of(agent, machine_id="machine-2", boot_id="boot-2")
    part = next(iter(agent.here.values()))
    copy.here[part.part] = msgspec.structs.replace(part, phase=Phase.ENDED, exit=Exit(cause="NODE_REBOOT"))
    assert copy.report().verdict is ReportVerdict.WAITS
    agent.report()
    assert copy.report().verdict is ReportVerdict.COPY
    assert states(job)["main"] == "RUNNING"
    assert state(agent) == "DRAINING"
    assert "another machine" in Alarm.objects.get(kind="identity").says
    assert agent.report().verdict is ReportVerdict.TAKEN, "the original goes on"
    fall_silent(agent)
    assert copy.report().verdict is ReportVerdict.COPY, "what the original runs is alive, however long it is cut off"
    agent.report()
    agent.end(stage(job))
    assert states(job)["job"] == "COMPLETED"
    fleet.resume(Node.objects.get(id=agent.node.id), "ada")
    assert state(agent) == "READY"
    assert not Alarm.objects.exists()


def test_of_two_that_were_started_from_one_folder_the_second_is_refused(yard: Yard) -> None:
    """Copied while nobody ran: both say the same start, and machines made from one image the same name."""
    agent = yard.agent("a")
    twin = copy_of(agent, boot_id="boot-2")
    assert twin.report().verdict is ReportVerdict.WAITS
    assert agent.report().verdict is ReportVerdict.TAKEN
    assert twin.report().verdict is ReportVerdict.COPY
    assert state(agent) == "DRAINING"


def test_a_restarted_agent_follows_at_once_and_the_one_before_says_nothing_more(yard: Yard) -> None:
    agent = yard.agent("a")
    late = copy_of(agent, incarnation=agent.incarnation, seq=itertools.count(100))
    agent.incarnation, agent.start_seq, agent.seq = "process-2", 2, itertools.count(1)
    assert agent.report().verdict is ReportVerdict.TAKEN
    assert late.report().verdict is ReportVerdict.FENCED
    assert not Alarm.objects.exists(), "what was on its way when it died is no copy"
    assert state(agent) == "READY"


def test_a_fenced_process_that_dials_again_is_alive(yard: Yard) -> None:
    agent = yard.agent("a")
    older = copy_of(agent, incarnation=agent.incarnation, seq=itertools.count(100))
    agent.incarnation, agent.start_seq, agent.seq = "process-2", 2, itertools.count(1)
    agent.report()
    older.caller = Caller(opened_at=fleet.now_in_database() + timedelta(seconds=1))
    assert older.report().verdict is ReportVerdict.COPY
    assert Alarm.objects.get(kind="identity").subject == "a"


def test_a_rebooted_machine_waits_until_nobody_speaks_from_before(yard: Yard) -> None:
    agent = yard.agent("a")
    agent.incarnation, agent.start_seq, agent.boot_id, agent.seq = "process-2", 2, "boot-2", itertools.count(1)
    assert agent.report().verdict is ReportVerdict.WAITS
    fall_silent(agent)
    assert agent.report().verdict is ReportVerdict.TAKEN
    assert not Alarm.objects.exists()
    assert Node.objects.get(id=agent.node.id).booted_at is not None


def test_a_node_that_joins_again_may_be_another_machine(yard: Yard) -> None:
    agent = yard.agent("a")
    token = fleet.make_return_token(agent.node)
    fleet.enrol(token, "a")
    moved = copy_of(agent, machine_id="machine-2", boot_id="boot-2")
    assert moved.report().verdict is ReportVerdict.TAKEN


def test_reports_that_come_again_change_nothing(yard: Yard) -> None:
    agent = yard.agent("a")
    agent.seq = itertools.count(50)
    agent.report()
    fall_silent(agent)
    before = Node.objects.values().get(id=agent.node.id)
    agent.seq = itertools.count(50)
    assert agent.report().verdict is ReportVerdict.OLD
    assert Node.objects.values().get(id=agent.node.id) == before


def test_what_was_acknowledged_is_not_ordered_from_who_does_not_know_it(yard: Yard) -> None:
    agent = yard.agent("a")
    job = yard.submit()
    yard.cycle()
    agent.start()
    (order,) = desired.compose(agent.node.id, {}).wanted
    assert order.do == "run"
    assert order.spec is None, "an order without a spec starts nothing"
    from controlplane.jobs import record

    agent.here.clear()
    record.forgotten(agent.node.id, [order.part])
    assert states(job)["main"] == "RUNNING", "it may be alive"
    assert "does not know 1" in Alarm.objects.get(kind="memory").says
    began = Part.objects.get(id=order.part).started_at
    Node.objects.filter(id=agent.node.id).update(booted_at=began + timedelta(seconds=1))
    record.forgotten(agent.node.id, [order.part])
    assert Part.objects.get(id=order.part).exit["cause"] == "NODE_REBOOT"
    assert not Alarm.objects.exists()


def test_measurements_and_logs_are_taken_once_and_only_of_who_speaks(client: Client, yard: Yard) -> None:
    agent = yard.agent("a")
    yard.submit()
    yard.cycle()
    agent.start()
    device = agent.devices[0].uuid
    batch = TelemetryBatch(
        [DeviceSample(device, 0.0, utilisation=0.5)], [], HostSample(), incarnation=agent.incarnation, seq=1
    )
    assert post(client, agent, "/agent/v1/telemetry", batch).status_code == 204
    assert post(client, agent, "/agent/v1/telemetry", batch).status_code == 204
    assert DeviceRow.objects.count() == 1
    assert Host.objects.get(node=agent.node).batch_seq == 1
    finished = msgspec.structs.replace(batch, incarnation="process-0", seq=9)
    assert post(client, agent, "/agent/v1/telemetry", finished).status_code == 409
    chunk = LogChunk(next(iter(agent.here)), 1, 0, "out", 0, b"x")
    assert post(client, agent, "/agent/v1/logs", LogBatch([chunk], "process-0")).status_code == 409
    assert DeviceRow.objects.count() == 1


def test_an_agent_of_before_incarnations_is_served_as_it_was(yard: Yard) -> None:
    agent = yard.agent("a")
    old = copy_of(agent, incarnation="", machine_id="", start_seq=2, boot_id="boot-9")
    old.here["x"] = Here(part="x", attempt="y", epoch=1, phase=Phase.RUNNING)
    assert old.report().verdict is ReportVerdict.TAKEN


def test_after_a_restore_a_node_takes_orders_again_and_what_nobody_knows_is_told(yard: Yard) -> None:
    """The backup is older than what the node has seen, and it runs a part that came after it."""
    agent = yard.agent("a")
    agent.here["f" * 32] = Here(part="f" * 32, attempt="x", epoch=1, phase=Phase.RUNNING)
    agent.look()
    assert agent.desired is not None
    agent.desired = msgspec.structs.replace(agent.desired, generation=441)
    answer = agent.report()
    assert answer.unknown == ["f" * 32], "it is kept"
    assert Node.objects.get(id=agent.node.id).generation == 442
    says = Alarm.objects.get(kind="restored").says
    assert "has seen order 441" in says
    assert "1 parts run there that nobody knows here" in says
    job = yard.submit()
    yard.cycle()
    agent.look()
    assert agent.desired.generation > 441, "an agent ignores what is older than what it has seen"
    agent.start()
    assert states(job)["main"] == "RUNNING"


def test_numbers_of_before_a_restore_are_not_given_again(yard: Yard) -> None:
    yard.agent("n1")
    before = yard.submit().number
    said = io.StringIO()
    call_command("restored", "--skip", "500", stdout=said)
    after = yard.submit().number
    assert after > before + 500
    assert f"the next job is #{after}" in said.getvalue()
    with pytest.raises(CommandError, match="--skip"):
        call_command("restored", "--skip", "0")


def test_whoever_restored_by_other_means_ends_sessions_and_may_revoke_tokens(yard: Yard) -> None:
    token, _ = accounts.make_token(yard.user, "leaked")
    session = SessionStore()
    session.save()
    said = io.StringIO()
    call_command("restored", stdout=said)
    assert "is valid again" in said.getvalue()
    assert not Session.objects.exists()
    assert Token.objects.get() == token
    call_command("restored", "--revoke-tokens", stdout=said)
    assert "revoked: 1 access tokens" in said.getvalue()
    assert not Token.objects.exists()
