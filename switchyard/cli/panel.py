"""Formats the answer to "why" as text: the primary reason, the others, the nodes left after each filter, the
forecast."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from switchyard.cli import clean, output, units

LABEL = 10


def stage(found: Mapping[str, Any]) -> Iterator[str]:
    """Yield the panel of one stage, whatever its state."""
    state = str(found.get("state", ""))
    yield f"{clean.line(found.get('name', '?'))}  {output.paint(state)}{_since(found)}"
    if found.get("asks"):
        yield row("Asks", found["asks"])
    if policy := found.get("utilization_policy"):
        yield row("Idle", _idle(policy, found))
    if state in ("PENDING", "HELD"):
        yield from waiting(found)
    elif state in ("STARTING", "RUNNING", "STOPPING", "SUSPENDED"):
        yield row("Where", units.placed(found) or "not told yet")
        if found.get("why_here"):
            yield row("Because", found["why_here"])
        if found.get("substate"):
            yield row("Now", found["substate"])
    else:
        yield row("Ended", "by itself, exit code 0" if state == "COMPLETED" else fault(found) or "no cause recorded")


def _idle(policy: Mapping[str, Any], found: Mapping[str, Any]) -> str:
    """Return what happens if it hardly uses its devices, and whether that has happened."""
    text = f"used to less than {units.percent(policy['min'])} over {units.span(policy['window_s'])}: {policy['action']}"
    return f"{text}; done: {found['held_idle']}" if found.get("held_idle") else text


def waiting(found: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines about a waiting stage."""
    reasons = [r for r in found.get("reasons") or [] if isinstance(r, Mapping)]
    primary = found.get("reason") or (reasons[0] if reasons else None)
    if primary is None:
        yield row("Primary", "not yet looked at; the next cycle will")
    else:
        code = primary.get("code", "") if isinstance(primary, Mapping) else ""
        acts = primary.get("acts") if isinstance(primary, Mapping) else ""
        yield row("Primary", f"{units.reason(primary)}" + (f"  ({code}; {_acts(acts)})" if code else ""))
        for other in (r for r in reasons if r.get("code") != code):
            yield row("Also", f"{units.reason(other)}  ({other.get('code')})")
    if funnel := found.get("funnel"):
        yield row("Filters", " → ".join(f"{count} {label}" for label, count in funnel))
    yield row("Next", _next(found))
    if lasts := found.get("expected_s"):
        yield row("Runs", runs(lasts))
    if found.get("quota"):
        yield row("Quota", found["quota"])
    if found.get("evaluated_at"):
        yield row("Looked at", f"{units.span(units.since(found['evaluated_at']))} ago")


def waited(found: Mapping[str, Any]) -> Iterator[str]:
    """Yield the line about how long a stage waited, and for what."""
    causes = [f"{units.span(one['waited_s'])} {clean.line(one['code'])}" for one in found.get("causes") or []]
    if found.get("unrecorded_s", 0) >= 1:
        causes.append(f"{units.span(found['unrecorded_s'])} not recorded")
    if causes and found.get("waited_s", 0) >= 1:
        yield row("Waited", f"{units.span(found['waited_s'])}: {', '.join(causes)}")


def failure(found: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines about why a stage failed, with the end of its output."""
    if not found:
        return
    where = f" (attempt {found['attempt']}, rank {found['rank']} on {found['node']})" if found.get("node") else ""
    yield row("Failed", f"{found.get('title')}{where}")
    if found.get("advice"):
        yield row("Try", found["advice"])
    for line in str(found.get("lines") or "").splitlines():
        yield clean.line(f"    | {line}")


def counterfactuals(found: Mapping[str, Any]) -> Iterator[str]:
    """Yield the changes with which the stage would start, verified by the server, smallest first."""
    for answer in found.get("answers") or []:
        text = ", ".join(str(change.get("text", "")) for change in answer.get("changes") or [])
        preempts, instead = answer.get("preempts") or [], answer.get("instead_of") or []
        then = f"starts after {', '.join(map(str, preempts))} made room" if preempts else "starts now"
        then += f", instead of {', '.join(map(str, instead))}" if instead else ""
        who = sorted({str(change.get("who", "")) for change in answer.get("changes") or []} - {"user"})
        note = "" if answer.get("allowed") else f"  ({' and '.join(who) or 'its owner'} can do this)"
        yield row("Faster", f"{text}: {then}{note}")


def _next(found: Mapping[str, Any]) -> str:
    """Return the predicted start as a range with its basis, or that there is no prediction."""
    expected = found.get("expected_start")
    if not expected:
        return "start unknown"
    low, high = units.clock(expected.get("low_at")), units.clock(expected.get("high_at"))
    text = f"expected to start {low}" + (f" to {high}" if high and high != low else "")
    text += f" ({expected['basis']}{_held(expected, 'starts')})" if expected.get("basis") else ""
    planned = found.get("planned") or {}
    names = [
        d if isinstance(d, str) else f"{d.get('node', '')} {d.get('kind', '')}{d.get('index', '')}".strip()
        for d in planned.get("devices") or []
    ]
    return text + (f", planned on {', '.join(names[:4])}{' …' if len(names) > 4 else ''}" if names else "")


def runs(lasts: Mapping[str, Any]) -> str:
    """Return the predicted run time of a stage, and how often such predictions held."""
    basis = str(lasts.get("basis") or "")
    if lasts.get("p50") is None:
        return basis or "unknown"
    text = f"about {units.span(lasts['p50'])}, nine of ten within {units.span(lasts.get('p90'))}"
    return f"{text} ({basis}{_held(lasts, 'run times')})"


def _held(said: Mapping[str, Any], what: str) -> str:
    """Return how many of such ranges held in this pool."""
    return f"; {said.get('held')} of {said['seen']} such {what} held" if said.get("seen") else ""


def _acts(acts: object) -> str:
    return "no action needed" if acts in (None, "", "nobody") else f"{acts} can change it"


def fault(found: Mapping[str, Any]) -> str:
    """Return the end of a stage: its cause, its exit code, and the recorded detail."""
    detail, code = str(found.get("detail") or ""), found.get("exit_code")
    words = [str(found.get("cause") or ""), f"exit code {code}" if code and str(code) not in detail else "", detail]
    return ", ".join(word for word in words if word)


def _since(found: Mapping[str, Any]) -> str:
    """Return how long it has been in its state; for an ended one, how long it took from its first start."""
    ended = found.get("ended_at")
    begun = found.get("started_at") if ended else found.get("state_at")
    passed = units.span(units.since(begun, ended))
    return f"  for {passed}" if passed else ""


def row(label: str, text: object) -> str:
    """Return one line of a panel."""
    return f"  {label:<{LABEL}}{clean.line(text)}"
