"""The engine's store on PostgreSQL: loads a Snapshot in a handful of queries and applies a Plan in one transaction.

No lock is held between the two. Rows that changed meanwhile are detected when the plan is applied, and only the starts
and stops that they concern are skipped.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from operator import is_
from typing import Any

from django.db import connection

from controlplane.clauses import Told, clause, told, verbatim
from controlplane.fleet import alarms, calendar, world
from controlplane.fleet.world import parsed
from controlplane.pools.profiles import built, last_good, named
from controlplane.scheduling import apply, data_locality
from controlplane.scheduling.announced_starts import AnnouncedStarts
from controlplane.scheduling.change_feed import ChangeFeed
from controlplane.scheduling.history import History
from controlplane.scheduling.pending import PendingStages
from controlplane.scheduling.promise_lateness import PromiseLateness
from controlplane.scheduling.running import RunningStages
from controlplane.scheduling.scaling import Scaling
from controlplane.scheduling.stage_facts import StageFacts
from controlplane.scheduling.typical_requests import TypicalRequests
from controlplane.scheduling.usage import UsageLedger
from controlplane.scheduling.waiting_reasons import WaitingReasons
from scheduler.core.model.profile import Profile
from scheduler.core.model.types import Budget, Limit, News, Node, Plan, Pool, Project, Quota, Snapshot
from scheduler.core.planning.garbage import uncollected
from scheduler.core.ports import Applied
from scheduler.profiles import DEFAULT, PROFILES

_RULES = """
SELECT (SELECT coalesce(json_agg(to_jsonb(p) || jsonb_build_object('number', v.number, 'spec', v.spec)
                                 ORDER BY p.name), '[]')
        FROM pools_pool p LEFT JOIN pools_profile f ON f.name = p.profile
                          LEFT JOIN pools_profileversion v ON v.id = f.active_id),
       (SELECT coalesce(json_agg(p ORDER BY p.name), '[]') FROM access_project p),
       (SELECT coalesce(json_agg(to_jsonb(q) || jsonb_build_object('project', p.name)
                                 ORDER BY p.name, q.kind, q.model, q.normalised), '[]')
        FROM pools_quota q JOIN access_project p ON p.id = q.project_id),
       (SELECT coalesce(json_agg(jsonb_build_object(
                   'number', l.id, 'pool', p.name, 'project', t.name, 'user', u.username, 'running', l.running,
                   'devices', l.devices) ORDER BY l.id), '[]')
        FROM pools_limit l LEFT JOIN pools_pool p ON p.id = l.pool_id
             LEFT JOIN access_project t ON t.id = l.project_id LEFT JOIN access_user u ON u.id = l.user_id),
       (SELECT coalesce(json_agg(jsonb_build_object(
                   'number', b.id, 'project', p.name, 'kind', b.kind, 'normalised', b.normalised, 'hours', b.hours,
                   'used', b.used_hours, 'until', extract(epoch FROM b.until_at)) ORDER BY b.id), '[]')
        FROM pools_budget b JOIN access_project p ON p.id = b.project_id
        WHERE b.at_end <> 'notify' AND b.used_hours >= b.hours AND b.until_at > to_timestamp(%s)),
       (SELECT coalesce(json_agg(json_build_array(
                   w.id::text, w.node_id, p.name, '[]'::json, extract(epoch FROM w.starts_at),
                   extract(epoch FROM w.ends_at), w.cron, w.time_zone, w.lasts_s, w.reason, '', '')
                   ORDER BY w.id), '[]')
        FROM fleet_maintenancewindow w LEFT JOIN pools_pool p ON p.id = w.pool_id
        WHERE w.cancelled_at IS NULL AND w.ends_at > to_timestamp(%s)),
       (SELECT coalesce(json_agg(json_build_array(
                   'reservation ' || r.name, NULL, NULL,
                   (SELECT json_agg(n.node_id) FROM fleet_reservation_nodes n WHERE n.reservation_id = r.id),
                   extract(epoch FROM r.starts_at), extract(epoch FROM r.ends_at), r.cron, r.time_zone, r.lasts_s,
                   r.reason, r.name, p.name) ORDER BY r.id), '[]')
        FROM fleet_reservation r JOIN access_project p ON p.id = r.project_id
        WHERE r.cancelled_at IS NULL AND r.ends_at > to_timestamp(%s)
              AND EXISTS (SELECT 1 FROM fleet_reservation_nodes n WHERE n.reservation_id = r.id))
"""


class LiveStore:
    """Implements ``scheduler.core.ports.Store`` on PostgreSQL. Keep one per process: it remembers what stays."""

    def __init__(self) -> None:
        self.history = History()
        self.scaling = Scaling()
        self.lateness = PromiseLateness()
        self.starts = AnnouncedStarts()
        self.usual = TypicalRequests()
        self.ledger = UsageLedger()
        known = StageFacts()
        self._queue = PendingStages(known, self.history, self.scaling)
        self._holders = RunningStages(known, self.history, self.scaling)
        self._reports = WaitingReasons()
        self._feed, self._fleet = ChangeFeed(), world.FleetReader()
        self._nodes: tuple[Node, ...] = ()
        self._node_news: dict[str, Node | None] = {}
        # How often the news were asked for; nothing is gathered for a process that never does.
        self._serial = 0
        # Whether the last load read everything.
        self.has_read_everything = False
        # The profile that decided last in each pool, by the pool's name.
        self._deciding: dict[str, Profile] = {}
        # Rows that the last cycle left out because they are invalid: by kind of alarm, then by name.
        self.aside: dict[str, dict[str, Told]] = {}

    @uncollected()
    def load(self, now: float) -> Snapshot:
        """Return the snapshot for one cycle: everything that it may know."""
        with connection.cursor() as cursor:
            cursor.execute(_RULES, [now, now, now])
            pools, projects, quotas, limits, budgets, windows, reservations = (
                parsed(column) for column in cursor.fetchone()
            )
            pinning = any(not pool["storage_path"] for pool in pools)
            changed = self._feed.read(cursor)
            stages = changed.stages if changed else None
            self._fleet.read(cursor, changed.nodes if changed else None)
            self._queue.read(cursor, now, stages, pinning=pinning)
            self._holders.read(cursor, now, self._queue.ids, stages, pinning=pinning)
            self._feed.taken()
        self.has_read_everything = stages is None
        waiting = tuple(self._queue.waiting.values())
        self._see_nodes(data_locality.with_cached(self._fleet.nodes, self._queue.reading.values()))
        if not self._serial:
            self._forget_news()
        unknown = self._choose_profiles(pools)
        self.aside = {
            alarms.NODE: self._fleet.aside,
            alarms.STAGE: {**self.history.aside, **self._holders.aside, **self._queue.aside},
            alarms.POOL: {},
            alarms.PROFILE: unknown,
        }
        used = self.ledger.used(now)
        return Snapshot(
            nodes=self._nodes,
            waiting=waiting,
            running=tuple(self._holders.running.values()),
            projects=tuple(Project(p["name"], p["weight"], used.get(p["id"], 0.0)) for p in projects),
            quotas=tuple(
                Quota(
                    project=quota["project"],
                    kind=quota["kind"],
                    nominal_milli=_milli(quota["nominal"]),
                    borrowing_limit_milli=_milli(quota["borrowing_limit"]),
                    lending_limit_milli=_milli(quota["lending_limit"]),
                    cohort=quota["cohort"],
                    model=quota["model"],
                    normalised=quota["normalised"],
                )
                for quota in quotas
            ),
            limits=tuple(
                Limit(
                    number=limit["number"],
                    pool=limit["pool"] or "",
                    project=limit["project"] or "",
                    user=limit["user"] or "",
                    running=limit["running"],
                    devices_milli=_milli(limit["devices"]),
                )
                for limit in limits
            ),
            budgets=tuple(
                Budget(
                    number=budget["number"],
                    project=budget["project"],
                    kind=budget["kind"],
                    hours=budget["hours"],
                    used_hours=budget["used"],
                    until_at=float(budget["until"]),
                    normalised=budget["normalised"],
                )
                for budget in budgets
            ),
            pools=tuple(
                Pool(
                    name=pool["name"],
                    profile=self._deciding[pool["name"]].name,
                    stopped_by=pool["stopped_by"],
                    default_limit_s=float(pool["default_limit_s"]),
                    max_limit_s=float(pool["max_limit_s"]),
                    user_limit=pool["user_limit"],
                    typical=self.usual.of(pool["name"], now),
                )
                for pool in pools
            ),
            speeds=self.history.speeds(now),
            lateness=self.lateness.known(now),
            announced=self.starts.known(now),
            maintenance=calendar.as_seen([*windows, *reservations], self._nodes, now),
        )

    def news(self) -> News:
        """Return what changed in the snapshot of :meth:`load` since the last call."""
        self._serial += 1
        found = News(self._serial, self._queue.news, self._holders.news, self._node_news)
        self._reports.note_changes(found)
        self._forget_news()
        return found

    def _forget_news(self) -> None:
        self._queue.news, self._holders.news, self._node_news = {}, {}, {}

    def _see_nodes(self, nodes: tuple[Node, ...]) -> None:
        """Keep unchanged nodes identical objects, and add changed ones to the news."""
        if nodes is self._nodes:
            return
        before = {node.id: node for node in self._nodes}
        # Most are the same object, and comparing two nodes compares all that they have.
        kept = tuple(node if (old := before.get(node.id)) is node or old != node else old for node in nodes)
        self._node_news |= {node.id: node for node in kept if before.get(node.id) is not node}
        self._node_news |= dict.fromkeys(before.keys() - {node.id for node in kept})
        # Where all are the given ones, the next look tells by the tuple alone that nothing changed.
        self._nodes = nodes if all(map(is_, kept, nodes)) else kept

    def _choose_profiles(self, pools: Sequence[Mapping[str, Any]]) -> dict[str, Told]:
        """Choose the deciding profile of each pool; return faults by pool name.

        If the configured profile is unusable, the one that decided last stays; if this process knows none, the last
        usable version or the default is taken.
        """
        chosen, wrong = {}, {}
        for pool in pools:
            name, profile = pool["name"], pool["profile"]
            version = profile if profile in PROFILES else f"{profile}@{pool['number']}"
            fault: ValueError | None = None
            try:
                if profile in PROFILES:
                    chosen[name] = named(profile)
                elif pool["number"] is not None:
                    chosen[name] = built(version, pool["spec"])
            except ValueError as error:
                fault = error
            if name not in chosen:
                chosen[name] = self._deciding.get(name) or last_good(profile) or named(DEFAULT)
                other = chosen[name].name
                missing = clause("ProfileMissing", profile=profile, other=other)
                unusable = clause("ProfileUnusable", profile=version, fault=verbatim(str(fault)), other=other)
                wrong[name] = told(unusable if fault else missing)
        self._deciding = chosen
        return wrong

    def profile(self, name: str) -> Profile:
        """Return the profile of this name, preferring those that decide in the pools loaded last."""
        return next((one for one in self._deciding.values() if one.name == name), None) or named(name)

    def apply(self, snapshot: Snapshot, plan: Plan, now: float) -> Applied:
        """Apply the plan; see :func:`controlplane.scheduling.apply.apply_plan`."""
        return apply.apply_plan(snapshot, plan, now, self.aside.setdefault(alarms.STAGE, {}))

    def refresh(self, now: float) -> None:
        """Read again what is due of the summaries that cycles use, so that the next cycle need not."""
        for summary in (self.history, self.scaling, self.lateness, self.starts, self.usual, self.ledger):
            summary.refresh(now)

    def due(self, snapshot: Snapshot, plan: Plan | None, now: float) -> Collection[str] | None:
        """Return the stages whose reasons are to be evaluated now; ``None`` for all."""
        return self._reports.due(snapshot, plan, now)

    def tell(self, snapshot: Snapshot, plan: Plan, now: float) -> None:
        """Write the reasons of the evaluated pending stages."""
        faults = self.aside.setdefault(alarms.STAGE, {})
        self._reports.write(snapshot, plan, now, self._queue.waiting, self.history.held, faults)

    @property
    def is_behind(self) -> bool:
        """Return whether the reasons of some stages are older than the last change."""
        return self._reports.is_behind

    def tell_set_aside(self, planned_without: Mapping[str, int], now: float) -> None:
        """Write the reason of stages left out of planning or with invalid rows (stage id to job number)."""
        self._reports.set_aside({**self._queue.unusable, **planned_without}, now)


def _milli(devices: float | None) -> int | None:
    return None if devices is None else round(devices * 1000)


def clock() -> float:
    """Return wall-clock seconds, the time of live scheduling cycles."""
    return time.time()
