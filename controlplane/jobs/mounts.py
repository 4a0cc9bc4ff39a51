"""Reads ``mounts`` of a job file: folders of the nodes that a stage sees, below those that its pool declares."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from django.utils.translation import gettext as _

from controlplane.jobs.section import Section
from controlplane.jobs.values import Unacceptable, flag, listed, shown
from controlplane.pools import mounts as declared
from controlplane.pools.models import Pool

KEYS: Final = ("source", "path", "readonly")
MOST: Final = 16
# Places in a container over which nothing is mounted.
_CLOSED: Final = ("/proc", "/sys", "/dev")


def read(section: Section, pool: Pool | None, ways: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the mounts of a stage; ``ways`` are its alternatives, of which those without an image have no view of the
    host in which a folder could lie elsewhere."""
    found: list[dict[str, Any]] = []
    for index, each in enumerate(section.each("mounts", MOST)):
        at = f"/mounts/{index}"
        part = Section(each, section.at(at), section.refusals, KEYS)
        if not isinstance(each, dict):
            continue
        if not part.has("source"):
            part.refuse("source", _("source is missing: name a folder of the nodes"), "missing")
        source, readonly = part.read("source", _path, ""), part.read("readonly", flag, True)
        path = part.read("path", _path, source)
        if not source or not path or pool is None:
            continue
        _check_declared(part, pool, source, readonly)
        if any(declared.is_below(path, place) for place in _CLOSED):
            part.refuse("path", _("path cannot be {path}: that is the container's own").format(path=shown(path)))
        if path != source and not all(way.get("image") for way in ways):
            detail = _("path must be that of source, or left out: without an image a stage sees the node's own folders")
            part.refuse("path", detail, "needs_image")
        if any(path == other["path"] for other in found):
            part.refuse("path", _("two mounts lie at {path}").format(path=shown(path)), "duplicate")
        found.append({"source": source, "path": path, "readonly": readonly})
    return found


def _check_declared(part: Section, pool: Pool, source: str, readonly: bool) -> None:
    root = declared.allowing(pool.mounts, source)
    if root is None:
        there = listed(sorted(each["path"] for each in pool.mounts))
        said = _("{source} lies in no folder that pool {pool} lets jobs mount; there are {folders}")
        if not there:
            said = _("pool {pool} lets jobs mount nothing; an operator declares its folders")
        part.refuse("source", said.format(source=shown(source), pool=pool.name, folders=there), "not_declared")
    elif not readonly and (kept := declared.kept(pool.mounts, source)):
        said = _("pool {pool} lets jobs mount {folder} readonly only")
        part.refuse("readonly", said.format(pool=pool.name, folder=kept["path"]), "not_writable")


def _path(value: object) -> str:
    path = value.rstrip("/") if isinstance(value, str) and len(value) <= declared.LONGEST else value
    if not declared.is_plain(path):
        raise Unacceptable(
            _(
                "must be an absolute path such as /data/images, without .. and without , : and quotes, not {value}"
            ).format(value=shown(value))
        )
    return str(path)
