"""Fetches the code of jobs from git repositories: once for the jobs of a submission, in threads that wait for others.

One run at a time, and in it one repository of each project at once, so that no project keeps the others waiting.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Collection
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from datetime import timedelta
from typing import Final

from django.conf import settings
from django.core.cache import cache
from django.core.files.storage import storages
from django.db import transaction
from django.db.models import Exists, OuterRef, Q
from django.db.models.functions import Now
from django.utils import timezone

from controlplane import storage
from controlplane.accounts.keys import KeyUnavailable
from controlplane.accounts.models import Secret
from controlplane.jobs import git_fetch, service
from controlplane.jobs.git_fetch import FetchedCommit, NotFetched, Repository
from controlplane.jobs.models import Bundle, GitSource, Job
from scheduler.core.model.lifecycle import State

AT_ONCE: Final = 4
# No fetch begins later in a run; those that began go on for as long as they may.
TURN_S: Final = 30.0
CLAIMED_S: Final = 240
RUNS: Final = "sources:fetching"
MOST_TRIES: Final = 6
FIRST_S: Final = 10.0
UNUSED_FOR: Final = timedelta(days=1)


def fetch_due() -> int:
    """Fetch what waits to be fetched; return how many sources were. What cannot be fetched fails its jobs."""
    if not cache.add(RUNS, 1, CLAIMED_S):
        return 0
    try:
        return _fetch_due()
    finally:
        cache.delete(RUNS)


def _fetch_due() -> int:
    fetched, until = 0, time.monotonic() + TURN_S
    under_way: dict[Future[FetchedCommit], GitSource] = {}
    with ThreadPoolExecutor(AT_ONCE) as threads:
        while True:
            while len(under_way) < AT_ONCE and time.monotonic() < until:
                source = _claimed({one.project_id for one in under_way.values()})
                if source is None:
                    break
                try:
                    if _is_known(source):
                        fetched += 1
                    else:
                        under_way[threads.submit(git_fetch.fetch, _repository(source))] = source
                except NotFetched as error:
                    _note_fault(source, error.code)
            if not under_way:
                break
            for future in wait(under_way, return_when=FIRST_COMPLETED).done:
                source = under_way.pop(future)
                try:
                    _keep(source, future.result())
                    fetched += 1
                except NotFetched as error:
                    _note_fault(source, error.code)
    _fail()
    return fetched


def _claimed(busy: Collection[uuid.UUID]) -> GitSource | None:
    """Claim the oldest source that is due, of a project that is not busy."""
    now = timezone.now()
    wanted = Job.objects.filter(source=OuterRef("pk"), state__in=(State.PENDING, State.HELD))
    due = GitSource.objects.filter(Q(retry_at=None) | Q(retry_at__lte=now), Exists(wanted), ended_at=None)
    with transaction.atomic():
        row = due.exclude(project__in=busy).order_by("created_at").select_for_update(skip_locked=True).first()
        if row is None:
            return None
        row.retry_at = now + timedelta(seconds=CLAIMED_S)
        row.save(update_fields=["retry_at"])
        GitSource.objects.filter(
            ~Exists(Job.objects.filter(source=OuterRef("pk"))), created_at__lt=now - UNUSED_FOR
        ).delete()
    return row


def _is_known(source: GitSource) -> bool:
    """Give the jobs a bundle that their project has of this very commit already, if it has."""
    known = GitSource.objects.filter(
        Exists(Bundle.objects.filter(sha256=OuterRef("bundle"))),
        project=source.project_id,
        url=source.url,
        secret=source.secret,
        commit=source.rev,
    ).first()
    return known is not None and service.give_code(source, known.commit, known.bundle)


def _repository(source: GitSource) -> Repository:
    if not source.secret:
        return Repository(source.url, source.rev)
    row = Secret.objects.filter(project=source.project_id, name=source.secret).first()
    if row is None:
        raise NotFetched("secret_missing")
    try:
        password = row.content().decode()
    except KeyUnavailable:
        raise NotFetched("key_unavailable") from None
    Secret.objects.filter(pk=row.pk).update(last_used_at=timezone.now())
    return Repository(source.url, source.rev, source.username, password)


def _keep(source: GitSource, found: FetchedCommit) -> None:
    """Store the bundle and give it to the jobs."""
    try:
        if storage.is_full():
            raise NotFetched("disk_full")
        if not (Bundle.use([found.sha256]) and storages["bundles"].exists(Bundle.place(found.sha256))):
            if source.user is not None and Bundle.bytes_of(source.user) >= settings.BUNDLE_BYTES_PER_USER:
                raise NotFetched("too_many_bundles")
            storages["bundles"].save(Bundle.place(found.sha256), found.bundle)
    finally:
        found.bundle.remove()
    new = {"size_bytes": found.size_bytes, "user": source.user, "used_at": Now()}
    Bundle.objects.get_or_create(sha256=found.sha256, defaults=new)
    if not service.give_code(source, found.commit, found.sha256, found.without):
        raise NotFetched("disk_full")


def _note_fault(source: GitSource, code: str) -> None:
    """Write down a fault: what passes is tried again, later each time; the jobs of the others fail."""
    now = timezone.now()
    source.fault, source.failures = code[:40], source.failures + 1
    if code in git_fetch.PASSING and source.failures < MOST_TRIES:
        source.retry_at = now + timedelta(seconds=FIRST_S * 2 ** (source.failures - 1))
    else:
        source.retry_at, source.ended_at = None, now
    source.save(update_fields=["fault", "failures", "retry_at", "ended_at"])


def _fail() -> None:
    """Fail the jobs that wait for code that was given up; one that is on hold fails when it is released."""
    given_up = Job.objects.filter(source__ended_at__isnull=False, source__commit="", state=State.PENDING)
    for source_id in set(given_up.values_list("source", flat=True)):
        service.fail_without_code(GitSource.objects.get(pk=source_id))
