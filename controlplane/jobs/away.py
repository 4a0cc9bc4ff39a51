"""Reads what a job file says of other clusters, the sites: whether a job may leave for one, and where its data are.

A job that may leave must be one that another cluster can run from its file alone: what it needs besides stays here, and
is refused together with ``sites``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop

from controlplane.jobs.section import Section
from controlplane.jobs.values import Reader, Unacceptable, choice, matching, nearest, shown

ANY, NEVER = "any", "never"
MOST: Final = 50
ON_SITE_LOST: Final = ("wait", "restart")
# What a stage and a job have here only.
_STAYS: Final = ("inputs", "outputs", "mounts", "secrets", "named_secrets", "ports", "only_on", "constraint", "promote")
_STAYS_WITH_JOB: Final = ("array", "reservation")


def read(section: Section, site: str, known: Collection[str], cluster: str, pattern: Any) -> dict[str, Any]:
    """Return the keys of a stage's request; ``site`` is where it has to run, ``known`` are the names of the sites."""
    data_at, stays = _data(section, pattern)
    asked: str | list[str] | None = section.read("sites", _sites(known), None)
    lost = section.read("on_site_lost", choice(*ON_SITE_LOST), "wait")
    if stays:
        place = "" if data_at == cluster else data_at
        if site and place and site != place:
            detail = _("data may not leave {place}, and site says {site}: both cannot hold")
            section.refuse("data", detail.format(place=shown(place), site=shown(site)), "data_stays")
        if data_at == cluster and asked not in (None, NEVER):
            detail = _("data may not leave {place}, which is this cluster: leave sites out, or let data leave")
            section.refuse("sites", detail.format(place=shown(data_at)), "data_stays")
        if place and isinstance(asked, list) and place in known and place not in asked:
            detail = _("data may not leave {place}, which is not among sites")
            section.refuse("sites", detail.format(place=shown(place)), "data_stays")
        site = place or site
    if asked is None and site in known:
        asked = [site]  # whoever names a site as the place means that site
    may_leave = asked not in (None, NEVER)
    return {
        **({"site": site} if site else {}),
        **({"sites": asked} if may_leave else {}),
        **({"data_at": data_at} if data_at and may_leave else {}),
        **({"on_site_lost": lost} if may_leave and lost != "wait" else {}),
    }


def _data(section: Section, pattern: Any) -> tuple[str, bool]:
    """Return where the data are, and whether they stay there."""
    if not section.has("data"):
        return "", False
    part = Section(section.values["data"], section.at("data"), section.refusals, ("site", "leave"))
    where = gettext_noop("the name of a site, or of this cluster")
    found = part.read("site", matching(pattern, where), "")
    if not part.has("site"):
        part.refuse("site", _("site is missing: say where the data are"), "missing")
    return found, part.read("leave", choice("may", NEVER), "may") == NEVER


def _sites(known: Collection[str]) -> Reader[str | list[str] | None]:
    def read(value: object) -> str | list[str]:
        if value in (ANY, NEVER):
            return str(value)
        if not isinstance(value, list) or not 1 <= len(value) <= MOST:
            detail = _("must be any, never or a list of at most {most} sites, not {value}")
            raise Unacceptable(detail.format(most=MOST, value=shown(value)))
        for one in value:
            if not isinstance(one, str) or one not in known:
                detail = _("names no site {site}; {others}").format(site=shown(one), others=nearest(str(one), known))
                raise Unacceptable(detail, "unknown_value")
        return sorted(set(value))

    return read


def check(job: Section, requests: Collection[Mapping[str, Any]]) -> None:
    """Refuse a job that may leave and needs what another cluster does not have."""
    leaving = [request for request in requests if "sites" in request]
    if not leaving:
        return
    if len(requests) > 1:
        job.refuse("sites", _("a job of several stages cannot leave for a site"), "stays")
        return
    request = leaving[0]
    stays = [key for key in _STAYS_WITH_JOB if job.has(key)] + [key for key in _STAYS if request.get(key)]
    if request["nodes"] > 1 or request.get("least_nodes"):
        stays.append("nodes")
    if stays:
        detail = _("a job with {keys} cannot leave for a site: leave these out, or sites")
        job.refuse("sites", detail.format(keys=", ".join(sorted(set(stays)))), "stays")
