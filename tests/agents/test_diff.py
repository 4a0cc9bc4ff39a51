"""The laws of ``diff``, over random worlds and wishes."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from agents.protocol import Desired, DeviceClaim, Exit, PartSpec, Phase, Wanted
from agents.tasks import diff
from tests.examples_count import examples

PARTS = [f"p{number}" for number in range(6)]
DEVICES = [f"GPU-{number}" for number in range(3)]

claims = st.lists(
    st.builds(
        DeviceClaim,
        uuid=st.sampled_from(DEVICES),
        kind=st.just("gpu"),
        vendor=st.just("nvidia"),
        model=st.just("H100"),
        index=st.just(0),
        milli=st.sampled_from([250, 500, 1000]),
        memory_bytes=st.just(1),
    ),
    max_size=2,
    unique_by=lambda claim: claim.uuid,
)


def spec(devices: Sequence[DeviceClaim]) -> PartSpec:
    return PartSpec(
        job=1,
        job_name="j",
        stage="s",
        stage_kind="train",
        project="p",
        attempt_number=1,
        argv=["true"],
        devices=list(devices),
    )


wanteds = st.builds(
    Wanted,
    part=st.sampled_from(PARTS),
    attempt=st.just("a"),
    epoch=st.integers(1, 3),
    do=st.sampled_from(["run", "stop"]),
    spec_rev=st.integers(1, 3),
    spec=st.builds(spec, claims),
    grace_s=st.sampled_from([0.0, 5.0, 30.0]),
    signal=st.just("SIGUSR1"),
    signal_rev=st.integers(0, 3),
    save_rev=st.integers(0, 3),
)
desireds = st.builds(
    Desired,
    generation=st.integers(0, 5),
    wanted=st.lists(wanteds, max_size=6, unique_by=lambda wanted: wanted.part),
    forget=st.lists(st.sampled_from(PARTS), max_size=3),
    unknown=st.lists(st.sampled_from(PARTS), max_size=3),
    lineage=st.sampled_from(["", "one", "two"]),
)
knowns = st.builds(
    diff.Known,
    part=st.just(""),
    epoch=st.integers(1, 3),
    phase=st.sampled_from(list(Phase)),
    spec_rev=st.integers(1, 3),
    devices=claims.map(tuple),
    lineage=st.sampled_from(["", "one", "two"]),
    stop_grace_s=st.sampled_from([None, 5.0]),
    signalled_rev=st.integers(0, 3),
    save_rev=st.integers(0, 3),
)


@st.composite
def worlds(draw: st.DrawFn) -> diff.AgentState:
    names = draw(st.lists(st.sampled_from(PARTS), unique=True))
    border = draw(st.integers(0, len(names)))
    here = {}
    for name in names[:border]:
        known = draw(knowns)
        here[name] = diff.Known(
            **{field: getattr(known, field) for field in known.__slots__ if field != "part"}, part=name
        )
    gone = {name: draw(st.sampled_from([None, Exit()])) for name in names[border:]}
    return diff.AgentState(draw(st.integers(0, 5)), draw(st.sampled_from(["", "one", "two"])), here, gone)


@settings(max_examples=examples(60), deadline=None)
@given(desireds, worlds())
def test_an_older_generation_orders_nothing(desired: Desired, world: diff.AgentState) -> None:
    same = desired.lineage == world.lineage or not desired.lineage or not world.lineage
    if same and desired.generation < world.generation:
        assert diff.diff(desired, world) == []


@settings(max_examples=examples(60), deadline=None)
@given(desireds, worlds())
def test_what_ever_started_here_never_starts_again(desired: Desired, world: diff.AgentState) -> None:
    started = {order.wanted.part for order in diff.diff(desired, world) if isinstance(order, diff.StartPart)}
    assert not started & (world.here.keys() | world.gone.keys())


@settings(max_examples=examples(60), deadline=None)
@given(desireds, worlds())
def test_only_an_explicit_stop_stops(desired: Desired, world: diff.AgentState) -> None:
    asked = {wanted.part for wanted in desired.wanted if wanted.do == "stop"}
    stopped = {order.part for order in diff.diff(desired, world) if isinstance(order, diff.StopPart)}
    assert stopped <= asked
    assert all(world.here[part].is_live for part in stopped)


@settings(max_examples=examples(60), deadline=None)
@given(desireds, worlds())
def test_a_stop_of_a_current_epoch_reaches_every_part(desired: Desired, world: diff.AgentState) -> None:
    orders = diff.diff(desired, world)
    if not diff.is_current(desired, world):
        return
    touched = {order.part for order in orders if isinstance(order, diff.StopPart)}
    touched |= {order.wanted.part for order in orders if isinstance(order, diff.Void | diff.Recall)}
    for wanted in desired.wanted:
        known = world.here.get(wanted.part)
        if wanted.do == "stop" and (known is None or (known.is_live and known.stop_grace_s is None)):
            assert wanted.part in touched or (known is not None and wanted.epoch < known.epoch)


@settings(max_examples=examples(60), deadline=None)
@given(desireds, worlds())
def test_only_ended_parts_of_the_same_lineage_are_forgotten(desired: Desired, world: diff.AgentState) -> None:
    for order in diff.diff(desired, world):
        if isinstance(order, diff.Forget):
            known = world.here[order.part]
            assert order.part in desired.forget
            assert not known.is_live
            assert known.lineage in ("", desired.lineage)


@settings(max_examples=examples(60), deadline=None)
@given(desireds, worlds())
def test_no_exclusively_claimed_device_has_two_live_parts(desired: Desired, world: diff.AgentState) -> None:
    users: dict[str, list[bool]] = {}
    for known in world.here.values():
        if known.is_live:
            for claim in known.devices:
                users.setdefault(claim.uuid, []).append(diff.claims_whole(claim))
    before = {uuid: list(found) for uuid, found in users.items()}
    for order in diff.diff(desired, world):
        if isinstance(order, diff.StartPart) and order.wanted.spec:
            for claim in order.wanted.spec.devices:
                users.setdefault(claim.uuid, []).append(diff.claims_whole(claim))
    for uuid, found in users.items():
        if found != before.get(uuid):
            assert len(found) == 1 or not any(found)


@settings(max_examples=examples(60), deadline=None)
@given(desireds, worlds())
def test_every_new_run_order_starts_or_names_the_holder(desired: Desired, world: diff.AgentState) -> None:
    if not diff.is_current(desired, world):
        return
    orders = diff.diff(desired, world)
    told = {order.wanted.part for order in orders if isinstance(order, diff.StartPart | diff.Hold)}
    for wanted in desired.wanted:
        if wanted.do == "run" and wanted.part not in world.here and wanted.part not in world.gone:
            assert wanted.part in told
    for order in orders:
        if isinstance(order, diff.Hold):
            assert order.device in {claim.uuid for claim in (order.wanted.spec.devices if order.wanted.spec else [])}


@settings(max_examples=examples(60), deadline=None)
@given(desireds, worlds())
def test_a_signal_is_given_once_per_revision(desired: Desired, world: diff.AgentState) -> None:
    for order in diff.diff(desired, world):
        if isinstance(order, diff.Signal):
            assert order.signal_rev > world.here[order.part].signalled_rev


@settings(max_examples=examples(60), deadline=None)
@given(desireds, worlds())
def test_a_save_is_asked_for_once_per_number_and_of_nobody_who_is_to_stop(
    desired: Desired, world: diff.AgentState
) -> None:
    orders = diff.diff(desired, world)
    stopping = {order.part for order in orders if isinstance(order, diff.StopPart)}
    for order in orders:
        if isinstance(order, diff.AskSave):
            assert order.save_rev > world.here[order.part].save_rev
            assert order.part not in stopping


def test_a_held_start_goes_ahead_when_the_holder_has_ended() -> None:
    whole = DeviceClaim("GPU-0", "gpu", "nvidia", "H100", 0, 1000, 1)
    wish = Desired(1, wanted=[Wanted("new", "a", 1, "run", spec=spec([whole]))])
    holder = diff.Known("old", 1, Phase.STOPPING, devices=(whole,))
    (held,) = diff.diff(wish, diff.AgentState(here={"old": holder}))
    assert isinstance(held, diff.Hold)
    assert (held.device, held.holder) == ("GPU-0", "old")
    (start,) = diff.diff(wish, diff.AgentState(here={"old": diff.Known("old", 1, Phase.ENDED, devices=(whole,))}))
    assert isinstance(start, diff.StartPart)


def test_a_cpu_claim_is_never_exclusive() -> None:
    cpu = DeviceClaim("cpu-0", "cpu", "intel", "Xeon", 0, 4000, 1)
    wish = Desired(1, wanted=[Wanted("new", "a", 1, "run", spec=spec([cpu]))])
    (start,) = diff.diff(wish, diff.AgentState(here={"old": diff.Known("old", 1, Phase.RUNNING, devices=(cpu,))}))
    assert isinstance(start, diff.StartPart)
