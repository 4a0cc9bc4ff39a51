"""Parses ``inputs`` and ``outputs`` of a job file: what a stage reads and leaves, addressed by digest.

An input may be an output of an earlier stage, of a stage of an earlier job of the same project, or a named source.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop

from controlplane.accounts.models import Project
from controlplane.jobs.section import Section
from controlplane.jobs.values import Unacceptable, flag, matching, nearest, shown, text, whole
from controlplane.pools.models import Pool

MOST: Final = 64


class LeftOutput(NamedTuple):
    """An output that a stage of an earlier job has left: its digest, or why it cannot be read; and where it lies on
    the storage that the nodes of the pool share."""

    digest: str
    path: str = ""
    fault: str = ""


NOT_LEFT: Final = LeftOutput("")
# A project, the pool that reads it, a job's number, a stage, an output, and its digest if it must be a certain one.
Left = Callable[[Project, Pool, int, str, str, str], LeftOutput]
_SHA256 = matching(re.compile(r"[0-9a-f]{64}"), gettext_noop("a SHA-256: 64 hexadecimal digits"))
_OUTPUT = matching(
    re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}"),
    gettext_noop("1 to 63 letters, digits, . _ - that begin with a letter or digit"),
)
_PATH = matching(
    re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*(?:/[A-Za-z0-9_][A-Za-z0-9_.-]*){0,7}"),
    gettext_noop("a relative path such as raw/corpus.txt, of letters, digits and . _ -"),
)


def outputs(section: Section) -> list[str]:
    """Read the names below the output folder that are stored by digest when the stage has completed."""
    names: list[str] = []
    for index, each in enumerate(section.each("outputs", MOST)):
        if isinstance(each, str) and ("/" in each or each in (".", "..")):
            detail = _(
                "{path} is a path: an output is a file or folder of the stage's own YARD_OUTPUT_DIR, by its name there"
            ).format(path=shown(each))
            section.refuse(f"/outputs/{index}", detail, "not_own_folder")
            continue
        try:
            name = _OUTPUT(each)
        except Unacceptable as error:
            section.refuse(f"/outputs/{index}", _("an output's name {fault}").format(fault=error), error.code)
            continue
        if name in names:
            detail = _("{name} is named twice; once is enough").format(name=shown(name))
            section.refuse(f"/outputs/{index}", detail, "duplicate")
        names.append(name)
    return names


def inputs(
    section: Section, left: Left, project: Project | None = None, pool: Pool | None = None
) -> list[dict[str, Any]]:
    """Read the inputs of a stage: outputs of other stages and jobs, and files or folders by source and digest."""
    found: list[dict[str, Any]] = []
    for index, each in enumerate(section.each("inputs", MOST)):
        at = section.at(f"/inputs/{index}")
        part = Section(each, at, section.refusals, ("job", "from", "output", "source", "sha256", "path", "shard"))
        if not isinstance(each, dict):
            continue
        one = _of_stage(part) if part.has("from") or part.has("job") else _of_source(part)
        if one is not None and part.has("job"):
            one = _of_job(part, one, left, project, pool)
        if one is None:
            continue
        if part.read("shard", flag, False):
            one["shard"] = True
        if any(one["name"] == other["name"] for other in found):
            detail = _("two inputs are called {name}; give one another path").format(name=shown(one["name"]))
            part.refuse("path", detail, "duplicate")
        found.append(one)
    return found


def _of_stage(part: Section) -> dict[str, Any] | None:
    # With a job the digest says which content it must be, if the stage ran more than once.
    for key in ("source",) if part.has("job") else ("source", "sha256"):
        if part.has(key):
            part.refuse(key, _("give from (a stage's output) or {key}, not both").format(key=key), "exclusive")
    stage, output = part.read("from", text(63), ""), part.read("output", _OUTPUT, "")
    if not part.has("from"):
        part.refuse("from", _("from is missing: say which stage of the job"), "missing")
    if not part.has("output"):
        part.refuse("output", _("output is missing: say which output of the stage"), "missing")
    if not stage or not output:
        return None
    return {"name": part.read("path", _PATH, f"{stage}/{output}"), "from": stage, "output": output}


def _of_job(
    part: Section, one: dict[str, Any], left: Left, project: Project | None, pool: Pool | None
) -> dict[str, Any] | None:
    number = part.read("job", whole(1, 2**53), 0)
    if not number or project is None or pool is None:
        return None
    found = left(project, pool, number, one["from"], one["output"], part.read("sha256", _SHA256, ""))
    if not found.digest:
        part.refuse("job", found.fault or _("nothing of that job was left"), "unknown_output")
        return None
    return {**one, "job": number, "digest": found.digest, **({"at": found.path} if found.path else {})}


def _of_source(part: Section) -> dict[str, Any] | None:
    source = part.read("source", _source, "")
    if not part.has("source"):
        detail = _("say from (a stage) and output, or source (a path or an address) and sha256")
        part.refuse("source", detail, "missing")
    digest = part.read("sha256", _SHA256, "")
    if part.has("source") and not part.has("sha256"):
        detail = _("sha256 is missing: by it a changed source is noticed and never served stale")
        part.refuse("sha256", detail, "missing")
    base = source.rstrip("/").rpartition("/")[2].partition("?")[0]
    name = part.read("path", _PATH, base or "input")
    if source and not part.has("path"):
        try:
            _PATH(name)
        except Unacceptable:
            detail = _("path is missing: {name} cannot be the name of the input").format(name=shown(base))
            part.refuse("path", detail, "missing")
    if not source or not digest:
        return None
    return {"name": name, "source": source, "digest": digest, "kind": "tree" if source.endswith("/") else "file"}


def _source(value: object) -> str:
    word = text(2000)(value)
    if word.startswith("/") and ".." not in word.split("/"):
        return word
    if re.fullmatch(r"https?://[^\s/]+/\S*[^\s/]", word):
        return word
    raise Unacceptable(
        _("must be an absolute path (a folder ends with /) or the https:// address of a file, not {value}").format(
            value=shown(word)
        )
    )


def check(job: Section, stages: Sequence[Any]) -> None:
    """Refuse inputs from stages that are not listed in ``needs``, or that declare no such output."""
    by_name = {stage.name: stage for stage in stages}
    for index, stage in enumerate(stages):
        for place, one in enumerate(stage.request.get("inputs", [])):
            at, source = f"/stages/{index}/inputs/{place}", by_name.get(one.get("from"))
            if "from" not in one or "job" in one:
                continue
            if source is None or one["from"] not in stage.needs:
                detail = _("{stage} is not among the stages that it needs; {others}").format(
                    stage=shown(one["from"]), others=nearest(one["from"], stage.needs)
                )
                job.refuse(f"{at}/from", detail, "unknown_stage")
            elif one["output"] not in source.request.get("outputs", []):
                others = nearest(one["output"], source.request.get("outputs", []))
                detail = _("{stage} has no output {output}; {others}").format(
                    stage=source.name, output=shown(one["output"]), others=others
                )
                job.refuse(f"{at}/output", detail, "unknown_output")
