"""Bundles: a stage's code and files, uploaded once and kept under the SHA-256 of their bytes."""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path
from typing import IO, Any

from django.conf import settings
from django.utils.translation import gettext as _
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.parsers import BaseParser
from rest_framework.permissions import SAFE_METHODS, BasePermission
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.accounts import permissions
from controlplane.api.permissions import signed_in
from controlplane.api.problem import Problem, Refused, not_found
from controlplane.api.viewsets import ResourceViewSet
from controlplane.jobs.models import Bundle as Row

PIECE = 2**20
GZIP = b"\x1f\x8b"


class BundleSerializer(serializers.ModelSerializer):
    """An uploaded bundle."""

    class Meta:
        model = Row
        fields = read_only_fields = ["sha256", "size_bytes"]


class Bytes(BaseParser):
    """Leaves the body as a stream, whatever its type says."""

    media_type = "*/*"

    def parse(self, stream: IO[bytes], media_type: str | None = None, parser_context: Any = None) -> Any:
        return stream


class MaySubmit(BasePermission):
    """Refuses who may submit to no project: nothing would ever use what they upload."""

    def has_permission(self, request: Request, view: Any) -> bool:
        if request.method in SAFE_METHODS or permissions.submittable(signed_in(request)).exists():
            return True
        raise Refused(403, "permission_denied", _("you may submit to no project; ask the lead of one to let you"))


class BundleViewSet(ResourceViewSet):
    """Where bundles come in, and whether one is here."""

    parser_classes = [Bytes]
    permission_classes = [*ResourceViewSet.permission_classes, MaySubmit]
    lookup_field, lookup_value_converter = "sha256", "sha256"
    examples = {"sha256": "0" * 64}
    queryset = Row.objects.all()
    serializer_class = BundleSerializer

    def is_idempotent(self, request: Request) -> bool:
        return False  # by its content it is anyway

    @extend_schema(
        operation_id="bundles_upload",
        request={"application/gzip": OpenApiTypes.BINARY},
        responses={201: BundleSerializer, 200: BundleSerializer, 413: Problem},
    )
    def create(self, request: Request) -> Response:
        """Keeps a tar.gz. Uploading it again changes nothing and answers 200."""
        path, sha256, size = _receive(request.data, settings.BUNDLE_MAX_BYTES)
        try:
            # The same content gives the same name, so a file that is there already is replaced by its like.
            place(sha256).parent.mkdir(exist_ok=True, mode=0o700)
            path.replace(place(sha256))
            row, new = Row.objects.get_or_create(sha256=sha256, defaults={"size_bytes": size, "user": self.user})
        finally:
            path.unlink(missing_ok=True)
        return self.shown(row, status=201 if new else 200)

    def retrieve(self, request: Request, sha256: str) -> Response:
        """Size of a bundle that was uploaded; 404 where it has to be uploaded first."""
        row = Row.objects.filter(sha256=sha256).first()
        if row is None or not place(sha256).is_file():
            raise not_found(_("bundle"))
        return self.shown(row)


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
