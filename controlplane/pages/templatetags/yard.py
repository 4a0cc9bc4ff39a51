"""Tags and filters of the pages: states, kinds, bars, times and amounts. All text stays escaped."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from django import template
from django.templatetags.static import static
from django.utils import timezone
from django.utils.dateparse import parse_datetime
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from controlplane.amounts import cores, gib, span
from controlplane.jobs.reasons import reason_text
from controlplane.queries.words import (
    ACTORS,
    ACTS,
    change_text,
    division_text,
    funnel_text,
    partition_text,
    told_text,
    told_texts,
)

register = template.Library()
register.filter(cores)
register.filter(gib)
register.filter(span)

STATES = {"HELD", "PENDING", "STARTING", "RUNNING", "STOPPING", "SUSPENDED", "COMPLETED", "FAILED", "CANCELLED"}
NODE_LOOK = {
    "READY": "completed",
    "JOINING": "starting",
    "DRAINING": "warn",
    "DRAINED": "held",
    "SUSPECT": "warn",
    "LOST": "lost",
}
HEALTH_LOOK = {"OK": "completed", "DEGRADED": "warn", "CORDONED": "held", "LOST": "lost"}
KINDS = {"cpu", "gpu", "npu"}


@register.simple_tag
def icon(name: str, small: bool = False) -> SafeString:
    """An icon of the sprite; it is decoration, so there is always text beside it."""
    return format_html(
        '<svg class="i{}" aria-hidden="true"><use href="{}#{}"/></svg>',
        " s" if small else "",
        static("yard/icons.svg"),
        name,
    )


def _badge(look: str, text: str) -> SafeString:
    return format_html('<span class="y-badge" data-s="{}">{}{}</span>', look, icon(f"s-{look}"), text)


@register.simple_tag
def badge(state: str, text: str = "") -> SafeString:
    """A job's or stage's state as icon, text and colour."""
    look = str(state).lower() if str(state) in STATES else "pending"
    return _badge(look, text or state)


@register.simple_tag
def mark(look: str, text: str) -> SafeString:
    """A badge for something other than a state: warn, lost, preempting."""
    return _badge(look, text)


@register.simple_tag
def node_badge(state: str) -> SafeString:
    return _badge(NODE_LOOK.get(state, "pending"), state)


@register.simple_tag
def health_badge(health: str) -> SafeString:
    return _badge(HEALTH_LOOK.get(health, "failed"), health)


@register.simple_tag
def kind_icon(kind: str) -> SafeString:
    return icon(f"k-{kind if kind in KINDS else 'other'}")


@register.simple_tag
def when(value: Any, how: str = "clock") -> SafeString | str:
    """A time, formatted as ``how`` says: clock, second, ago or running.

    It is sent in the user's zone, or in UTC, which scripts convert to that of the browser.
    """
    moment = _moment(value)
    if moment is None:
        return "–"
    return format_html(
        '<time datetime="{}" data-t="{}">{}</time>',
        moment.isoformat(),
        how,
        timezone.localtime(moment).strftime("%m-%d %H:%M %Z"),
    )


def _moment(value: Any) -> datetime | None:
    if isinstance(value, datetime):
        return value
    return parse_datetime(value) if isinstance(value, str) and value else None


@register.simple_tag
def between(start: Any, end: Any) -> SafeString | str:
    """How long something took; if it has not ended, the page counts on."""
    first, last = _moment(start), _moment(end)
    if first is None:
        return "–"
    return span((last - first).total_seconds()) if last else when(first, "running")


@register.simple_tag
def seconds(value: float) -> str:
    """A short span, in milliseconds below a second."""
    return f"{value * 1000:.0f} ms" if value < 1 else f"{value:.1f} s"


@register.filter
def change(one: Mapping[str, Any]) -> str:
    """The text of a counterfactual's change."""
    return change_text(one)


@register.filter
def minus(value: Any) -> float:
    """The negative of a number."""
    return -float(value)


@register.filter
def figure(cell: Mapping[str, Any], how: str) -> str:
    """A figure of a simulation as a span, a share or a number; with several seeds, also its deviation."""
    value, spread = cell["value"], cell.get("spread")
    if value is None:
        return "–"

    def shown(number: float) -> str:
        if how == "span":
            return span(number)
        return f"{100 * number:.1f} %" if how == "percent" else f"{number:,.4g}"

    return shown(value) + (f" ± {shown(spread)}" if cell.get("many") and spread else "")


@register.filter
def needs(changes: Any, who: str) -> bool:
    """Whether one of these changes can only be made by ``who``."""
    return any(one.get("who") == who for one in changes)


@register.filter
def per_s(rate: Any) -> str:
    """Bytes per second; a dash if not measured."""
    return f"{gib(rate)}/s" if isinstance(rate, int | float) else "–"


@register.filter
def bits(rate: Any) -> str:
    """The speed of a link."""
    if not isinstance(rate, int | float):
        return "–"
    return f"{rate / 1e9:.4g} Gbit/s" if rate >= 1e9 else f"{rate / 1e6:.4g} Mbit/s"


@register.filter
def energy(joules: Any) -> str:
    """Joules; above a tenth of a kilowatt-hour in kilowatt-hours, above a thousand of them in megawatt-hours."""
    if not isinstance(joules, int | float):
        return "–"
    if joules >= 3_600_000_000:
        return f"{joules / 3_600_000_000:.3g} MWh"
    if joules >= 360_000:
        return f"{joules / 3_600_000:.3g} kWh"
    return f"{joules / 1000:.3g} kJ" if joules >= 1000 else f"{joules:.3g} J"


@register.filter
def hours(seconds: Any) -> str:
    """Seconds of devices as device-hours."""
    if not isinstance(seconds, int | float):
        return "–"
    count = seconds / 3600
    return f"{count:,.0f}" if count >= 100 else f"{count:.1f}" if count >= 10 else f"{count:.3g}"


@register.filter
def grams(amount: Any) -> str:
    """A mass in grams; from a kilogram on in kilograms, from a tonne on in tonnes."""
    if not isinstance(amount, int | float):
        return "–"
    if amount >= 1_000_000:
        return f"{amount / 1_000_000:.3g} t"
    return f"{amount / 1000:.3g} kg" if amount >= 1000 else f"{amount:.3g} g"


@register.filter
def milli(value: Any) -> str:
    """Thousandths as a number without needless digits."""
    try:
        return f"{float(value) / 1000:g}"
    except (TypeError, ValueError):
        return "–"


@register.filter
def percent(share: Any) -> str:
    """A share of 1 as a percentage."""
    try:
        return f"{float(share) * 100:.0f} %"
    except (TypeError, ValueError):
        return "–"


@register.filter
def per_step(rate: float) -> str:
    """Steps a second, or the time of one step where that is longer than ten seconds."""
    if rate >= 0.1:
        return _("{rate} steps/s").format(rate=f"{rate:.3g}" if rate < 1000 else f"{rate:,.0f}")
    return _("{span} for a step").format(span=span(1 / rate))


@register.filter
def whole_percent(value: Any) -> str:
    try:
        return f"{float(value):.0f} %"
    except (TypeError, ValueError):
        return "–"


@register.filter
def short(value: Any) -> str:
    """A reported value, shortened for a tile."""
    return f"{value:.5g}" if isinstance(value, float) else str(value)


@register.filter
def why(reason: Mapping[str, Any] | None) -> str:
    return reason_text(reason)


@register.filter
def said(one: Mapping[str, Any], name: str) -> str:
    """The text ``name`` of an object, in the reader's language."""
    return told_text(one, name)


@register.filter
def all_said(one: Mapping[str, Any], name: str) -> list[str]:
    """What each sentence of the list ``name`` of it says, in the reader's language."""
    return told_texts(one, name)


@register.filter
def acting(who: Any) -> str:
    """Who can change the cause of a wait reason, in the reader's language."""
    return str(ACTS.get(str(who), who))


@register.filter
def division(stored: Any) -> str:
    """The partitioning of a device; empty if it has none."""
    return division_text(stored)


SHARING = {
    "none": gettext_lazy("nothing holds them to their memory"),
    "soft": gettext_lazy("the agent holds them to their memory"),
    "hard": gettext_lazy("the hardware holds them to their memory"),
}


@register.filter
def sharing(level: str) -> str:
    """How memory limits of stages that share a device are enforced."""
    return str(SHARING.get(level, level))


@register.filter
def partition(claim: Mapping[str, Any]) -> str:
    """The partition that a claim holds; empty if it holds a share."""
    return partition_text(claim["partition"], claim["slot"]) if claim["partition"] else ""


@register.filter
def funnel(waiting: Mapping[str, Any]) -> list[tuple[str, int]]:
    """The filters of a search in words, each with the number of nodes that were left."""
    return funnel_text(waiting)


@register.filter
def actor(name: str) -> str:
    """The name of who did something: a person by name, a part of Switchyard in the reader's language."""
    return str(ACTORS.get(name, name))


@register.simple_tag
def bar(label: str, *pairs: Any, size: str = "") -> SafeString:
    """A bar of parts, given as classes and shares of 1 in turn, drawn without inline style."""
    drawn, at = [], 0.0
    for look, share in zip(pairs[::2], pairs[1::2], strict=True):
        width = max(0.0, min(1.0 - at, float(share or 0)))
        drawn.append(
            format_html(
                '<rect class="{}" x="{}%" width="{}%" height="100%"/>', look, f"{at * 100:.2f}", f"{width * 100:.2f}"
            )
        )
        at += width
    return format_html(
        '<svg class="y-bar {}" role="img" aria-label="{}">{}</svg>', size, label, SafeString("".join(drawn))
    )


@register.filter
def share_of(value: Any, total: Any) -> float:
    try:
        return float(value) / float(total) if float(total) else 0.0
    except (TypeError, ValueError):
        return 0.0


@register.filter
def level(utilisation: Any) -> str:
    """The step of the colour ramp for a utilisation of 0 to 100."""
    return str(max(0, min(9, int(float(utilisation) // 10))))


@register.simple_tag
def plural(count: int, what: str) -> str:
    """A count with its noun: job, node, stage, and so on; devices are counted by kind (see ``pages.counted``)."""
    return {
        "job": ngettext("%d job", "%d jobs", count),
        "day": ngettext("%d day", "%d days", count),
        "node": ngettext("%d node", "%d nodes", count),
        "stage": ngettext("%d stage", "%d stages", count),
        "attempt": ngettext("%d attempt", "%d attempts", count),
        "decision": ngettext("%d decision", "%d decisions", count),
        "change": ngettext("%d change", "%d changes", count),
    }[what] % count


@register.simple_tag
def shown(count: int, total: int | None = None) -> str:
    """The number of rows, and how many of them are shown if not all."""
    if total is None or total <= count:
        return f"{count:,}"
    return _("showing {n} of {total}").format(n=f"{count:,}", total=f"{total:,}")


@register.simple_tag(takes_context=True)
def query(context: Mapping[str, Any], **changes: Any) -> str:
    """The page's query string with some keys changed; an empty value removes a key."""
    params = context["request"].GET.copy()
    params.pop("cursor", None)
    for key, value in changes.items():
        if value in (None, ""):
            params.pop(key, None)
        else:
            params[key] = str(value)
    return "?" + params.urlencode() if params else "?"
