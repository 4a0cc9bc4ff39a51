"""What a job's record tells without asking anybody: its fields, how it looks in a notebook, a row of its history."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from html import escape
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from switchyard.answers import JobItems, Stage, State
else:
    JobItems = dict

FINAL = frozenset({"COMPLETED", "FAILED", "CANCELLED"})


class JobFields(JobItems):
    """A job as last read from the control plane: the JSON of the REST interface, with the common fields by name."""

    @property
    def id(self) -> str:
        """Its id; an array has none but its number."""
        return str(self.get("id") or self["number"])

    @property
    def is_array(self) -> bool:
        """Whether it is an array of jobs, with its elements by state in ``counts``."""
        return "counts" in self

    @property
    def number(self) -> int:
        return int(self["number"])

    @property
    def name(self) -> str:
        return str(self.get("name", ""))

    @property
    def state(self) -> State:
        return self["state"]

    @property
    def cause(self) -> str:
        return str(self.get("cause") or "")

    @property
    def stages(self) -> list[Stage]:
        return list(self.get("stages") or [])

    @property
    def is_final(self) -> bool:
        return self.state in FINAL

    @property
    def progress(self) -> float | None:
        """Return which part of it is done, from 0 to 1, where it tells."""
        told = self.get("progress")
        return min(1.0, max(0.0, float(told))) if isinstance(told, int | float) else None

    def row(self) -> dict[str, Any]:
        """Return it as one flat row: times are ``datetime``, spans are seconds, what is not known is None."""
        submitted, started, ended = (_time(self.get(f"{what}_at")) for what in ("submitted", "started", "ended"))
        return {
            "number": self.number,
            "name": self.name,
            "project": self.get("project"),
            "user": self.get("user"),
            "pool": self.get("pool"),
            "priority": (self.get("priority") or {}).get("class"),
            "state": self.state,
            "cause": self.cause,
            "submitted_at": submitted,
            "started_at": started,
            "ended_at": ended,
            "waited_s": (started - submitted).total_seconds() if submitted and started else None,
            "ran_s": (ended - started).total_seconds() if started and ended else None,
        }

    def __repr__(self) -> str:
        # repr() of the name: it is another person's text, and escape sequences must not reach a terminal.
        return f"<job {self.get('number')} {self.name!r} {self.get('state')}{self._done()}>"

    def _repr_html_(self) -> str:
        """Return it as a notebook shows it; every text of it is escaped."""
        head = f"<b>job {_text(self.get('number'))}</b> {_text(self.name)}: {_text(self.get('state'))}{self._done()}"
        head += f" ({_text(self.cause)})" if self.cause else ""
        rows = "".join(f"<tr>{''.join(f'<td>{_text(cell)}</td>' for cell in _stage(one))}</tr>" for one in self.stages)
        titles = "".join(f"<th>{title}</th>" for title in ("stage", "state", "asks", "nodes", "cause"))
        return f"<div>{head}<table><thead><tr>{titles}</tr></thead><tbody>{rows}</tbody></table></div>"

    def _done(self) -> str:
        return "" if self.progress is None else f" {self.progress:.0%}"


def _stage(stage: Mapping[str, Any]) -> tuple[Any, ...]:
    nodes = [one.get("node") for one in stage.get("placed") or [] if isinstance(one, Mapping)]
    told = " ".join(text for text in (stage.get("cause"), stage.get("detail")) if text)
    return stage.get("name"), stage.get("state"), stage.get("asks"), ", ".join(str(node) for node in nodes), told


def _text(found: object) -> str:
    return escape("" if found is None else str(found))


def _time(text: object) -> datetime | None:
    return datetime.fromisoformat(text) if isinstance(text, str) and text else None
