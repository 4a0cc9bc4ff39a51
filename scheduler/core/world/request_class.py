"""Request classes: on which nodes a request could ever run, computed once for all stages with the same request."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from scheduler.core.model.clauses import Clause, Said, clause, several, spoken
from scheduler.core.model.funnel import Filter
from scheduler.core.model.kinds import NETWORK, is_device
from scheduler.core.model.lifecycle import NodeState
from scheduler.core.model.profile import Profile
from scheduler.core.model.types import Alternative, Ask, Node, Reason, Stage
from scheduler.core.resources import match, speed
from scheduler.core.resources.fleet import Fleet, NodeClass, Rates, Rows
from scheduler.core.resources.ledger import Ledger
from scheduler.core.resources.match import Candidate


class CandidateNodes(Sequence[Candidate]):
    """The nodes of a feasible set in the order of their names. A candidate is made when it is first read."""

    def __init__(self, fleet: Fleet, alternative: Alternative, nodes: Rows) -> None:
        self.nodes = nodes
        self._fleet, self._alternative = fleet, alternative
        self._made: dict[int, Candidate] = {}
        self._line: list[int] | None = None

    def __len__(self) -> int:
        return len(self.nodes)

    def __getitem__(self, i: int) -> Candidate:  # type: ignore[override]
        row = int(self.nodes[i])
        known = self._made.get(row)
        if known is None:
            found = match.candidate(self._alternative, self._fleet.nodes[row])
            assert found is not None, "its class was found to match"
            known = self._made[row] = found
        return known

    def __iter__(self) -> Iterator[Candidate]:
        return (self[i] for i in range(len(self)))

    def id_of(self, i: int) -> str:
        """The node of a place, without making it a candidate."""
        return self._fleet.nodes[int(self.nodes[i])].id

    def line_of(self, node_row: int) -> int:
        """Which place a node is; -1 where it is none."""
        lines = self._lines()
        return lines[node_row] if node_row < len(lines) else -1

    def lines_of(self, node_rows: Iterable[int]) -> list[int]:
        """Which places these nodes are, those of them that are one, ascending."""
        lines = self._lines()
        most = len(lines)
        found = {lines[row] if row < most else -1 for row in node_rows}
        found.discard(-1)
        return sorted(found)

    def _lines(self) -> list[int]:
        """The place of each node row, as far as there were rows when it was made."""
        if self._line is None:
            lines = np.full(len(self._fleet.nodes), -1, dtype=np.int64)
            lines[self.nodes] = np.arange(len(self.nodes))
            self._line = lines.tolist()
        return self._line

    def forget(self, node_rows: Iterable[int]) -> None:
        """Update the values of these nodes."""
        for row in node_rows:
            self._made.pop(row, None)

    def put(self, nodes: Rows) -> None:
        """Be these nodes from now on."""
        self.nodes, self._line = nodes, None


@dataclass(eq=False, slots=True)
class FeasibleSet:
    """An alternative on one group of like nodes, with what is known about it.

    ``best`` is the speed of the fastest alternative of the request class, to which declared durations refer. ``sort``
    numbers the groups of like nodes; feasible sets of several domains of one group share it. ``classes`` are the codes
    of its node classes. ``rows`` are the device rows that match each ask, one line per place (padded with -1), and
    ``needs`` the milli that each of them must give. ``fits`` tells on which places it fits now, ``score`` their scores;
    :meth:`refresh` updates both for nodes that changed. ``refused_s``: no stage that runs at least so long may start
    now. ``barred`` has pairs of predicted and worst run time that were refused because of a maintenance, ``floor``
    pairs of a run time and the earliest start found for it. During one cycle these only become stricter.
    """

    alternative: Alternative
    places: CandidateNodes
    speed: float
    rows: tuple[Rows, ...]
    needs: tuple[Rows, ...]
    is_disjoint: bool
    classes: frozenset[int] = frozenset()
    best: float = 1.0
    sort: int = 0
    refused_s: float = float("inf")
    barred: list[tuple[float, float]] = field(default_factory=list)
    floor: list[tuple[float, float]] = field(default_factory=list)
    fits: npt.NDArray[np.bool_] = field(init=False)
    score: npt.NDArray[np.float64] = field(init=False)
    count: int = 0
    _seen: int = -1

    def __post_init__(self) -> None:
        self.fits = np.zeros(len(self.places), dtype=np.bool_)
        self.score = np.zeros(len(self.places))

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
            todo = np.array(self.places.lines_of(ledger.touched[self._seen :]), dtype=np.int64)
        self._seen = changes
        if not len(todo):
            return _NONE
        fits = np.ones(len(todo), dtype=np.bool_)
        for ask, rows, needs in zip(self.alternative.asks, self.rows, self.needs, strict=True):
            at = rows[todo]
            memory = 0 if ask.partition else ask.memory_bytes  # a partition's memory is checked with its place
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
        line = self.places.line_of(node_row)
        return None if line < 0 else line

    def reevaluate(self) -> None:
        """Reset all cached scores, because their inputs have changed."""
        self._seen = -1

    def replace_lines(self, gone: Sequence[int], came: FeasibleSet | None, rank: Rows) -> None:
        """Take out the lines of the nodes ``gone``, and put in those of the way ``came``, in the order of ``rank``.
        Whether the latter fit is found out when they are touched."""
        lines = self.places.lines_of(gone)
        kept = np.ones(len(self.places), dtype=np.bool_)
        kept[lines] = False
        self.count -= int(self.fits[lines].sum())
        nodes, fits, score = self.places.nodes[kept], self.fits[kept], self.score[kept]
        rows, needs = [one[kept] for one in self.rows], [one[kept] for one in self.needs]
        if came is not None:
            at = np.searchsorted(rank[nodes], rank[came.places.nodes])
            nodes = np.insert(nodes, at, came.places.nodes)
            fits, score = np.insert(fits, at, False), np.insert(score, at, 0.0)
            rows = [_inserted(one, at, new, -1) for one, new in zip(rows, came.rows, strict=True)]
            needs = [_inserted(one, at, new, 0) for one, new in zip(needs, came.needs, strict=True)]
        self.places.put(nodes)
        self.fits, self.score, self.rows, self.needs = fits, score, tuple(rows), tuple(needs)


_NONE: Rows = np.zeros(0, dtype=np.int64)
_SHOWN = 8  # names or labels of a restriction that a reason shows


def _inserted(matrix: Rows, at: Rows, lines: Rows, filling: int) -> Rows:
    """Return the matrix with ``lines`` inserted before the positions ``at``; the narrower of both is padded."""
    width = max(matrix.shape[1], lines.shape[1])
    filled = [
        np.pad(one, ((0, 0), (0, width - one.shape[1])), constant_values=filling) if one.shape[1] < width else one
        for one in (matrix, lines)
    ]
    found: Rows = np.insert(filled[0], at, filled[1], axis=0)
    return found


@dataclass(eq=False, slots=True)
class RequestClass:
    """What stages with the same request in the same place have in common.

    ``sample`` is one of these stages. ``feasible_sets`` are those with enough nodes for it. ``is_narrow`` tells that it
    may not use every node: it is pinned to some, avoids some or wants some, by name, label, site or folder.
    ``members`` is how many waiting stages it has, ``asked_in`` the last look in which somebody asked for it.
    :func:`work_out` makes it; :func:`change` updates it when nodes change.
    """

    pool: str
    nodes: int
    alternatives: tuple[Alternative, ...]
    sample: Stage
    within: str
    feasible_sets: list[FeasibleSet] = field(default_factory=list)
    funnel: tuple[tuple[str, int], ...] = ()
    impossible: Reason | None = None
    evictions_refused: set[str] = field(default_factory=set)
    fastest: FeasibleSet | None = None
    members: int = 0
    asked_in: int = 0
    # All ways, those on too few nodes too.
    every: list[FeasibleSet] = field(default_factory=list)
    # By kit and alternative: the devices that match each ask (as positions on the node), of whatever health and of
    # those that work; None where there are too few.
    _kits: dict[tuple[int, int], tuple[bool, bool, Offsets | None]] = field(default_factory=dict)

    @property
    def is_narrow(self) -> bool:
        one = self.sample
        return bool(one.pinned or one.avoid or one.only or one.site or one.mounts)

    @property
    def asked(self) -> Stage | None:
        """A stage of this request class if it may not go everywhere: it avoids nodes or names those that it wants, may
        not leave a site, or mounts folders."""
        one = self.sample
        return one if one.avoid or one.only or one.site or one.mounts else None

    def may_meet(self, kit: int) -> bool:
        """Whether nodes with such devices could run one of the alternatives, as far as is known."""
        known = [self._kits.get((kit, one.index)) for one in self.alternatives]
        return any(one is None or one[0] or one[1] or one[2] is not None for one in known)

    def meets(self, alternative: Alternative, one: NodeClass, fleet: Fleet) -> tuple[bool, bool, Offsets | None]:
        """Whether nodes of a class match the alternative when all their devices work, whether they do but for a
        container engine, and by which devices they match as they are, ready or not."""
        known = self._kits.get((one.kit, alternative.index))
        if known is None:
            place = match.candidate(alternative, one.sample)
            bare = alternative.image and match.candidate(replace(alternative, image=""), one.sample)
            matches = match.candidate(alternative, one.sample, healthy=False) is not None
            offsets = None
            if place is not None:
                begin = int(fleet.first[fleet.node_row[one.sample.id]])
                offsets = tuple(tuple(sorted(fleet.row[d.id] - begin for d in found)) for found in place.matches)
            known = self._kits[one.kit, alternative.index] = (matches, bool(bare), offsets)
        return known


Offsets = tuple[tuple[int, ...], ...]


@dataclass(slots=True)
class FeasiblePart:
    """The content of one feasible set: an alternative on some node classes, with the rows of each and the matching
    devices."""

    alternative: Alternative
    sort: int
    classes: list[tuple[NodeClass, Rows, Offsets]]

    @property
    def codes(self) -> frozenset[int]:
        return frozenset(one.code for one, _, _ in self.classes)


def work_out(stage: Stage, fleet: Fleet, profile: Profile, measured: Mapping[tuple[str, str], float]) -> RequestClass:
    """Return the request class of a stage. One node of each node class is examined, because all of a class are
    alike."""
    within = stage.within if stage.within_required else ""
    request = RequestClass(stage.pool, stage.nodes, stage.alternatives, stage, within)
    return recompute(request, fleet, profile, measured)


def recompute(
    request: RequestClass, fleet: Fleet, profile: Profile, measured: Mapping[tuple[str, str], float]
) -> RequestClass:
    """Compute the request class from nothing, in place."""
    request.every = [_feasible(request.sample, part, fleet, measured) for part in _outline(request, fleet, profile)]
    _choose(request)
    return request


def is_concerned(
    request: RequestClass, fleet: Fleet, kits: Iterable[int], pools: Collection[str], nodes: Iterable[Node]
) -> bool:
    """Return whether nodes of these kits in these pools, which changed, may matter to a request class. ``nodes`` are
    the same, as they were and as they are."""
    before = request.funnel[0][1], request.funnel[1][1]
    if before != (len(fleet.node_row), fleet.count_in(request.pool)):
        return True
    if request.pool not in pools:
        return False
    if request.is_narrow and any(_may_use(request.sample, node) for node in nodes):
        return True
    # Why a request class is impossible also depends on the nodes that it may not use.
    return (not request.is_narrow or request.impossible is not None) and any(request.may_meet(kit) for kit in kits)


def _may_use(stage: Stage, node: Node) -> bool:
    """Whether none of its restrictions keeps a stage from a node."""
    return (
        (not stage.pinned or node.id in stage.pinned)
        and node.id not in stage.avoid
        and node.name not in stage.avoid
        and _is_open(stage, node)
        and match.is_wanted(node, stage.only)
    )


def _is_open(stage: Stage, node: Node) -> bool:
    """Whether neither its site nor its labels nor its folders keep a stage from a node."""
    return (
        (not stage.site or node.labels.get("site") == stage.site)
        and not match.is_labelled(node, stage.avoid)
        and match.has_mounts(node, stage.mounts)
    )


def change(
    request: RequestClass,
    fleet: Fleet,
    profile: Profile,
    measured: Mapping[tuple[str, str], float],
    rows: Iterable[int],
) -> bool:
    """Update the request class for the nodes in ``rows``, which changed. Return whether a feasible set or its speed
    changed.

    A feasible set remains the same object as long as its node classes stay together.
    """
    before = [(id(feasible), feasible.speed, feasible.best) for feasible in request.feasible_sets]
    changed = list(rows)
    by_class: dict[int | None, list[int]] = {}
    for row in changed:
        by_class.setdefault(fleet.class_of[row], []).append(row)
    parts = _outline(request, fleet, profile)
    homes = _homes(request, parts)
    every = []
    for i, part in enumerate(parts):
        if len(homes[i]) != 1:
            every.append(_feasible(request.sample, part, fleet, measured))
            continue
        feasible = homes[i][0]
        new = [
            (one, found, offsets)
            for one, lines, offsets in part.classes
            if one.code in by_class and len(found := lines[np.isin(lines, by_class[one.code])])
        ]
        came = _feasible(request.sample, replace(part, classes=new), fleet, measured) if new else None
        if came is not None or feasible.places.lines_of(changed):
            feasible.replace_lines(changed, came, fleet.rank)
            feasible.speed = _slowest(request.sample, part, fleet, measured)
        feasible.places.forget(changed)
        feasible.classes, feasible.sort = part.codes, part.sort
        every.append(feasible)
    request.every = every
    _choose(request)
    return before != [(id(feasible), feasible.speed, feasible.best) for feasible in request.feasible_sets]


def _homes(request: RequestClass, parts: Sequence[FeasiblePart]) -> list[list[FeasibleSet]]:
    """Return for each part the one feasible set that it belonged to so far, if it is one."""
    part_of = {(part.alternative.index, one.code): i for i, part in enumerate(parts) for one, _, _ in part.classes}
    homes: list[list[FeasibleSet]] = [[] for _ in parts]
    for feasible in request.every:
        found = {part_of.get((feasible.alternative.index, code), -1) for code in feasible.classes} - {-1}
        for i in found:
            homes[i] += [feasible] * len(found)
    return homes


def _choose(request: RequestClass) -> None:
    """Set the feasible sets with enough nodes, and the speed of the fastest."""
    request.feasible_sets = [feasible for feasible in request.every if len(feasible.places) >= request.nodes]
    for feasible in request.feasible_sets:
        feasible.best = max(other.speed for other in request.feasible_sets)
    request.fastest = max(request.feasible_sets, key=lambda feasible: feasible.speed, default=None)


def _outline(request: RequestClass, fleet: Fleet, profile: Profile) -> list[FeasiblePart]:
    """Compute the parts of the feasible sets, why there are none, and how many nodes pass each filter."""
    stage = request.sample
    inside = fleet.in_pool(stage.pool)
    by_kit = _narrowed(stage, fleet, inside)
    sizes = {kit: sum(len(rows) for _, _, rows in classes) for kit, classes in by_kit.items()}
    matching = set[int]()
    ready, bare = dict[int, int](), dict[int, int]()
    parts: list[FeasiblePart] = []
    largest = 0
    unequipped: Reason | None = None
    for alternative in stage.alternatives:
        usable: list[tuple[int, NodeClass, Rows, Offsets]] = []
        whole = lacking = 0
        for kit, classes in by_kit.items():
            matches, but_for_engine, offsets = request.meets(alternative, classes[0][1], fleet)
            if matches:
                whole += sizes[kit]
                matching.add(kit)
            if offsets is None and not but_for_engine:
                continue
            here = [one for one in classes if one[1].sample.state is NodeState.READY]
            if offsets is not None:
                usable += [(*one, offsets) for one in here]
            else:
                bare.update((one.code, len(rows)) for _, one, rows in here)
                lacking += sum(len(rows) for _, _, rows in here)
        usable.sort(key=lambda one: one[0])
        largest = max(largest, whole)
        able = sum(len(rows) for _, _, rows, _ in usable)
        if lacking and able < stage.nodes <= able + lacking:
            unequipped = unequipped or _unequipped(stage, able, able + lacking)
        mine = _parts(stage, alternative, [one[1:] for one in usable], fleet, profile)
        ready.update((one.code, len(rows)) for part in mine for one, rows, _ in part.classes)
        parts += mine
    possible = any(sum(len(rows) for _, rows, _ in part.classes) >= stage.nodes for part in parts)
    inside_count = fleet.count_in(stage.pool)
    allowed_count = sum(sizes.values())
    matches_count, ready_count = sum(sizes[kit] for kit in matching), sum(ready.values())
    lacking = sum(count for code, count in bare.items() if code not in ready)
    request.funnel = (
        (Filter.ALL, len(fleet.node_row)),
        (Filter.IN_POOL, inside_count),
        *(((Filter.ALLOWED, allowed_count),) if allowed_count != inside_count else ()),
        (Filter.MATCHING, matches_count),
        *(((Filter.WITH_ENGINE, matches_count - lacking),) if lacking else ()),
        (Filter.READY, ready_count),
    )
    request.impossible = None
    if not possible:
        request.impossible = unequipped or _impossible(stage, matches_count, largest, matches_count - ready_count)
        if largest < stage.nodes:
            barred = kept_out(stage, largest, lambda other: _matching(request, _narrowed(other, fleet, inside), fleet))
            request.impossible = barred or request.impossible
    return parts


def _narrowed(
    stage: Stage, fleet: Fleet, inside: Mapping[int, Sequence[tuple[int, NodeClass]]]
) -> dict[int, list[tuple[int, NodeClass, Rows]]]:
    """Return the node classes with the nodes that the stage may use, where there are any. Labels and folders are judged
    once for a class."""
    wanted = [(frozenset(group), fleet.by_class(fleet.named(group))) for group in stage.only]
    pinned = fleet.by_class(fleet.node_row[name] for name in stage.pinned if name in fleet.node_row)
    avoided = fleet.by_class(fleet.named(stage.avoid))
    found: dict[int, list[tuple[int, NodeClass, Rows]]] = {}
    for kit, classes in inside.items():
        for i, one in classes:
            chosen = [by_class.get(one.code, set()) for group, by_class in wanted if one.words.isdisjoint(group)]
            if stage.pinned:
                chosen.append(pinned.get(one.code, set()))
            if not all(chosen) or not _is_open(stage, one.sample):
                continue
            rows = one.nodes
            if chosen:
                rows = rows[np.isin(rows, list(set.intersection(*chosen)))]
            if one.code in avoided:
                rows = rows[np.isin(rows, list(avoided[one.code]), invert=True)]
            if len(rows):
                found.setdefault(kit, []).append((i, one, rows))
    return found


def _matching(request: RequestClass, by_kit: Mapping[int, Sequence[tuple[int, NodeClass, Rows]]], fleet: Fleet) -> int:
    """On how many of these nodes the best alternative matches."""
    counts = [
        sum(
            len(rows)
            for classes in by_kit.values()
            if request.meets(alternative, classes[0][1], fleet)[0]
            for _, _, rows in classes
        )
        for alternative in request.alternatives
    ]
    return max(counts, default=0)


def kept_out(stage: Stage, able: int, count: Callable[[Stage], int]) -> Reason | None:
    """Return why the stage has too few nodes, if only because of restrictions on where it may go.

    ``able`` nodes match now; ``count`` returns how many would match for a stage with other restrictions.
    """
    free = replace(stage, avoid=(), only=(), site="")
    if stage.mounts and count(free) < stage.nodes <= count(replace(free, mounts=())):
        numbers = {"folders": ", ".join(stage.mounts), "nodes": able, "needed": stage.nodes, "pool": stage.pool}
        return Reason("MountMissing", numbers)
    if stage.avoid and count(replace(stage, avoid=())) >= stage.nodes:
        numbers = {"avoided": ", ".join(stage.avoid), "nodes": able, "needed": stage.nodes, "pool": stage.pool}
        return Reason("NodesAvoided", numbers)
    if stage.only and count(replace(stage, avoid=(), only=())) >= stage.nodes:
        numbers = {"only": wanted(stage.only), "nodes": able, "needed": stage.nodes, "pool": stage.pool}
        return Reason("NodesRestricted", numbers)
    if stage.site and count(free) >= stage.nodes:
        return Reason("DataResidency", {"site": stage.site, "pool": stage.pool, "nodes": able, "needed": stage.nodes})
    return None


def wanted(only: Iterable[Iterable[str]]) -> str:
    """Write what nodes must have: ``(n1|n2) & rack=r2``, at most eight of each; a word alone is the name or the value
    of a label."""
    groups = [[_worded(one, group) for one in group] for group in only]
    said = [_at_most_shown(list(dict.fromkeys(group)), "|") for group in groups]
    return _at_most_shown([f"({one})" if "|" in one and len(said) > 1 else one for one in said], " & ")


def _worded(one: str, group: Iterable[str]) -> str:
    word = one.removeprefix("*=").removesuffix("=*")
    return word if word != one and {f"*={word}", f"{word}=*"} <= set(group) else one


def _at_most_shown(words: Sequence[str], between: str) -> str:
    return between.join([*words[:_SHOWN], *(["..."] if len(words) > _SHOWN else [])])


def _parts(
    stage: Stage,
    alternative: Alternative,
    usable: list[tuple[NodeClass, Rows, Offsets]],
    fleet: Fleet,
    profile: Profile,
) -> list[FeasiblePart]:
    """Return the node classes that can run an alternative, grouped by likeness and, if it must stay in one domain,
    by domain."""
    at = speed.deciding(alternative.asks)
    groups = [list(range(len(usable)))] if usable else []
    if profile.groups:
        by_kit: dict[int, list[int]] = {}
        for i, (one, _, _) in enumerate(usable):
            by_kit.setdefault(one.kit, []).append(i)
        first = [usable[members[0]] for members in by_kit.values()]
        samples = [(fleet.nodes[row], int(fleet.first[row])) for _, rows, _ in first for row in rows[:1].tolist()]
        devices = [
            tuple(fleet.devices[begin + i] for i in offsets[at])
            for (_, begin), (_, _, offsets) in zip(samples, first, strict=True)
        ]
        nodes = list(zip([node for node, _ in samples], devices, strict=True))
        for policy in profile.groups:
            groups = policy.groups(stage, nodes)
        members = list(by_kit.values())
        groups = [sorted(i for kit in group for i in members[kit]) for group in groups]
    found = [(sort, part) for sort, group in enumerate(groups) for part in _domains(stage, usable, group)]
    return [FeasiblePart(alternative, sort, [usable[i] for i in part]) for sort, part in found]


def _domains(stage: Stage, usable: Sequence[tuple[NodeClass, Rows, Offsets]], group: list[int]) -> list[list[int]]:
    """Return the group, split by domain if the stage must stay in one. A node without the label is in no domain."""
    if not (stage.within and stage.within_required) or stage.nodes == 1:
        return [group]
    parts: dict[str, list[int]] = {}
    for i in group:
        name = usable[i][0].sample.labels.get(stage.within)
        if name is not None:
            parts.setdefault(name, []).append(i)
    return [parts[name] for name in sorted(parts)]


def _feasible(stage: Stage, part: FeasiblePart, fleet: Fleet, measured: Mapping[tuple[str, str], float]) -> FeasibleSet:
    """The way that a part is, of which nothing is known yet."""
    alternative = part.alternative
    sizes = [len(rows) for _, rows, _ in part.classes]
    nodes: Rows = np.concatenate([rows for _, rows, _ in part.classes])
    order = np.argsort(fleet.rank[nodes], kind="stable")
    nodes = nodes[order]
    rows, needs = [], []
    for i, ask in enumerate(alternative.asks):
        width = max(len(offsets[i]) for _, _, offsets in part.classes)
        filled = np.array([[*offsets[i], *([-1] * (width - len(offsets[i])))] for _, _, offsets in part.classes])
        lines = np.repeat(filled, sizes, axis=0)[order]
        matrix: Rows = np.where(lines < 0, -1, fleet.first[nodes][:, None] + lines)
        rows.append(matrix)
        if ask.partition:
            begins = [int(fleet.first[int(one[0])]) for _, one, _ in part.classes]
            shares = [
                [match.share_of(ask, fleet.devices[begin + at])[0] for at in offsets[i]]
                for begin, (_, _, offsets) in zip(begins, part.classes, strict=True)
            ]
            per_class = np.array([[*line, *([0] * (width - len(line)))] for line in shares])
            needs.append(np.repeat(per_class, sizes, axis=0)[order])
            continue
        exclusive = fleet.is_exclusive[matrix] & (matrix >= 0)
        needs.append(np.where(exclusive, fleet.capacity[matrix], ask.milli))
    return FeasibleSet(
        alternative,
        CandidateNodes(fleet, alternative, nodes),
        _slowest(stage, part, fleet, measured),
        tuple(rows),
        tuple(needs),
        match.are_disjoint(alternative.asks),
        part.codes,
        sort=part.sort,
    )


def _slowest(stage: Stage, part: FeasiblePart, fleet: Fleet, measured: Mapping[tuple[str, str], float]) -> float:
    """How fast the stage is on the slowest device of a part."""
    deciding = speed.deciding(part.alternative.asks)
    ask = part.alternative.asks[deciding]
    kits = {one.kit: (int(fleet.first[int(rows[0])]), offsets) for one, rows, offsets in part.classes}
    devices = [fleet.devices[begin + at] for begin, offsets in kits.values() for at in offsets[deciding]]
    return min(
        speed.speed(stage.kind, stage.precision, device, measured, match.partition_of(ask, device))
        for device in devices
    )


def _impossible(stage: Stage, matching: int, largest: int, unavailable: int) -> Reason:
    asks = demand(stage.alternatives, stage.nodes)
    if not matching:
        return Reason("NoMatchingDevice", {"pool": stage.pool, **spoken(asks=asks)})
    if largest < stage.nodes:
        numbers = {"pool": stage.pool, "nodes": largest, "needed": stage.nodes}
        return Reason("ExceedsClusterMax", {**spoken(asks=asks), **numbers})
    if unavailable:
        return Reason("NodesUnavailable", {"nodes": unavailable, "pool": stage.pool})
    # Enough nodes match, but no sort of device, or no domain, has enough of them.
    where = clause("InsideOne", domain=stage.within) if stage.within_required else clause("OfOneModel")
    return Reason("ExceedsClusterMax", {"pool": stage.pool, **spoken(asks=(*asks, where)), "needed": stage.nodes})


def _unequipped(stage: Stage, able: int, ready: int) -> Reason:
    """Why an image keeps the stage from ``ready`` nodes that would do without it; ``able`` of them can run it."""
    asks = spoken(asks=demand(stage.alternatives, 1))
    if able:
        found = clause(several(able, "EngineOn", "EnginesOn"), able=able, ready=ready, pool=stage.pool, **asks)
    else:
        found = clause("NoEngine", pool=stage.pool, **asks)
    numbers = {"pool": stage.pool, "nodes": able, "needed": stage.nodes}
    return Reason("ImageUnavailable", {**spoken(detail=(found,)), **numbers})


def demand(alternatives: Iterable[Alternative], nodes: int) -> Said:
    """The request in clauses: ``2 nodes with 8 gpu H100 · 8 cores 64 GiB, or 1 core``."""
    said: list[Clause] = [clause("EachOfNodes", nodes=nodes)] if nodes > 1 else []
    for i, alternative in enumerate(alternatives):
        said += [clause("OrElse")] if i else []
        for j, ask in enumerate(alternative.asks):
            said += [clause("With")] if j else []
            said += _demanded(ask)
    return tuple(said)


def amount(kind: str, mbps: int, space_bytes: int) -> Clause:
    """Return so much of an amount of a node in words."""
    if kind == NETWORK:
        return clause("NetworkBandwidth", mbps=mbps)
    if not mbps:
        return clause("DiskSpace", space_bytes=space_bytes)
    if not space_bytes:
        return clause("DiskBandwidth", mbps=mbps)
    return clause("DiskSpaceAndBandwidth", space_bytes=space_bytes, mbps=mbps)


def _demanded(ask: Ask) -> Iterator[Clause]:
    if not is_device(ask.kind):
        yield amount(ask.kind, ask.milli, ask.memory_bytes)
        return
    if ask.kind == "cpu":
        cores = ask.count * ask.milli / 1000
        yield clause("OneCore") if cores == 1 else clause("SomeCores", cores=f"{cores:.4g}")
    else:
        yield clause("Devices", count=ask.count, device=" ".join(filter(None, (ask.kind, ask.vendor, ask.model))))
        if ask.partition:
            yield clause("PartitionOfEach", partition=ask.partition)
        elif ask.milli != 1000:
            yield clause("ShareOfEach", milli=ask.milli)
        if ask.sharing:
            yield clause("HeldToMemory", sharing=ask.sharing)
    if ask.memory_bytes:
        yield clause("WithMemory", memory_bytes=ask.memory_bytes)
