"""The asynchronous twin of ``switchyard.client``.

Made by switchyard/packaging/twin.py from switchyard/client.py; change it there.
"""

from __future__ import annotations

import asyncio
import math
import os
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self
from urllib.parse import quote, urlsplit

from switchyard import address
from switchyard.aio.entry import AsyncEntry
from switchyard.aio.logs import read, search, streams
from switchyard.aio.stream import listen
from switchyard.aio.wire import AsyncWire
from switchyard.client import (
    BATCH,
    EVERY_STATE,
    LONGEST_POLL_S,
    MOST_DEAF,
    TRACE_POLL_S,
    Answer,
    Ref,
    Rows,
    Spec,
    _entry,
    _filters,
    _iso,
    _named_profile,
    _pool,
    _project,
    _provider,
    _secrets_of,
    _service_account,
    _site,
    _token,
    _webhooks_of,
    reference,
)
from switchyard.job import Job
from switchyard.logs import PATIENCE_S, Chunk, LogMatch, LogQuery
from switchyard.problem import ApiProblem, SpecError, SwitchyardError, Unreachable, WaitTimeout
from switchyard.progress import ProgressLine
from switchyard.record import JobFields
from switchyard.stream import SILENCE_S

if TYPE_CHECKING:
    from switchyard import answers
    from switchyard.bundle import Bundle
    from switchyard.forward import Forward
    from switchyard.tarstream import Copied


class AsyncClient:
    """A connection to a control plane with one ``token``. For one event loop; close it, or use it in ``async with``.

    Every call raises :class:`~switchyard.problem.ApiProblem` if the control plane refuses and
    :class:`~switchyard.problem.Unreachable` if it does not answer after ``tries`` tries.
    """

    def __init__(self, url: str, token: str = "", *, timeout_s: float = 30.0, tries: int = 4) -> None:
        self.wire = AsyncWire(url, token, timeout_s=timeout_s, tries=tries)
        self.jobs = AsyncJobs(self.wire)
        self.nodes = AsyncNodes(self.wire)
        self.maintenance = AsyncMaintenance(self.wire)
        self.reservations = AsyncReservations(self.wire)
        self.consolidation = AsyncConsolidation(self.wire)
        self.schedules = AsyncSchedules(self.wire)
        self.services = AsyncServices(self.wire)
        self.functions = AsyncFunctions(self.wire)
        self.simulations = AsyncSimulations(self.wire)
        self.templates = AsyncTemplates(self.wire)
        self.secrets = AsyncSecrets(self.wire)
        self.webhooks = AsyncWebhooks(self.wire)
        self.service_accounts = AsyncServiceAccounts(self.wire)
        self.projects = AsyncProjects(self.wire)
        self.quotas: AsyncNumberedSettings[answers.Quota] = AsyncNumberedSettings(self.wire, "/quotas")
        self.budgets: AsyncNumberedSettings[answers.Budget] = AsyncNumberedSettings(self.wire, "/budgets")
        self.limits: AsyncNumberedSettings[answers.Limit] = AsyncNumberedSettings(self.wire, "/limits")
        self.tokens = AsyncTokens(self.wire)
        self.profiles = AsyncProfiles(self.wire)
        self.operations = AsyncOperations(self.wire)
        self.decisions = AsyncPastDecisions(self.wire)
        self.project = ""

    @classmethod
    def from_env(
        cls, url: str | None = None, token: str | None = None, *, profile: str | None = None, tries: int = 4
    ) -> AsyncClient:
        """Create a client for what :func:`switchyard.address.find` finds; its project is the default of new jobs."""
        found = address.find(url, token, profile=profile)
        client = cls(found.url, found.token, tries=tries)
        client.project = client.jobs.project = found.project
        return client

    @property
    def url(self) -> str:
        return self.wire.url

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        await self.wire.close()

    async def overview(self) -> answers.Overview:
        """Return tiles, heat map, queue and signs that need attention, as on the first page."""
        return await self.wire.get("/overview")

    async def loads(self, *, metric: str = "utilisation", by: str = "pool") -> answers.Loads:
        """Return one metric of groups of devices.

        ``metric`` is ``utilisation``, ``allocated``, ``memory``, ``power`` or ``temperature``; ``by`` is ``node``,
        ``pool``, ``kind``, ``model`` or ``project``.
        """
        return await self.wire.get("/overview/loads", {"metric": metric, "by": by})

    async def capacity_history(self, within: str = "day") -> answers.CapacityHistory:
        """Return how many devices were there and allocated, and how many stages waited, over the last day or week."""
        return await self.wire.get("/overview/history", {"within": within})

    async def gangs(self) -> Rows[answers.Gang]:
        """Return the largest gang of each model that fits now: on how many nodes how many whole devices are free."""
        return list((await self.wire.get("/overview/gangs"))["results"])

    async def timeline(
        self, since_s: float = 3600.0, until_s: float = 3600.0, *, pool: str = "", node: str = "", nodes: int = 1000
    ) -> answers.Timeline:
        """Return who held, holds and will hold each device, from ``since_s`` seconds ago to ``until_s`` from now.

        Of ``nodes`` nodes at most, with ``node`` in their names; see ``node_count`` and ``truncated``.
        """
        asked = {"from": f"{-since_s:g}", "to": f"{until_s:g}", "pool": pool or None, "node": node or None}
        return await self.wire.get("/timeline", {**asked, "nodes": nodes})

    async def version(self) -> answers.Version:
        return await self.wire.get("/version")

    async def health(self) -> answers.Installation:
        """Return the checks of the installation; staff get the details."""
        return await self.wire.get("/health")

    def audit(
        self,
        *,
        actor: str = "",
        object: str = "",
        action: str = "",
        via: str = "",
        since: datetime | None = None,
        most: int = 100,
    ) -> AsyncIterator[answers.AuditEntry]:
        """Yield audit entries, newest first, at most ``most``. For auditors."""
        wanted = {"actor": actor, "object": object, "action": action, "via": via}
        asked = {name: value or None for name, value in wanted.items()}
        asked |= {"since": since.isoformat() if since else None, "limit": str(max(1, min(most, 500)))}
        return pages(self.wire, "/audit", asked, most)

    async def usage(
        self,
        *,
        by: str = "project",
        first: str | None = None,
        last: str | None = None,
        project: str = "",
        limit: int | None = None,
    ) -> answers.UsageReport:
        """Return device time, energy and cost from the first to the last UTC day, in groups such as ``user,model``.

        By ``job``, the results are of ``limit`` jobs, those that were charged most, and ``rest`` is what others used.
        """
        wanted = {"by": by, "from": first, "to": last, "project": project or None, "limit": limit}
        return await self.wire.get("/usage", wanted)

    async def usage_csv(
        self,
        *,
        by: str = "project",
        first: str | None = None,
        last: str | None = None,
        project: str = "",
        limit: int | None = None,
    ) -> str:
        """Return the same as CSV."""
        wanted = {"by": by, "from": first, "to": last, "project": project or None, "limit": limit, "format": "csv"}
        return (await self.wire.call("GET", "/usage", params=wanted)).text

    async def whoami(self) -> answers.Whoami:
        return await self.wire.get("/whoami")

    def devices(self, *, kind: str | None = None, node: str | None = None) -> AsyncIterator[answers.Device]:
        """Yield the devices, page by page, by kind or of one node."""
        return pages(self.wire, "/devices", {"limit": 500, "kind": kind, "node": node})

    async def calendar(self, since: datetime, until: datetime, *, pool: str = "") -> answers.Calendar:
        """Return each time at which nodes are out of service or reserved, between two times with a zone."""
        params = {"since": since.isoformat(), "until": until.isoformat(), "pool": pool or None}
        return await self.wire.get("/calendar", params)

    async def hardware(self) -> list[answers.Hardware]:
        """Return the models of devices: declared rates, how many are there and free, and which stages they suit."""
        return list((await self.wire.get("/hardware"))["results"])

    async def device_metrics(self, uuid: str, since_s: float = 900.0) -> answers.DeviceMetrics:
        """Return what a device measured over the last ``since_s`` seconds, in at most 300 steps."""
        return await self.wire.get(f"/devices/{quote(uuid, safe='')}/metrics", {"since_s": since_s})

    def device_claims(self, uuid: str) -> AsyncIterator[answers.PastClaim]:
        """Yield who held a device, newest first, page by page."""
        return pages(self.wire, f"/devices/{quote(uuid, safe='')}/claims", {"limit": 500})

    def pools(self) -> AsyncIterator[answers.Pool]:
        """Yield the pools."""
        return pages(self.wire, "/pools", {})

    async def create_pool(self, settings: Mapping[str, Any]) -> answers.Pool:
        """Add a pool: ``name``, ``profile``, ``max_limit_s`` and others. For operators."""
        return await self.wire.post("/pools", dict(settings))

    async def change_pool(self, pool: str, patch: Mapping[str, Any], *, if_match: str = "*") -> answers.Pool:
        """Change a pool; with the ETag of its settings only as they were read. For operators."""
        return (await self.wire.call("PATCH", _pool(pool), json=dict(patch), headers={"If-Match": if_match})).json()

    async def delete_pool(self, pool: str, *, if_match: str = "*") -> None:
        """Delete a pool that never had a job; its nodes stay. For operators."""
        await self.wire.call("DELETE", _pool(pool), headers={"If-Match": if_match})

    def providers(self) -> AsyncIterator[answers.NodeProvider]:
        """Yield the providers of nodes, and what is known of them. For operators."""
        return pages(self.wire, "/providers", {})

    async def provider(self, name: str) -> answers.NodeProvider:
        """Return a provider of nodes. For operators."""
        return await self.wire.get(_provider(name))

    async def create_provider(self, settings: Mapping[str, Any]) -> answers.NodeProvider:
        """Add a provider: ``name``, ``kind``, ``pool``, ``settings``, ``shapes`` and others. For operators."""
        return await self.wire.post("/providers", dict(settings))

    async def change_provider(
        self, name: str, patch: Mapping[str, Any], *, if_match: str = "*"
    ) -> answers.NodeProvider:
        """Change a provider; with the ETag of its settings only as they were read. For operators."""
        return (await self.wire.call("PATCH", _provider(name), json=dict(patch), headers={"If-Match": if_match})).json()

    async def delete_provider(self, name: str, *, if_match: str = "*") -> None:
        """Delete a provider without pilots. For operators."""
        await self.wire.call("DELETE", _provider(name), headers={"If-Match": if_match})

    def sites(self) -> AsyncIterator[answers.Site]:
        """Yield the other clusters to which jobs may leave, and what is known of them."""
        return pages(self.wire, "/sites", {})

    async def site(self, name: str) -> answers.Site:
        """Return another cluster to which jobs may leave."""
        return await self.wire.get(_site(name))

    async def create_site(self, settings: Mapping[str, Any]) -> answers.Site:
        """Add a site: ``name``, ``url`` and others. For operators."""
        return await self.wire.post("/sites", dict(settings))

    async def change_site(self, name: str, patch: Mapping[str, Any], *, if_match: str = "*") -> answers.Site:
        """Change a site; with the ETag of its settings only as they were read. For operators."""
        return (await self.wire.call("PATCH", _site(name), json=dict(patch), headers={"If-Match": if_match})).json()

    async def delete_site(self, name: str, *, if_match: str = "*") -> None:
        """Delete a site without jobs of ours. For operators."""
        await self.wire.call("DELETE", _site(name), headers={"If-Match": if_match})

    async def set_site_token(self, name: str, token: str) -> answers.Site:
        """Set the token with which a site is asked. For operators."""
        return (await self.wire.call("PUT", f"{_site(name)}/token", json={"token": token})).json()

    def site_jobs(self, name: str) -> AsyncIterator[answers.SiteJob]:
        """Yield our jobs at a site, newest first, those that are over included."""
        return pages(self.wire, f"{_site(name)}/jobs", {})

    async def give_up_site(self, name: str, reason: str) -> answers.GivenUp:
        """Confirm that nothing of ours runs any more at a site that does not answer. For operators."""
        return await self.wire.post(f"{_site(name)}/give-up", {"reason": reason})

    def pilots(self, provider: str) -> AsyncIterator[answers.Pilot]:
        """Yield the pilots of a provider, newest first, those that are gone included. For operators."""
        return pages(self.wire, f"{_provider(provider)}/pilots", {})

    async def pool_access(self, pool: str) -> answers.PoolUsers:
        """Return the ``projects`` and ``groups`` that may use a pool, and whether it is ``restricted`` to them."""
        return await self.wire.get(f"{_pool(pool)}/access")

    async def allow_pool(
        self, pool: str, *, projects: Sequence[str] = (), groups: Sequence[str] = (), restricted: bool = False
    ) -> answers.PoolUsers:
        """Let only these use a pool; without any everybody, or nobody if it is to be restricted. For operators."""
        body = {"projects": [*projects], "groups": [*groups], "restricted": restricted}
        return (await self.wire.call("PUT", f"{_pool(pool)}/access", json=body)).json()

    async def priority_classes(self) -> AsyncIterator[answers.PriorityClass]:
        """Yield the priority classes, the most urgent first: ``projects`` may use each, null is all."""
        for each in (await self.wire.get("/priority-classes"))["results"]:
            yield each

    async def create_priority_class(self, settings: Mapping[str, Any]) -> answers.PriorityClass:
        """Add a priority class: ``name``, ``value``, ``preemptible``, ``restricted``, ``projects``. For accountants."""
        return await self.wire.post("/priority-classes", dict(settings))

    async def change_priority_class(
        self, name: str, patch: Mapping[str, Any], *, if_match: str = "*"
    ) -> answers.PriorityClass:
        """Change a priority class for jobs submitted from now on; with its ETag only as it was read. For
        accountants."""
        path = f"/priority-classes/{quote(name, safe='')}"
        return (await self.wire.call("PATCH", path, json=dict(patch), headers={"If-Match": if_match})).json()

    async def delete_priority_class(self, name: str, *, if_match: str = "*") -> None:
        """Delete a priority class; jobs that have it keep its value. For accountants."""
        await self.wire.call("DELETE", f"/priority-classes/{quote(name, safe='')}", headers={"If-Match": if_match})

    async def search(self, words: str, *, limit: int = 6) -> Rows[answers.SearchHit]:
        """Return jobs, nodes, devices, pools, projects and people whose name contains ``words``, and jobs of this
        number; at most ``limit`` of each kind, of jobs by name among the newest."""
        return (await self.wire.get("/search", {"q": words, "limit": limit}))["results"]

    async def sessions(self) -> Rows[answers.WebPort]:
        """Return the named ports of all stages that have not ended, those of the newest jobs first, at most 200."""
        return (await self.wire.get("/sessions"))["results"]

    async def retention_due(self) -> Rows[answers.RetentionDue]:
        """Return the records of your projects that would be removed now, by kind; nothing is removed."""
        return list((await self.wire.get("/retention/preview"))["results"])

    def topology(self, *, node: str | None = None, pool: str | None = None) -> AsyncIterator[answers.Topology]:
        """Yield nodes with their link groups, NUMA nodes and links, page by page, of a pool or one alone."""
        return pages(self.wire, "/topology", {"limit": 500, "node": node, "pool": pool})

    async def preview(self, spec: Spec) -> dict[str, Any]:
        """Return where and when ``spec`` would start, and what it would displace. Nothing is queued or sent."""
        return await self.jobs.preview(spec)

    async def upload(self, folder: str | os.PathLike[str] | Bundle) -> str:
        """Pack and send a folder unless the control plane has its bytes already; return the bundle's SHA-256."""
        return await upload(self.wire, folder)


class AsyncJobs:
    """The jobs of a control plane. A job is named by its number, its id, or an object with one of them."""

    def __init__(self, wire: AsyncWire) -> None:
        self._wire = wire
        self.project = ""

    async def submit(
        self, spec: Spec, *, workdir: str | os.PathLike[str] | Bundle | None = None, idempotency_key: str | None = None
    ) -> AsyncJobRecord:
        """Queue a job and return it. The job is stored when this returns.

        ``workdir`` (or the key of that name in ``spec``) is packed and sent first, unless it names a git repository.
        The same ``idempotency_key`` with the same job returns the same job again, however often it is sent.
        """
        body = await _sent(self._wire, self._body(spec), workdir)
        return AsyncJobRecord(self, await self._wire.post("/jobs", body, key=idempotency_key))

    async def submit_many(self, specs: Iterable[Spec]) -> Rows[answers.Accepted]:
        """Queue many jobs in few calls; return ``{"id", "number"}`` of each, in order. Each call is all or nothing."""
        bodies = [self._body(spec) for spec in specs]
        if any(isinstance(body.get("workdir"), str | os.PathLike) for body in bodies):
            raise SpecError("submit_many sends no folders; upload one with AsyncClient.upload and give its bundle")
        made: Rows[answers.Accepted] = []
        for at in range(0, len(bodies), BATCH):
            made += (await self._wire.post("/jobs/batch", {"jobs": bodies[at : at + BATCH]}))["results"]
        return made

    async def preview(self, spec: Spec, *, how: str = "placement") -> dict[str, Any]:
        """Dry-run ``spec``: ``validate`` parses it, ``placement`` also returns where and when it would start."""
        body = self._body(spec)
        if not isinstance(body.get("workdir"), Mapping):
            body.pop("workdir", None)
        return dict(await self._wire.post("/jobs", body, params={"dry_run": how}))

    async def get(self, job: Ref) -> AsyncJobRecord:
        """Return a job, or an array by its number; an element of an array is ``42_7``."""
        return AsyncJobRecord(self, await self._either("GET", job))

    async def list(
        self,
        *,
        state: str | Sequence[str] | None = None,
        project: str | None = None,
        user: str | None = None,
        q: str | None = None,
        label: str | None = None,
        sort: str | None = None,
        array: int | str | None = None,
        submitted_after: datetime | None = None,
        limit: int | None = None,
        fields: Sequence[str] | None = None,
    ) -> AsyncIterator[AsyncJobRecord]:
        """Yield jobs, newest first by default, page by page; at most ``limit`` of them. ``user="me"`` for your own.
        ``submitted_after`` is a time with a zone.
        ``array`` chooses the elements of one, or with ``"none"`` the jobs that are no elements. With ``fields`` they
        have only these, such as ``("number", "state")``."""
        which = None if array is None else str(array)
        asked = _filters(state, limit, project=project, user=user, q=q, label=label, sort=sort, array=which)
        asked |= {"fields": ",".join(fields) if fields else None, "submitted_after": _iso(submitted_after)}
        async for record in pages(self._wire, "/jobs", asked, limit):
            yield AsyncJobRecord(self, record)

    async def queue(self, *, pool: str | None = None, limit: int = 100) -> answers.QueueSlice:
        """Return the waiting jobs with their places, ``{"results": [{"place", "job"}], "total"}``; at most 500."""
        return await self._wire.get("/queue", {"pool": pool, "limit": limit})

    async def arrays(
        self,
        *,
        state: str | Sequence[str] | None = None,
        project: str | None = None,
        user: str | None = None,
        q: str | None = None,
        label: str | None = None,
        submitted_after: datetime | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[AsyncJobRecord]:
        """Yield arrays, newest first, each with its elements by state; ``state`` chooses by those of elements."""
        since = _iso(submitted_after)
        asked = _filters(state, limit, project=project, user=user, q=q, label=label, submitted_after=since)
        async for record in pages(self._wire, "/arrays", asked, limit):
            yield AsyncJobRecord(self, record)

    def elements(self, array: int | str) -> AsyncIterator[answers.ArrayElement]:
        """Yield the elements of an array in short: index, parameters, state and the numbers that they reported."""
        return pages(self._wire, f"/arrays/{quote(reference(array), safe='')}/elements", {"limit": 500})

    async def best(self, array: int | str, metric: str, goal: str = "min") -> answers.BestElement | None:
        """Return the element of an array with the smallest (or ``"max"``: largest) reported value of ``metric``."""
        path = f"/arrays/{quote(reference(array), safe='')}"
        found: answers.BestElement | None = (await self._wire.get(path, {"metric": metric, "goal": goal}))["best"]
        return found

    async def history(
        self,
        *,
        state: str | Sequence[str] | None = "ended",
        project: str | None = None,
        user: str | None = None,
        label: str | None = None,
        limit: int = 1000,
    ) -> Rows[dict[str, Any]]:
        """Return the newest ended jobs as flat rows, which ``pandas.DataFrame`` takes as they are: see
        :meth:`~switchyard.record.JobFields.row`. ``state=None`` for those that have not ended too."""
        found = self.list(state=state, project=project, user=user, label=label, limit=limit)
        return [record.row() async for record in found]

    async def enter(self, job: Ref, command: Sequence[str] = (), **ask: Any) -> AsyncEntry:
        """Run a command inside a running stage; without one, a shell. ``ask`` may have ``stage``, ``rank``, ``reason``,
        ``stdin``, and ``tty`` with ``rows``, ``columns`` and ``term``. Close the returned object, or use it in
        ``async with``."""
        return await AsyncEntry(self._wire, f"{self._path(job)}/exec", {"command": list(command), **ask}).open()

    def forward(
        self,
        job: Ref,
        port: int,
        *,
        local_port: int = 0,
        stage: str = "",
        rank: int = 0,
        reason: str = "",
        told: Callable[[str], object] | None = None,
    ) -> Forward:
        """Return a port of this machine, any free one by default, that leads to ``port`` of a running stage while it is
        open, as a context of its own (``with``, also here). It works in threads; ``told`` hears of connections that
        failed."""
        from switchyard.forward import Forward

        ask = {"stage": stage, "rank": rank, "reason": reason}
        return Forward(self._wire.address, reference(job), port, local_port, ask, told)

    async def copy_from(
        self,
        job: Ref,
        path: str,
        target: str | os.PathLike[str],
        *,
        stage: str = "",
        rank: int = 0,
        reason: str = "",
        most_bytes: int = 64 << 30,
    ) -> Copied:
        """Copy a file or folder out of a running stage; a relative ``path`` is below the folder in which its command
        started. A folder that is there gets it inside. Nothing is written elsewhere; what leads out is left out and
        counted. Needs ``tar`` in the stage, and the scope of :meth:`enter`."""
        from switchyard.copying import fetch

        ask = {"stage": stage, "rank": rank, "reason": reason}
        return await asyncio.to_thread(fetch, self._wire.address, reference(job), ask, path, Path(target), most_bytes)

    async def copy_to(
        self, job: Ref, source: str | os.PathLike[str], path: str, *, stage: str = "", rank: int = 0, reason: str = ""
    ) -> Copied:
        """Copy a file or folder into a running stage; see :meth:`copy_from`."""
        from switchyard.copying import send

        ask = {"stage": stage, "rank": rank, "reason": reason}
        return await asyncio.to_thread(send, self._wire.address, reference(job), ask, Path(source), path)

    async def wait(
        self,
        job: Ref,
        timeout_s: float | None = None,
        *,
        told: Callable[[AsyncJobRecord], None] | None = None,
        progress: bool = False,
    ) -> AsyncJobRecord:
        """Return the job once it is COMPLETED, FAILED or CANCELLED; ``told`` is called on every change of state before
        that. With ``progress`` a bar on standard error shows how far it is.

        Follows the stream of the control plane, and asks again and again where there is none. Survives a restart of the
        control plane. Raises :class:`~switchyard.problem.WaitTimeout` after ``timeout_s``.
        """
        begun, pause_s, away_since = (time.monotonic(), 0.2, None)
        with ProgressLine(progress) as line:
            waiting = _AsyncWait(self, self._wire, line, told, math.inf if timeout_s is None else begun + timeout_s)
            while True:
                try:
                    record = await self.get(job)
                except (Unreachable, ApiProblem) as error:
                    if isinstance(error, ApiProblem) and (not error.is_passing):
                        raise
                    now = time.monotonic()
                    away_since = now if away_since is None else away_since
                    if not waiting.seen or now - away_since > PATIENCE_S:
                        raise
                else:
                    away_since = None
                    record = await waiting.follow(record)
                    if record.is_final:
                        return record
                left_s = waiting.until - time.monotonic()
                if left_s <= 0:
                    state = waiting.seen or "out of sight"
                    raise WaitTimeout(f"job {reference(job)} is still {state} after {timeout_s:g} s")
                await asyncio.sleep(min(pause_s, left_s))
                pause_s = min(LONGEST_POLL_S, pause_s * 1.3)

    async def watch(
        self,
        *,
        state: str | Sequence[str] | None = None,
        project: str | None = None,
        user: str | None = None,
        q: str | None = None,
        label: str | None = None,
    ) -> AsyncIterator[tuple[str, AsyncJobRecord]]:
        """Yield ``("upsert", job)`` for each job that matches, and whenever it changes; ``("leave", job)``, with only
        its number, when it matches no more. Without ``state`` it begins with the jobs that have not ended.

        Goes on after a break where it was, for as long as the control plane is away for less than ten minutes.
        """
        asked = _filters(state, None, project=project, user=user, q=q, label=label)
        del asked["limit"]
        since, away_since, pause_s = ("", None, 0.2)
        while True:
            try:
                async with self._wire.stream("/jobs/watch", asked, since=since, silence_s=SILENCE_S) as answer:
                    async for event in listen(answer):
                        since, away_since, pause_s = (event.cursor or since, None, 0.2)
                        if event.name in ("upsert", "leave"):
                            yield (event.name, AsyncJobRecord(self, event.data))
            except (Unreachable, ApiProblem) as error:
                if isinstance(error, ApiProblem) and (not error.is_passing) and (error.code != "cursor_gone"):
                    raise
                since = "" if isinstance(error, ApiProblem) and error.code == "cursor_gone" else since
                now = time.monotonic()
                away_since = now if away_since is None else away_since
                if now - away_since > PATIENCE_S:
                    raise
            await asyncio.sleep(pause_s)
            pause_s = min(LONGEST_POLL_S, pause_s * 1.3)

    def logs(
        self,
        job: Ref,
        *,
        stage: str | None = None,
        attempt: int | None = None,
        rank: int | None = 0,
        stream: str = "both",
        tail: int | None = None,
        follow: bool = False,
    ) -> AsyncIterator[str]:
        """Yield the output of a job as text pieces; see :meth:`chunks`."""
        wanted = LogQuery(stage, attempt, rank, stream)
        return (chunk.text async for chunk in self.chunks(job, wanted, tail=tail, follow=follow))

    def chunks(
        self, job: Ref, wanted: LogQuery, *, tail: int | None = None, follow: bool = False
    ) -> AsyncIterator[Chunk]:
        """Yield its output, each piece with its stage, attempt, rank and stream; see :func:`switchyard.logs.read`."""
        return read(self._wire, quote(reference(job), safe=""), wanted, tail=tail, follow=follow)

    def search(
        self, job: Ref, text: str, wanted: LogQuery | None = None, *, ignore_case: bool = False
    ) -> AsyncIterator[LogMatch]:
        """The lines of its output that contain a text; the server looks for them."""
        name = quote(reference(job), safe="")
        return search(self._wire, name, text, wanted or LogQuery(), ignore_case=ignore_case)

    async def streams(self, job: Ref) -> Rows[answers.LogStream]:
        return await streams(self._wire, quote(reference(job), safe=""))

    async def cancel(self, job: Ref, reason: str = "") -> AsyncJobRecord:
        """Cancel all its stages; running ones are asked to stop first and then ended."""
        return await self._act(job, "cancel", reason)

    async def hold(self, job: Ref, reason: str = "") -> AsyncJobRecord:
        return await self._act(job, "hold", reason)

    async def release(self, job: Ref, reason: str = "") -> AsyncJobRecord:
        return await self._act(job, "release", reason)

    async def requeue(self, job: Ref, reason: str = "") -> AsyncJobRecord:
        """Stop what runs of it and queue it again; it resumes from its checkpoints, at no cost of its retries."""
        return await self._act(job, "requeue", reason)

    async def signal(self, job: Ref, name: str, *, stage: str = "", reason: str = "") -> answers.SignalSent:
        """Send a signal such as ``SIGUSR1`` to its running stages, or to one; return to how many ``processes``."""
        body = {"signal": name, "stage": stage, "reason": reason}
        return await self._wire.post(self._path(job) + "/signal", body)

    async def ports(self, job: Ref) -> Rows[answers.WebPort]:
        """Return the ports that its stages name, and whether they are listened on."""
        return (await self._wire.get(self._path(job) + "/ports"))["results"]

    async def open_port(
        self, job: Ref, port: str, *, stage: str = "", rank: int = 0, reason: str = ""
    ) -> answers.OpenedPort:
        """Open a named port of a running stage in a browser: ``url`` lets one browser in, once and within a minute.
        Without ``stage`` the only one with this port is meant."""
        body = {"port": port, "stage": stage, "rank": rank, "reason": reason}
        return await self._wire.post(self._path(job) + "/ports", body)

    async def trace(
        self, job: Ref, *, tool: str = "py-spy", seconds: int = 10, stage: str = "", rank: int = 0, reason: str = ""
    ) -> answers.StageTrace:
        """Ask for a profile of what a running stage does, with a tool that its job file allows: ``py-spy`` or
        ``torch``. Returns at once; see :meth:`wait_for_trace`. Without ``stage`` the only one that runs is meant."""
        body = {"tool": tool, "seconds": seconds, "stage": stage, "rank": rank, "reason": reason}
        return await self._wire.post(self._path(job) + "/traces", body)

    async def traces(self, job: Ref) -> Rows[answers.StageTrace]:
        """Return its profiles, newest first."""
        return (await self._wire.get(self._path(job) + "/traces"))["results"]

    async def wait_for_trace(self, job: Ref, trace: str) -> answers.StageTrace:
        """Wait until the profile with this id is READY, or FAILED with a ``detail``; the control plane bounds that."""
        while True:
            found: answers.StageTrace = await self._wire.get(self._path(job) + f"/traces/{quote(trace, safe='')}")
            if found["state"] not in ("ASKED", "RUNNING"):
                return found
            await asyncio.sleep(TRACE_POLL_S)

    async def trace_content(self, job: Ref, trace: str) -> bytes:
        """Return the file of a READY profile, at most 64 MiB: of py-spy for speedscope, of torch a Chrome trace,
        compressed by gzip."""
        return (await self._wire.call("GET", self._path(job) + f"/traces/{quote(trace, safe='')}/content")).content

    async def change(
        self, job: Ref, patch: Mapping[str, Any], *, reason: str = "", if_match: str = ""
    ) -> AsyncJobRecord:
        """Apply a merge patch of its job file, such as ``{"priority": "high"}`` or
        ``{"stages": {"train": {"time_limit": "3h"}}}``; None takes a key away. With ``if_match``, the ETag of an
        earlier read, only if nobody changed it since."""
        answer = await self._wire.call(
            "PATCH",
            self._path(job),
            json=dict(patch),
            params={"reason": reason or None},
            headers={"If-Match": if_match} if if_match else None,
        )
        return AsyncJobRecord(self, answer.json())

    async def bulk(
        self,
        action: str,
        *,
        jobs: Sequence[int] | None = None,
        matching: Mapping[str, str] | None = None,
        patch: Mapping[str, Any] | None = None,
        reason: str = "",
        dry_run: bool = False,
    ) -> answers.BulkAnswer:
        """Cancel, hold, release, requeue or change jobs: up to 500 named ones, or those ``matching`` filters of
        :meth:`list`.

        Returns what came of each. With ``dry_run`` it returns what would, and does nothing. Where more than 500 match,
        it returns an operation, which has a ``phase`` and goes on in the background: see :class:`AsyncOperations`.
        """
        body: dict[str, Any] = {"action": action, "reason": reason, "dry_run": dry_run}
        named = {"jobs": jobs, "filter": matching, "patch": patch}
        body |= {name: value for name, value in named.items() if value is not None}
        return await self._wire.post("/jobs/bulk", body)

    async def adjust(
        self, job: Ref, *, stage: str | None = None, ranks: Sequence[int] | None = None, reason: str = "", **share: Any
    ) -> Rows[answers.Attempt]:
        """Change the resources of its running attempts in place, those of one stage or of all; return these attempts.

        ``share`` has fields of the REST interface: ``suspended``, ``cpus_milli``, ``cpus``, ``cpu_weight``,
        ``io_weight``, ``memory_bytes``, ``queue_class``, ``quantum_s``; None resets one to its value at the start.
        """
        body: dict[str, Any] = {**share, "reason": reason} | ({"ranks": list(ranks)} if ranks is not None else {})
        return [
            await self._wire.post(f"/attempts/{attempt['id']}/adjust", body)
            for attempt in await self.attempts(job)
            if not attempt.get("ended_at") and (not attempt.get("stop_why")) and (stage in (None, attempt.get("stage")))
        ]

    async def why(self, job: Ref) -> answers.JobWhy:
        """Return why its stages wait, or why they run where they do."""
        return await self._wire.get(self._path(job) + "/why")

    async def counterfactuals(self, job: Ref) -> answers.JobCounterfactuals:
        """Return changes with which its waiting stages would start; each was tried by the engine."""
        return await self._wire.get(self._path(job) + "/counterfactuals")

    async def spec(self, job: Ref) -> answers.SubmittedSpec:
        """Return its file as submitted, and what each of its stages demands; values of secrets are masked."""
        return await self._wire.get(self._path(job) + "/spec")

    async def clone(self, job: Ref, **changes: Any) -> AsyncDraft:
        """Return its file as submitted, to be changed and submitted again; ``changes`` are keys of the job file, None
        takes one away.

        Those of a job with ``stages`` are only their defaults. Values of secrets are masked and must be given anew;
        files that were sent along are used again. The file of an element of an array is that of the whole array.
        """
        found = await self._wire.get(self._path(job) + "/spec")
        spec = {**found["spec"], **changes}
        return AsyncDraft(self, {key: value for key, value in spec.items() if value is not None})

    async def failures(self, job: Ref) -> Rows[answers.StageFailure]:
        """Return why its stages failed: ``kind``, ``advice``, where, and the last ``lines`` of the output."""
        return list((await self._wire.get(self._path(job) + "/failures"))["results"])

    async def waits(self, job: Ref) -> Rows[answers.StageWait]:
        """Return for how long its stages waited, by reason: ``waited_s`` and ``causes`` of each stage."""
        return list((await self._wire.get(self._path(job) + "/waits"))["results"])

    async def values(self, job: Ref, *, stage: str = "", name: str = "") -> Rows[answers.ReportedNumbers]:
        """Return the numbers that a job's attempts reported, by step; of one ``stage`` or one ``name`` of a number."""
        params = {"stage": stage or None, "name": name or None}
        return list((await self._wire.get(self._path(job) + "/values", params))["results"])

    async def pace(self, job: Ref) -> Rows[answers.StagePace]:
        """Return the ``steps_per_s`` of its running stages, and when they will have done all steps."""
        return list((await self._wire.get(self._path(job) + "/pace"))["results"])

    async def receipt(self, job: Ref) -> answers.Receipt:
        """Return its device time by stage, its energy and cost, and one line of advice."""
        return await self._wire.get(self._path(job) + "/receipt")

    async def events(self, job: Ref) -> Rows[answers.JobEvent]:
        return [each async for each in pages(self._wire, self._path(job) + "/events", {})]

    async def attempts(self, job: Ref) -> Rows[answers.Attempt]:
        return [each async for each in pages(self._wire, self._path(job) + "/attempts", {})]

    async def checkpoints(self, job: Ref) -> Rows[answers.Checkpoint]:
        return [each async for each in pages(self._wire, self._path(job) + "/checkpoints", {})]

    async def _act(self, job: Ref, verb: str, reason: str) -> AsyncJobRecord:
        answer = await self._either("POST", job, f"/{verb}", {"reason": reason})
        return AsyncJobRecord(self, answer) if isinstance(answer, dict) and "state" in answer else await self.get(job)

    def _path(self, job: Ref) -> str:
        resource = "/arrays/" if isinstance(job, Mapping) and "counts" in job else "/jobs/"
        return resource + quote(reference(job), safe="")

    async def _either(self, method: str, job: Ref, rest: str = "", body: Mapping[str, Any] | None = None) -> Any:
        """Return the answer of a job or, where there is none of this number, that of an array."""
        try:
            return (await self._wire.call(method, self._path(job) + rest, json=body)).json()
        except ApiProblem as problem:
            number = reference(job)
            if problem.status != 404 or isinstance(job, Mapping) or (not number.isdigit()):
                raise
            try:
                return (await self._wire.call(method, f"/arrays/{number}{rest}", json=body)).json()
            except ApiProblem as other:
                raise problem if other.status == 404 else other from None

    def _body(self, spec: Spec) -> dict[str, Any]:
        body = spec.to_spec() if isinstance(spec, Job) else dict(spec)
        if self.project and (not body.get("project")):
            body["project"] = self.project
        return body


class _AsyncWait:
    """One wait for a job: what was seen of it, and where its stream goes on. ``until`` is a monotonic time."""

    def __init__(
        self,
        jobs: AsyncJobs,
        wire: AsyncWire,
        line: ProgressLine,
        told: Callable[[AsyncJobRecord], None] | None,
        until: float,
    ) -> None:
        self._jobs, self._wire, self._line, self._told = (jobs, wire, line, told)
        self.until, self.seen = (until, "")
        self._since, self._deaf = ("", 0)

    async def follow(self, record: AsyncJobRecord) -> AsyncJobRecord:
        """Return the job as it ended, or as last seen where its stream breaks, or does not tell the end in time."""
        self._see(record)
        if record.is_final or record.is_array or self._deaf >= MOST_DEAF or self._is_short():
            return record
        heard = False
        wanted = {"number": record.number, "state": EVERY_STATE}
        try:
            async with self._wire.stream("/jobs/watch", wanted, since=self._since, silence_s=SILENCE_S) as answer:
                async for event in listen(answer):
                    heard, self._since = (True, event.cursor or self._since)
                    if event.name != "upsert":
                        break
                    record = AsyncJobRecord(self._jobs, event.data)
                    self._see(record)
                    if record.is_final or self._is_short():
                        break
        except ApiProblem as problem:
            self._since = ""
            self._deaf += 1 if problem.is_passing or problem.code == "cursor_gone" else MOST_DEAF
        except Unreachable:
            self._deaf += not heard
        return record

    def _is_short(self) -> bool:
        """Whether too little time is left for a stream, whose silence lasts."""
        return self.until - time.monotonic() < SILENCE_S

    def _see(self, record: AsyncJobRecord) -> None:
        self._line.show(record)
        if self._told is not None and record.state != self.seen and (not record.is_final):
            self._told(record)
        self.seen = record.state


class AsyncDraft(dict[str, Any]):
    """A job file that is not submitted yet, as :meth:`AsyncJobRecord.clone` makes it of a job."""

    def __init__(self, jobs: AsyncJobs, spec: Mapping[str, Any]) -> None:
        super().__init__(spec)
        self._jobs = jobs

    async def preview(self) -> dict[str, Any]:
        """Return where and when it would start."""
        return await self._jobs.preview(self)

    async def submit(self, *, idempotency_key: str | None = None) -> AsyncJobRecord:
        """Queue it and return the job."""
        return await self._jobs.submit(self, idempotency_key=idempotency_key)


class AsyncJobRecord(JobFields):
    """A job as last read from the control plane, with what can be done to it."""

    def __init__(self, jobs: AsyncJobs, fields: Mapping[str, Any]) -> None:
        super().__init__(fields)
        self._jobs = jobs

    async def refresh(self) -> AsyncJobRecord:
        """Read it again; updates this record and returns it."""
        fields = dict(await self._jobs.get(self))
        self.clear()
        self.update(fields)
        return self

    async def wait(self, timeout_s: float | None = None, *, progress: bool = False) -> AsyncJobRecord:
        """Wait for its end (see :meth:`AsyncJobs.wait`); updates this record and returns it."""
        fields = dict(await self._jobs.wait(self, timeout_s, progress=progress))
        self.clear()
        self.update(fields)
        return self

    def logs(self, **wanted: Any) -> AsyncIterator[str]:
        """Yield its output; takes the arguments of :meth:`AsyncJobs.logs`."""
        return self._jobs.logs(self, **wanted)

    async def cancel(self, reason: str = "") -> AsyncJobRecord:
        return await self._jobs.cancel(self, reason)

    async def hold(self, reason: str = "") -> AsyncJobRecord:
        return await self._jobs.hold(self, reason)

    async def release(self, reason: str = "") -> AsyncJobRecord:
        return await self._jobs.release(self, reason)

    async def requeue(self, reason: str = "") -> AsyncJobRecord:
        return await self._jobs.requeue(self, reason)

    async def change(self, patch: Mapping[str, Any], *, reason: str = "") -> AsyncJobRecord:
        return await self._jobs.change(self, patch, reason=reason)

    async def clone(self, **changes: Any) -> AsyncDraft:
        """Return its file with ``changes``, to be submitted: ``job.clone(time_limit="3h").submit()``; see
        :meth:`AsyncJobs.clone`."""
        return await self._jobs.clone(self, **changes)

    async def why(self) -> answers.JobWhy:
        return await self._jobs.why(self)

    async def events(self) -> list[answers.JobEvent]:
        return await self._jobs.events(self)

    async def attempts(self) -> list[answers.Attempt]:
        return await self._jobs.attempts(self)


class AsyncNodes:
    """The nodes of a control plane, by name or id."""

    def __init__(self, wire: AsyncWire) -> None:
        self._wire = wire

    def list(self) -> AsyncIterator[answers.Node]:
        return pages(self._wire, "/nodes", {"limit": 500})

    async def get(self, node: str) -> answers.NodeDetail:
        return await self._wire.get("/nodes/" + quote(node, safe=""))

    async def change(self, node: str, patch: Mapping[str, Any], *, if_match: str = "*") -> answers.NodeDetail:
        """Set the ``pools`` of a node, by name, or some of its ``labels``; None takes a label away. For operators."""
        path = "/nodes/" + quote(node, safe="")
        return (await self._wire.call("PATCH", path, json=dict(patch), headers={"If-Match": if_match})).json()

    async def join(self, node: str, pool: str, *, leave: bool = False) -> answers.NodeDetail:
        """Add a node to a pool, or take it out (``leave``); its other pools stay. For operators."""
        answer = await self._wire.call("GET", f"/nodes/{quote(node, safe='')}/settings")
        others = [name for name in answer.json()["pools"] if name != pool]
        return await self.change(node, {"pools": others if leave else [*others, pool]}, if_match=answer.headers["ETag"])

    async def drain(self, node: str, reason: str = "") -> answers.Node:
        """Drain a node: running stages finish, nothing new starts."""
        return await self._act(node, "drain", reason)

    async def drain_several(
        self,
        nodes: Sequence[str],
        reason: str = "",
        *,
        mode: str = "finish",
        deadline_s: float | None = None,
        dry_run: bool = False,
        if_match: str = "*",
    ) -> answers.NodeDrain:
        """Drain nodes: what runs may ``finish``, is asked to ``save`` and queued again, or is stopped ``now`` and
        queued again; with ``deadline_s`` what has not finished by then saves.

        Returns what stops, what is lost and when the nodes are empty, also with ``dry_run``, which drains nothing. With
        its ``version`` as ``if_match`` the drain is refused where something else runs there by then.
        """
        body = {"nodes": list(nodes), "mode": mode, "deadline_s": deadline_s, "reason": reason}
        params = {"dry_run": "true"} if dry_run else None
        headers = None if dry_run else {"If-Match": if_match}
        return (await self._wire.call("POST", "/nodes/drain", params=params, json=body, headers=headers)).json()

    async def lost(self, node: str, reason: str = "") -> answers.Node:
        """Confirm that a LOST node is gone: its stages have ended."""
        return await self._act(node, "lost", reason)

    async def resume(self, node: str, reason: str = "") -> answers.Node:
        return await self._act(node, "resume", reason)

    async def rotate(self, node: str, reason: str = "") -> answers.Node:
        """Give its agent a new credential."""
        return await self._act(node, "rotate", reason)

    async def fuse(self) -> answers.Fuse:
        """Return whether the mass-loss fuse is blown (``blown_at``), and the silent nodes."""
        return await self._wire.get("/fuse")

    async def release_fuse(self, reason: str) -> answers.Fuse:
        """Release the fuse: silent nodes may be declared lost, and their stages requeued. For staff."""
        return await self._wire.post("/fuse/release", {"reason": reason})

    async def survivors(self) -> AsyncIterator[answers.Survivor]:
        """Yield the parts on nodes that are missing in the database, which was restored from a backup."""
        for each in (await self._wire.get("/survivors"))["results"]:
            yield each

    async def end_survivor(self, part: str, deed: str, reason: str = "") -> answers.Survivor:
        """Stop a survivor (``stop``), or remove an ended one (``forget``)."""
        return await self._wire.post(f"/survivors/{quote(part, safe='')}/{deed}", {"reason": reason})

    async def cordon(self, node: str, device: str, reason: str = "") -> answers.Device:
        """Take a device out of service, by its uuid or as ``gpu3``; stages that hold it go on."""
        return await self._act_on(node, device, "cordon", reason)

    async def uncordon(self, node: str, device: str, reason: str = "") -> answers.Device:
        return await self._act_on(node, device, "uncordon", reason)

    async def quarantine(self, node: str, part: str, do: str, reason: str = "") -> answers.Node:
        """Decide about a quarantined part of the node: ``release`` adopts it again, ``discard`` ends it."""
        wanted = {"part": part, "do": do, "reason": reason}
        return await self._wire.post(f"/nodes/{quote(node, safe='')}/quarantine", wanted)

    async def _act_on(self, node: str, device: str, verb: str, reason: str) -> answers.Device:
        name = (await self.get(node))["name"]
        async for one in pages(self._wire, "/devices", {"limit": 500, "node": name}):
            if device in (one["uuid"], f"{one['kind']}{one['index']}"):
                return await self._wire.post(f"/devices/{quote(one['uuid'], safe='')}/{verb}", {"reason": reason})
        raise SwitchyardError(f"node {name} has no device {device}; yard devices --node {name} lists them")

    async def _act(self, node: str, verb: str, reason: str) -> answers.Node:
        return await self._wire.post(f"/nodes/{quote(node, safe='')}/{verb}", {"reason": reason})


class AsyncMaintenance:
    """The maintenance windows of a control plane."""

    def __init__(self, wire: AsyncWire) -> None:
        self._wire = wire

    def list(self, *, everything: bool = False) -> AsyncIterator[answers.MaintenanceWindow]:
        """Yield the windows that have not ended; all windows with ``everything``."""
        return pages(self._wire, "/maintenance-windows", {"limit": 500, "all": "true" if everything else None})

    async def plan(
        self,
        starts_at: datetime,
        ends_at: datetime,
        reason: str,
        *,
        node: str = "",
        pool: str = "",
        dry_run: bool = False,
        cron: str = "",
        time_zone: str = "UTC",
        lasts_s: int | None = None,
    ) -> answers.MaintenanceWindowDetail:
        """Plan a window for a node or for all nodes of a pool; return it with the stages that may run into it. Times
        have a zone. With ``cron`` and ``lasts_s`` one begins at each time of the line in between."""
        window = _entry(starts_at, ends_at, reason, cron, time_zone, lasts_s)
        named = {name: value for name, value in (("node", node), ("pool", pool)) if value}
        params = {"dry_run": "true"} if dry_run else None
        return await self._wire.post("/maintenance-windows", {**window, **named}, params=params)

    async def change(
        self, window: int, *, dry_run: bool = False, if_match: str = "*", **changes: Any
    ) -> answers.MaintenanceWindowDetail:
        """Change what is named of a window, as :meth:`plan` has it, and return it with the stages that may run into
        it; with its ETag only as it was read."""
        return await _changed(self._wire, f"/maintenance-windows/{window}", changes, dry_run, if_match)

    async def cancel(self, window: int) -> answers.MaintenanceWindow:
        """Cancel a window, also one that has begun."""
        return await self._wire.post(f"/maintenance-windows/{window}/cancel", {})


class AsyncReservations:
    """The reservations of a control plane, by name."""

    def __init__(self, wire: AsyncWire) -> None:
        self._wire = wire

    def list(self, *, everything: bool = False) -> AsyncIterator[answers.Reservation]:
        """Yield the reservations that have not ended; all of them with ``everything``."""
        return pages(self._wire, "/reservations", {"limit": 500, "all": "true" if everything else None})

    async def get(self, name: str) -> answers.Reservation:
        return await self._wire.get("/reservations/" + quote(name, safe=""))

    async def plan(
        self,
        name: str,
        project: str,
        *,
        starts_at: datetime,
        ends_at: datetime,
        reason: str,
        nodes: Sequence[str] = (),
        pool: str = "",
        device: str = "",
        count: int | None = None,
        users: Sequence[str] = (),
        cron: str = "",
        time_zone: str = "UTC",
        lasts_s: int | None = None,
        dry_run: bool = False,
    ) -> answers.Reservation:
        """Reserve ``nodes``, or as many whole nodes of a ``pool`` as have ``count`` devices of a kind or model, for the
        jobs of a project, or of some of its ``users``, that name the reservation. For operators."""
        body = {
            **_entry(starts_at, ends_at, reason, cron, time_zone, lasts_s),
            "name": name,
            "project": project,
            "nodes": [*nodes],
            "users": [*users],
        }
        named = {"pool": pool, "device": device, "count": count}
        body |= {key: value for key, value in named.items() if value}
        return await self._wire.post("/reservations", body, params={"dry_run": "true"} if dry_run else None)

    async def change(
        self, name: str, *, dry_run: bool = False, if_match: str = "*", **changes: Any
    ) -> answers.Reservation:
        """Change what is named of a reservation, as :meth:`plan` has it: its times, reason, ``nodes`` and ``users``;
        with its ETag only as it was read."""
        return await _changed(self._wire, f"/reservations/{quote(name, safe='')}", changes, dry_run, if_match)

    async def cancel(self, name: str) -> answers.Reservation:
        """Cancel a reservation, also one that has begun; what runs in it goes on."""
        return await self._wire.post(f"/reservations/{quote(name, safe='')}/cancel", {})


async def _changed(wire: AsyncWire, path: str, changes: Mapping[str, Any], dry_run: bool, if_match: str) -> Any:
    """Change an entry of the calendar and return it."""
    told = {name: value.isoformat() if isinstance(value, datetime) else value for name, value in changes.items()}
    params, headers = ({"dry_run": "true"} if dry_run else None, {"If-Match": if_match})
    return (await wire.call("PATCH", path, json=told, params=params, headers=headers)).json()


class AsyncSchedules:
    """Job files that are submitted again and again, at the times of a cron line."""

    def __init__(self, wire: AsyncWire) -> None:
        self._wire = wire

    def list(self, *, project: str | None = None, name: str | None = None) -> AsyncIterator[answers.Schedule]:
        """Yield the schedules that you may see, newest first."""
        return pages(self._wire, "/schedules", {"limit": 500, "project": project, "name": name})

    async def get(self, schedule: int) -> answers.ScheduleDetail:
        """Return ``schedule`` with its ``job`` file, its next ``times`` and its newest ``runs``."""
        return await self._wire.get(f"/schedules/{schedule}")

    async def create(self, name: str, job: Spec, cron: str, **settings: Any) -> answers.ScheduleDetail:
        """Make a schedule of a job file, whose ``workdir`` is packed and sent first. ``settings`` are ``zone``,
        ``overlap``, ``catch_up``, ``starts_at``, ``ends_at`` and ``paused``."""
        body = await _sent(self._wire, job.to_spec() if isinstance(job, Job) else dict(job))
        return await self._wire.post("/schedules", {"name": name, "job": body, "cron": cron, **settings})

    async def change(self, schedule: int, patch: Mapping[str, Any], *, if_match: str = "*") -> answers.ScheduleDetail:
        """Change what ``patch`` names, such as ``{"paused": True}``; the ``workdir`` of a ``job`` is sent first."""
        body = dict(patch)
        if body.get("job"):
            body["job"] = await _sent(self._wire, dict(body["job"]))
        path = f"/schedules/{schedule}"
        return (await self._wire.call("PATCH", path, json=body, headers={"If-Match": if_match})).json()

    async def run(self, schedule: int) -> answers.ScheduleRun:
        """Submit its job file now; return what became of it (``outcome``, ``job``)."""
        return await self._wire.post(f"/schedules/{schedule}/run", {})

    async def delete(self, schedule: int) -> None:
        """Delete a schedule; the jobs that it has submitted stay."""
        await self._wire.call("DELETE", f"/schedules/{schedule}", headers={"If-Match": "*"})


class AsyncServices:
    """Models that answer requests: replicas of a stage, updates, and a way back."""

    def __init__(self, wire: AsyncWire) -> None:
        self._wire = wire

    def list(self, *, project: str | None = None, name: str | None = None) -> AsyncIterator[answers.Service]:
        """Yield the services that you may see, newest first."""
        return pages(self._wire, "/services", {"limit": 500, "project": project, "name": name})

    async def get(self, service: int) -> answers.ServiceDetail:
        """Return ``service`` with its ``replicas``, ``revisions`` and the ``minutes`` of the last hour."""
        return await self._wire.get(f"/services/{service}")

    async def create(self, file: Mapping[str, Any]) -> answers.ServiceDetail:
        """Make a service of a service file; the ``workdir`` of its template is packed and sent first."""
        return await self._wire.post("/services", {"file": await _served(self._wire, file)})

    async def change(self, service: int, patch: Mapping[str, Any], *, if_match: str = "*") -> answers.ServiceDetail:
        """Change what ``patch`` names: ``file``, ``min``, ``max`` or ``canary``."""
        body = dict(patch)
        if body.get("file"):
            body["file"] = await _served(self._wire, body["file"])
        path = f"/services/{service}"
        return (await self._wire.call("PATCH", path, json=body, headers={"If-Match": if_match})).json()

    async def roll_back(self, service: int, revision: int | None = None) -> answers.ServiceDetail:
        """Return to a revision, to the one that served before if none is named."""
        return await self._wire.post(f"/services/{service}/rollback", {"revision": revision})

    async def delete(self, service: int) -> None:
        """Delete a service; its replicas end."""
        await self._wire.call("DELETE", f"/services/{service}", headers={"If-Match": "*"})


class AsyncFunctions:
    """AsyncFunctions: one file of code that answers calls, at once or from a queue."""

    def __init__(self, wire: AsyncWire) -> None:
        self._wire = wire

    def list(self, *, project: str | None = None, name: str | None = None) -> AsyncIterator[answers.Function]:
        """Yield the functions that you may see, newest first."""
        return pages(self._wire, "/functions", {"limit": 500, "project": project, "name": name})

    async def get(self, function: int) -> answers.FunctionDetail:
        """Return ``function`` with its ``code``, ``replicas`` and the ``minutes`` of the last hour."""
        return await self._wire.get(f"/functions/{function}")

    async def create(self, name: str, **settings: Any) -> answers.FunctionDetail:
        """Deploy a function: ``code`` is the text of its file, or ``bundle`` the digest of what was uploaded and
        ``file`` the path in it; ``options`` are as the REST reference has them, ``project`` says whose it is."""
        return await self._wire.post("/functions", {"name": name, **settings})

    async def change(self, function: int, patch: Mapping[str, Any], *, if_match: str = "*") -> answers.FunctionDetail:
        """Deploy what ``patch`` names: ``code``, ``bundle``, ``file`` or ``options``."""
        path = f"/functions/{function}"
        return (await self._wire.call("PATCH", path, json=dict(patch), headers={"If-Match": if_match})).json()

    async def delete(self, function: int) -> None:
        """Delete a function and its queue; its replicas end."""
        await self._wire.call("DELETE", f"/functions/{function}", headers={"If-Match": "*"})

    async def invoke(self, function: int, event: Any = None, *, timeout_s: float = 900.0) -> Any:
        """Call a function and return its result. Raises :class:`~switchyard.problem.ApiProblem` if it fails."""
        return await self.invoke_at((await self.get(function))["function"]["address"], event, timeout_s=timeout_s)

    async def invoke_at(self, address: str, event: Any = None, *, timeout_s: float = 900.0) -> Any:
        """Call a function at its ``address`` and return its result."""
        return await self._wire.ask(address, event, timeout_s=timeout_s)

    async def leave(self, function: int, event: Any = None, *, key: str = "") -> answers.FunctionCall:
        """Leave a call in the queue of a function; with the ``key`` of one that is there it is that one."""
        return await self._wire.post(f"/functions/{function}/calls", {"event": event, "key": key})

    def calls(self, function: int) -> AsyncIterator[answers.FunctionCall]:
        """Yield the queued calls of a function, newest first."""
        return pages(self._wire, f"/functions/{function}/calls", {"limit": 500})

    async def call(self, function: int, call: int) -> answers.FunctionCall:
        """Return a queued call with its ``state`` and ``result``."""
        return await self._wire.get(f"/functions/{function}/calls/{call}")

    async def retry(self, function: int, call: int) -> answers.FunctionCall:
        """Queue a call that was given up once more."""
        return await self._wire.post(f"/functions/{function}/calls/{call}/retry", {})


async def _served(wire: AsyncWire, file: Mapping[str, Any]) -> dict[str, Any]:
    """Return a service file whose template names the bundle that was sent instead of a folder."""
    body = dict(file)
    if isinstance(body.get("template"), dict):
        body["template"] = await _sent(wire, dict(body["template"]))
    return body


class AsyncSimulations:
    """AsyncSimulations beside the cluster: yours, and for staff everybody's."""

    def __init__(self, wire: AsyncWire) -> None:
        self._wire = wire

    def list(self) -> AsyncIterator[answers.Simulation]:
        """Yield the simulations that you may see, newest first."""
        return pages(self._wire, "/simulations", {"limit": 500})

    async def get(self, simulation: int) -> answers.SimulationDetail:
        """Return a ``simulation`` with its ``scenario``, and its ``result`` once it is DONE."""
        return await self._wire.get(f"/simulations/{simulation}")

    async def create(self, scenario: Mapping[str, Any]) -> answers.Simulation:
        """Begin a simulation of ``trace``, ``world``, ``profiles``, ``loads`` and ``seeds``."""
        return await self._wire.post("/simulations", dict(scenario))

    async def cancel(self, simulation: int) -> answers.Simulation:
        """Cancel a simulation; it ends within a second."""
        return await self._wire.post(f"/simulations/{simulation}/cancel", {})

    async def wait(
        self,
        simulation: int,
        timeout_s: float | None = None,
        *,
        told: Callable[[answers.Simulation], None] | None = None,
    ) -> answers.SimulationDetail:
        """Return what :meth:`get` does once it is DONE, FAILED or CANCELLED; ``told`` hears each time how it stands.

        Survives a restart of the control plane. Raises :class:`~switchyard.problem.WaitTimeout` after ``timeout_s``.
        """
        begun, pause_s, away_since, is_seen = (time.monotonic(), 0.2, None, False)
        while True:
            try:
                found = await self.get(simulation)
            except (Unreachable, ApiProblem) as error:
                if isinstance(error, ApiProblem) and (not error.is_passing):
                    raise
                now = time.monotonic()
                away_since = now if away_since is None else away_since
                if not is_seen or now - away_since > PATIENCE_S:
                    raise
            else:
                away_since, is_seen = (None, True)
                if found["simulation"]["phase"] not in ("WAITING", "RUNNING"):
                    return found
                if told is not None:
                    told(found["simulation"])
            left_s = math.inf if timeout_s is None else timeout_s - (time.monotonic() - begun)
            if left_s <= 0:
                raise WaitTimeout(f"simulation {simulation} has not ended after {timeout_s:g} s; it goes on")
            await asyncio.sleep(min(pause_s, left_s))
            pause_s = min(LONGEST_POLL_S, pause_s * 1.3)


class AsyncTemplates:
    """Job files with parameters: of projects, of everybody, and those that are shipped."""

    def __init__(self, wire: AsyncWire) -> None:
        self._wire = wire

    async def list(self, *, project: str | None = None) -> Rows[answers.JobTemplate]:
        """Return the templates that you may see; with ``project`` those that are offered in it."""
        return list((await self._wire.get("/templates", {"project": project} if project else None))["results"])

    async def get(self, name: str, *, project: str | None = None) -> answers.JobTemplate:
        """Return a template: that of the project, else everybody's."""
        return await self._wire.get(f"/templates/{name}", {"project": project} if project else None)

    async def put(self, name: str, template: Mapping[str, Any], *, project: str | None = None) -> answers.JobTemplate:
        """Make or replace a template of ``title``, ``description``, ``parameters`` and ``job``."""
        params = {"project": project} if project else None
        return (await self._wire.call("PUT", f"/templates/{name}", json=dict(template), params=params)).json()

    async def fill(self, name: str, values: Mapping[str, Any], *, project: str = "") -> dict[str, Any]:
        """Return the job file of a template with these values, to be submitted or previewed."""
        return dict(
            (await self._wire.post(f"/templates/{name}/fill", {"set": dict(values), "project": project}))["job"]
        )

    async def delete(self, name: str, *, project: str | None = None) -> None:
        """Delete a template that somebody made; jobs that were submitted from it stay."""
        await self._wire.call("DELETE", f"/templates/{name}", params={"project": project} if project else None)


class AsyncOperations:
    """Actions on many jobs that go on in the background."""

    def __init__(self, wire: AsyncWire) -> None:
        self._wire = wire

    def list(self) -> AsyncIterator[answers.Operation]:
        """Yield those of the last seven days that you may see, newest first."""
        return pages(self._wire, "/operations", {"limit": 500})

    async def get(self, number: int) -> answers.Operation:
        """Return an operation with its ``progress``, and what was ``done`` and ``refused``."""
        return await self._wire.get(f"/operations/{number}")

    async def cancel(self, number: int) -> answers.Operation:
        """End an operation after the job that it is at; what was done stays done."""
        return await self._wire.post(f"/operations/{number}/cancel", {})

    async def wait(self, number: int, *, timeout_s: float | None = None) -> answers.Operation:
        """Wait until an operation has ended and return it; raises :class:`~switchyard.problem.WaitTimeout`."""
        begun = time.monotonic()
        while (found := (await self.get(number)))["ended_at"] is None:
            if timeout_s is not None and time.monotonic() - begun >= timeout_s:
                raise WaitTimeout(f"operation {number} is still {found['phase']} after {timeout_s:g} s")
            await asyncio.sleep(LONGEST_POLL_S)
        return found


class AsyncProfiles:
    """How pools decide: built-in profiles, and custom ones in versions. Operators change them."""

    def __init__(self, wire: AsyncWire) -> None:
        self._wire = wire

    async def list(self) -> AsyncIterator[answers.Profile]:
        """Yield the built-in profiles, then the custom ones by name."""
        for each in (await self._wire.get("/profiles"))["results"]:
            yield each

    async def get(self, name: str) -> answers.ProfileDetail:
        """Return a profile with its policies (``spec``) and its newest ``versions``."""
        return await self._wire.get(_named_profile(name))

    async def create(
        self, name: str, *, spec: Mapping[str, Any] | None = None, copy_of: str = "", note: str = ""
    ) -> answers.ProfileDetail:
        """Make a profile from its policies or as a copy of another; it decides nowhere until it is activated."""
        given = {"spec": dict(spec)} if spec is not None else {"copy_of": copy_of}
        return await self._wire.post("/profiles", {"name": name, "note": note, **given})

    async def change(self, name: str, patch: Mapping[str, Any], *, if_match: str = "*") -> answers.ProfileDetail:
        """Change the ``description`` of a custom profile; with the ETag of its settings only as they were read."""
        headers = {"If-Match": if_match}
        return (await self._wire.call("PATCH", _named_profile(name), json=dict(patch), headers=headers)).json()

    async def revise(self, name: str, spec: Mapping[str, Any], *, note: str = "") -> answers.ProfileDetail:
        """Add a version, which is not active yet."""
        return await self._wire.post(f"{_named_profile(name)}/versions", {"spec": dict(spec), "note": note})

    async def preview(
        self, name: str, version: int, pool: str, *, days: float = 7.0, against: str = ""
    ) -> answers.Simulation:
        """Start a simulation of what a pool ran lately, under the version and under ``against`` (the pool's own)."""
        asked = {"pool": pool, "days": days, "against": against}
        return await self._wire.post(f"{_named_profile(name)}/versions/{version}/preview", asked)

    async def activate(self, name: str, version: int, *, unseen: bool = False) -> answers.ProfileDetail:
        """Let every pool of the profile decide by a version; ``unseen`` without a finished preview."""
        return await self._wire.post(f"{_named_profile(name)}/activate", {"version": version, "unseen": unseen})

    async def delete(self, name: str) -> None:
        """Delete a profile that no pool uses, with its versions."""
        await self._wire.post(f"{_named_profile(name)}/delete", {})


class AsyncPastDecisions:
    """What the engine decided in its cycles, for ``client.decisions``."""

    def __init__(self, wire: AsyncWire) -> None:
        self._wire = wire

    def list(
        self, *, job: int | None = None, did: str = "", code: str = "", most: int = 100
    ) -> AsyncIterator[answers.Decision]:
        """Yield decisions, newest first, at most ``most``.

        Of one ``job``, those that ``did`` this (``start``, ``evict``, ``skip`` or ``wait``), or in which a stage waited
        for the reason ``code``.
        """
        asked = {"job": job, "did": did or None, "code": code or None, "limit": max(1, min(most, 500))}
        return pages(self._wire, "/decisions", asked, most)

    async def get(self, decision: int, *, after: int = 0) -> answers.DecisionDetail:
        """Return a decision with its whole plan; of the waiting stages 500 after the first ``after``."""
        return await self._wire.get(f"/decisions/{decision}", {"after": after})

    async def difference(self, decision: int, profile: str) -> answers.DecisionDifference:
        """Return how the plan of another profile differs for the inputs of this decision."""
        return await self._wire.get(f"/decisions/{decision}/difference", {"profile": profile})


class AsyncConsolidation:
    """Advice on moves that would make room for a stage that fits nowhere."""

    def __init__(self, wire: AsyncWire) -> None:
        self._wire = wire

    async def get(self) -> answers.Consolidation:
        """Return all present advice, in queue order."""
        return await self._wire.get("/consolidation")

    async def follow(self, stage: str) -> answers.ConsolidationAdvice:
        """Follow the advice for the stage with this id."""
        return await self._wire.post("/consolidation", {"stage": stage})


class AsyncSecrets:
    """The secrets of projects: their names and versions. Values are never returned."""

    def __init__(self, wire: AsyncWire) -> None:
        self._wire = wire

    async def list(self, project: str) -> AsyncIterator[answers.Secret]:
        """Yield the secrets of a project by name."""
        for each in (await self._wire.get(_secrets_of(project)))["results"]:
            yield each

    async def set(self, project: str, name: str, value: str) -> answers.Secret:
        """Create a secret or set its value; the same value again makes no new version."""
        return (
            await self._wire.call("PUT", f"{_secrets_of(project)}/{quote(name, safe='')}", json={"value": value})
        ).json()

    async def delete(self, project: str, name: str) -> None:
        """Delete a secret, if there is one of this name."""
        await self._wire.call("DELETE", f"{_secrets_of(project)}/{quote(name, safe='')}")


class AsyncWebhooks:
    """The webhooks of projects: addresses that are told when jobs change. Their keys are returned once."""

    def __init__(self, wire: AsyncWire) -> None:
        self._wire = wire

    async def list(self, project: str) -> AsyncIterator[answers.Webhook]:
        """Yield the webhooks of a project by name."""
        for each in (await self._wire.get(_webhooks_of(project)))["results"]:
            yield each

    async def get(self, project: str, name: str) -> answers.Webhook:
        """Return a webhook."""
        return await self._wire.get(_webhooks_of(project, name))

    async def set(self, project: str, name: str, url: str, **settings: Any) -> answers.NewWebhook:
        """Make a webhook or set it anew, and return it as ``webhook``, with its ``key`` if it is new. ``settings`` are
        ``format``, ``states`` and ``active``."""
        return (await self._wire.call("PUT", _webhooks_of(project, name), json={"url": url, **settings})).json()

    async def change(self, project: str, name: str, **settings: Any) -> answers.Webhook:
        """Change what is named of ``url``, ``format``, ``states`` and ``active``."""
        return (await self._wire.call("PATCH", _webhooks_of(project, name), json=settings)).json()

    async def test(self, project: str, name: str) -> answers.WebhookTest:
        """Send one event now; ``fault`` is empty if it was accepted."""
        return await self._wire.post(f"{_webhooks_of(project, name)}/test", {})

    async def deliveries(self, project: str, name: str) -> AsyncIterator[answers.TriedDelivery]:
        """Yield the newest deliveries and how they went, the last try first."""
        for each in (await self._wire.get(f"{_webhooks_of(project, name)}/deliveries"))["results"]:
            yield each

    async def resend(self, project: str, name: str, event: str) -> None:
        """Have a delivery that failed sent again."""
        await self._wire.call(
            "POST", f"{_webhooks_of(project, name)}/deliveries/{quote(event, safe='')}/resend", json={}
        )

    async def delete(self, project: str, name: str) -> None:
        """Delete a webhook, if there is one of this name."""
        await self._wire.call("DELETE", _webhooks_of(project, name))


class AsyncProjects:
    """The projects that you may see, and the roles of people in them."""

    def __init__(self, wire: AsyncWire) -> None:
        self._wire = wire

    async def list(self) -> AsyncIterator[answers.Project]:
        """Yield the projects with their members, by name."""
        for each in (await self._wire.get("/projects"))["results"]:
            yield each

    async def create(self, settings: Mapping[str, Any]) -> answers.Project:
        """Add a project: ``name``, ``weight``, ``description``. For accountants."""
        return await self._wire.post("/projects", dict(settings))

    async def change(self, project: str, patch: Mapping[str, Any], *, if_match: str = "*") -> answers.Project:
        """Change a project; with the ETag of its settings only as they were read. For accountants."""
        return (
            await self._wire.call("PATCH", _project(project), json=dict(patch), headers={"If-Match": if_match})
        ).json()

    async def delete(self, project: str, *, if_match: str = "*") -> None:
        """Delete a project that never had a job. For accountants."""
        await self._wire.call("DELETE", _project(project), headers={"If-Match": if_match})

    async def retention(self, project: str) -> answers.ProjectRetention:
        """Return for how many days each kind of a project's records is kept."""
        return await self._wire.get(f"/projects/{quote(project, safe='')}/retention")

    async def keep(self, project: str, days: Mapping[str, int | None]) -> answers.ProjectRetention:
        """Keep kinds of records for so many days, ``None`` for as many as everywhere. For leads."""
        return (
            await self._wire.call("PUT", f"/projects/{quote(project, safe='')}/retention", json={"days": dict(days)})
        ).json()

    async def set_member(self, project: str, user: str, role: str) -> answers.Member:
        """Give a person a role: viewer, member, or (accountants only) lead. For leads and accountants."""
        path = f"{_project(project)}/members/{quote(user, safe='')}"
        return (await self._wire.call("PUT", path, json={"role": role})).json()

    async def remove_member(self, project: str, user: str) -> None:
        """Take a person's role away. For leads and accountants."""
        await self._wire.call("DELETE", f"{_project(project)}/members/{quote(user, safe='')}")


class AsyncNumberedSettings(Generic[Answer]):
    """Quotas, budgets or limits: rows with numbers, which accountants set.

    A quota has ``project``, ``kind``, ``nominal`` and others. A budget has ``project``, ``hours`` of a ``kind`` in each
    ``period``, and what happens ``at_end``. A limit has ``running``, ``waiting`` and ``devices`` of a ``user`` (without
    one, of every user) in a ``project`` and a ``pool``.
    """

    def __init__(self, wire: AsyncWire, path: str) -> None:
        self._wire = wire
        self._path = path

    async def list(self) -> AsyncIterator[Answer]:
        """Yield those that you may see, with what is used of each."""
        for each in (await self._wire.get(self._path))["results"]:
            yield each

    async def create(self, settings: Mapping[str, Any]) -> Answer:
        """Add one. For accountants."""
        return await self._wire.post(self._path, dict(settings))

    async def change(self, number: int, patch: Mapping[str, Any], *, if_match: str = "*") -> dict[str, Any]:
        """Change one; with its ETag only as it was read. For accountants."""
        path = f"{self._path}/{number}"
        return dict((await self._wire.call("PATCH", path, json=dict(patch), headers={"If-Match": if_match})).json())

    async def delete(self, number: int, *, if_match: str = "*") -> None:
        """Delete one, so that it holds nothing back any more. For accountants."""
        await self._wire.call("DELETE", f"{self._path}/{number}", headers={"If-Match": if_match})


class AsyncTokens:
    """Your access tokens. The secret of one is returned when it is made, and never again."""

    def __init__(self, wire: AsyncWire) -> None:
        self._wire = wire

    async def list(self) -> AsyncIterator[answers.OwnToken]:
        """Yield your tokens, newest first."""
        for each in (await self._wire.get("/tokens"))["results"]:
            yield each

    async def create(self, name: str, *, scopes: Sequence[str] = (), days: int | None = None) -> answers.TokenMade:
        """Make a token and return it with its ``secret``; by default with the scopes read and submit."""
        return await self._wire.post("/tokens", _token(name, scopes, days))

    async def revoke(self, token: str) -> None:
        """Revoke one of your tokens by its id, at once."""
        await self._wire.call("DELETE", f"/tokens/{quote(token, safe='')}")


class AsyncServiceAccounts:
    """The service accounts of projects that you lead; each is named NAME@PROJECT, and acts by tokens only."""

    def __init__(self, wire: AsyncWire) -> None:
        self._wire = wire

    async def list(self) -> AsyncIterator[answers.ServiceAccount]:
        """Yield the service accounts of the projects that you lead."""
        for each in (await self._wire.get("/service-accounts"))["results"]:
            yield each

    async def create(
        self, project: str, name: str, *, role: str = "member", description: str = ""
    ) -> answers.ServiceAccount:
        """Make the service account NAME@PROJECT, a viewer or member of its project."""
        asked = {"project": project, "name": name, "role": role, "description": description}
        return await self._wire.post("/service-accounts", asked)

    async def change(self, account: str, patch: Mapping[str, Any], *, if_match: str = "*") -> answers.ServiceAccount:
        """Change ``role``, ``is_active`` or ``description``; an inactive account's tokens are refused at once."""
        path = _service_account(account)
        return (await self._wire.call("PATCH", path, json=dict(patch), headers={"If-Match": if_match})).json()

    async def delete(self, account: str, *, if_match: str = "*") -> None:
        """Delete a service account that never had a job, with its tokens."""
        await self._wire.call("DELETE", _service_account(account), headers={"If-Match": if_match})

    async def tokens(self, account: str) -> AsyncIterator[answers.OwnToken]:
        """Yield the tokens of a service account, newest first, without their secrets."""
        for each in (await self._wire.get(f"{_service_account(account)}/tokens"))["results"]:
            yield each

    async def create_token(
        self, account: str, name: str, *, scopes: Sequence[str] = (), days: int | None = None
    ) -> answers.TokenMade:
        """Make a token and return it with its ``secret``; by default with the scopes read and submit."""
        return await self._wire.post(f"{_service_account(account)}/tokens", _token(name, scopes, days))

    async def revoke_token(self, account: str, token: str) -> None:
        """Revoke a token of a service account by its id, at once."""
        await self._wire.call("DELETE", f"{_service_account(account)}/tokens/{quote(token, safe='')}")


async def _sent(
    wire: AsyncWire, body: dict[str, Any], workdir: str | os.PathLike[str] | Bundle | None = None
) -> dict[str, Any]:
    """Send ``workdir``, or the folder that a job file names so, and return the file with its bundle."""
    named = body.pop("workdir", None)
    folder = workdir if workdir is not None else named
    if isinstance(folder, Mapping):
        return {**body, "workdir": dict(folder)}
    if folder is not None:
        if body.get("bundle"):
            raise SpecError("a job takes a workdir or a bundle, not both")
        body["bundle"] = await upload(wire, folder)
    return body


async def upload(wire: AsyncWire, folder: str | os.PathLike[str] | Bundle) -> str:
    """Pack a folder, and send the bundle if the control plane does not have it yet; return its SHA-256."""
    from switchyard.bundle import Bundle, pack

    bundle = folder if isinstance(folder, Bundle) else await asyncio.to_thread(pack, folder)
    try:
        await wire.call("HEAD", f"/bundles/{bundle.sha256}")
        return bundle.sha256
    except ApiProblem as problem:
        if problem.status != 404:
            raise
    await wire.call("POST", "/bundles", content=bundle.content, headers={"Content-Type": "application/gzip"})
    return bundle.sha256


async def pages(wire: AsyncWire, path: str, params: Mapping[str, Any], most: int | None = None) -> AsyncIterator[Any]:
    """Yield every item of a list, or ``most`` of them, following ``next`` to the end.

    Only the query of ``next`` is used, so the token is never sent to another host, even if a proxy rewrites the URL.
    """
    asked: Mapping[str, Any] = params
    query, count = ("", 0)
    while True:
        found = await wire.get(path + query, None if query else asked)
        rows = found if isinstance(found, list) else found.get("results", [])
        wanted = rows if most is None else rows[: max(0, most - count)]
        for each in wanted:
            yield each
        count += len(wanted)
        following = None if isinstance(found, list) else found.get("next")
        if not following or count == most:
            return
        query = "?" + urlsplit(str(following)).query
