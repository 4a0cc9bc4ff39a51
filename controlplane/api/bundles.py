"""Bundles: a stage's code and files, uploaded once and stored under the SHA-256 of their bytes."""

from __future__ import annotations

import hashlib
import os
from typing import IO, Any

from django.conf import settings
from django.core.files.storage import storages
from django.db import transaction
from django.utils.translation import gettext as _
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.parsers import BaseParser
from rest_framework.permissions import SAFE_METHODS, BasePermission
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.accounts import audit, permissions
from controlplane.api.permissions import signed_in
from controlplane.api.problem import Problem, RequestRefused, not_found
from controlplane.api.room import HasRoom
from controlplane.api.viewsets import ResourceViewSet
from controlplane.jobs.models import Bundle as Row
from controlplane.storage import Incoming

PIECE = 2**20
GZIP = b"\x1f\x8b"


class BundleSerializer(serializers.ModelSerializer):
    """An uploaded bundle."""

    class Meta:
        model = Row
        fields = read_only_fields = ["sha256", "size_bytes"]


class Bytes(BaseParser):
    """Passes the body on as a stream, whatever its type."""

    media_type = "*/*"

    def parse(self, stream: IO[bytes], media_type: str | None = None, parser_context: Any = None) -> Any:
        return stream


class MaySubmit(BasePermission):
    """Refuses users who may submit to no project, because no stage would use their uploads."""

    def has_permission(self, request: Request, view: Any) -> bool:
        if request.method in SAFE_METHODS or permissions.submittable(signed_in(request)).exists():
            return True
        raise RequestRefused(
            403, "permission_denied", _("you may submit to no project; ask the lead of one to let you")
        )


class BelowShare(BasePermission):
    """Refuses users who have uploaded as many bytes of bundles as one user may."""

    def has_permission(self, request: Request, view: Any) -> bool:
        if request.method in SAFE_METHODS:
            return True
        own = Row.bytes_of(signed_in(request))
        if own < settings.BUNDLE_BYTES_PER_USER:
            return True
        detail = _("you have {own:,} bytes of bundles here and may have {most:,}; unused ones go after {days} days")
        most, days = settings.BUNDLE_BYTES_PER_USER, settings.RETENTION_DAYS["bundles"]
        raise RequestRefused(507, "too_many_bundles", detail.format(own=own, most=most, days=days))


class BundleViewSet(ResourceViewSet):
    """Uploads bundles and tells whether one is stored."""

    parser_classes = [Bytes]
    permission_classes = [*ResourceViewSet.permission_classes, MaySubmit, HasRoom, BelowShare]
    lookup_field, lookup_value_converter = "sha256", "sha256"
    examples = {"sha256": "0" * 64}
    queryset = Row.objects.all()
    serializer_class = BundleSerializer

    def is_idempotent(self, request: Request) -> bool:
        return False  # a bundle is named by its content, so it is idempotent without a key

    @extend_schema(
        operation_id="bundles_upload",
        request={"application/gzip": OpenApiTypes.BINARY},
        responses={201: BundleSerializer, 200: BundleSerializer, 507: Problem},
    )
    def create(self, request: Request) -> Response:
        """Stores a tar.gz. Uploading it again changes nothing and answers 200."""
        incoming = Incoming()
        try:
            sha256, size = _receive(request.data, incoming, settings.BUNDLE_MAX_BYTES)
            if not Row.is_stored(sha256):
                storages["bundles"].save(Row.place(sha256), incoming)
        finally:
            incoming.remove()
        with transaction.atomic():
            row, new = Row.objects.get_or_create(sha256=sha256, defaults={"size_bytes": size, "user": self.user})
            if new:
                audit.record("bundle.upload", ("bundle", sha256, sha256[:12]), after={"size_bytes": size})
        return self.shown(row, status=201 if new else 200)

    def retrieve(self, request: Request, sha256: str) -> Response:
        """The size of a stored bundle; 404 if it has to be uploaded first."""
        row = Row.objects.filter(sha256=sha256).first()
        if row is None or not storages["bundles"].exists(row.place(sha256)):
            raise not_found(_("bundle"))
        Row.use([sha256])
        return self.shown(row)


def _receive(stream: IO[bytes] | Any, into: Incoming, largest: int) -> tuple[str, int]:
    """Write the body to a file; return its digest and size. Raises RequestRefused if it is not a bundle."""
    digest, size, first = hashlib.sha256(), 0, b""
    while piece := stream.read(PIECE) if hasattr(stream, "read") else b"":
        first, size = first or piece[:2], size + len(piece)
        if size > largest:
            raise RequestRefused(
                413, "too_large", _("a bundle may have at most {most} MiB").format(most=largest // 2**20)
            )
        digest.update(piece)
        into.write(piece)
    into.flush()
    os.fsync(into.fileno())
    if first != GZIP:
        raise RequestRefused(422, "invalid", _("the body must be a tar archive compressed by gzip"))
    return digest.hexdigest(), size
