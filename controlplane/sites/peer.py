"""Asks a site by its REST interface. Whatever it answers is bounded, typed and checked here, and nowhere else.

Addresses are resolved once and judged (:mod:`controlplane.addresses`); redirections are not followed. A site proves who
it is by an authority, its own or that of the system, or by the fingerprint of its certificate; we prove who we are by a
token, and by a client certificate where the files of the site have one.
"""

from __future__ import annotations

import hashlib
import hmac
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import IO, Annotated, Any, Final, TypeVar
from urllib.parse import urlencode

import msgspec
from django.conf import settings
from msgspec import Meta

from controlplane import addresses
from controlplane.accounts.keys import KeyUnavailable
from controlplane.bounded_connection import BoundedConnection, ExchangeFailed
from controlplane.sites.models import Site, SiteToken

PATIENCE_S: Final = 5.0
# A site that sends a byte at a time is cut off all the same.
MOST_S: Final = 15.0
# Code may be large.
UPLOAD_S: Final = 120.0
LARGEST_ANSWER: Final = 2**20
LOG_BYTES: Final = 256 * 1024
# The label of our jobs there, by which they are recognised, and found after a lost answer.
LABEL: Final = "switchyard-part"

Short = Annotated[str, Meta(max_length=300)]
Word = Annotated[str, Meta(max_length=100)]
Moment = Annotated[str, Meta(max_length=40)]
Number = Annotated[int, Meta(ge=1, le=2**53)]
Count = Annotated[int, Meta(ge=0, le=2**53)]
Amount = Annotated[float, Meta(ge=0, le=1e15)]

T = TypeVar("T")


class PeerFault(Exception):
    """A site could not be asked, or answered what cannot be used: nothing is known. ``code`` is that of a clause."""

    def __init__(self, code: str, detail: str = "") -> None:
        super().__init__(f"{code}: {detail}" if detail else code)
        self.code, self.detail = code, detail


class PeerRefused(PeerFault):
    """The site refused the request for good: it has surely had no effect."""


class PeerUnknown(PeerFault):
    """The site knows nothing of what was asked for, or does not let us see it."""


class _Problem(msgspec.Struct):
    detail: Annotated[str, Meta(max_length=4_000)] = ""
    code: Word = ""


class PeerReason(msgspec.Struct, frozen=True):
    """Why a stage waits there."""

    code: Word
    text: Annotated[str, Meta(max_length=4_000)]


class PeerStage(msgspec.Struct, frozen=True):
    """A stage of a job there."""

    name: Word
    state: Word
    cause: Word = ""
    detail: Annotated[str, Meta(max_length=4_000)] = ""
    exit_code: Annotated[int, Meta(ge=-(2**31), le=2**31)] | None = None
    attempts: Count = 0


class PeerJob(msgspec.Struct, frozen=True):
    """A job there; ``labels`` must have our key."""

    number: Number
    state: Word
    cause: Word = ""
    reason: PeerReason | None = None
    labels: Annotated[dict[Word, Short], Meta(max_length=256)] = msgspec.field(default_factory=dict)
    stages: Annotated[list[PeerStage], Meta(min_length=1, max_length=256)] = msgspec.field(default_factory=list)


class _Jobs(msgspec.Struct):
    results: Annotated[list[PeerJob], Meta(max_length=500)]


class _Version(msgspec.Struct):
    server: Word
    api: Word
    cluster: Word


class _Model(msgspec.Struct):
    kind: Word
    model: Short
    count: Count
    free: Count


class _Hardware(msgspec.Struct):
    results: Annotated[list[_Model], Meta(max_length=1_000)]


class _Queue(msgspec.Struct):
    total: Count


class _Start(msgspec.Struct):
    high_at: Moment


class _Length(msgspec.Struct):
    p50: Amount | None = None


class _TriedStage(msgspec.Struct):
    starts_now: bool
    expected_start: _Start | None = None
    expected_s: _Length | None = None


class _Tried(msgspec.Struct):
    verdict: Word
    stages: Annotated[list[_TriedStage], Meta(min_length=1, max_length=256)]


@dataclass(frozen=True, slots=True)
class SiteForecast:
    """When a job would start there at the latest, in seconds since the epoch, and how long it would take; None where
    that is not known."""

    starts_at: float
    lasts_s: float | None


@dataclass(frozen=True, slots=True)
class _Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes = field(repr=False)


def context_of(site: Site) -> ssl.SSLContext:
    """Return how a connection to a site is secured. Raises PeerFault if the files for it cannot be used."""
    folder = Path(settings.SITE_FILES) / site.name if settings.SITE_FILES else None
    authority = folder / "ca.pem" if folder is not None and (folder / "ca.pem").exists() else None
    try:
        found = ssl.create_default_context(cafile=authority)
        if folder is not None and (folder / "client.pem").exists():
            found.load_cert_chain(folder / "client.pem", folder / "client.key")
    except (OSError, ssl.SSLError) as error:
        raise PeerFault("SiteFilesUnusable", type(error).__name__) from None
    if site.fingerprint and authority is None:
        # The fingerprint says which certificate it is, whoever signed it.
        found.check_hostname, found.verify_mode = False, ssl.CERT_NONE
    return found


class Peer:
    """One site, asked as one of its clients. All methods block for a bounded time and raise :class:`PeerFault`."""

    def __init__(self, site: Site) -> None:
        self.site = site
        try:
            self._token = site.token.content().decode()
        except SiteToken.DoesNotExist:
            raise PeerFault("SiteWithoutToken") from None
        except (KeyUnavailable, UnicodeDecodeError):
            raise PeerFault("SiteTokenUnreadable") from None

    # -- what people see of it

    def cluster(self) -> str:
        """Return the name of its cluster."""
        return self._get("/version", _Version).cluster

    def capacity(self) -> dict[str, Any]:
        """Return its devices by kind and model, with how many are free, and how many jobs wait there that we see."""
        models = self._get("/hardware", _Hardware).results
        waiting = self._get("/queue?limit=1", _Queue).total
        devices = [{"kind": m.kind, "model": m.model, "count": m.count, "free": m.free} for m in models[:100]]
        return {"devices": devices, "waiting": waiting}

    # -- jobs

    def forecast(self, spec: Mapping[str, Any], now: float) -> SiteForecast | None:
        """Return what its dry run says of a job; None if the job could never start there."""
        try:
            tried = _read(self._ask("POST", "/jobs?dry_run=placement", spec).body, _Tried)
        except PeerRefused:
            return None
        if tried.verdict not in ("starts_now", "queued"):
            return None
        stage = tried.stages[0]
        lasts_s = stage.expected_s.p50 if stage.expected_s else None
        if stage.starts_now:
            return SiteForecast(now, lasts_s)
        if stage.expected_start is None:
            return None
        try:
            starts_at = datetime.fromisoformat(stage.expected_start.high_at).timestamp()
        except (ValueError, OverflowError, OSError):
            raise PeerFault("SiteNonsense") from None
        return SiteForecast(max(now, starts_at), lasts_s)

    def give_code(self, sha256: str, content: IO[bytes], size: int) -> None:
        """Upload a bundle of code unless it is there."""
        try:
            self._ask("GET", f"/bundles/{sha256}")
        except PeerUnknown:
            told = {"Content-Type": "application/gzip", "Content-Length": str(size)}
            self._send("POST", "/bundles", content, told, UPLOAD_S)

    def submit(self, spec: Mapping[str, Any], key: str, *, again: bool) -> PeerJob:
        """Submit a job; where it may have been submitted with this key before (``again``), it is looked for first."""
        found = self.found(key) if again else None
        return self._ours(found or _read(self._ask("POST", "/jobs", spec, key=key).body, PeerJob), key)

    def job(self, number: int, key: str) -> PeerJob:
        """Return a job of ours there. A job that is not ours counts as nonsense."""
        found = self._ours(self._get(f"/jobs/{number:d}", PeerJob), key)
        if found.number != number:
            raise PeerFault("SiteNonsense")
        return found

    def cancel(self, number: int, reason: str) -> None:
        """Ask it to cancel a job; one that has ended already is no fault."""
        try:
            self._ask("POST", f"/jobs/{number:d}/cancel", {"reason": reason})
        except PeerRefused:
            return

    def log(self, number: int, stage: str, attempt: int, stream: str, offset: int) -> bytes:
        """Return bytes of a stream of an attempt, from an offset on: at most LOG_BYTES."""
        asked = {"stage": stage, "attempt": attempt, "stream": stream, "offset": offset, "limit": LOG_BYTES}
        try:
            answer = self._ask("GET", f"/jobs/{number:d}/logs?{urlencode(asked)}")
        except (PeerRefused, PeerUnknown):
            return b""
        if len(answer.body) > LOG_BYTES:
            raise PeerFault("SiteNonsense")
        return answer.body

    def found(self, key: str) -> PeerJob | None:
        """Return the job there that was submitted with this key, if there is one that we may see."""
        asked = urlencode({"label": f"{LABEL}={key}", "limit": 2})
        found = self._get(f"/jobs?{asked}", _Jobs).results
        return self._ours(found[0], key) if found else None

    @staticmethod
    def _ours(job: PeerJob, key: str) -> PeerJob:
        if not hmac.compare_digest(job.labels.get(LABEL, "").encode(), key.encode()):
            raise PeerFault("SiteNonsense")
        return job

    # -- requests

    def _get(self, path: str, kind: type[T]) -> T:
        return _read(self._ask("GET", path).body, kind)

    def _ask(self, method: str, path: str, content: object = None, *, key: str = "") -> _Answer:
        headers = {"Idempotency-Key": key} if key else {}
        if content is None:
            return self._send(method, path, None, headers)
        return self._send(method, path, msgspec.json.encode(content), {**headers, "Content-Type": "application/json"})

    def _send(
        self, method: str, path: str, body: bytes | IO[bytes] | None, more: Mapping[str, str], most_s: float = MOST_S
    ) -> _Answer:
        """Send a request; return the answer if it was 2xx."""
        headers = {"Authorization": f"Bearer {self._token}", "Accept": "application/json", "Accept-Language": "en"}
        answer = self._answer(method, f"/api/v1{path}", body, {**headers, **more}, most_s)
        if 200 <= answer.status < 300:
            return answer
        code, said = _said(answer.body)
        if answer.status in (401, 403):
            raise PeerFault("SiteDenied", said)
        if answer.status == 404:
            raise PeerUnknown("SiteForgot", said)
        if answer.status in (429, 503, 507) or code == "in_flight":
            raise PeerFault("SiteBusy", said)
        if answer.status in (400, 409, 413, 422) and said:
            raise PeerRefused("SiteRefused", said)
        raise PeerFault("SiteNonsense", f"HTTP {answer.status}")

    def _answer(
        self, method: str, path: str, body: bytes | IO[bytes] | None, headers: Mapping[str, str], most_s: float
    ) -> _Answer:
        try:
            parts = addresses.parsed(self.site.url, settings.SITE_NETWORKS)
            host, port, address = addresses.resolved(parts, settings.SITE_NETWORKS)
        except addresses.AddressRefused as error:
            raise PeerFault("SiteUnreachable", error.code) from None
        context = context_of(self.site) if parts.scheme == "https" else None
        connection = BoundedConnection(host, port, context, patience_s=PATIENCE_S, address=address)
        try:
            with connection.cut_after(most_s):
                connection.connect()
                self._check_certificate(connection)
                connection.request(method, path, body=body, headers=dict(headers))
                response = connection.getresponse()
                content = response.read(LARGEST_ANSWER + 1)
                told = {name.lower(): value for name, value in response.getheaders()[:100]}
        except ExchangeFailed as failed:
            if failed.code == "tls_failed":
                raise PeerFault("SiteTlsFailed", str(getattr(failed.error, "reason", "") or "")[:100]) from None
            raise PeerFault("SiteUnreachable", failed.code) from None
        if len(content) > LARGEST_ANSWER:
            raise PeerFault("SiteNonsense", "too large")
        return _Answer(response.status, told, content)

    def _check_certificate(self, connection: BoundedConnection) -> None:
        """Raise PeerFault unless the certificate is the one that an operator wrote down; nothing was sent yet."""
        if not self.site.fingerprint:
            return
        shown = connection.sock.getpeercert(binary_form=True) if isinstance(connection.sock, ssl.SSLSocket) else None
        if not hmac.compare_digest(hashlib.sha256(shown or b"").hexdigest(), self.site.fingerprint):
            raise PeerFault("SiteOtherCertificate")


def _read(content: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(content, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise PeerFault("SiteNonsense") from None


def _said(content: bytes) -> tuple[str, str]:
    """Return the code of a problem, and its sentence in one line of printable characters."""
    try:
        told = msgspec.json.decode(content, type=_Problem)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return "", ""
    return told.code, one_line(told.detail)[:200] or told.code


def one_line(text: str) -> str:
    """Return a text of a site as it may be stored and shown."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())
