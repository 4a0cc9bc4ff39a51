"""Hides the names of stages whose job the reader may not see; every answer that names stages passes through here.

The engine, agents and the database name a stage in one form, ``#12 train`` or ``#12/train``. Stored texts have these
names; the reader gets them only for visible jobs, and otherwise *another project's stage*, or the number of them if a
sentence lists several.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container
from typing import Any, Final

import msgspec

from controlplane.accounts import permissions
from controlplane.accounts.models import User
from controlplane.accounts.permissions import Permit
from controlplane.clauses import HIDDEN, HIDDEN_SEVERAL
from controlplane.jobs.models import Array, Job

_NUMBER: Final = re.compile(rb"#([0-9]{1,18})(/?)")
_STAGE: Final = re.compile(r"#([0-9]{1,18})(?:[ /][A-Za-z0-9](?:[A-Za-z0-9_-]|\.(?=[A-Za-z0-9_-])){0,62})?")
# Several hidden names in a row.
_LIST: Final = re.compile(rf"{HIDDEN}(?:,? (?:and )?{HIDDEN}| and {HIDDEN})+")
# Free text of the reader's own job; a number there is not a stage's name.
OWN: Final = frozenset({"spec", "request", "labels", "name"})


def encode(answer: Any, user: Any) -> bytes:
    """Encode an answer as JSON for this user, without names of stages whose jobs they may not see."""
    content = msgspec.json.encode(answer)
    unseen = hidden(content, user)
    return msgspec.json.encode(_without(msgspec.to_builtins(answer), unseen)) if unseen else content


def hidden(content: bytes, user: Any) -> set[int]:
    """Return the job numbers in this text that this user may not see; in ``#12/train`` also of deleted jobs."""
    named = [(int(number), bool(slash)) for number, slash in _NUMBER.findall(content)] if b"#" in content else []
    if not named or not isinstance(user, User) or permissions.may(user, Permit.SEE_JOBS):
        return set()
    jobs = Job.objects.filter(number__in={number for number, _ in named})
    arrays = Array.objects.filter(number__in={number for number, _ in named})
    seen = permissions.visible_jobs(user)
    numbers, visible = (
        {number for some in both for number in some.values_list("number", flat=True)}
        for both in ((jobs, arrays), (jobs.filter(seen), arrays.filter(seen)))
    )
    of_stages = {number for number, is_stage in named if is_stage}
    return of_stages.union(numbers).difference(visible)


def is_hidden(name: Any, hidden: Container[int]) -> bool:
    """Whether this is the name of a stage of one of the ``hidden`` jobs."""
    found = _STAGE.match(name) if isinstance(name, str) else None
    return found is not None and int(found[1]) in hidden


def _without(answer: Any, hidden: Container[int]) -> Any:
    def name(found: re.Match[str]) -> str:
        return HIDDEN if int(found[1]) in hidden else found[0]

    return _map_strings(answer, lambda text: _LIST.sub(_counted, _STAGE.sub(name, text)))


def _counted(found: re.Match[str]) -> str:
    return HIDDEN_SEVERAL.format(n=found[0].count(HIDDEN))


def _map_strings(answer: Any, change: Callable[[str], str]) -> Any:
    if isinstance(answer, str):
        return change(answer)
    if isinstance(answer, list):
        return [_map_strings(one, change) for one in answer]
    if isinstance(answer, dict):
        return {key: one if key in OWN else _map_strings(one, change) for key, one in answer.items()}
    return answer
