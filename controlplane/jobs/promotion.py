"""Reads ``promote`` of a stage: to which service its model goes, behind which gate, and how it is tried there.

Nothing is promoted here: when the stage has completed, ``services.promotions`` judges the gate by what the stage
reported. Which services there are, and who may change them, is told by the app of services (:data:`Services`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from django.apps import apps
from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop

from controlplane.accounts.models import Project, User
from controlplane.accounts.permissions import may_end
from controlplane.jobs.curves import LONGEST_NAME
from controlplane.jobs.section import Section
from controlplane.jobs.values import Unacceptable, choice, duration, flag, matching, nearest, number, shown, text

KEYS: Final = ("service", "model", "when", "canary")
GATE_KEYS: Final = ("metric", "at_most", "at_least", "goal", "better_than_serving")
CANARY_KEYS: Final = ("percent", "for", "errors_at_most", "first_byte_at_most")
GOALS: Final = ("minimize", "maximize")
# The folder of a stage's own outputs, as people call it.
OWN: Final = "outputs"
LARGEST: Final = 1e300
LONGEST_TRIAL_S: Final = 86_400.0

Services = Callable[[str, Project], str]
_SERVICE = matching(
    re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"), gettext_noop("1 to 63 lower-case letters, digits and hyphens")
)
_MODEL = matching(
    re.compile(r"(?:[A-Za-z0-9](?:[A-Za-z0-9_-]|\.(?!\.)){0,62}/)?[A-Za-z0-9](?:[A-Za-z0-9_-]|\.(?!\.)){0,62}"),
    gettext_noop("the name of an output, or STAGE/OUTPUT for that of an earlier stage"),
)


def refusal_for(user: User) -> Services:
    """Return what says why this user may not promote to a service of this name in a project; empty if they may."""

    def refusal(name: str, project: Project) -> str:
        # Services are built on jobs, not the other way round: their table is found by its name.
        rows = apps.get_model("services", "InferenceService").objects.filter(project=project, deleted_at=None)
        known = dict(rows.filter(function__isnull=True).values_list("name", "user_id"))
        if name not in known:
            said = _("project {project} has no service {name}; {others}")
            return said.format(project=project.name, name=shown(name), others=nearest(name, known))
        if not may_end(user, owner_id=known[name], project_id=project.pk):
            said = _("only the owner of service {name} or a lead of project {project} may change it")
            return said.format(name=name, project=project.name)
        return ""

    return refusal


def read(section: Section, stage: str, project: Project | None, services: Services) -> dict[str, Any]:
    """Return the key of a stage's request; empty if it promotes nothing."""
    if not section.has("promote"):
        return {}
    part = Section(section.values["promote"], section.at("promote"), section.refusals, KEYS)
    for key, example in (("service", "chat"), ("model", "model"), ("when", "{metric: perplexity, at_most: 20}")):
        if not part.has(key):
            said = _("{key} is missing: write it as {example}").format(key=key, example=example)
            part.refuse(key, said, "missing")
    service = part.read("service", _SERVICE, "")
    if service and project is not None and (why := services(service, project)):
        part.refuse("service", why, "unknown_service")
    source, output = _model(part.read("model", _MODEL, ""), stage)
    return {
        "promote": {
            "service": service,
            "from": source,
            "output": output,
            **(_gate(part) if part.has("when") else {}),
            **(_canary(part) if part.has("canary") else {}),
        }
    }


def _model(given: str, stage: str) -> tuple[str, str]:
    """Return the stage that leaves the model, and the name of the output."""
    above, _slash, output = given.rpartition("/")
    return (stage if above in ("", OWN) else above), output


def _gate(part: Section) -> dict[str, Any]:
    gate = Section(part.values["when"], part.at("when"), part.refusals, GATE_KEYS)
    if not gate.has("metric"):
        gate.refuse("metric", _("metric is missing: the name of a number that the stage reports"), "missing")
    most, least = (gate.read(key, number(-LARGEST, LARGEST), None) for key in ("at_most", "at_least"))
    is_better = gate.read("better_than_serving", flag, False)
    usual = "" if (most is None) == (least is None) else GOALS[most is None]
    goal = gate.read("goal", choice(*GOALS), usual)
    if most is None and least is None and not is_better:
        gate.refuse("", _("say what passes: at_most, at_least or better_than_serving"), "missing")
    if most is not None and least is not None and least > most:
        gate.refuse("at_least", _("at_least must not be more than at_most: nothing could pass"), "out_of_range")
    if is_better and not goal:
        gate.refuse(
            "goal", _("goal is missing: is a smaller number better (minimize) or a larger (maximize)"), "missing"
        )
    return {
        "metric": gate.read("metric", _metric, ""),
        "at_most": most,
        "at_least": least,
        "goal": goal,
        "better_than_serving": is_better,
    }


def _metric(value: object) -> str:
    name = text(LONGEST_NAME)(value)
    if not name.isprintable():
        raise Unacceptable(_("must be a name in one line, not {value}").format(value=shown(value)))
    return name


def _canary(part: Section) -> dict[str, Any]:
    trial = Section(part.values["canary"], part.at("canary"), part.refusals, CANARY_KEYS)
    return {
        "canary": {
            "percent": trial.read("percent", share(1, 99), 10.0),
            "for_s": trial.read("for", duration(1.0, LONGEST_TRIAL_S), 600.0),
            "errors_at_most": trial.read("errors_at_most", share(0, 100), 1.0),
            "first_byte_s": trial.read("first_byte_at_most", duration(0.001, 600.0), None),
        }
    }


def share(low: float, high: float) -> Callable[[object], float]:
    """Return a reader of percentages: ``1%``, ``0.5%`` or a number."""
    bounded = number(low, high)

    def read_share(value: object) -> float:
        word = value.strip().removesuffix("%") if isinstance(value, str) and len(value) < 20 else value
        if isinstance(word, str):
            if not re.fullmatch(r"[0-9]{1,3}(?:\.[0-9]{1,6})?", word):
                raise Unacceptable(_("must be a share such as 1%, not {value}").format(value=shown(value)))
            word = float(word)
        return bounded(word)

    return read_share


def check(job: Section, stages: Sequence[Any]) -> None:
    """Refuse models that neither the stage itself nor one that it needs, directly or not, leaves as an output."""
    by_name = {stage.name: stage for stage in stages}
    for index, stage in enumerate(stages):
        asked = stage.request.get("promote")
        if not asked or not asked["output"]:
            continue
        at = f"/stages/{index}/promote/model" if job.has("stages") else "/promote/model"
        earlier, source = _earlier(stage, by_name), by_name.get(asked["from"])
        if source is None or (source is not stage and source.name not in earlier):
            detail = _("{stage} is neither this stage nor one that it needs; {others}")
            others = nearest(asked["from"], {stage.name, *earlier})
            job.refuse(at, detail.format(stage=shown(asked["from"]), others=others), "unknown_stage")
        elif asked["output"] not in (left := source.request.get("outputs", [])):
            detail = _("{stage} has no output {output}; {others}")
            said = detail.format(
                stage=source.name or _("the job"),
                output=shown(asked["output"]),
                others=nearest(asked["output"], left) if left else _("name it under outputs"),
            )
            job.refuse(at, said, "unknown_output")


def _earlier(stage: Any, by_name: Mapping[str, Any]) -> set[str]:
    """Return the names of all stages that have completed when this one starts."""
    found: set[str] = set()
    open_ = list(stage.needs)
    while open_:
        name = open_.pop()
        if name not in found:
            found.add(name)
            open_ += by_name[name].needs if name in by_name else ()
    return found
