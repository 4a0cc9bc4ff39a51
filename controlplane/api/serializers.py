"""What serializers here have in common: read models are shown as they are, bodies are taken as they are meant."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from django.utils.translation import gettext as _
from drf_spectacular.extensions import OpenApiSerializerExtension
from rest_framework import serializers

from controlplane.api.resource import StructSchema
from controlplane.jobs.values import nearest


class ReadModelSerializer(serializers.BaseSerializer):
    """Shows rows as read models, whose fields and types are those of the answer.

    ``Meta.model`` is the read model; ``Meta.read`` makes them of rows for a user, in a fixed number of queries however
    many rows there are. Without it the instances are read models themselves.
    """

    class Meta:
        model: type
        read: Any

    @classmethod
    def many_init(cls, *args: Any, **kwargs: Any) -> Any:
        return _ReadModels(*args, **kwargs, child=cls())

    def shown(self, rows: Iterable[Any]) -> Sequence[Any]:
        """These rows as the user of the request sees them."""
        read = getattr(self.Meta, "read", None)
        return list(rows) if read is None else read(rows, self.context["request"].user)

    def to_representation(self, instance: Any) -> Any:
        return self.shown([instance])[0]


class _ReadModels(serializers.ListSerializer):
    def to_representation(self, data: Any) -> Any:
        return self.child.shown(data)


class StrictSerializer(serializers.Serializer):
    """A body or a set of query parameters in which every key must be known: one that is misspelt is refused by name."""

    def to_internal_value(self, data: Any) -> Any:
        if isinstance(data, Mapping):
            refuse_unknown(data, self.fields)
        return super().to_internal_value(data)


def refuse_unknown(given: Iterable[str], known: Iterable[str]) -> None:
    """Raises 400 for the names that are not known, each with the nearest one that is."""
    known = list(known)
    said = _("there is no parameter {name!r} here; {nearest}")
    faults = {
        str(name)[:60]: [
            serializers.ErrorDetail(
                said.format(name=str(name)[:60], nearest=nearest(str(name), known)), code="unknown_parameter"
            )
        ]
        for name in given
        if name not in known
    }
    if faults:
        raise serializers.ValidationError(faults)


class ReasonSerializer(StrictSerializer):
    """The reason of an action, for the history of what it is done to."""

    reason = serializers.CharField(default="", allow_blank=True)


class ReadModelSchema(OpenApiSerializerExtension):
    """Lets the schema generator read read models: their types are the documentation."""

    target_class = "controlplane.api.serializers.ReadModelSerializer"
    match_subclasses = True

    def get_name(self, auto_schema: Any, direction: Any) -> str | None:
        return str(self.target.Meta.model.__name__)

    def map_serializer(self, auto_schema: Any, direction: Any) -> dict[str, Any]:
        return StructSchema(self.target.Meta.model).map_serializer(auto_schema, direction)
