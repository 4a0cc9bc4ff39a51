"""Builds the Desired message of a node: all parts that should run or stop there, from the database."""

from __future__ import annotations

import uuid
import zlib
from collections.abc import Mapping
from functools import cache
from pathlib import PurePosixPath
from typing import Any

import msgspec
from django.conf import settings
from django.db import connection

from agents.protocol import (
    MEASURED,
    Desired,
    DeviceClaim,
    GangMember,
    GangPeer,
    Input,
    LinkOrder,
    Mount,
    PartSpec,
    Phase,
    Setup,
    Share,
    Timers,
    TraceOrder,
    Wanted,
)
from controlplane.dispatch.peer_tickets import ticket
from controlplane.fleet import quarantine
from controlplane.fleet.node_links import ANSWERED_WITHIN
from controlplane.fleet.world import parsed
from controlplane.jobs import inputs, sealed, web_ports
from controlplane.jobs.adjust import weight
from controlplane.jobs.array_file import as_text
from controlplane.jobs.record import is_uuid
from controlplane.jobs.trace_ids import traceparent
from controlplane.pools.mounts import allowing, kept
from scheduler.core.model.lifecycle import Cause
from scheduler.core.model.retry import GOES_ON

TIMERS = Timers(**settings.LINK_TIMERS)
# A stage that somebody queued again stops as one that moves: agents need no word of their own for that.
_TOLD = {str(Cause.REQUEUED): str(Cause.MOVE)}
# Inputs of stages planned to start within this time are prefetched.
AHEAD_S = 1800.0


@cache
def lineage() -> str:
    """Return an id of the database, which changes when a backup is restored into a new database cluster."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT system_identifier::text FROM pg_control_system()")
        return str(cursor.fetchone()[0])


# All live parts of a node with their orders, in one statement. A spec is read only for parts that the agent has not
# journalled yet; rows of jobs and stages have much that an agent never sees.
_PARTS = """
SELECT n.generation, n.conditions->'aside',
       (SELECT json_build_array(extract(epoch FROM n.measures_at)::bigint, m.name, k.url, k.key)
        FROM fleet_kept k JOIN fleet_node m ON m.id = k.node_id
        WHERE n.measures_from_id = k.node_id AND k.url <> ''
          AND n.measures_at > now() - make_interval(secs => %(measures)s)),
       (SELECT array_agg(w.id) FROM jobs_stage w
        WHERE w.state IN ('HELD', 'PENDING') AND w.request ? 'inputs' AND w.planned->'nodes' ? n.name
          AND (w.planned->>'start_at')::timestamptz < now() + make_interval(secs => %(ahead)s)),
       p.phase, p.id, p.attempt_id, p.epoch, p.rank, a.stop_why,
       coalesce(a.stop_grace_s, (s.request->>'grace_s')::float8), p.spec_rev, p.share,
       p.signal, p.signal_rev, a.save_rev,
       (SELECT json_build_object('id', t.id, 'part', p.id, 'epoch', p.epoch, 'tool', t.tool, 'seconds', t.seconds)
        FROM jobs_stagetrace t WHERE t.part_id = p.id AND t.state = 'ASKED'),
       CASE WHEN a.stop_why = '' AND p.phase < %(acked)s AND p.id <> ALL(%(known)s) THEN json_build_object(
           'job', j.number, 'job_id', j.id, 'job_name', j.name, 'bundle', j.bundle, 'project', r.name,
           'project_id', r.id, 'number', r.number,
           'storage', o.storage_path, 'mounts', o.mounts, 'pool', o.name,
           'stage_id', s.id, 'stage', s.name, 'stage_kind', s.kind,
           'request', s.request, 'attempt_number', a.number,
           'alternative', a.alternative, 'priority', j.priority, 'checkpoint_every_s', a.checkpoint_every_s,
           'array', CASE WHEN j.array_id IS NOT NULL THEN (SELECT json_build_array(y.number, j.array_index, y.count,
                                j.parameters) FROM jobs_array y WHERE y.number = j.array_id) END,
           'gang', (SELECT json_agg(json_build_array(m.name, m.address, m.hostname,
                           CASE WHEN (s.request->>'nodes')::int > 1 THEN (
                               SELECT json_agg(json_build_array(d.kind, d.vendor, d.index, d.attributes->>'device_ip')
                                               ORDER BY d.index)
                               FROM jobs_claim c JOIN fleet_device d ON d.id = c.device_id
                               WHERE c.part_id = q.id AND d.kind <> 'cpu' AND NOT d.simulated) END) ORDER BY q.rank)
                    FROM jobs_part q JOIN fleet_node m ON m.id = q.node_id WHERE q.attempt_id = a.id),
           'devices', (SELECT coalesce(json_agg(json_build_object('uuid', d.uuid, 'kind', d.kind, 'vendor', d.vendor,
                           'model', d.model, 'index', d.index, 'milli', c.milli, 'memory_bytes', c.memory_bytes,
                           'simulated', d.simulated, 'partition', CASE WHEN c.partition <> '' THEN json_build_object(
                               'profile', c.partition, 'start', lower(c.slots), 'size', upper(c.slots) - lower(c.slots),
                               'uuid', c.partition_uuid) END) ORDER BY d.kind, d.index), '[]')
                       FROM jobs_claim c JOIN fleet_device d ON d.id = c.device_id WHERE c.part_id = p.id),
           'resume', CASE WHEN a.number > 1 THEN (SELECT json_build_array(k.path, k.step) FROM jobs_checkpoint k
                          WHERE k.stage_id = s.id ORDER BY k.step DESC, k.at DESC LIMIT 1) END) END
FROM fleet_node n LEFT JOIN jobs_part p ON p.node_id = n.id AND NOT p.forgotten AND p.ended_at IS NULL
     LEFT JOIN jobs_attempt a ON a.id = p.attempt_id LEFT JOIN jobs_stage s ON s.id = a.stage_id
     LEFT JOIN jobs_job j ON j.id = s.job_id LEFT JOIN access_project r ON r.id = j.project_id
     LEFT JOIN pools_pool o ON o.id = j.pool_id
WHERE n.id = %(node)s ORDER BY p.id
"""


def compose(node_id: uuid.UUID, known: Mapping[str, int], answers_seq: int = 0, **answer: Any) -> Desired:
    """Return the current Desired message of a node.

    ``known`` maps the parts that the agent holds to their phase; the orders of those that it has journalled are
    repeated without their spec. ``answer`` has the fields that reply to a report (accepted, refused, unknown, forget),
    and ``answers_seq`` is the number of that report, 0 if there was none.
    """
    journalled = [uuid.UUID(part) for part, phase in known.items() if phase >= Phase.ACKED and is_uuid(part)]
    with connection.cursor() as cursor:
        cursor.execute(
            _PARTS,
            {
                "node": node_id,
                "known": journalled,
                "acked": Phase.ACKED,
                "ahead": AHEAD_S,
                "measures": ANSWERED_WITHIN.total_seconds(),
            },
        )
        rows = [(*row[:-2], parsed(row[-2]), parsed(row[-1])) for row in cursor.fetchall()]
    measured, soon = parsed(rows[0][2]), set(rows[0][3] or [])
    readers = {uuid.UUID(told["stage_id"]) for *_, told in rows if told is not None and "inputs" in told["request"]}
    reads = inputs.resolved(soon | readers)
    wanted = [_wanted((*row[5:-2], row[-1]), reads) for row in rows if row[5] is not None]
    return Desired(
        generation=rows[0][0],
        wanted=[*wanted, *answer.pop("leftovers", [])],
        timers=TIMERS,
        cluster=settings.CLUSTER_NAME,
        lineage=lineage(),
        answers_seq=answers_seq,
        traces=[TraceOrder(**row[-2]) for row in rows if row[-2] is not None],
        aside=quarantine.orders(parsed(rows[0][1]) or []),
        measure=_link_order(*measured) if measured else None,
        prefetch=[each for stage in sorted(soon) for each in reads.get(stage, []) if not each.path],
        **answer,
    )


def _link_order(rev: int, peer: str, url: str, key: str) -> LinkOrder:
    return LinkOrder(rev, peer, url, ticket(key, MEASURED))


def _wanted(row: Any, reads: Mapping[uuid.UUID, list[Input]]) -> Wanted:
    part, attempt, epoch, rank, stop_why, grace_s, spec_rev, share, signal, signal_rev, save_rev, told = row
    if stop_why:
        return Wanted(
            part=str(part),
            attempt=str(attempt),
            epoch=epoch,
            do="stop",
            why=_TOLD.get(stop_why, stop_why),
            grace_s=grace_s,
            save=stop_why in GOES_ON and grace_s > 0,
        )
    spec = _spec(attempt, rank, told, reads.get(uuid.UUID(told["stage_id"]), [])) if told is not None else None
    return Wanted(
        part=str(part),
        attempt=str(attempt),
        epoch=epoch,
        do="run",
        spec_rev=spec_rev,
        spec=spec,
        share=Share(**parsed(share)) if share is not None else None,
        signal=signal,
        signal_rev=signal_rev,
        save_rev=save_rev,
    )


def _spec(attempt: uuid.UUID, rank: int, told: dict[str, Any], reads: list[Input]) -> PartSpec:
    request = told["request"]
    alternative = request["alternatives"][told["alternative"]]
    gang = _gang(told["gang"])
    argv, env, files, hidden, refused = alternative["argv"], alternative.get("env") or {}, {}, [], None
    if sealed.needs(request):
        ids = uuid.UUID(told["job_id"]), uuid.UUID(told["project_id"])
        try:
            secrets = sealed.delivered(*ids, told["project"], request, told["alternative"])
            env, files, hidden = {**env, **secrets.env}, secrets.files, sorted(secrets.env)
        except sealed.Undeliverable as error:
            # Without a command, because an old agent that does not know ``refused`` must not run it either.
            argv, refused = [], error.why
    for each in request.get("mounts", ()):
        # What the pool declared may have changed since the submission.
        mounts, folder = told["mounts"], each["source"]
        if allowing(mounts, folder) is None or not (each["readonly"] or kept(mounts, folder) is None):
            argv, refused = [], ("MountUndeclared", {"pool": told["pool"], "folder": each["source"]})
    setup = Setup(request["setup"], argv) if request.get("setup") and argv else None
    if told["array"]:
        env = {**env, **_of_array(*told["array"])}
    ports = [each["port"] for each in request.get("ports", ())]
    if ports:
        env, hidden = {**env, web_ports.VARIABLE: web_ports.token(attempt)}, [*hidden, web_ports.VARIABLE]
    if settings.TRACES_URL:
        env = {"TRACEPARENT": traceparent(uuid.UUID(told["job_id"]), attempt), **env}
    resume_from, resume_step = told["resume"] or ("", None)
    storage = PurePosixPath(told["storage"]) / str(told["job"]) if told["storage"] else None
    return PartSpec(
        job=told["job"],
        job_name=told["job_name"],
        stage=told["stage"],
        stage_kind=told["stage_kind"],
        project=told["project"],
        project_number=told["number"],
        pool=told["pool"],
        attempt_number=told["attempt_number"],
        argv=[] if setup else argv,
        setup=setup,
        rank=rank,
        nodes=[member.name for member in gang],
        gang=gang if len(gang) > 1 else [],
        launcher=request.get("launcher", "per-node"),
        env=env,
        secrets=sorted({*request.get("secrets", ()), *hidden}),
        secret_files=files,
        refused=refused,
        bundle=told["bundle"] or None,
        ports=ports,
        image=alternative.get("image", ""),
        devices=msgspec.convert(told["devices"], list[DeviceClaim]),
        cpus_milli=request["cpus_milli"],
        weight=weight(told["priority"]),
        memory_bytes=request["memory_bytes"],
        disk_bytes=request.get("disk_bytes", 0),
        time_limit_s=request["time_limit_s"],
        lease_s=TIMERS.lease_s if request["on_node_lost"] == "requeue" else None,
        grace_s=request["grace_s"],
        stop_to=request["stop_to"],
        checkpoint_dir=str(storage / "checkpoints" / told["stage"]) if storage else "",
        output_dir=str(storage / "outputs" / told["stage"]) if storage else "",
        input_dir=str(storage / "outputs") if storage else "",
        mounts=[Mount(**each) for each in request.get("mounts", ())],
        inputs=reads,
        outputs=request.get("outputs", []),
        resume_from=resume_from,
        resume_step=resume_step,
        keep_checkpoints=request.get("keep_checkpoints", 0),
        checkpoint_every_s=told["checkpoint_every_s"],
        master_addr=gang[0].address,
        # The same on all ranks without communication, and unlikely to collide with another gang's.
        master_port=29_500 + zlib.crc32(attempt.bytes) % 2_000,
    )


def _of_array(number: int, index: int, count: int, parameters: dict[str, Any] | None) -> dict[str, str]:
    """Return the variables of an element of an array."""
    env = {"YARD_ARRAY_JOB": str(number), "YARD_ARRAY_INDEX": str(index), "YARD_ARRAY_COUNT": str(count)}
    return env | {f"YARD_PARAM_{name.upper()}": as_text(value) for name, value in (parameters or {}).items()}


def _gang(rows: list[tuple[str, str, str, list[Any] | None]]) -> list[GangMember]:
    """Return the nodes of an attempt in rank order, each with the address at which the others reach it."""
    here = {address for _, address, _, _ in rows}
    return [
        GangMember(
            name=name,
            # An agent beside the control plane reports loopback as its address, which is useless from another machine.
            address=hostname or name if len(here) > 1 and _is_loopback(address) else address or "127.0.0.1",
            devices=[GangPeer(kind, vendor, index, own or "") for kind, vendor, index, own in devices or []],
        )
        for name, address, hostname, devices in rows
    ]


def _is_loopback(address: str) -> bool:
    return not address or address == "::1" or address.startswith("127.")
