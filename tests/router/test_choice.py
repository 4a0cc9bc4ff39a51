"""Which replica gets a request."""

from __future__ import annotations

import asyncio
import json

from hypothesis import given
from hypothesis import strategies as st

from router.choice import MOST_BLOCKS, MOST_REMEMBERED, Prompt, Remembered, blocks_of, length_of, unread
from router.pool import Pool, Pools
from router.protocol import Member, Served, Table


def pool(count: int = 2, **more: object) -> Pool:
    members = [Member(n, n, "127.0.0.1", 1, "", "/health") for n in range(1, count + 1)]
    made = Pool(Served(1, "nlp", "chat", [], **more), asyncio.Event())  # type: ignore[arg-type]
    made.update(Served(1, "nlp", "chat", members, **more))  # type: ignore[arg-type]
    for place in made.places.values():
        place.probed("")
    return made


def prompt(text: str, tokens: int = 10) -> Prompt:
    return Prompt.of(json.dumps({"prompt": text, "max_tokens": tokens}).encode())


@given(st.text(max_size=2_000), st.text(max_size=2_000))
def test_equal_beginnings_have_equal_blocks(one: str, other: str) -> None:
    shared = 0
    while shared < min(len(one), len(other)) and one[shared] == other[shared]:
        shared += 1
    first, second = blocks_of(one), blocks_of(other)
    same = sum(a == b for a, b in zip(first, second, strict=False))
    assert same == sum(length_of(count) <= shared for count in range(1, MOST_BLOCKS + 1))


@given(
    st.binary(max_size=200)
    | st.recursive(st.none() | st.text(), lambda inner: st.lists(inner)).map(
        lambda value: json.dumps({"prompt": value, "messages": value, "max_tokens": value}).encode()
    )
)
def test_any_body_is_a_prompt(body: bytes) -> None:
    found = Prompt.of(body)
    assert unread(found, Remembered()) >= 1


def test_what_is_remembered_is_bounded() -> None:
    remembered = Remembered()
    for start in range(20):
        remembered.add(range(start * 1_000, (start + 1) * 1_000))
    assert len(remembered._blocks) == MOST_REMEMBERED
    assert remembered.length([0]) == 0
    assert remembered.length([19_999]) == 1
    remembered.keep(2_560)
    remembered.add(range(30_000, 30_020))
    assert remembered.length(range(30_000, 30_020)) == 10


async def test_the_same_beginning_goes_where_it_was_read_and_others_elsewhere() -> None:
    made, long = pool(), "the same beginning. " * 200
    first = await made.take(prompt(long), set())
    first.release()
    assert [(await made.take(prompt(long + str(n)), set())).place for n in range(2)] == [first.place, first.place]
    assert (await made.take(prompt("something else" * 200), set())).place is not first.place


async def test_what_a_busy_replica_has_read_is_read_again_elsewhere() -> None:
    made, long = pool(), "the same beginning. " * 200
    first = await made.take(prompt(long), set())
    first.release()
    busy = await made.take(prompt(long + "and very much more. " * 2_000), set())
    assert busy.place is first.place
    assert (await made.take(prompt(long), set())).place is not first.place
    busy.begun()
    assert (await made.take(prompt(long), set())).place is first.place


@given(st.lists(st.tuples(st.text("ab", max_size=3_000), st.booleans()), max_size=12))
def test_nothing_is_left_of_requests_that_have_ended(asked: list[tuple[str, bool]]) -> None:
    async def ask() -> None:
        made = pool(3)
        taken = [(await made.take(prompt(text), set()), has_begun) for text, has_begun in asked]
        assert sum(place.outstanding for place in made.places.values()) == len(asked)
        for one, has_begun in taken:
            if has_begun:
                one.begun()
            one.release()
        assert all(place.reading == place.writing == place.outstanding == 0 for place in made.places.values())

    asyncio.run(ask())


async def test_a_replica_that_was_away_has_read_nothing() -> None:
    made, long = pool(), "the same beginning. " * 200
    first = await made.take(prompt(long), set())
    first.release()
    for fault in ("away", "away", "away", ""):
        first.place.probed(fault)
    assert first.place.remembered.length(prompt(long).blocks) == 0


async def test_the_work_is_shared_out() -> None:
    made = pool(3)
    chosen = [(await made.take(prompt("short"), set())).place for _ in range(9)]
    assert {place.member.id: chosen.count(place) for place in chosen} == {1: 3, 2: 3, 3: 3}


async def test_revisions_get_their_shares() -> None:
    made = pool(2, weights={1: 90, 2: 10})
    chosen = [(await made.take(prompt("short"), set())).place.member.revision for _ in range(60)]
    assert chosen.count(2) == 6


async def test_one_that_waits_is_served_when_another_ends() -> None:
    made = pool(1, concurrency=1)
    first = await made.take(prompt("short"), set())
    waiting = asyncio.ensure_future(made.take(prompt("short"), set()))
    await asyncio.sleep(0)
    assert not waiting.done()
    first.release()
    assert (await waiting).place is first.place


async def test_one_that_gives_up_leaves_its_turn_to_the_next() -> None:
    made = pool(1, concurrency=1)
    first = await made.take(prompt("short"), set())
    one, two = (asyncio.ensure_future(made.take(prompt("short"), set())) for _ in range(2))
    await asyncio.sleep(0)
    first.release()
    one.cancel()
    assert (await two).place is first.place


def test_who_waits_for_a_service_is_served_beside_a_former_one_of_its_name() -> None:
    async def run() -> None:
        pools = Pools()
        former, own = Served(1, "nlp", "chat", []), Served(2, "nlp", "chat", [])
        pools.update(Table([former, own]))
        taken = asyncio.ensure_future(pools.by_name["nlp", "chat"].take(Prompt((), 0, 1), set()))
        await asyncio.sleep(0)
        member = Member(7, 1, "127.0.0.1", 1, "", "/health")
        for _ in range(2):
            pools.update(Table([former, Served(2, "nlp", "chat", [member])]))
        pool = pools.by_name["nlp", "chat"]
        pool.places[7].probed("")
        pools.update(Table([former, Served(2, "nlp", "chat", [member])]))
        assert pools.by_name["nlp", "chat"] is pool
        assert (await taken).place.member.id == 7

    asyncio.run(asyncio.wait_for(run(), 60))
