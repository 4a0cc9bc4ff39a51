"""Shared serializers: read models are rendered unchanged, request bodies are validated strictly."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from drf_spectacular.extensions import OpenApiSerializerExtension
from drf_spectacular.plumbing import ResolvedComponent
from rest_framework import serializers

from controlplane.jobs.values import nearest
from controlplane.queries.cursor import LARGEST
from controlplane.wellformed import EARLIEST, LATEST

FIELDS = "fields"


class ReadModelSerializer(serializers.BaseSerializer):
    """Serializes rows as read models, whose fields and types are those of the answer.

    ``Meta.model`` is the read model; ``Meta.read`` makes them from rows for a user, in a fixed number of queries.
    Without it the instances are read models themselves.
    """

    class Meta:
        model: type
        read: Any

    @classmethod
    def many_init(cls, *args: Any, **kwargs: Any) -> Any:
        kwargs["child"] = cls()
        return _ReadModels(*args, **kwargs)

    def shown(self, rows: Iterable[Any]) -> Sequence[Any]:
        """These rows as the user of the request sees them, with the fields that they ask for."""
        read = getattr(self.Meta, "read", None)
        models = list(rows) if read is None else read(rows, self.context["request"].user)
        names = self._fields()
        return models if names is None else [{name: getattr(model, name) for name in names} for model in models]

    def _fields(self) -> list[str] | None:
        """The fields that the query names; None if it names none, which means all. Raises 400 for an unknown one."""
        request = self.context.get("request")
        asked = request.query_params.get(FIELDS) if request is not None and request.method == "GET" else None
        if asked is None:
            return None
        known = {field.name for field in msgspec.structs.fields(self.Meta.model)}
        names = list(dict.fromkeys(filter(None, (name.strip() for name in asked.split(",")))))
        unknown = next((name for name in names if name not in known), None)
        if unknown is not None or not names:
            said = _("there is no field {name!r} here; {nearest}").format(
                name=(unknown or "")[:60], nearest=nearest(unknown or "", sorted(known))
            )
            raise serializers.ValidationError({FIELDS: [serializers.ErrorDetail(said, code="unknown_field")]})
        return names

    def to_representation(self, instance: Any) -> Any:
        return self.shown([instance])[0]


class _ReadModels(serializers.ListSerializer):
    child: ReadModelSerializer

    def to_representation(self, data: Any) -> Any:
        return self.child.shown(data)


class StrictSerializer(serializers.Serializer):
    """A body or a set of query parameters in which unknown keys are refused by name, and unknown words with those that
    are accepted."""

    def get_fields(self) -> dict[str, serializers.Field]:
        fields = super().get_fields()
        for field in fields.values():
            _name_choices(getattr(field, "child", field))
        return fields

    def to_internal_value(self, data: Any) -> Any:
        if isinstance(data, Mapping):
            refuse_unknown(data, self.fields)
        return super().to_internal_value(data)


def _name_choices(field: serializers.Field) -> None:
    """Let the refusal of a word say which ones are accepted."""
    if isinstance(field, serializers.ChoiceField):
        accepted = ", ".join(str(word) for word in field.choices if word != "")
        said = _('must be one of {accepted}, not "{input}"')
        field.error_messages["invalid_choice"] = said.replace(
            "{accepted}", accepted.replace("{", "{{").replace("}", "}}")
        )


def refuse_unknown(given: Iterable[str], known: Iterable[str]) -> None:
    """Raise 400 for unknown names, each with the nearest known one."""
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


class MomentField(serializers.DateTimeField):
    """A time with a zone, within a range that arithmetic cannot leave."""

    default_error_messages = {
        "naive": gettext_lazy("a time needs a zone, such as Z or +08:00"),
        "far": gettext_lazy("must lie between {low} and {high}"),
    }

    def enforce_timezone(self, value: datetime) -> datetime:
        if timezone.is_naive(value):
            self.fail("naive")
        if not EARLIEST <= value <= LATEST:
            self.fail("far", low=EARLIEST.year, high=LATEST.year)
        return super().enforce_timezone(value)


class PageSerializer(StrictSerializer):
    """Selects a page and its length."""

    limit = serializers.CharField(default="", help_text=f"At most so many, up to {LARGEST}.")
    cursor = serializers.CharField(default="", help_text="From next or previous of an earlier answer.")


class ReasonSerializer(StrictSerializer):
    """The reason of an action, recorded with it."""

    reason = serializers.CharField(default="", allow_blank=True)


class DryRunSerializer(StrictSerializer):
    """Whether this is a dry run."""

    dry_run = serializers.BooleanField(default=False, help_text="Tell what would be, and change nothing.")


class ReasonQuerySerializer(StrictSerializer):
    """The reason of a change whose body is the change itself."""

    reason = serializers.CharField(
        default="", allow_blank=True, max_length=500, help_text="Why; it is recorded with the change."
    )


class ReadModelSchema(OpenApiSerializerExtension):
    """Describes read models in the schema by their types."""

    target_class = "controlplane.api.serializers.ReadModelSerializer"
    match_subclasses = True

    def get_name(self, auto_schema: Any, direction: Any) -> str | None:
        return str(self.target.Meta.model.__name__)

    def get_identity(self, auto_schema: Any, direction: Any) -> Any:
        return self.target.Meta.model

    def map_serializer(self, auto_schema: Any, direction: Any) -> dict[str, Any]:
        return StructSchema(self.target.Meta.model).map_serializer(auto_schema, direction)


class StructSchema(OpenApiSerializerExtension):
    """Describes structs in the schema by their types."""

    target_class = "msgspec.Struct"
    match_subclasses = True

    def get_name(self, auto_schema: Any, direction: Any) -> str | None:
        return str(self.target.__name__)

    def map_serializer(self, auto_schema: Any, direction: Any) -> dict[str, Any]:
        _parts_of, components = msgspec.json.schema_components(
            [self.target], ref_template="#/components/schemas/{name}"
        )
        for part in _parts(msgspec.inspect.type_info(self.target)):
            name = part.__name__
            if part is not self.target:
                component = ResolvedComponent(
                    name=name, type=ResolvedComponent.SCHEMA, object=part, schema=_plain(components[name])
                )
                auto_schema.registry.register_on_missing(component)
        return _plain(components[self.target.__name__])


def _parts(kind: Any) -> set[type]:
    """The structs and enumerations within a type, itself included."""
    found: set[type] = set()
    left = [kind]
    while left:
        each = left.pop()
        if isinstance(each, msgspec.inspect.StructType) and each.cls not in found:
            left += [field.type for field in each.fields]
        if isinstance(each, msgspec.inspect.StructType | msgspec.inspect.EnumType):
            found.add(each.cls)
        left += [getattr(each, name) for name in ("item_type", "key_type", "value_type") if hasattr(each, name)]
        left += list(getattr(each, "types", ())) + list(getattr(each, "item_types", ()))
    return found


def _plain(schema: dict[str, Any]) -> dict[str, Any]:
    """Drops the titles that only repeat the names."""
    return {key: value for key, value in schema.items() if key != "title"}
