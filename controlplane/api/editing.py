"""Creating, changing and deleting rows of the configuration: validated by their model, audited, and, where one is
changed, only as it was read."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from typing import Any, cast

from django.core.exceptions import ValidationError
from django.db import transaction
from django.db.models import Model, ProtectedError
from django.utils.translation import gettext as _
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiExample, OpenApiParameter
from rest_framework import serializers
from rest_framework.request import Request

from controlplane import changes
from controlplane.accounts import audit
from controlplane.api.mixins import require_if_match, unless_changed
from controlplane.api.problem import RequestRefused
from controlplane.api.serializers import StrictSerializer

IF_MATCH = OpenApiParameter(
    "If-Match",
    OpenApiTypes.STR,
    OpenApiParameter.HEADER,
    required=True,
    description="The ETag of what was read, or * for whatever it is now.",
    examples=[OpenApiExample("Whatever it is now", "*")],
)
IF_UNCHANGED = OpenApiParameter(
    "If-Match", OpenApiTypes.STR, OpenApiParameter.HEADER, description="The ETag of what was read."
)


class EditSerializer(StrictSerializer, serializers.ModelSerializer):
    """The fields of a row that people set; unknown ones are refused, and the model's own rules hold."""

    def get_unique_together_validators(self) -> list[Any]:
        """None: the model's own rules say in a sentence what is there already."""
        return []

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        row = copy(self.instance) if self.instance is not None else cast("type[Model]", self.Meta.model)()
        many = {field.name for field in row._meta.many_to_many}
        for name in attrs.keys() - many:
            setattr(row, name, attrs[name])
        try:
            row.full_clean()
        except ValidationError as error:
            raise serializers.ValidationError(serializers.as_serializer_error(error)) from None
        return attrs


def settings_of(row: Model, serializer: type[EditSerializer]) -> dict[str, Any]:
    """Return the fields of a row that people set, as they are shown."""
    return dict(serializer(row).data)


def create(serializer: type[EditSerializer], data: object, **fixed: Any) -> Any:
    """Create a row from a body, with an audit entry, and return it. Raises 400 with the fields at fault."""
    taken = serializer(data=data)
    taken.is_valid(raise_exception=True)
    with transaction.atomic():
        row = taken.save(**fixed)
        audit.record(f"{row._meta.model_name}.add", row, after=settings_of(row, serializer))
        transaction.on_commit(changes.wake)
    return row


def change(request: Request, row: Model, serializer: type[EditSerializer]) -> Any:
    """Change the fields of a row that the body names, with an audit entry, and return it.

    Raises 428 without ``If-Match``, 412 if the row has changed since it was read, and 400 with the fields at fault.
    """
    with transaction.atomic():
        row = _locked(request, row, serializer)
        before = settings_of(row, serializer)
        taken = serializer(row, data=request.data, partial=True)
        taken.is_valid(raise_exception=True)
        row = taken.save()
        after = settings_of(row, serializer)
        if after != before:
            audit.record(f"{row._meta.model_name}.change", row, before=_but(before, after), after=_but(after, before))
            transaction.on_commit(changes.wake)
    return row


def delete(request: Request, row: Model, serializer: type[EditSerializer]) -> None:
    """Delete a row, with an audit entry. Raises 428, 412, and 409 if something still needs it."""
    with transaction.atomic():
        row = _locked(request, row, serializer)
        kind, name = row._meta.model_name or "", str(row)
        audit.record(f"{kind}.delete", row, before=settings_of(row, serializer))
        try:
            row.delete()
        except ProtectedError:
            detail = _("{name} cannot be deleted: jobs or other records belong to it").format(name=name)
            raise RequestRefused(409, "in_use", detail) from None
        transaction.on_commit(changes.wake)


def _locked(request: Request, row: Model, serializer: type[EditSerializer]) -> Any:
    """Return the row, locked and as the client read it."""
    require_if_match(request)
    locked = type(row)._default_manager.select_for_update(of=("self",)).filter(pk=row.pk).first()
    if locked is None:
        raise RequestRefused(412, "changed_meanwhile", _("somebody deleted this meanwhile"))
    where = f"{request.path}/settings" if hasattr(request.parser_context["view"], "show_settings") else ""
    unless_changed(request, settings_of(locked, serializer), where)
    return locked


def _but(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Return what differs from the other one."""
    return {name: value for name, value in one.items() if other.get(name) != value}
