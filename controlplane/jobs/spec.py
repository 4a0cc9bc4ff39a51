"""Resolves a job file to what is stored, or reports all of its faults.

:func:`resolve` is pure: what it needs from the database is passed as :class:`SubmitRules`, which
:func:`rules_for` reads.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cache, partial
from graphlib import CycleError, TopologicalSorter
from typing import Any, Final

from django.conf import settings
from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop

from controlplane.accounts import permissions
from controlplane.accounts.models import Project, User
from controlplane.accounts.permissions import Permit
from controlplane.fleet import reservations
from controlplane.fleet.models import SITE_NODE, Device, Node
from controlplane.jobs import (
    array_file,
    away,
    constraint,
    demand,
    depends_on,
    flow,
    git_ask,
    left_outputs,
    masked,
    mounts,
    notify,
    profiling,
    promotion,
    utilization_policy,
    web_ports,
)
from controlplane.jobs.array_file import ArrayPlan
from controlplane.jobs.demand import AFFINITY, DeviceCatalogue, HostDemand
from controlplane.jobs.depends_on import Awaited
from controlplane.jobs.git_ask import GitAsk
from controlplane.jobs.section import FieldError, Section
from controlplane.jobs.values import (
    Unacceptable,
    choice,
    duration,
    flag,
    listed,
    matching,
    moment,
    nearest,
    shown,
    text,
    whole,
)
from controlplane.pools import access as pool_access
from controlplane.pools import kinds
from controlplane.pools.models import Pool, PriorityClass
from scheduler.core.model import retry

STAGE_DEFAULTS: Final = (
    "run", "command", "env", "nodes", "devices", "cpus", "memory", "disk", "disk_bandwidth", "network_bandwidth",
    "time_limit", "begin", "retry", "on_node_lost",
    "preemption", "checkpoint", "precision", "task", "expected", "deadline", "topology", "image", "launcher",
    "inputs", "outputs", "secrets", "avoid", "only_on", "constraint", "site", "setup", "mounts",
    "utilization_policy", "profiling", "ports", "idle_timeout", "sites", "data", "on_site_lost",
)  # fmt: skip
JOB_KEYS: Final = (
    "apiVersion", "kind", "name", "project", "pool", "priority", "labels", "workdir", "bundle", "hold", "stages",
    "array", "depends_on", "notify", "reservation", "promote",
    *STAGE_DEFAULTS,
)  # fmt: skip
STAGE_KEYS: Final = ("name", "kind", "needs", "promote", *STAGE_DEFAULTS)
# Keys that later versions will support: refused with another message than a misspelt key.
LATER: Final = (
    "venv", "shm",
)  # fmt: skip

PRECISIONS: Final = ("fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "int8", "int4")
MAX_STAGES: Final = 256
MAX_NODES: Final = 1024
# The stages, dependencies and characters of all elements of an array together.
MOST_STAGES_IN_ALL: Final = 20_000
MOST_WAITS_IN_ALL: Final = 50_000
LARGEST_ARRAY: Final = 128 * 2**20
MOST_AVOIDED: Final = 256
MAX_GRACE_S: Final = 900.0
YEAR_S: Final = 366 * 86_400.0

# Stage names become folder names; job names are only shown: any script is allowed, but nothing like a path.
_STAGE_NAME = matching(
    re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_-]|\.(?!\.)){0,62}(?<!\.)"),
    gettext_noop("1 to 63 letters, digits, . _ - that begin with a letter or digit"),
)
_JOB_NAME = matching(
    re.compile(r"\w[\w .,:;=+@#()\[\]~-]{0,99}(?<! )"),
    gettext_noop(
        "1 to 100 letters, digits, spaces and . , : ; = + @ # ( ) [ ] ~ _ - that begin with a letter or digit"
    ),
)
_SHA256 = matching(
    re.compile(r"[0-9a-f]{64}"), gettext_noop("the SHA-256 of an uploaded bundle: 64 hexadecimal digits")
)
LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,62}")
LONGEST_NODE = 253
# A star stands for any value in what is stored of a constraint.
LABEL_VALUE = re.compile(r"[^*\x00-\x1f\x7f]{1,63}")
_RESERVATION = matching(re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"), gettext_noop("the name of a reservation"))


class InvalidSpec(ValueError):
    """Raised for a job file with faults; ``errors`` lists all of them."""

    def __init__(self, errors: Sequence[FieldError]) -> None:
        first = errors[0]
        said = _("{where}: {fault} (and {n} more)") if len(errors) > 1 else _("{where}: {fault}")
        where = first.pointer or _("the job file")
        super().__init__(said.format(where=where, fault=first.detail, n=len(errors) - 1))
        self.errors = list(errors)


@dataclass(frozen=True, slots=True)
class SubmitRules:
    """What in the database affects job files of a user: where the user may submit, and what exists."""

    projects: Mapping[str, Project]
    pools: Mapping[str, Pool]
    classes: Mapping[str, PriorityClass]
    default_project: str = ""
    default_pool: str = "default"
    default_class: str = "medium"
    may_number: bool = False
    may_use_class: Callable[[PriorityClass, Project], bool] = lambda found, project: not found.staff_only
    earlier: depends_on.Finder = lambda name: None
    has_bundle: Callable[[str], bool] = lambda sha256: True
    nodes: Callable[[], Collection[str]] = tuple
    secrets: Callable[[Project], Collection[str]] = lambda project: ()
    webhooks: notify.Webhooks = lambda project: ()
    no_mail: Callable[[], str] = lambda: ""
    may_use: Callable[[Pool, Project], bool] = lambda pool, project: True
    # Why a job in a project and pool may not use a reservation; empty if it may.
    reservation: Callable[[str, Project, Pool], str] = lambda name, project, pool: ""
    sites: Callable[[], Collection[str]] = tuple
    # Why the model of a job may not be promoted to a service of a project; empty if it may.
    promotable: promotion.Services = lambda name, project: ""
    # What a stage of an earlier job of a project has left.
    left: flow.Left = lambda project, pool, job, stage, output, digest: flow.NOT_LEFT
    cluster: str = ""
    known: DeviceCatalogue = field(default_factory=DeviceCatalogue)


@dataclass(frozen=True, slots=True)
class ResolvedStage:
    """One stage in the form in which it is stored. ``request`` has the shape that the engine and the agents read."""

    name: str
    kind: str
    needs: tuple[str, ...]
    request: dict[str, Any]
    max_attempts: int
    begin_at: datetime | None


@dataclass(frozen=True, slots=True)
class Resolved:
    """One job in the form in which it is stored.

    ``size`` is that of all elements of an array, 0 for a job. ``warnings`` are pointers and sentences about keys that
    have no effect.
    """

    name: str
    project: Project
    pool: Pool
    priority_class: str
    priority: int
    labels: dict[str, str]
    bundle: str
    git: GitAsk | None
    hold: bool
    stages: tuple[ResolvedStage, ...]
    array: ArrayPlan | None = None
    depends_on: tuple[Awaited, ...] = ()
    size: int = 0
    warnings: tuple[tuple[str, str], ...] = ()

    def plain(self) -> dict[str, Any]:
        """Return the resolved job as plain JSON for the dry run; secret values are masked."""
        return {
            "name": self.name,
            "project": self.project.name,
            "pool": self.pool.name,
            "priority": {"class": self.priority_class, "value": self.priority},
            "labels": self.labels,
            "bundle": self.bundle or None,
            "source": self.git.plain() if self.git else None,
            "hold": self.hold,
            "array": self.array.plain() if self.array else None,
            "depends_on": [{"job": each.on.name if each.on else None, "when": each.when} for each in self.depends_on],
            "stages": [
                {
                    "name": stage.name,
                    "kind": stage.kind,
                    "needs": list(stage.needs),
                    "asks": demand.asked(stage.request).text,
                    "asks_said": demand.asked(stage.request).said,
                    "why": demand.why(stage.request),
                    "max_attempts": stage.max_attempts,
                    "begin_at": stage.begin_at.isoformat() if stage.begin_at else None,
                    "request": masked.shown(stage.request),
                }
                for stage in self.stages
            ],
        }


def rules_for(user: User) -> SubmitRules:
    """Read the rules for job files of this user."""
    from controlplane.jobs.models import Bundle

    projects = {project.name: project for project in permissions.submittable(user)}
    default = next((name for name, project in projects.items() if project.id == user.default_project_id), "")
    if not default:
        default = "default" if "default" in projects else next(iter(projects)) if len(projects) == 1 else ""
    devices = Device.objects.filter(present=True).order_by().values_list("kind", "model").distinct()
    models = {model.lower(): kind for kind, model in devices if model}
    return SubmitRules(
        projects=projects,
        pools={pool.name: pool for pool in Pool.objects.all()},
        classes={each.name: each for each in PriorityClass.objects.all()},
        default_project=default,
        may_number=permissions.may(user, Permit.USE_ANY_PRIORITY),
        may_use=pool_access.usable_by(user),
        may_use_class=pool_access.class_usable_by(user),
        earlier=depends_on.finder(user),
        has_bundle=lambda sha256: Bundle.objects.filter(sha256=sha256).exists(),
        nodes=cache(lambda: frozenset(Node.objects.values_list("name", flat=True))),
        secrets=cache(lambda project: frozenset(project.secrets.values_list("name", flat=True))),
        webhooks=cache(lambda project: frozenset(project.webhooks.values_list("name", flat=True))),
        no_mail=cache(lambda: notify.no_mail(user)),
        reservation=reservations.refusal_for(user),
        sites=cache(_sites),
        promotable=promotion.refusal_for(user),
        left=left_outputs.left,
        cluster=settings.CLUSTER_NAME,
        known=DeviceCatalogue(kinds.named() | {kind for kind, _model in devices}, models),
    )


def _sites() -> frozenset[str]:
    """Return the names of the other clusters that jobs may name: those for which a node stands."""
    names = Node.objects.filter(is_site=True).values_list("name", flat=True)
    return frozenset(name.removeprefix(SITE_NODE) for name in names)


def resolve_all(specs: Sequence[object], user: User) -> list[Resolved]:
    """Resolve many files at once; equal files are resolved once. Raises :class:`InvalidSpec`.

    If there are several files, pointers of faults begin with the file's index.
    """
    rules = rules_for(user)
    seen: dict[str, Resolved | list[FieldError]] = {}
    found: list[Resolved] = []
    faults: list[FieldError] = []
    for index, each in enumerate(specs):
        key = hashlib.sha256(json.dumps(each, sort_keys=True, default=str).encode()).hexdigest()
        if key not in seen:
            try:
                seen[key] = resolve(each, rules)
            except InvalidSpec as error:
                seen[key] = error.errors
        one = seen[key]
        if isinstance(one, Resolved):
            found.append(one)
        else:
            prefix = f"/jobs/{index}" if len(specs) > 1 else ""
            faults += [FieldError(prefix + fault.pointer, fault.detail, fault.code) for fault in one]
            if len(faults) >= 100:
                break
    if faults:
        raise InvalidSpec(faults)
    check_sizes(found)
    return found


def check_sizes(found: Sequence[Resolved]) -> None:
    """Refuse files that would together be too many or too large rows. Raises :class:`InvalidSpec`."""
    count = sum(len(one.array) if one.array else 1 for one in found)
    waits = sum(len(one.depends_on) * (len(one.array) if one.array else 1) for one in found)
    if waits > MOST_WAITS_IN_ALL or (
        any(one.array for one in found)
        and (count > array_file.MOST_ELEMENTS or sum(one.size for one in found) > LARGEST_ARRAY)
    ):
        said = _("one request may have at most {most:,} elements, less if files are long, and {waits:,} dependencies")
        detail = said.format(most=array_file.MOST_ELEMENTS, waits=MOST_WAITS_IN_ALL)
        raise InvalidSpec([FieldError("/jobs", detail, "too_many")])


def _kind_of_file(value: object) -> str:
    """Read what the file is; who says there what a stage does is told where that stands."""
    if isinstance(value, str) and value in AFFINITY:
        detail = _("says what the file is, Job; what a stage does is said below stages, as kind: {kind}")
        raise Unacceptable(detail.format(kind=value), "unknown_value")
    return choice("Job")(value)


def resolve(spec: object, rules: SubmitRules) -> Resolved:
    """Resolve a job file. Raises :class:`InvalidSpec` with every fault of it."""
    faults: list[FieldError] = []
    job = Section(spec, "", faults, JOB_KEYS, LATER)
    if not isinstance(spec, dict):
        raise InvalidSpec(faults)
    job.read("apiVersion", choice("v1"), "v1")
    job.read("kind", _kind_of_file, "Job")
    project = _project(job, rules)
    pool = _pool(job, rules, project)
    name, value, preemptible = _priority(job, rules, project)
    bundle = job.read("bundle", _SHA256, "")
    if bundle and not rules.has_bundle(bundle):
        job.refuse("bundle", _("no such bundle was uploaded; POST it to /api/v1/bundles first"), "unknown_bundle")
    git = git_ask.read(job, project, rules.secrets)
    stages = _reserved(job, rules, project, pool, _stages(job, rules, project, pool, preemptible))
    promotion.check(job, stages)
    away.check(job, [stage.request for stage in stages])
    first = stages[0].name if stages and job.has("stages") else "job"
    resolved_name = job.read("name", _JOB_NAME, first)
    labels = _labels(job)
    hold = job.read("hold", flag, False)
    array = array_file.array(job)
    mails = notify.check(job, project, rules.webhooks)
    waits = depends_on.depends_on(job, rules.earlier, array.indexes if array else None)
    size = _check_size(job, spec, array, waits, stages)
    if faults or project is None or pool is None:
        # A fault in a key of the job that several stages inherit is reported once.
        raise InvalidSpec(list(dict.fromkeys(faults)))
    warnings = [
        (
            f"{at}/framework",
            _(
                "{key} is kept for those who read it; checkpoints are recognised in YARD_CHECKPOINT_DIR without it"
            ).format(key="framework"),
        )
        for at in _pointers(spec, "checkpoint", "framework")
    ]
    if mails and (why := rules.no_mail()):
        warnings.append(("/notify", why))
    return Resolved(
        name=resolved_name,
        project=project,
        pool=pool,
        priority_class=name,
        priority=value,
        labels=labels,
        bundle=bundle,
        git=git,
        hold=hold,
        stages=tuple(stages),
        array=array,
        depends_on=tuple(waits),
        size=size,
        warnings=tuple(warnings),
    )


def _check_size(
    job: Section,
    spec: Mapping[str, Any],
    array: ArrayPlan | None,
    waits: Sequence[Awaited],
    stages: Sequence[ResolvedStage],
) -> int:
    """Return the size of all elements; refuse an array that would be too many or too large rows."""
    if array is None or job.refusals:
        return 0
    for key, each, most in (("stages", len(stages), MOST_STAGES_IN_ALL), ("depends_on", len(waits), MOST_WAITS_IN_ALL)):
        if each * len(array) > most:
            detail = _("an array may have {most:,} {key} in all, not {n} for each of {count:,} elements")
            job.refuse(key, detail.format(most=most, key=key, n=each, count=len(array)), "too_many")
    own = {key: value for key, value in spec.items() if key != "array"}
    size = len(json.dumps([own, *(stage.request for stage in stages)], default=str))
    if size * len(array) > LARGEST_ARRAY:
        detail = _("a file of this size may have {most:,} elements, not {count:,}; put scripts into a bundle (workdir)")
        job.refuse("array", detail.format(most=LARGEST_ARRAY // size, count=len(array)), "too_large")
    return size * len(array)


def _pointers(spec: Mapping[str, Any], key: str, inner: str) -> list[str]:
    """Return the pointers at which the mapping at ``key``, of the job or of a stage, has the key ``inner``."""
    stages = spec.get("stages") if isinstance(spec.get("stages"), list) else []
    places = [("", spec), *((f"/stages/{i}", each) for i, each in enumerate(stages or []))]
    return [f"{at}/{key}" for at, each in places if (each.get(key) or {}).get(inner) is not None]


def _project(job: Section, rules: SubmitRules) -> Project | None:
    name = job.values.get("project")
    if name is None:
        name = rules.default_project
        if not name:
            said = (
                _("no project is named and you have no default one; name one of {projects}")
                if rules.projects
                else _("no project is named and you have no default one; ask to become a member of one")
            )
            job.refuse("project", said.format(projects=listed(sorted(rules.projects))), "missing")
            return None
    if not isinstance(name, str) or name not in rules.projects:
        detail = _("you cannot submit to a project {project}; {others}").format(
            project=shown(name), others=nearest(str(name), rules.projects)
        )
        job.refuse("project", detail, "unknown_project")
        return None
    return rules.projects[name]


def _pool(job: Section, rules: SubmitRules, project: Project | None) -> Pool | None:
    name = job.values.get("pool")
    name = rules.default_pool if name is None else name
    if not isinstance(name, str) or name not in rules.pools:
        detail = _("there is no pool {pool}; {others}").format(pool=shown(name), others=nearest(str(name), rules.pools))
        job.refuse("pool", detail, "unknown_pool")
        return None
    pool = rules.pools[name]
    if project is not None and not rules.may_use(pool, project):
        others = sorted(one.name for one in rules.pools.values() if rules.may_use(one, project))
        said = _("project {project} may not use pool {pool}; it may use {others}")
        if not others:
            said = _("project {project} may not use pool {pool}, nor any other; ask an operator")
        detail = said.format(project=project.name, pool=pool.name, others=listed(others))
        job.refuse("pool", detail, "pool_refused")
        return None
    return pool


def _reserved(
    job: Section, rules: SubmitRules, project: Project | None, pool: Pool | None, stages: list[ResolvedStage]
) -> list[ResolvedStage]:
    """Return the stages with the reservation that the job names, if it does."""
    name = job.read("reservation", _RESERVATION, "")
    if not name or project is None or pool is None:
        return stages
    if refused := rules.reservation(name, project, pool):
        job.refuse("reservation", refused, "unknown_reservation")
    return [replace(stage, request={**stage.request, "reservation": name}) for stage in stages]


def _priority(job: Section, rules: SubmitRules, project: Project | None) -> tuple[str, int, bool]:
    """Return the name, number and preemptibility of the job's priority class."""
    given = job.values.get("priority")
    given = rules.default_class if given is None else given
    if isinstance(given, int) and not isinstance(given, bool) and rules.may_number:
        return "custom", job.read("priority", whole(0, 10_000), 0), True
    if not isinstance(given, str) or given not in rules.classes:
        said = (
            _("priority must be a class or a number from 0 to 10000, not {value}; {others}")
            if rules.may_number
            else _("priority must be a class, not {value}; {others}")
        )
        others = nearest(str(given), rules.classes)
        job.refuse("priority", said.format(value=shown(given), others=others), "unknown_class")
        return "", 0, True
    found = rules.classes[given]
    if project is not None and (refused := class_refusal(rules, found, project)):
        job.refuse("priority", refused, "denied")
    return found.name, found.value, found.preemptible


def class_refusal(rules: SubmitRules, found: PriorityClass, project: Project) -> str:
    """Return why a job in a project may not use a priority class, with those that it may; empty if it may."""
    if rules.may_use_class(found, project):
        return ""
    others = [name for name, each in rules.classes.items() if rules.may_use_class(each, project)]
    if not others:
        said = _("you may not use class {name} in project {project}, nor any other; ask an accountant")
    else:
        said = _("you may not use class {name} in project {project}; you may use {others}")
    return said.format(name=found.name, project=project.name, others=listed(others))


def _labels(job: Section) -> dict[str, str]:
    value = job.values.get("labels")
    if value is None:
        return {}
    if not isinstance(value, dict) or len(value) > 64:
        job.refuse("labels", _("labels must map at most 64 names to values"), "not_a_mapping")
        return {}
    labels: dict[str, str] = {}
    for name, word in value.items():
        at = "/labels/" + str(name).replace("~", "~0").replace("/", "~1")
        if not isinstance(name, str) or not LABEL.fullmatch(name):
            detail = _("{name} cannot name a label: use up to 63 letters, digits and . _ / -").format(name=shown(name))
            job.refuse(at, detail, "invalid_name")
        elif isinstance(word, dict | list) or word is None or len(str(word)) > 200:
            job.refuse(at, _("label {name} must be a text of at most 200 characters").format(name=name))
        else:
            labels[name] = str(word).lower() if isinstance(word, bool) else str(word)
    return labels


def _stages(
    job: Section, rules: SubmitRules, project: Project | None, pool: Pool | None, preemptible: bool
) -> list[ResolvedStage]:
    if not job.has("stages"):
        return [_stage(job, "main", "generic", (), rules, project, pool, preemptible)]
    listed = job.each("stages", MAX_STAGES)
    if not listed and isinstance(job.values["stages"], list):
        detail = _("stages must be a list of 1 to {n} stages; leave it out for a job of one").format(n=MAX_STAGES)
        job.refuse("stages", detail, "not_a_list")
    if job.has("promote"):
        job.refuse("promote", _("promote belongs to the stage that judges the model, not to all stages"), "not_here")
    shared = {key: job.values[key] for key in STAGE_DEFAULTS if job.has(key)}
    resolved: list[ResolvedStage] = []
    for index, each in enumerate(listed):
        at = f"/stages/{index}"
        if not isinstance(each, dict):
            detail = _("must be a mapping with a name and what to run, not {value}").format(value=shown(each))
            job.refuse(at, detail, "not_a_mapping")
            continue
        stage = Section(each, at, job.refusals, STAGE_KEYS, LATER)
        stage.values = _inherited(shared, each)
        stage.inherited = frozenset(key for key in shared if each.get(key) is None)
        name = stage.read("name", _STAGE_NAME, "")
        if not stage.has("name"):
            stage.refuse("name", _("name is missing: other stages and the logs refer to it"), "missing")
        kind = stage.read("kind", choice(*AFFINITY), "generic")
        resolved.append(_stage(stage, name, kind, _needs(stage), rules, project, pool, preemptible))
    _check_graph(job, resolved)
    flow.check(job, resolved)
    return resolved


def _inherited(shared: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Merge a stage's keys over the job's: environments are merged, a command of the stage replaces that of the job."""
    merged = {**shared, **{key: value for key, value in own.items() if value is not None}}
    if own.get("run") is not None or own.get("command") is not None:
        merged.pop("run" if own.get("run") is None else "command", None)
        if own.get("run") is not None and own.get("command") is not None:
            merged["command"] = own["command"]
    if isinstance(shared.get("env"), dict) and isinstance(own.get("env"), dict):
        merged["env"] = {**shared["env"], **own["env"]}
    return merged


def _needs(stage: Section) -> tuple[str, ...]:
    names: list[str] = []
    for index, each in enumerate(stage.each("needs", MAX_STAGES)):
        at = f"/needs/{index}"
        if isinstance(each, dict):
            need = Section(each, stage.at(at), stage.refusals, ("stage", "when"))
            need.read("when", choice("afterok"), "afterok")
            each = each.get("stage")
        if not isinstance(each, str):
            stage.refuse(at, _("must be the name of a stage, not {value}").format(value=shown(each)))
        elif each in names:
            stage.refuse(at, _("{name} is named twice; once is enough").format(name=shown(each)), "duplicate")
        else:
            names.append(each)
    return tuple(names)


def _check_graph(job: Section, stages: Sequence[ResolvedStage]) -> None:
    """Refuse duplicate stage names, dependencies on unknown stages, and dependency cycles."""
    names: set[str] = set()
    for index, stage in enumerate(stages):
        if stage.name and stage.name.lower() in {name.lower() for name in names}:
            detail = _("two stages are called {name}; names must differ").format(name=shown(stage.name))
            job.refuse(f"/stages/{index}/name", detail, "duplicate")
        names.add(stage.name)
    unknown = False
    for index, stage in enumerate(stages):
        for place, need in enumerate(stage.needs):
            if need not in names:
                unknown = True
                detail = _("there is no stage {stage}; {others}").format(
                    stage=shown(need), others=nearest(need, names - {stage.name, ""})
                )
                job.refuse(f"/stages/{index}/needs/{place}", detail, "unknown_stage")
    if unknown:
        return
    try:
        TopologicalSorter({stage.name: stage.needs for stage in stages}).prepare()
    except CycleError as error:
        circle = list(reversed(error.args[1]))
        index = next(i for i, stage in enumerate(stages) if stage.name == circle[0])
        detail = _("stages need each other in a circle: {circle}").format(circle=_(" needs ").join(circle))
        job.refuse(f"/stages/{index}/needs", detail, "cycle")


def _stage(
    section: Section,
    name: str,
    kind: str,
    needs: tuple[str, ...],
    rules: SubmitRules,
    project: Project | None,
    pool: Pool | None,
    preemptible: bool,
) -> ResolvedStage:
    host = HostDemand(
        section.read("cpus", demand.cores, round(demand.DEFAULT_CPUS * 1000)),
        section.read("memory", demand.MEMORY, demand.DEFAULT_MEMORY),
    )
    argv, env = demand.command(section), demand.environment(section, section.values.get("secrets"))
    task = section.read("task", choice(*demand.TASKS), "")
    ways = demand.alternatives(section, kind, task, argv, env, host, rules.known)
    if ways and all(way["asks"][0]["kind"] == "cpu" for way in ways):
        # A CPU alternative may ask more or less than the stage: its parts get what the alternative claims.
        host = HostDemand(ways[0]["asks"][0]["milli"], ways[0]["asks"][0]["memory_bytes"])
    setup = section.read("setup", text(demand.LONGEST_SCRIPT), "")
    tries = _retry(section)
    allowed, grace_s, to = _preemption(section)
    checkpoint = _checkpoint(section)
    folders = mounts.read(section, pool, ways)
    reads, leaves = flow.inputs(section, rules.left, project, pool), flow.outputs(section)
    held = partial(rules.secrets, project) if project is not None else tuple
    secrets, named = demand.secrets(section, ways, project.name if project else "", held)
    launcher = section.read("launcher", choice("per-node", "per-device"), "per-node")
    ceiling = float(pool.max_limit_s) if pool else YEAR_S
    bound = _("the limit of pool {pool}").format(pool=pool.name) if pool else ""
    # A service runs until it is stopped; other stages get the pool's default limit if the file has none.
    fallback = None if kind == "serve" or pool is None else float(pool.default_limit_s)
    limit_s = section.read("time_limit", duration(1, ceiling, bound), 0.0) or fallback
    never: dict[str, float] = {}
    request = {
        "alternatives": ways,
        **_nodes(section),
        "cpus_milli": host.cpus_milli,
        "memory_bytes": host.memory_bytes,
        **demand.amounts(section),
        "time_limit_s": limit_s,
        "expected_s": section.read("expected", duration(0.1, YEAR_S), 0.0) or None,
        "grace_s": grace_s,
        "stop_to": to,
        "on_node_lost": section.read(
            "on_node_lost", choice(*retry.ON_NODE_LOST), pool.on_node_lost if pool else "wait"
        ),
        "preemptible": preemptible and allowed,
        "retry": tries,
        "precision": section.read("precision", choice(*PRECISIONS), demand.usual_precision(kind, task)),
        **({"task": task} if task else {}),
        **({} if section.has("devices") else {"names_devices": False}),
        **checkpoint,
        **({"secrets": secrets} if secrets else {}),
        **({"named_secrets": named} if named else {}),
        **({"inputs": reads} if reads else {}),
        **({"outputs": leaves} if leaves else {}),
        **({"mounts": folders} if folders else {}),
        **({"setup": setup} if setup else {}),
        **({"launcher": launcher} if launcher != "per-node" else {}),
        **section.read("deadline", _deadline, never),
        **_topology(section),
        **utilization_policy.read(section),
        **profiling.read(section),
        **web_ports.read(section),
        **_elsewhere(section, rules),
        **promotion.read(section, name, project, rules.promotable),
        "kind": kind,
    }
    begin_at = section.read("begin", _begin, None)
    return ResolvedStage(name, kind, needs, request, tries["max"], begin_at)


def _topology(section: Section) -> dict[str, Any]:
    """Read the kind of topology domain that all nodes of a stage must, or preferably should, share."""
    if not section.has("topology"):
        return {}
    part = Section(section.values["topology"], section.at("topology"), section.refusals, ("within", "mode"))
    label = gettext_noop("the name of a label of nodes, such as rack or nvlink-domain")
    within = part.read("within", matching(LABEL, label), "")
    if not part.has("within"):
        part.refuse("within", _("within is missing: name the label that the nodes should have alike"), "missing")
    mode = part.read("mode", choice("required", "preferred"), "preferred")
    return {"within": within, **({"within_required": True} if mode == "required" else {})}


def _elsewhere(section: Section, rules: SubmitRules) -> dict[str, Any]:
    """Read where a stage must not run: nodes to avoid, all but some nodes, and all outside the site of its data."""
    label = gettext_noop("the value of the label site of nodes, such as berlin")
    anywhere: constraint.Groups = ()
    groups = section.read("constraint", constraint.groups, anywhere)
    site = section.read("site", matching(LABEL, label), "")
    return {
        **{key: found for key in ("avoid", "only_on") if (found := _nodes_named(section, key, rules))},
        **({"constraint": [list(group) for group in groups]} if groups else {}),
        **away.read(section, site, rules.sites(), rules.cluster, LABEL),
    }


def _nodes_named(section: Section, key: str, rules: SubmitRules) -> list[str]:
    """Read a list of nodes by name or by label, as ``gpu-03`` and ``rack=r2``."""
    found: list[str] = []
    for index, each in enumerate(section.each(key, MOST_AVOIDED)):
        at = f"/{key}/{index}"
        if isinstance(each, dict) and len(each) == 1:
            ((label, value),) = each.items()
            known = isinstance(label, str) and bool(LABEL.fullmatch(label)) and isinstance(value, str | int)
            if not known or isinstance(value, bool) or not LABEL_VALUE.fullmatch(str(value)):
                detail = _(
                    "must be a label of nodes and its value, of at most 63 characters and without *, such as "
                    "{example}, not {value}"
                )
                section.refuse(at, detail.format(example="{rack: r2}", value=shown(each)))
            else:
                found.append(f"{label}={value}")
        elif not isinstance(each, str) or len(each) > LONGEST_NODE:
            detail = _("must name a node, or a label with its value such as {example}, not {value}")
            section.refuse(at, detail.format(example="{rack: r2}", value=shown(each)))
        elif each not in rules.nodes():
            detail = _("there is no node {node}; {others}").format(
                node=shown(each), others=nearest(each, rules.nodes())
            )
            section.refuse(at, detail, "unknown_value")
        else:
            found.append(each)
    return sorted(set(found))


def _deadline(value: object) -> dict[str, float]:
    """Read the deadline: a time, or a duration after submission."""
    try:
        return {"deadline_at": moment(value).timestamp()}
    except Unacceptable:
        pass
    try:
        return {"deadline_s": duration(1, YEAR_S)(value)}
    except Unacceptable as error:
        if error.code == "out_of_range":
            raise
        raise Unacceptable(
            _(
                "must be a date and time with a zone, such as 2027-01-31T18:00:00Z, or a duration after the submit, "
                "such as 12h, not {value}"
            ).format(value=shown(value))
        ) from None


def _nodes(section: Section) -> dict[str, int]:
    """Read the number of nodes; for a range, also its minimum."""
    if not isinstance(section.values.get("nodes"), dict):
        return {"nodes": section.read("nodes", _size, 1)}
    part = Section(section.values["nodes"], section.at("nodes"), section.refusals, ("min", "max"))
    least, most = part.read("min", whole(1, MAX_NODES), 1), part.read("max", whole(1, MAX_NODES), 0)
    if not part.has("max"):
        detail = _("max is missing: say on how many nodes it runs at most (min is 1 if left out)")
        part.refuse("max", detail, "missing")
    elif 0 < most < least:
        detail = _("max must be at least min, {least}, not {most}").format(least=least, most=most)
        part.refuse("max", detail, "out_of_range")
    return {"nodes": most, "least_nodes": least} if most > least else {"nodes": max(most, 1)}


def _size(value: object) -> int:
    """Read one number of nodes."""
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_NODES:
        raise Unacceptable(
            _("must be a whole number from 1 to {high}, or a range such as {example}, not {value}").format(
                high=MAX_NODES, example="{min: 1, max: 4}", value=shown(value)
            ),
            "out_of_range",
        )
    return value


def _begin(value: object) -> datetime | None:
    return moment(value)


def _retry(section: Section) -> dict[str, Any]:
    tries: dict[str, Any] = {"max": 1, "on": [], "backoff_s": 10.0}
    if not section.has("retry"):
        return tries
    part = Section(section.values["retry"], section.at("retry"), section.refusals, ("max", "on", "backoff"))
    tries["max"] = part.read("max", whole(1, 100), 1)
    tries["backoff_s"] = part.read("backoff", duration(0, 86_400), 10.0)
    causes = {str(cause).lower() for cause in retry.RETRYABLE | retry.NO_FAULT}
    none: list[str] = []
    tries["on"] = part.read("on", _causes(causes), none)
    if not part.has("on") and tries["max"] > 1:
        # Attempts without causes mean a retry after any fault except its own time limit and a failed setup.
        tries["on"] = sorted(str(cause).lower() for cause in retry.RETRYABLE - retry.NAMED_ONLY)
    return tries


def _causes(known: set[str]) -> Callable[[object], list[str]]:
    def read(value: object) -> list[str]:
        if not isinstance(value, list):
            raise Unacceptable(
                _("must be a list of causes such as [node_fail, device_error], not {value}").format(value=shown(value)),
                "not_a_list",
            )
        words = [str(word).lower() for word in value]
        for word in words:
            if word not in known:
                detail = _("names no cause {cause}; {others}").format(cause=shown(word), others=nearest(word, known))
                raise Unacceptable(detail, "unknown_value")
        return sorted(set(words))

    return read


def _preemption(section: Section) -> tuple[bool, float, str]:
    if not section.has("preemption"):
        return True, demand.DEFAULT_GRACE_S, "main"
    part = Section(section.values["preemption"], section.at("preemption"), section.refusals, ("allowed", "grace", "to"))
    return (
        part.read("allowed", flag, True),
        part.read("grace", duration(0, MAX_GRACE_S), demand.DEFAULT_GRACE_S),
        part.read("to", choice("main", "group"), "main"),
    )


def _own_folder(path: object) -> str:
    """Explain why a job may not choose its checkpoint folder: the path would be opened, and mounted, on a node."""
    return _(
        "dir cannot be {path}: a stage saves in a folder of its own, YARD_CHECKPOINT_DIR, in any way below it"
    ).format(path=shown(path))


def _checkpoint(section: Section) -> dict[str, Any]:
    """Read how many complete checkpoints to keep, and how often to save.

    Without the first nothing is deleted; without the second the interval is computed from measurements (see
    ``jobs.saves``).
    """
    if not section.has("checkpoint"):
        return {}
    part = Section(
        section.values["checkpoint"],
        section.at("checkpoint"),
        section.refusals,
        ("framework", "interval_hint", "keep", "dir"),
    )
    if part.has("dir"):
        part.refuse("dir", _own_folder(part.values["dir"]), "not_own_folder")
    every_s, keep = part.read("interval_hint", duration(1, YEAR_S), 0.0), part.read("keep", whole(1, 1000), 0)
    return {
        **({"keep_checkpoints": keep} if keep else {}),
        **({"checkpoint_every_s": every_s} if every_s else {}),
    }
