"""Deploys functions: stores the code, and makes or changes the service that runs it."""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from typing import Any, Final

from django.conf import settings
from django.db import transaction
from django.utils.translation import gettext as _

from controlplane import storage
from controlplane.accounts.models import User
from controlplane.functions import options as read
from controlplane.functions.models import DeployedFunction
from controlplane.jobs.models import Bundle
from controlplane.jobs.section import FieldError
from controlplane.jobs.spec import InvalidSpec
from controlplane.services import service
from controlplane.services.service import ServiceRefused

LARGEST_CODE: Final = 65_536
# Keys of a job file that a function fills itself.
_OURS: Final = ("run", "command", "bundle", "workdir", "nodes", "launcher")


def make(user: User, asked: Mapping[str, Any], now: datetime) -> DeployedFunction:
    """Deploy a new function of this user. Raises ``ServiceRefused`` and ``InvalidSpec``."""
    path, bundle, options = _read(user, asked)
    file = read.service_file(asked["name"], asked.get("project") or "", path, bundle, options)
    with transaction.atomic(), _named():
        row = service.make(user, file, now, noun="function")
        return DeployedFunction.objects.create(service=row, file=path, code=asked.get("code") or "", options=options)


def change(user: User, row: DeployedFunction, asked: Mapping[str, Any], now: datetime) -> DeployedFunction:
    """Deploy other code or options; what is not named stays. Raises ``ServiceRefused`` and ``InvalidSpec``."""
    given: dict[str, Any] = {"file": row.file, "options": {**row.options, **(asked.get("options") or {})}}
    if asked.get("code") or asked.get("bundle"):
        given |= {key: asked[key] for key in ("code", "bundle", "file") if asked.get(key)}
    else:
        given["bundle"] = row.service.revisions.get(number=row.service.revision).bundle
    path, bundle, options = _read(user, given)
    file = read.service_file(row.service.name, row.service.project.name, path, bundle, options)
    with transaction.atomic(), _named():
        row.service = service.change(user, row.service, file, now, noun="function")
        if asked.get("code") or asked.get("bundle"):
            row.code = asked.get("code") or ""
        row.file, row.options = path, options
        row.save()
    return row


def delete(row: DeployedFunction, now: datetime) -> None:
    """Delete a function: it takes no calls any more, those that wait are lost, its replicas end."""
    service.delete(row.service, now, noun="function")


@contextmanager
def _named() -> Iterator[None]:
    """Name faults of the service file by where they are in what was asked."""
    try:
        yield
    except InvalidSpec as refused:
        raise InvalidSpec([_placed(one) for one in refused.errors]) from None
    except ServiceRefused as refused:
        refused.errors = [_placed(one) for one in refused.errors]
        raise


def _placed(fault: FieldError) -> FieldError:
    place = f"/options{fault.pointer}" if fault.pointer.startswith("/template") else fault.pointer
    return FieldError(place, fault.detail, fault.code)


def _read(user: User, asked: Mapping[str, Any]) -> tuple[str, str, dict[str, Any]]:
    """Return path, bundle and options; code is stored as a bundle."""
    given = asked.get("options") or {}
    options: dict[str, Any] = {key: given.get(key, usual) for key, (_low, _high, usual) in read.NUMBERS.items()}
    options["template"] = dict(given.get("template") or {})
    if options["min"] > options["max"]:
        raise ServiceRefused("invalid", _("max must not be less than min"), "/options/max")
    if ours := [key for key in _OURS if key in options["template"]]:
        said = _("a function says {key} itself").format(key=ours[0])
        raise ServiceRefused("invalid", said, f"/options/template/{ours[0]}")
    code, bundle = asked.get("code") or "", asked.get("bundle") or ""
    if bool(code) == bool(bundle):
        raise ServiceRefused("invalid", _("send either code or a bundle"), "/code")
    path = asked.get("file") or "function.py"
    if not read.FILE.fullmatch(path):
        raise ServiceRefused("invalid", _("file must be a path in the bundle that ends with .py"), "/file")
    return path, bundle or _stored(user, path, code), options


def _stored(user: User, path: str, code: str) -> str:
    """Store a bundle with one file; return its digest. The same code makes the same bundle."""
    text = code.encode()
    if len(text) > LARGEST_CODE:
        said = _("code may have {most} KiB here; upload a bundle").format(most=LARGEST_CODE // 1024)
        raise ServiceRefused("too_large", said, "/code", 413)
    packed = io.BytesIO()
    with (
        gzip.GzipFile(filename="", mode="wb", fileobj=packed, mtime=0) as zipped,
        tarfile.open(fileobj=zipped, mode="w", format=tarfile.PAX_FORMAT) as tar,
    ):
        entry = tarfile.TarInfo(path)
        entry.size, entry.mode = len(text), 0o644
        tar.addfile(entry, io.BytesIO(text))
    content = packed.getvalue()
    sha256 = hashlib.sha256(content).hexdigest()
    if Bundle.is_stored(sha256):
        return sha256
    if storage.is_full():
        raise ServiceRefused("disk_full", _("the disk of the control plane is full"), "", 507)
    if Bundle.bytes_of(user) >= settings.BUNDLE_BYTES_PER_USER:
        raise ServiceRefused("too_many_bundles", _("you have as many bytes of bundles as one user may"), "", 507)
    storage.keep("bundles", Bundle.place(sha256), content)
    Bundle.objects.get_or_create(sha256=sha256, defaults={"size_bytes": len(content), "user": user})
    return sha256
