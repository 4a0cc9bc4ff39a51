"""A request against the machines: which of them it could ever run on, worked out once for all stages that ask alike."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from scheduler.core import match, speed
from scheduler.core.clauses import clause, several, spoken
from scheduler.core.fleet import Alike, Fleet, Rates, Rows
from scheduler.core.ledger import Ledger
from scheduler.core.lifecycle import NodeState
from scheduler.core.match import Candidate
from scheduler.core.profile import Profile
from scheduler.core.types import Alternative, Node, Reason, Stage


class Places(Sequence[Candidate]):
    """The nodes of a way in the order of their names. Each is made a candidate when somebody looks at it."""

    def __init__(self, fleet: Fleet, alternative: Alternative, nodes: Rows) -> None:
        self.nodes = nodes
        self._fleet, self._alternative = fleet, alternative
        self._made: dict[int, Candidate] = {}

    def __len__(self) -> int:
        return len(self.nodes)

    def __getitem__(self, i: int) -> Candidate:  # type: ignore[override]
        known = self._made.get(i)
        if known is None:
            found = match.candidate(self._alternative, self._fleet.nodes[int(self.nodes[i])])
            assert found is not None, "its class was found to match"
            known = self._made[i] = found
        return known

    def __iter__(self) -> Iterator[Candidate]:
        return (self[i] for i in range(len(self)))

    def id_of(self, i: int) -> str:
        """The node of a place, without making it a candidate."""
        return self._fleet.nodes[int(self.nodes[i])].id


@dataclass(eq=False, slots=True)
class Way:
    """An alternative on one group of like nodes, with what has been learned about it.

    ``best`` is the speed of the fastest way of the same shape: what people declare about durations means that one.
    ``sort`` numbers the groups of like nodes; where a stage must stay inside one domain, several ways share one.
    ``rows`` are the device rows that match each ask, a line per place (-1 fills up), and ``needs`` the milli that each
    of those must give. ``fits`` says where it fits now and ``score`` how well; :meth:`refresh` keeps both true and
    looks only at nodes that changed. ``refused_s`` says that nothing that runs so long may start now, ``barred`` holds
    pairs of a length and a length in the bad case that were refused because of a maintenance, ``floor`` pairs of a
    length and the earliest start that was found for it: all only get worse while one cycle goes on.
    """

    alternative: Alternative
    places: Places
    speed: float
    rows: tuple[Rows, ...]
    needs: tuple[Rows, ...]
    is_disjoint: bool
    best: float = 1.0
    sort: int = 0
    refused_s: float = float("inf")
    barred: list[tuple[float, float]] = field(default_factory=list)
    floor: list[tuple[float, float]] = field(default_factory=list)
    fits: npt.NDArray[np.bool_] = field(init=False)
    score: npt.NDArray[np.float64] = field(init=False)
    count: int = 0
    _seen: int = -1
    _line: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.fits = np.zeros(len(self.places), dtype=np.bool_)
        self.score = np.zeros(len(self.places))
        self._line = {int(node): i for i, node in enumerate(self.places.nodes)}

    def forget(self) -> None:
        """What only held for the cycle that has passed."""
        self.refused_s = float("inf")
        if self.barred:
            self.barred = []
        if self.floor:
            self.floor = []

    def refuses(self, length_s: float, worst_s: float) -> bool:
        """Whether something that lasts so long, or at worst ``worst_s``, was refused already."""
        if self.refused_s <= length_s:
            return True
        return any(length <= length_s and worst <= worst_s for length, worst in self.barred)

    def bar(self, length_s: float, worst_s: float) -> None:
        """Note that a maintenance keeps out whatever lasts at least so long and, in the bad case, ``worst_s``."""
        lesser = [(length, worst) for length, worst in self.barred if length < length_s or worst < worst_s]
        self.barred = [*lesser, (length_s, worst_s)]

    def refresh(self, ledger: Ledger) -> Rows:
        """Look again at the nodes that changed since the last look; returns the places among them that fit."""
        changes = len(ledger.touched)
        if self._seen == changes:
            return _NONE
        if self._seen < 0 or changes - self._seen > len(self.places):
            todo: Rows = np.arange(len(self.places))
        else:
            lines = {self._line.get(node, -1) for node in ledger.touched[self._seen :]}
            lines.discard(-1)
            todo = np.array(sorted(lines), dtype=np.int64)
        self._seen = changes
        if not len(todo):
            return _NONE
        fits = np.ones(len(todo), dtype=np.bool_)
        for ask, rows, needs in zip(self.alternative.asks, self.rows, self.needs, strict=True):
            at = rows[todo]
            memory = 0 if ask.partition else ask.memory_bytes  # a partition's memory is judged with its place
            enough = (ledger.milli[at] >= needs[todo]) & (ledger.memory[at] >= memory)
            fits &= enough.sum(axis=1) >= ask.count
        if not self.is_disjoint:
            for k in np.flatnonzero(fits):
                place = self.places[int(todo[k])]
                fits[k] = match.grant(self.alternative.asks, place, ledger) is not None
        self.count += int(fits.sum()) - int(self.fits[todo].sum())
        self.fits[todo] = fits
        return todo[fits]

    def best_first(
        self, among: Iterable[int] | None = None, prefer: Callable[[Rows], Rates | None] | None = None
    ) -> Iterator[int]:
        """The places where it fits now, the best score first, then by name; ``prefer`` says what each of them has for
        one stage on top of its score, ``among`` narrows them."""
        if among is None:
            lines = np.flatnonzero(self.fits)
        else:
            lines = np.array([i for i in among if self.fits[i]], dtype=np.int64)
        if len(lines) < 2:
            yield from lines.tolist()
            return
        score = self.score[lines]
        own = prefer(lines) if prefer is not None else None
        if own is not None:
            score = score + own
        first = int(lines[np.argmax(score)])
        yield first
        yield from (line for line in lines[np.argsort(-score, kind="stable")].tolist() if line != first)

    def line_of(self, node_row: int) -> int | None:
        """Which place a node is, if it is one."""
        return self._line.get(node_row)


_NONE: Rows = np.zeros(0, dtype=np.int64)


@dataclass(eq=False, slots=True)
class Shape:
    """What stages have in common that ask for the same thing in the same place.

    ``asked`` is a stage of this shape, kept where that may not go everywhere: it avoids nodes or may not leave a site.
    ``shortest_refused_s`` is the shortest length that was refused in this cycle in every way (in terms of the first
    way): whoever runs at least so long need not be looked at again. ``is_closed`` says that no length would do.
    """

    pool: str
    nodes: int
    alternatives: tuple[Alternative, ...]
    ways: list[Way]
    funnel: tuple[tuple[str, int], ...]
    impossible: Reason | None
    evictions_refused: set[str] = field(default_factory=set)
    within: str = ""
    asked: Stage | None = None
    fastest: Way | None = field(init=False)

    def __post_init__(self) -> None:
        self.fastest = max(self.ways, key=lambda way: way.speed, default=None)


def work_out(stage: Stage, fleet: Fleet, profile: Profile, measured: Mapping[tuple[str, str], float]) -> Shape:
    """The shape of a stage. What holds for one node holds for all of its class, so only one of each is looked at."""
    narrowed = bool(stage.pinned or stage.avoid)
    inside = [one for one in fleet.classes if stage.pool in one.sample.pools]
    at_site = [one for one in inside if not stage.site or one.sample.labels.get("site") == stage.site]
    allowed = [(one, _allowed(stage, fleet, one.nodes) if narrowed else one.nodes) for one in at_site]
    matching, ready, bare = set[int](), set[int](), set[int]()
    ways: list[Way] = []
    largest = 0
    unequipped: Reason | None = None
    for alternative in stage.alternatives:
        usable: list[tuple[Node, Rows]] = []
        whole = lacking = 0
        for one, rows in allowed:
            if not len(rows):
                continue
            if match.candidate(alternative, one.sample, healthy=False):
                whole += len(rows)
                matching.update(rows.tolist())
            if one.sample.state is not NodeState.READY:
                continue
            if match.candidate(alternative, one.sample):
                usable.append((fleet.nodes[int(rows[0])], rows))
            elif alternative.image and match.candidate(replace(alternative, image=""), one.sample):
                lacking += len(rows)
                bare.update(rows.tolist())
        largest = max(largest, whole)
        able = sum(len(rows) for _, rows in usable)
        if lacking and able < stage.nodes <= able + lacking:
            unequipped = unequipped or _unequipped(stage, able, able + lacking)
        ways += _ways(stage, alternative, usable, fleet, profile, measured)
    possible = [way for way in ways if len(way.places) >= stage.nodes]
    for way in possible:
        way.best = max(other.speed for other in possible)
    for way in ways:
        ready.update(way.places.nodes.tolist())
    bare -= ready
    inside_count = sum(len(one.nodes) for one in inside)
    allowed_count = sum(len(rows) for _, rows in allowed)
    funnel = (
        ("nodes", len(fleet.nodes)),
        (f"in pool {stage.pool}", inside_count),
        *((("where its data lie or not avoided", allowed_count),) if allowed_count != inside_count else ()),
        ("with matching devices", len(matching)),
        *((("with a container engine", len(matching - bare)),) if bare else ()),
        ("ready and healthy", len(ready)),
    )
    impossible = None
    if not possible:
        impossible = unequipped or _impossible(stage, len(matching), largest, len(matching) - len(ready))
        if largest < stage.nodes:
            impossible = kept_out(stage, largest, lambda other: _matching(other, fleet, inside)) or impossible
    within = stage.within if stage.within_required else ""
    asked = stage if stage.avoid or stage.site else None
    return Shape(stage.pool, stage.nodes, stage.alternatives, possible, funnel, impossible, within=within, asked=asked)


def _matching(stage: Stage, fleet: Fleet, inside: Iterable[Alike]) -> int:
    """On how many of the nodes that it may go to the best alternative matches."""
    counts = [
        sum(
            len(_allowed(stage, fleet, one.nodes))
            for one in inside
            if (not stage.site or one.sample.labels.get("site") == stage.site)
            and match.candidate(alternative, one.sample, healthy=False)
        )
        for alternative in stage.alternatives
    ]
    return max(counts, default=0)


def kept_out(stage: Stage, able: int, count: Callable[[Stage], int]) -> Reason | None:
    """What keeps the stage from enough nodes although there are, if it is nothing but where it may not go.

    ``able`` nodes do now; ``count`` says how many would for a stage that may go to others.
    """
    if stage.avoid and count(replace(stage, avoid=())) >= stage.nodes:
        numbers = {"avoided": ", ".join(stage.avoid), "nodes": able, "needed": stage.nodes, "pool": stage.pool}
        return Reason("NodesAvoided", numbers)
    if stage.site and count(replace(stage, avoid=(), site="")) >= stage.nodes:
        return Reason("DataResidency", {"site": stage.site, "pool": stage.pool, "nodes": able, "needed": stage.nodes})
    return None


def _allowed(stage: Stage, fleet: Fleet, rows: Rows) -> Rows:
    nodes = [(int(row), fleet.nodes[int(row)]) for row in rows]
    kept = [
        row
        for row, node in nodes
        if (not stage.pinned or node.id in stage.pinned) and not match.is_avoided(node, stage.avoid)
    ]
    return np.array(kept, dtype=np.int64)


def _ways(
    stage: Stage,
    alternative: Alternative,
    usable: list[tuple[Node, Rows]],
    fleet: Fleet,
    profile: Profile,
    measured: Mapping[tuple[str, str], float],
) -> list[Way]:
    at = speed.deciding(alternative.asks)
    samples = [match.candidate(alternative, node) for node, _ in usable]
    places = [one for one in samples if one is not None]
    groups = [list(range(len(places)))] if places else []
    for policy in profile.groups:
        groups = policy.groups(stage, [(place.node, place.matches[at]) for place in places])
    parts = [(sort, part) for sort, group in enumerate(groups) for part in _domains(stage, places, group)]
    ways = []
    for sort, part in parts:
        way = _way(stage, alternative, [(places[i], usable[i][1]) for i in part], fleet, measured)
        way.sort = sort
        ways.append(way)
    return ways


def _domains(stage: Stage, places: Sequence[Candidate], group: list[int]) -> list[list[int]]:
    """The group, or its parts that each lie in one domain where the stage may not leave one. A node that names none is
    in none."""
    if not (stage.within and stage.within_required) or stage.nodes == 1:
        return [group]
    parts: dict[str, list[int]] = {}
    for i in group:
        name = places[i].node.labels.get(stage.within)
        if name is not None:
            parts.setdefault(name, []).append(i)
    return [parts[name] for name in sorted(parts)]


def _way(
    stage: Stage,
    alternative: Alternative,
    members: list[tuple[Candidate, Rows]],
    fleet: Fleet,
    measured: Mapping[tuple[str, str], float],
) -> Way:
    deciding = speed.deciding(alternative.asks)
    width = [max(len(place.matches[i]) for place, _ in members) for i in range(len(alternative.asks))]
    nodes: Rows = np.concatenate([rows for _, rows in members])
    order = np.argsort(nodes, kind="stable")
    rows, needs = [], []
    for i, ask in enumerate(alternative.asks):
        lines = []
        for place, members_rows in members:
            begin = fleet.first[fleet.node_row[place.node.id]]
            offsets = np.full(width[i], -1, dtype=np.int64)
            found = [fleet.row[device.id] - begin for device in place.matches[i]]
            offsets[: len(found)] = found
            line = fleet.first[members_rows][:, None] + offsets[None, :]
            lines.append(np.where(offsets[None, :] < 0, -1, line))
        matrix: Rows = np.concatenate(lines)[order]
        rows.append(matrix)
        if ask.partition:
            per_class = [[match.share_of(ask, device)[0] for device in place.matches[i]] for place, _ in members]
            lines = [
                np.tile(np.array([*line, *([0] * (width[i] - len(line)))]), (len(members_rows), 1))
                for line, (_, members_rows) in zip(per_class, members, strict=True)
            ]
            needs.append(np.concatenate(lines)[order])
            continue
        exclusive = fleet.is_exclusive[matrix] & (matrix >= 0)
        needs.append(np.where(exclusive, fleet.capacity[matrix], ask.milli))
    slowest = min(
        speed.speed(
            stage.kind, stage.precision, device, measured, match.partition_of(alternative.asks[deciding], device)
        )
        for place, _ in members
        for device in place.matches[deciding]
    )
    return Way(
        alternative,
        Places(fleet, alternative, nodes[order]),
        slowest,
        tuple(rows),
        tuple(needs),
        match.are_disjoint(alternative.asks),
    )


def _impossible(stage: Stage, matching: int, largest: int, unavailable: int) -> Reason:
    asks = asks_text(stage.alternatives, stage.nodes)
    if not matching:
        return Reason("NoMatchingDevice", {"pool": stage.pool, "asks": asks})
    if largest < stage.nodes:
        return Reason("ExceedsClusterMax", {"pool": stage.pool, "asks": asks, "nodes": largest, "needed": stage.nodes})
    if unavailable:
        return Reason("NodesUnavailable", {"nodes": unavailable, "pool": stage.pool})
    # Enough nodes match, but no sort of device, or no domain, has enough of them.
    where = f"inside one {stage.within}" if stage.within_required else "of one model"
    return Reason("ExceedsClusterMax", {"pool": stage.pool, "asks": f"{asks} {where}", "needed": stage.nodes})


def _unequipped(stage: Stage, able: int, ready: int) -> Reason:
    """Why an image keeps the stage from ``ready`` nodes that would do without it; ``able`` of them can run it."""
    asks = asks_text(stage.alternatives, 1)
    if able:
        found = clause(several(able, "EngineOn", "EnginesOn"), able=able, ready=ready, pool=stage.pool, asks=asks)
    else:
        found = clause("NoEngine", pool=stage.pool, asks=asks)
    numbers = {"pool": stage.pool, "nodes": able, "needed": stage.nodes}
    return Reason("ImageUnavailable", {**spoken(detail=(found,)), **numbers})


def asks_text(alternatives: Iterable[Alternative], nodes: int) -> str:
    """The request in words: ``2 nodes with 8 gpu H100 · 8 cores · 64 GiB, or 1 core``."""
    ways = []
    for alternative in alternatives:
        parts = []
        for ask in alternative.asks:
            memory = f" {ask.memory_bytes / 2**30:.4g} GiB" if ask.memory_bytes else ""
            if ask.kind == "cpu":
                cores = ask.count * ask.milli / 1000
                parts.append(f"{cores:.4g} core{'s' * (cores != 1)}{memory}")
            else:
                share = "" if ask.milli == 1000 else f" x {ask.milli}/1000"
                share = f" {ask.partition}" if ask.partition else share
                name = " ".join(word for word in (ask.kind, ask.vendor, ask.model) if word)
                parts.append(f"{ask.count} {name}{share}{memory}")
        ways.append(" · ".join(parts))
    text = ", or ".join(ways)
    return f"{nodes} nodes with {text}" if nodes > 1 else text
