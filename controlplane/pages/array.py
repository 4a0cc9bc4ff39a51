"""One array: its elements by state, what they were given and what they reported, and the best of them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.utils.translation import gettext as _

from controlplane.accounts.permissions import may_end
from controlplane.pages.progress import FINAL
from controlplane.pages.shell import page, reader, title_of
from controlplane.queries import arrays, jobs
from controlplane.queries.cursor import page_of
from controlplane.queries.reading import API, cursor_of, redacted
from scheduler.core.model.halving import Goal
from scheduler.core.model.lifecycle import Cause, State

PER_PAGE = 100
# So many lines can still be told apart.
MOST_LINES = 1_000
# An axis with more values than these is a scale, if they are numbers.
MOST_TICKS = 8
# Labels of an axis are at least this share of it apart.
APART = 0.06


@login_required
def show(request: HttpRequest, number: int) -> HttpResponse:
    user = reader(request)
    row = arrays.found(user, str(number))
    metrics = arrays.metrics(row)
    # A sweep that stops elements early says itself what is best.
    rule = row.halving or {}
    metric = request.GET.get("metric", "")[:200] or rule.get("metric", "") or (metrics[0] if metrics else "")
    goal = request.GET.get("goal") or ("max" if rule.get("goal") == Goal.MAXIMIZE else "min")
    goal = goal if goal in arrays.GOALS else "min"
    state = request.GET.get("state", "")
    answer = arrays.one(user, row, metric, goal)
    found = arrays.elements_of(row)
    if state in set(State):
        found = found.filter(state=state)
    asked = {key: request.GET[key] for key in ("cursor",) if request.GET.get(key)}
    rows, links = page_of(found, "array_index", request.path, {**asked, "limit": str(PER_PAGE)})
    parameters = list(answer.body["parameters"])
    drawn = redacted(user, arrays.elements(row, arrays.elements_of(row).order_by("array_index")[:MOST_LINES]))
    return page(
        request,
        "array.html",
        {
            "array": answer.body,
            "cancel_stops": json.dumps({"action": "cancel", "filter": {"array": str(answer.body["number"])}}),
            "metric": metric,
            "goal": goal,
            "goals": [("min", _("smallest is best")), ("max", _("largest is best"))],
            "state": state,
            "states": [(each, answer.body["counts"][each]) for each in State if each in answer.body["counts"]],
            "parameters": parameters,
            "elements": [
                {
                    **each,
                    "given": [(name, each["parameters"].get(name)) for name in parameters],
                    "reported": [(name, each["values"].get(name)) for name in metrics],
                    "is_best": (answer.body["best"] or {}).get("index") == each["index"],
                }
                for each in redacted(user, arrays.elements(row, rows))
            ],
            "metrics": metrics,
            "lines": _lines(drawn, parameters, metric, number),
            "drawn": len(drawn),
            "nobody_reached": not any(rung["reached"] for rung in (answer.body["halving"] or {}).get("rungs", [])),
            "next": cursor_of(links["next"]),
            "previous": cursor_of(links["previous"]),
            "may_end": may_end(user, owner_id=row.user_id, project_id=row.project_id),
            "is_final": set(answer.body["counts"]) <= set(FINAL),
            "is_held": "HELD" in answer.body["counts"],
            "can_hold": "PENDING" in answer.body["counts"],
            "api": f"{API}/arrays/{number}",
        },
        place="jobs",
        topics=[answer],
        every_s=3,
        crumbs=[(title_of("jobs"), "/jobs"), (f"#{number}", "")],
    )


@login_required
def element(request: HttpRequest, number: int, index: int) -> HttpResponse:
    """The page of an element by its place in the array, as people name it: ``/jobs/42_7``."""
    return redirect("job", number=jobs.found(reader(request), f"{number}_{index}").number)


def _lines(
    elements: Sequence[Mapping[str, Any]], parameters: Sequence[str], metric: str, number: int
) -> dict[str, Any]:
    """Parallel coordinates: an axis for each parameter and one for the metric, a line for each element that has all.

    Values are places from 0 to 1; ``level`` is that of the metric, for the colour. Empty with nothing to compare.
    """
    found = [each for each in elements if metric in each["values"]]
    columns = {name: [each["parameters"].get(name) for each in found] for name in parameters}
    if not metric or not parameters or len(found) < 2:
        return {}
    columns[metric] = [each["values"][metric] for each in found]
    axes = [_axis(name, values) for name, values in columns.items()]
    places = list(zip(*(axis.pop("places") for axis in axes), strict=True))
    return {
        "axes": axes,
        "lines": [
            {
                "name": f"{number}_{each['index']}",
                "at": place,
                "level": min(9, int(place[-1] * 10)),
                "stopped": each["cause"] == Cause.EARLY_STOPPED,
                "values": [column[at] for column in columns.values()],
                "href": f"/jobs/{each['job']}",
            }
            for at, (each, place) in enumerate(zip(found, places, strict=True))
        ],
    }


def _axis(name: str, values: Sequence[Any]) -> dict[str, Any]:
    """An axis with the places of these values: a scale of numbers, logarithmic over wide ranges, or categories."""
    numbers = [value for value in values if isinstance(value, int | float) and not isinstance(value, bool)]
    known = sorted(set(numbers)) if len(numbers) == len(values) else []
    if len(known) < 2:
        words = [str(value).lower() if isinstance(value, bool) else str(value) for value in values]
        kinds = list(dict.fromkeys(words))
        place = {word: (at + 0.5) / len(kinds) for at, word in enumerate(kinds)}
        every = math.ceil(len(kinds) / MOST_TICKS)
        ticks = [[place[word], word[:24]] for word in kinds[::every]]
        return {"name": name, "ticks": ticks, "places": [place[word] for word in words]}
    low, high = float(known[0]), float(known[-1])
    is_wide = low > 0 and high / low >= 50
    scale = (lambda value: math.log(value)) if is_wide else float
    first, last = scale(low), scale(high)
    where = {value: round((scale(value) - first) / (last - first), 5) for value in known}
    marks = [low, high]
    if len(known) <= MOST_TICKS:
        # Where labels would lie on each other the ends have theirs.
        marks += [v for at, v in enumerate(known[1:-1]) if where[v] - where[known[at]] > APART and 1 - where[v] > APART]
    return {"name": name, "ticks": [[where[m], f"{m:.4g}"] for m in marks], "places": [where[v] for v in values]}
