"""Bundles: a stage's code and files, uploaded once and kept under the SHA-256 of their bytes."""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path
from typing import IO, Any

import msgspec
from django.conf import settings
from django.http import HttpResponse
from django.utils.translation import gettext as _
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiResponse, extend_schema
from rest_framework.parsers import BaseParser
from rest_framework.permissions import BasePermission
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.accounts import permissions
from controlplane.api.problem import Problem, Refused, not_found
from controlplane.api.resource import Resource, signed_in
from controlplane.jobs.models import Bundle as Row

PIECE = 2**20
GZIP = b"\x1f\x8b"


class Bundle(msgspec.Struct, frozen=True):
    """An uploaded bundle."""

    sha256: str
    size_bytes: int


class Bytes(BaseParser):
    """Leaves the body as a stream, whatever its type says."""

    media_type = "*/*"

    def parse(self, stream: IO[bytes], media_type: str | None = None, parser_context: Any = None) -> Any:
        return stream


class MaySubmit(BasePermission):
    """Refuses who may submit to no project: nothing would ever use what they upload."""

    def has_permission(self, request: Request, view: Any) -> bool:
        if permissions.submittable(signed_in(request)).exists():
            return True
        raise Refused(403, "permission_denied", _("you may submit to no project; ask the lead of one to let you"))


class Bundles(Resource):
    """Where bundles come in."""

    parser_classes = [Bytes]
    permission_classes = [*Resource.permission_classes, MaySubmit]

    @extend_schema(
        operation_id="bundles_upload",
        request={"application/gzip": OpenApiTypes.BINARY},
        responses={201: Bundle, 200: Bundle, 403: Problem, 413: Problem, 422: Problem},
    )
    def post(self, request: Request) -> Response:
        """Keeps a tar.gz. Uploading it again changes nothing and answers 200."""
        path, sha256, size = _receive(request.data, settings.BUNDLE_MAX_BYTES)
        try:
            # The same content gives the same name, so a file that is there already is replaced by its like.
            place(sha256).parent.mkdir(exist_ok=True, mode=0o700)
            path.replace(place(sha256))
            _row, new = Row.objects.get_or_create(
                sha256=sha256, defaults={"size_bytes": size, "user": signed_in(request)}
            )
        finally:
            path.unlink(missing_ok=True)
        return Response(Bundle(sha256, size), status=201 if new else 200)


def place(sha256: str) -> Path:
    """Where the bundle with this digest lies."""
    return settings.BLOBS / sha256[:2] / sha256


def _receive(stream: IO[bytes] | Any, largest: int) -> tuple[Path, str, int]:
    """Writes the body to a file of its own beside the others; raises Refused where it is no bundle."""
    settings.BLOBS.mkdir(parents=True, exist_ok=True, mode=0o700)
    handle, name = tempfile.mkstemp(prefix=".incoming-", dir=settings.BLOBS)
    path, digest, size, first = Path(name), hashlib.sha256(), 0, b""
    try:
        with os.fdopen(handle, "wb") as file:
            while piece := stream.read(PIECE) if hasattr(stream, "read") else b"":
                first, size = first or piece[:2], size + len(piece)
                if size > largest:
                    raise Refused(
                        413, "too_large", _("a bundle may have at most {most} MiB").format(most=largest // 2**20)
                    )
                digest.update(piece)
                file.write(piece)
            file.flush()
            os.fsync(file.fileno())
        if first != GZIP:
            raise Refused(422, "invalid", _("the body must be a tar archive compressed by gzip"))
        path.chmod(0o600)
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    return path, digest.hexdigest(), size


class OneBundle(Resource):
    """Whether a bundle is here."""

    @extend_schema(operation_id="bundles_get", responses={200: Bundle, 404: Problem})
    def get(self, request: Request, sha256: str) -> Response:
        """Size of a bundle that was uploaded; 404 where it has to be uploaded first."""
        row = Row.objects.filter(sha256=sha256).first()
        if row is None or not place(sha256).is_file():
            raise not_found(_("bundle"))
        return Response(Bundle(row.sha256, row.size_bytes))

    @extend_schema(
        operation_id="bundles_head",
        responses={
            200: OpenApiResponse(description="It is here."),
            404: OpenApiResponse(description="It is not here."),
        },
    )
    def head(self, request: Request, sha256: str) -> HttpResponse:
        """Whether a bundle is here."""
        return self.get(request, sha256)
