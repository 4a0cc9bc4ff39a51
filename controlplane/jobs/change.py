"""Changes a job after its submission: names, labels, priority, hold, and while it waits project, pool, times and size.

A change is a JSON merge patch (RFC 7396) of the job file, of which a few keys may change; ``stages`` maps the name of
a stage to its own keys. It is resolved by the same rules as a job file, so that nobody reaches by a change what they
could not submit. Written are the job, the requests of its waiting stages, and one event and one audit entry.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from django.db import transaction
from django.utils import timezone
from django.utils.translation import gettext as _

from controlplane import changes
from controlplane.accounts import audit, permissions
from controlplane.accounts.models import Project, User
from controlplane.clauses import Told, clause, joined, told
from controlplane.fleet import reservations
from controlplane.jobs import demand, masked, possible, service, waiting_limit
from controlplane.jobs import spec as jobfile
from controlplane.jobs.models import Job, Stage
from controlplane.jobs.section import FieldError, Section, step
from controlplane.jobs.service import Note
from controlplane.jobs.values import flag, listed
from scheduler.core.model.lifecycle import FINAL, WAITING, State

TIMES: Final = ("time_limit", "expected", "deadline", "begin")
ANYTIME: Final = ("name", "labels", "priority")
# What a stage asks for; after its first attempt its checkpoints fit that size.
SIZE: Final = ("devices", "nodes", "cpus", "memory", *demand.AMOUNTS, "topology", "avoid", "only_on", "constraint")
# Where a job is charged and runs; a job that has run has left checkpoints and usage there.
PLACE: Final = ("project", "pool")
OF_STAGE: Final = (*TIMES, *SIZE)
KEYS: Final = (*ANYTIME, "hold", *PLACE, "reservation", *OF_STAGE, "stages")

# What of a stored request follows from which key.
_FIELDS: Final[Mapping[str, tuple[str, ...]]] = {
    "time_limit": ("time_limit_s",),
    "expected": ("expected_s",),
    "deadline": ("deadline_at", "deadline_s"),
    "begin": (),
    "reservation": ("reservation",),
    "priority": ("preemptible",),
    "pool": ("time_limit_s", "on_node_lost"),
    "nodes": ("nodes", "least_nodes"),
    **{key: (name,) for key, name in demand.AMOUNTS.items()},
    "topology": ("within", "within_required"),
    "avoid": ("avoid",),
    "only_on": ("only_on",),
    "constraint": ("constraint",),
    **dict.fromkeys(("devices", "cpus", "memory"), ("alternatives", "cpus_milli", "memory_bytes", "names_devices")),
}
# What of a job file is needed to resolve these keys again. The rest may be masked, or be gone by now.
_RESOLVED: Final = (*TIMES, "preemption", "on_node_lost", "task")
# What a way to run a stage may have of its own beside its devices.
_OWN: Final = frozenset({"run", "command", "env", "image"})


class Unchangeable(Exception):
    """Raised for a change that the state of the job no longer allows; ``pointer`` is the key, the text says why."""

    def __init__(self, pointer: str, text: str) -> None:
        super().__init__(text)
        self.pointer = pointer


def change(job: Job, patch: object, user: User, reason: str = "", *, check: Callable[[], None] = lambda: None) -> Job:
    """Apply a merge patch of the job file to this job, or nothing of it. A patch that changes nothing writes nothing.

    ``check`` is called while the job is locked, before anything is read. Raises ``InvalidSpec`` for a patch that no job
    file could have, and :class:`Unchangeable` for one that comes too late. The caller decides who may change the job.
    """
    faults: list[FieldError] = []
    asked = Section(patch, "", faults, KEYS)
    on_hold = asked.read("hold", flag, False)
    if not isinstance(patch, dict) or faults:
        raise jobfile.InvalidSpec(_with_hint(faults))
    with transaction.atomic():
        locked = service.lock([job.id])[job.id]
        check()
        stages = list(locked.stages.order_by("index"))
        before = _told(locked, stages)
        spec, touched = _patched(locked, stages, asked)
        if any("devices" in keys for keys in touched.values()):
            _check_same_work(locked.spec, spec)
        sized = {key for keys in touched.values() for key in keys} & set(SIZE)
        rules = _rules(locked, user, asked)
        resolved = jobfile.resolve(_resolvable(spec, locked, asked, SIZE if sized else ()), rules)
        _check_open(locked, asked)
        _check_place(locked, stages, resolved)
        if locked.project_id != resolved.project.id and "priority" not in asked.values:
            _check_class(locked, resolved.project, jobfile.rules_for(user))
        _check_waiting(locked, stages, resolved)
        changed = [
            stage
            for stage, new in zip(stages, resolved.stages, strict=True)
            if _change_stage(stage, new, touched[stage.name])
        ]
        if sized or resolved.pool.id != locked.pool_id:
            _check_possible(stages, resolved, "" if sized else "/pool")
        is_new = _change_job(locked, spec, resolved, asked)
        notes = [
            Note(locked, "changed", _said(before, _told(locked, stages), locked, user, reason), user.get_username())
        ]
        if changed or is_new:
            _save(locked, changed)
            service.settle([locked], notes, timezone.now())
            named = ("job", locked.number, f"#{locked.number}")
            audit.record("job.change", named, before=before, after=_told(locked, stages), reason=reason)
            number = locked.number
            transaction.on_commit(changes.wake)
            transaction.on_commit(lambda: changes.announce("jobs", f"job:{number}"))
        if asked.has("hold"):
            _hold(locked, on_hold, user.get_username(), reason)
    return locked


def _with_hint(faults: list[FieldError]) -> list[FieldError]:
    """Say of keys that a job file may have that they cannot change any more."""
    said = _("{key} cannot change after the submit, only {keys} can; submit the job again instead")
    fixed = {step(key): key for key in (*jobfile.JOB_KEYS, *jobfile.STAGE_KEYS) if key not in KEYS}
    return [
        FieldError(fault.pointer, said.format(key=fixed[fault.pointer], keys=listed(KEYS)), "unchangeable")
        if fault.pointer in fixed
        else fault
        for fault in faults
    ]


def _patched(job: Job, stages: list[Stage], asked: Section) -> tuple[dict[str, Any], dict[str, dict[str, bool]]]:
    """Return the job file after the patch, and for each stage the keys that the patch touches, with whether it does so
    at the stage itself."""
    spec = copy.deepcopy(dict(job.spec))
    touched: dict[str, dict[str, bool]] = {stage.name: {} for stage in stages}
    own = {each.get("name"): each for each in spec.get("stages") or []}
    for key, value in asked.values.items():
        if key in ("stages", "hold"):
            continue
        _merge(spec, key, value)
        for stage in stages:
            if key not in OF_STAGE or own.get(stage.name, {}).get(key) is None:
                touched[stage.name][key] = False
    faults: list[FieldError] = []
    part = Section(asked.values["stages"] if asked.has("stages") else {}, "/stages", faults, touched)
    for name, keys in part.values.items():
        for key in Section(keys, f"/stages{step(name)}", faults, OF_STAGE).values if name in touched else ():
            # A job of one stage has its keys at the top.
            _merge(own.get(name, spec), key, keys[key])
            touched[name][key] = True
    if faults:
        raise jobfile.InvalidSpec(faults)
    return spec, touched


def _merge(into: dict[str, Any], key: str, value: object) -> None:
    """Merge one key as RFC 7396 says: mappings are merged, null takes a key away, anything else replaces it."""
    if value is None:
        into.pop(key, None)
    elif isinstance(value, dict):
        merged = dict(into[key]) if isinstance(into.get(key), dict) else {}
        for name, inner in value.items():
            _merge(merged, name, inner)
        into[key] = merged
    else:
        into[key] = value


def _resolvable(spec: Mapping[str, Any], job: Job, asked: Section, sizes: Sequence[str]) -> dict[str, Any]:
    """Return the keys of a job file that a change resolves again; those of ``sizes`` only if some of them changes."""
    kept = {key: spec[key] for key in (*ANYTIME, *PLACE, *_RESOLVED, *sizes) if spec.get(key) is not None}
    # A reservation may be over by now, which is no fault of another change; in another place it must be one there.
    if spec.get("reservation") and asked.values.keys() & {"reservation", *PLACE}:
        kept["reservation"] = spec["reservation"]
    if "priority" not in asked.values:
        kept.pop("priority", None)  # may be one that this user could not choose; it stays
    kept |= {"project": spec.get("project") or job.project.name, "run": "true"}
    for key in PLACE:
        if key in asked.values and asked.values[key] is None:
            kept.pop(key, None)
    if spec.get("stages"):
        keys = ("name", "kind", *_RESOLVED, *sizes)
        kept["stages"] = [{key: each[key] for key in keys if each.get(key) is not None} for each in spec["stages"]]
    return kept


def _rules(job: Job, user: User, asked: Section) -> jobfile.SubmitRules:
    """Return the rules for this user, by which the job may also stay where it is, and keep its priority class."""
    rules = jobfile.rules_for(user)
    may_use, may_use_class = rules.may_use, rules.may_use_class
    return replace(
        rules,
        projects={**rules.projects, job.project.name: job.project},
        may_use=lambda pool, project: (pool.id, project.id) == (job.pool_id, job.project_id) or may_use(pool, project),
        may_use_class=lambda found, project: "priority" not in asked.values or may_use_class(found, project),
    )


def _check_open(job: Job, asked: Section) -> None:
    """Refuse changes of a job that has ended, but for its name and labels."""
    late = next((key for key in KEYS if key in asked.values and key not in ("name", "labels")), "")
    if late and job.state in FINAL:
        said = _("job {number} is {state}; only its name and labels can still change")
        raise Unchangeable(step(late), said.format(number=job.number, state=job.state))


def _check_place(job: Job, stages: list[Stage], resolved: jobfile.Resolved) -> None:
    """Refuse another project or pool for a job that has begun, or that needs secrets which the project lacks."""
    moved = [key for key, now, new in _places(job, resolved) if now != new]
    if not moved:
        return
    if job.state not in WAITING or any(stage.attempt_count for stage in stages):
        said = _("the {key} of a job can change until it has started; job {number} has")
        raise Unchangeable(step(moved[0]), said.format(key=moved[0], number=job.number))
    name = next((new.request["reservation"] for new in resolved.stages if "reservation" in new.request), "")
    if name and (refused := reservations.refusal_for(job.user)(name, resolved.project, resolved.pool)):
        raise jobfile.InvalidSpec([FieldError(step(moved[0]), refused, "unknown_reservation")])
    if "project" in moved:
        _check_owner(job, resolved.project)
        held = set(resolved.project.secrets.values_list("name", flat=True))
        for stage in stages:
            lacks = [each["name"] for each in stage.request.get("named_secrets", ()) if each["name"] not in held]
            if lacks:
                said = _("project {project} has no secret {name}, which stage {stage} uses")
                detail = said.format(project=resolved.project.name, name=lacks[0], stage=stage.name)
                raise jobfile.InvalidSpec([FieldError("/project", detail, "unknown_secret")])


def _check_owner(job: Job, project: Project) -> None:
    """Refuse a project to which the job's owner may not submit: its secrets would reach them."""
    if not permissions.submittable(job.user).filter(id=project.id).exists():
        said = _("{user}, whose job it is, may not submit to project {project}")
        detail = said.format(user=job.user.get_username(), project=project.name)
        raise jobfile.InvalidSpec([FieldError("/project", detail, "denied")])


def _check_class(job: Job, project: Project, rules: jobfile.SubmitRules) -> None:
    """Refuse a project in which this user may not use the job's priority class. A class that is gone, and a number, go
    with the job."""
    found = rules.classes.get(job.priority_class)
    if found is not None and (refused := jobfile.class_refusal(rules, found, project)):
        raise jobfile.InvalidSpec([FieldError("/project", refused, "denied")])


def _check_waiting(job: Job, stages: list[Stage], resolved: jobfile.Resolved) -> None:
    """Refuse another project or pool if so many stages of the job's owner may not wait there; submissions of the owner
    are kept out until this change is done."""
    moved = [key for key, now, new in _places(job, resolved) if now != new]
    if moved and (limits := waiting_limit.of(job.user)):
        service.keep_submissions_out(job.user)
        waits = sum(State(stage.state) in WAITING for stage in stages)
        waiting_limit.check_move(limits, job, waits, resolved, step(moved[0]))


def _places(job: Job, resolved: jobfile.Resolved) -> list[tuple[str, object, object]]:
    return [("project", job.project_id, resolved.project.id), ("pool", job.pool_id, resolved.pool.id)]


def _change_stage(stage: Stage, new: jobfile.ResolvedStage, touched: Mapping[str, bool]) -> bool:
    """Set what the touched keys mean for this stage; return whether it differs. Raises :class:`Unchangeable`."""
    fields = {name for key in touched for name in _FIELDS.get(key, ())}
    request = {name: value for name, value in stage.request.items() if name not in fields}
    request |= {name: new.request[name] for name in fields if name in new.request}
    if "alternatives" in fields:
        request |= _same_work(stage.request, new.request["alternatives"])
    begin_at = new.begin_at if "begin" in touched else stage.begin_at
    if request == stage.request and begin_at == stage.begin_at:
        return False
    state = State(stage.state)
    if state in FINAL and not any(touched.values()):
        return False
    at = f"/stages{step(stage.name)}"
    if late := next((key for key in (*OF_STAGE, "reservation") if key in touched and state not in WAITING), ""):
        said = _("stage {stage} is {state}; its {key} can change only while it waits")
        raise Unchangeable(at + step(late), said.format(stage=stage.name, state=state, key=late))
    if late := next((key for key in SIZE if key in touched and stage.attempt_count), ""):
        said = _("stage {stage} has run already; its {key} can change only before its first attempt")
        raise Unchangeable(at + step(late), said.format(stage=stage.name, key=late))
    stage.request, stage.begin_at = request, begin_at
    if state in WAITING and (set(touched) - {"priority"}):
        # What was foreseen for the former demand holds no longer, and is not counted as broken.
        stage.promise = stage.planned = stage.expected = stage.announced = stage.first_promise = None
    return True


def _same_work(former: Mapping[str, Any], ways: list[dict[str, Any]]) -> dict[str, Any]:
    """Return other ways to run a stage, each with the command, environment and image of the former ones."""
    kept = {name: value for name, value in former["alternatives"][0].items() if name not in ("index", "asks")}
    found: dict[str, Any] = {"alternatives": [{**kept, "index": way["index"], "asks": way["asks"]} for way in ways]}
    if places := former.get(masked.SEALED):
        found[masked.SEALED] = [places[0]] * len(ways)
    return found


def works_alike(devices: object) -> bool:
    """Whether no device of this value of a job file has a command, environment or image of its own."""
    ways = devices.get("any_of", [devices]) if isinstance(devices, dict) else []
    return not any(isinstance(way, dict) and _OWN & way.keys() for way in (ways if isinstance(ways, list) else []))


def _check_same_work(before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
    """Refuse other devices where some have a command, environment or image of their own."""
    for spec in (before, after):
        for at, each in [("", spec), *((f"/stages/{i}", one) for i, one in enumerate(spec.get("stages") or []))]:
            if not works_alike(each.get("devices")):
                said = _(
                    "devices with a command, environment or image of their own cannot change; submit the job again"
                )
                raise jobfile.InvalidSpec([FieldError(f"{at}/devices", said, "unchangeable")])


def _check_possible(stages: list[Stage], resolved: jobfile.Resolved, pointer: str) -> None:
    """Refuse a change by which a stage could never start; ``pointer`` is the key at fault, if there is one."""
    waits = [
        replace(new, request=stage.request)
        for stage, new in zip(stages, resolved.stages, strict=True)
        if State(stage.state) in WAITING
    ]
    if found := possible.faults([replace(resolved, stages=tuple(waits))]):
        raise jobfile.InvalidSpec([FieldError(pointer or fault.pointer, fault.detail, fault.code) for fault in found])


def _change_job(job: Job, spec: dict[str, Any], resolved: jobfile.Resolved, asked: Section) -> bool:
    """Set what the patch means for the job itself; return whether it differs."""
    before = (dict(job.spec), job.project_id, job.pool_id, job.name, job.labels, job.priority_class, job.priority)
    job.project, job.pool = resolved.project, resolved.pool
    if "name" in asked.values:
        job.name = resolved.name
    if "labels" in asked.values:
        job.labels = resolved.labels
    if "priority" in asked.values:
        job.priority_class, job.priority = resolved.priority_class, resolved.priority
    job.spec = spec
    return before != (spec, job.project_id, job.pool_id, job.name, job.labels, job.priority_class, job.priority)


def _save(job: Job, changed: list[Stage]) -> None:
    job.save(update_fields=["name", "project", "pool", "priority_class", "priority", "spec", "labels"])
    Stage.objects.bulk_update(
        changed,
        ["request", "begin_at", "promise", "planned", "expected", "announced", "first_promise"],
    )


def _hold(job: Job, wanted: bool, actor: str, reason: str) -> None:
    """Hold or release the job, unless it is so already."""
    states = {State(state) for state in job.stages.values_list("state", flat=True)}
    if wanted and State.PENDING in states:
        service.hold(job, actor, reason)
    elif not wanted and State.HELD in states:
        service.release(job, actor, reason)
    elif wanted and State.HELD not in states:
        said = _("job {number} is {state}; only a job that waits can be held")
        raise Unchangeable("/hold", said.format(number=job.number, state=job.state))


def _told(job: Job, stages: list[Stage]) -> dict[str, Any]:
    """Return what a change may change, flat, for its event and the audit log."""
    told: dict[str, Any] = {
        "name": job.name,
        "labels": dict(job.labels),
        "project": job.project.name,
        "pool": job.pool.name,
        "reservation": job.spec.get("reservation"),
        "priority": job.priority if job.priority_class == "custom" else job.priority_class,
    }
    for stage in stages:
        told[f"{stage.name}.asks"] = demand.asked(stage.request).text
        told[f"{stage.name}.time_limit_s"] = stage.request["time_limit_s"]
        told[f"{stage.name}.expected_s"] = stage.request["expected_s"]
        told[f"{stage.name}.deadline"] = stage.request.get("deadline_at", stage.request.get("deadline_s"))
        told[f"{stage.name}.begin_at"] = stage.begin_at.isoformat() if stage.begin_at else None
    return told


def _said(before: Mapping[str, Any], after: Mapping[str, Any], job: Job, user: User, reason: str) -> Told:
    """Tell what changed: ``ann changed #12 sft: priority low -> high, train.time_limit_s 3600 -> 7200``."""
    different = [name for name in after if before[name] != after[name]]
    changed = [
        told(clause("ChangedTo", name=name, was=_word(before[name]), now=_word(after[name]))) for name in different[:20]
    ]
    said = [clause("ChangedBy", actor=user.get_username(), job=str(job), changes=joined(changed, "Comma"))]
    return told(*said, *([clause("Aside", why=reason)] if reason else []))


def _word(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name}={word}" for name, word in value.items())[:200] or "-"
    return "-" if value in (None, "") else str(value)[:200]
