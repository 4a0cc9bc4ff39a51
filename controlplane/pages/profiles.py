"""The profiles of pools and their results, and each profile with its versions."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import zip_longest
from typing import Any

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext as _

from controlplane.accounts.permissions import Permit, may
from controlplane.pages.shell import page, reader, title_of
from controlplane.pages.simulations import LOOK
from controlplane.queries import pools as pool_rows
from controlplane.queries import profiles as profile_rows
from controlplane.queries.reading import seen
from scheduler import policies
from scheduler.core.hooks import answers

# The most lines of a comparison of two specs on a page.
MOST_CHANGES = 40


@login_required
def show(request: HttpRequest) -> HttpResponse:
    pools, found = pool_rows.whole(reader(request)), seen(reader(request), "/profiles", profile_rows.all_profiles())
    known = found.body["results"]
    return page(
        request,
        "profiles.html",
        {
            "pools": pools.body["results"],
            "profiles": known,
            "usable": [one["name"] for one in known if one["builtin"] or one["active"]],
            "default": found.body["default"],
            "may_change": may(request.user, Permit.CHANGE_PROFILES),  # type: ignore[arg-type]
        },
        place="profiles",
        topics=[pools, found],
        every_s=4,
        crumbs=[(title_of("profiles"), "")],
    )


@login_required
def one(request: HttpRequest, name: str) -> HttpResponse:
    answer = seen(reader(request), f"/profiles/{name}", profile_rows.detail(name))
    body = answer.body
    versions = body["versions"]
    return page(
        request,
        "profile.html",
        {
            "profile": body["profile"],
            "settings": [(key, json.dumps(value)) for key, value in body["spec"].items() if key != "policies"],
            "policies": _policies(body["spec"].get("policies", {})),
            "versions": [
                {**version, "look": LOOK.get(version["preview_phase"]), "changes": changes(old, version["spec"])}
                for version, old in zip_longest(versions, [one["spec"] for one in versions[1:]])
            ],
            "text": laid_out(versions[0]["spec"] if versions else body["spec"]),
            "pools": pool_rows.names(),
            "may_change": may(request.user, Permit.CHANGE_PROFILES),  # type: ignore[arg-type]
        },
        place="profiles",
        topics=[answer],
        every_s=2,
        crumbs=[(title_of("profiles"), "/profiles"), (name, "")],
    )


def _policies(given: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A line for each policy, grouped by what the policy decides; removed policies decide nothing."""
    parts = (
        (_("the order of the queue"), {"rank", "levels", "turns_at"}),
        (_("who may start"), {"admit", "fits", "groups"}),
        (_("the place"), {"score", "scores", "prefer", "choose"}),
        (_("who is stopped, resized or moved"), {"victims", "protects", "guarantees", "stakes", "evacuates"}),
        (_("who takes turns"), {"allot"}),
    )
    known, lines = policies.discover(), []
    for name, params in given.items():
        able = answers(known[name]) if name in known else frozenset()
        has = [place for place, (_said, abilities) in enumerate(parts) if able & abilities]
        described = ", ".join(f"{key} {json.dumps(value)}" for key, value in params.items() if key != "weight")
        line = {"name": name, "judges": [parts[place][0] for place in has], "params": described}
        lines.append((has, name, {**line, "weight": f"{params.get('weight', 1.0):g}"}))
    return [line for _has, _name, line in sorted(lines, key=lambda one: one[:2])]


def laid_out(spec: Mapping[str, Any]) -> str:
    """A profile as text: a line for each setting and each policy."""
    chosen = ",\n".join(
        f"    {json.dumps(name)}: {json.dumps(params)}" for name, params in spec.get("policies", {}).items()
    )
    settings = [f"  {json.dumps(key)}: {json.dumps(value)},\n" for key, value in spec.items() if key != "policies"]
    return "{\n" + "".join(settings) + '  "policies": {\n' + chosen + "\n  }\n}"


def changes(old: Mapping[str, Any] | None, new: Mapping[str, Any]) -> list[str]:
    """The differences of the second from the first, a line each; empty without a first."""
    if old is None:
        return []
    one, two = dict(_flat(old)), dict(_flat(new))
    found = [f"+ {key} {json.dumps(two[key])}" for key in two if key not in one]
    found += [f"- {key}" for key in one if key not in two]
    both = [key for key in one if key in two and one[key] != two[key]]
    found += [f"{key}: {json.dumps(one[key])} → {json.dumps(two[key])}" for key in both]
    return sorted(found, key=lambda line: line.lstrip("+- "))[:MOST_CHANGES]


def _flat(spec: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """The leaves of a mapping by their paths; an empty mapping is a leaf."""
    if not isinstance(spec, Mapping) or (not spec and path):
        yield path, spec
        return
    for key, value in spec.items():
        yield from _flat(value, f"{path}.{key}".lstrip("."))
