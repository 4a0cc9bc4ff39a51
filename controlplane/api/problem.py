"""Errors as problem documents (RFC 9457), whatever raised them, in the language of the request.

``code`` is stable and meant for programs, ``detail`` for people. ``trace_id`` finds the error in the server's log.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterable
from typing import Any

import msgspec
from django.core.exceptions import (
    NON_FIELD_ERRORS,
    BadRequest,
    PermissionDenied,
    RequestDataTooBig,
    SuspiciousOperation,
)
from django.db import DataError, IntegrityError, InterfaceError, OperationalError
from django.db import Error as DatabaseError
from django.http import Http404
from django.utils.translation import gettext as _
from psycopg import errors as postgres
from rest_framework import exceptions
from rest_framework.response import Response

from controlplane.accounts.keys import KeyUnavailable
from controlplane.accounts.members import MemberRefused
from controlplane.accounts.secrets import SecretRefused
from controlplane.bulk.service import TooManyOperations
from controlplane.fleet.service import NodeRefused
from controlplane.job_templates.service import TemplateRefused
from controlplane.jobs.log_blocks import StorageSilent
from controlplane.jobs.refusal import refusal as job_refusal
from controlplane.jobs.section import FieldError
from controlplane.notifications.tried_deliveries import NotSentAgain
from controlplane.notifications.webhook_delivery import TEST_S, TestedBefore
from controlplane.notifications.webhooks import WebhookRefused
from controlplane.pools import profiles
from controlplane.queries.decisions import TooLarge
from controlplane.queries.logs import BeyondEnd, LogGone, TooManySearches
from controlplane.queries.refusals import Unanswerable, Unseen
from controlplane.queries.simulations import ResultLost
from controlplane.schedules.service import ScheduleRefused
from controlplane.sentences import in_language, title
from controlplane.services.service import ServiceRefused
from controlplane.simulations.service import TooManySimulations
from controlplane.whatif.questions import NotAnswered
from scheduler.core.model.sentences import said
from scheduler.scenario.scenario import ScenarioError, shortened

log = logging.getLogger(__name__)
RETRY_AFTER_S = 2
PROBLEM_TYPE = "application/problem+json"
# Under which Django and REST framework put faults of several fields together.
_OF_ALL_FIELDS = {NON_FIELD_ERRORS, "non_field_errors"}


class Fault(msgspec.Struct, frozen=True):
    """One fault of a request, and its place."""

    pointer: str
    detail: str
    code: str


class Problem(msgspec.Struct, frozen=True, omit_defaults=True):
    """An RFC 9457 problem document."""

    title: str
    status: int
    detail: str
    code: str
    instance: str
    trace_id: str
    type: str = "about:blank"
    errors: list[Fault] = []
    hint: str = ""


class RequestRefused(Exception):
    """Raised by a view that refuses a request; becomes a problem document."""

    def __init__(
        self,
        status: int,
        code: str,
        detail: str,
        *,
        errors: Iterable[FieldError] = (),
        hint: str = "",
        retry_s: int = 0,
    ) -> None:
        super().__init__(detail)
        self.status, self.code, self.detail, self.hint, self.retry_s = status, code, detail, hint, retry_s
        self.errors = list(errors)


class ProblemResponse(Response):
    """A problem document, always JSON, even if the view would answer in another format."""

    @property
    def rendered_content(self) -> bytes:  # type: ignore[override]  # DRF renders bytes, its stubs say text
        self["Content-Type"] = PROBLEM_TYPE
        return msgspec.json.encode(self.data)


def not_found(what: str) -> RequestRefused:
    """The answer if there is no such object, or the user may not see it."""
    return RequestRefused(404, "not_found", _("there is no {what} that you may see").format(what=what))


def handle(error: Exception, context: dict[str, Any]) -> Response:
    """The problem document for an exception; DRF calls this for all exceptions of views."""
    refused = refusal(error)
    trace_id = uuid.uuid4().hex
    request = context.get("request")
    if refused.status >= 500:
        where = f"{request.method} {request.path}" if request else "a request"
        # If the database is unreachable every request fails in the same way, so one log line each is enough.
        level, shown = (logging.ERROR, error) if refused.status == 500 else (logging.WARNING, None)
        log.log(level, "%s: %s, trace %s", where, refused.code, trace_id, exc_info=shown)
    problem = Problem(
        title=title(refused.status),
        status=refused.status,
        detail=refused.detail,
        code=refused.code,
        instance=request.path if request else "",
        trace_id=trace_id,
        errors=[Fault(each.pointer, each.detail, each.code) for each in refused.errors[:100]],
        hint=refused.hint,
    )
    return ProblemResponse(problem, status=refused.status, headers=_headers(error, refused))


def _headers(error: Exception, refused: RequestRefused) -> dict[str, str]:
    headers: dict[str, str] = {"Cache-Control": "no-store"}
    if isinstance(error, BeyondEnd):
        headers["Content-Range"] = f"bytes */{error.size_bytes}"
    if getattr(error, "auth_header", None):
        headers["WWW-Authenticate"] = error.auth_header  # type: ignore[attr-defined]
    if retry_s := refused.retry_s or getattr(error, "wait", None):
        headers["Retry-After"] = str(int(retry_s))
    return headers


def refusal(error: Exception) -> RequestRefused:
    """The refusal for an exception. An unexpected one is a fault of the server and is not described."""
    if (of_job := job_refusal(error)) is not None:
        return RequestRefused(of_job.status, of_job.code, of_job.detail, errors=of_job.errors)
    match error:
        case RequestRefused():
            return error
        case profiles.NoPreview():
            return RequestRefused(409, "not_previewed", str(error))
        case profiles.InUse():
            return RequestRefused(409, "profile_in_use", str(error))
        case profiles.ProfileInvalid():
            problem = shortened(in_language(said(error)))
            return RequestRefused(
                422, "invalid_profile", problem, errors=[FieldError(f"/{error.field}", problem, "invalid")]
            )
        case ScenarioError():
            problem = shortened(in_language(error.said))
            at = FieldError(("/" + error.at.replace(".", "/")).rstrip("/"), problem, "invalid")
            detail = f"{error.at}: {problem}" if error.at else problem
            return RequestRefused(422, "invalid_scenario", detail, errors=[at])
        case TooManyOperations():
            return RequestRefused(429, "too_many_operations", str(error), retry_s=RETRY_AFTER_S)
        case TooManySimulations():
            return RequestRefused(429, "too_many_simulations", str(error))
        case NotAnswered():
            return RequestRefused(error.status, error.code, str(error), retry_s=RETRY_AFTER_S)
        case MemberRefused():
            return RequestRefused(error.status, error.code, str(error))
        case SecretRefused() | WebhookRefused():
            fields = [FieldError(f"/{error.field}", str(error), error.code)] if error.field else []
            return RequestRefused(error.status, error.code, str(error), errors=fields)
        case ScheduleRefused() | ServiceRefused() | TemplateRefused():
            return RequestRefused(error.status, error.code, str(error), errors=error.errors)
        case TestedBefore():
            return RequestRefused(429, "tested_before", str(error), retry_s=TEST_S)
        case NotSentAgain():
            return RequestRefused(409, "not_sent_again", str(error))
        case KeyUnavailable():
            return RequestRefused(503, "secrets_unavailable", str(error), retry_s=30)
        case NodeRefused():
            return RequestRefused(409, "refused", str(error))
        case TooLarge():
            return RequestRefused(422, "too_large", str(error))
        case Unanswerable():
            return RequestRefused(400, "invalid", str(error))
        case Unseen():
            return RequestRefused(404, "not_found", str(error))
        case ResultLost():
            return RequestRefused(410, "result_lost", str(error))
        case LogGone():
            return RequestRefused(410, "log_lost", str(error))
        case BeyondEnd():
            return RequestRefused(416, "range_not_satisfiable", str(error))
        case TooManySearches():
            return RequestRefused(429, "too_many_searches", str(error), retry_s=1)
        case StorageSilent():
            detail = _("the storage of logs does not answer; try again")
            return RequestRefused(503, "storage_unavailable", detail, retry_s=30)
        case Http404():
            return RequestRefused(404, "not_found", _("there is nothing at this address that you may see"))
        case PermissionDenied():
            return RequestRefused(403, "permission_denied", _("you may not do this"))
        case RequestDataTooBig():
            return RequestRefused(413, "too_large", _("the request is larger than this server accepts"))
        case SuspiciousOperation() | BadRequest():
            return RequestRefused(400, "invalid", _("this request cannot be read"))
        case exceptions.APIException():
            return _from_rest(error)
        case msgspec.ValidationError() | msgspec.DecodeError():
            return RequestRefused(400, "invalid", _("the request cannot be read: {reason}").format(reason=error))
        case DatabaseError():
            return _from_database(error)
    return RequestRefused(500, "internal", _("the server made a mistake; its log has more under this trace_id"))


def _from_rest(error: exceptions.APIException) -> RequestRefused:
    code = {
        401: "not_authenticated", 403: "permission_denied", 404: "not_found", 405: "method_not_allowed",
        406: "not_acceptable", 415: "unsupported_media_type", 429: "throttled",
    }.get(error.status_code, "invalid")  # fmt: skip
    if isinstance(error, exceptions.ValidationError):
        faults = list(_flat(error.detail))
        detail = f"{faults[0].pointer.strip('/')}: {faults[0].detail}".removeprefix(": ") if faults else str(error)
        return RequestRefused(400, "invalid", detail, errors=faults)
    hint = _("sign in, or send Authorization: Bearer with an access token") if error.status_code == 401 else ""
    return RequestRefused(error.status_code, code, str(error.detail), hint=hint)


def _flat(detail: Any, pointer: str = "") -> Iterable[FieldError]:
    if isinstance(detail, dict):
        for key, value in detail.items():
            yield from _flat(value, pointer if key in _OF_ALL_FIELDS else f"{pointer}/{key}")
    elif isinstance(detail, list):
        for value in detail:
            yield from _flat(value, pointer)
    else:
        yield FieldError(pointer, str(detail), getattr(detail, "code", "invalid"))


def _from_database(error: DatabaseError) -> RequestRefused:
    cause = error.__cause__
    if isinstance(cause, postgres.DiskFull):
        return RequestRefused(
            503, "storage_full", _("the database's disk is full: reading works, writing does not"), retry_s=30
        )
    if isinstance(cause, postgres.LockNotAvailable | postgres.QueryCanceled | postgres.DeadlockDetected):
        return RequestRefused(503, "busy", _("the database is busy; try again"), retry_s=RETRY_AFTER_S)
    if isinstance(error, OperationalError | InterfaceError):
        return RequestRefused(
            503, "database_unavailable", _("the database does not answer; try again"), retry_s=RETRY_AFTER_S
        )
    if isinstance(error, DataError):
        return RequestRefused(400, "invalid", _("a value in this request is larger than what can be kept"))
    if isinstance(error, IntegrityError):
        return RequestRefused(
            409, "conflict", _("somebody else changed this at the same moment; look again and repeat")
        )
    return RequestRefused(500, "internal", _("the server made a mistake; its log has more under this trace_id"))
