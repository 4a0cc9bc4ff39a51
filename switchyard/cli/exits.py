"""The exit codes of ``yard``, and those of jobs and errors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

OK: Final = 0
FAILURE: Final = 1
USAGE: Final = 2
NOT_FOUND: Final = 3
DENIED: Final = 4
CONFLICT: Final = 5
UNREACHABLE: Final = 6
TIMED_OUT: Final = 7
GONE: Final = 8
INTERRUPTED: Final = 130

MEANING: Final[Mapping[int, str]] = {
    OK: "done; for a job: it completed",
    FAILURE: "it failed; for a job: it failed without an exit code of its own",
    USAGE: "the command line or the job file cannot be understood",
    NOT_FOUND: "what was named does not exist, or is not yours to see",
    DENIED: "you may not do that, or the token is not valid",
    CONFLICT: "the state of things does not allow it now",
    UNREACHABLE: "the control plane did not answer",
    TIMED_OUT: "`wait --timeout` ran out; the job goes on",
    GONE: "the job was cancelled, or preempted for good",
    INTERRUPTED: "you pressed Ctrl-C; a job that was followed goes on",
}
"""What each code says, for the documentation and its test."""

_BY_STATUS: Final = {
    **dict.fromkeys((400, 422), USAGE),
    **dict.fromkeys((401, 403), DENIED),
    **dict.fromkeys((404, 410), NOT_FOUND),
    **dict.fromkeys((409, 412, 423, 428), CONFLICT),
    **dict.fromkeys((502, 503, 504), UNREACHABLE),
}


def of_problem(status: int, code: str = "") -> int:
    """Return the exit code for a refusal with this HTTP status and problem code."""
    if code == "key_reused":
        return CONFLICT
    return _BY_STATUS.get(status, FAILURE)


def of_job(job: Mapping[str, Any], attempts: Iterable[Mapping[str, Any]] = ()) -> int:
    """Return the exit code of an ended job: that of the stage that failed first, 128 + N if signal N ended it."""
    if job["state"] == "COMPLETED":
        return OK
    if job["state"] == "CANCELLED":
        return GONE
    failed = [stage for stage in job.get("stages") or [] if stage.get("state") == "FAILED"]
    if not failed:
        return FAILURE
    stage = min(failed, key=lambda s: (s.get("ended_at") or "~", s.get("index") or 0))
    if stage.get("cause") == "PREEMPTED":
        return GONE
    code = stage.get("exit_code")
    if code:
        return 128 - int(code) if int(code) < 0 else int(code) & 0xFF or FAILURE
    last = max((a for a in attempts if _belongs(a, stage)), key=lambda a: a.get("number") or 0, default=None)
    signal = (last or {}).get("signal")
    return 128 + int(signal) if signal else FAILURE


def _belongs(attempt: Mapping[str, Any], stage: Mapping[str, Any]) -> bool:
    return attempt.get("stage") in (stage.get("name"), stage.get("id"))
