"""What all views have in common: bounded bodies, typed answers, strong ETags, and query parameters that are checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import msgspec
from django.utils.translation import gettext as _
from drf_spectacular.extensions import OpenApiSerializerExtension
from drf_spectacular.plumbing import ResolvedComponent
from drf_spectacular.utils import OpenApiParameter
from rest_framework.permissions import IsAuthenticated
from rest_framework.request import Request

from controlplane.api.body import LARGEST_FILE, BoundedJSON
from controlplane.api.mixins import ConditionalMixin
from controlplane.api.permissions import Scoped
from controlplane.api.permissions import permitted as permitted
from controlplane.api.permissions import signed_in as signed_in
from controlplane.api.problem import Refused
from controlplane.api.renderers import NamedJSON, OneAnswer
from controlplane.jobs.section import FieldError
from controlplane.jobs.values import nearest
from controlplane.wellformed import fault_of, fault_of_query

Q = TypeVar("Q", bound=msgspec.Struct)


class Resource(ConditionalMixin):
    """A view of the API. ``scope`` is what a token needs for anything but reading."""

    scope = "submit"
    largest_body = LARGEST_FILE
    permission_classes = [IsAuthenticated, Scoped]
    parser_classes: Sequence[Any] = [BoundedJSON]
    renderer_classes: Sequence[Any] = [NamedJSON]
    content_negotiation_class = OneAnswer


def asked(request: Request, shape: type[Q]) -> Q:
    """The query parameters as ``shape``; raises 400 for an unknown one or a wrong value."""
    # Pages and sockets read an address without its having come through the middleware.
    if fault := fault_of_query(request.META.get("QUERY_STRING", "")):
        raise Refused(400, "invalid", fault)
    known = {field.encode_name for field in msgspec.structs.fields(shape)}
    faults = [
        FieldError(
            f"/{name}",
            _("there is no parameter {name!r} here; {nearest}").format(name=name[:60], nearest=nearest(name, known)),
            "unknown_parameter",
        )
        for name in request.query_params
        if name not in known
    ]
    if faults:
        raise Refused(400, "invalid", faults[0].detail, errors=faults)
    try:
        found = msgspec.convert(request.query_params.dict(), shape, strict=False)
    except msgspec.ValidationError as error:
        raise Refused(400, "invalid", _("a query parameter cannot be read: {reason}").format(reason=error)) from None
    return _kept(found)


def _kept(found: Q) -> Q:
    """What was read, where each of its values can be kept; raises 400 for one that cannot."""
    for field in msgspec.structs.fields(found):
        if fault := fault_of(getattr(found, field.name)):
            detail = _("{what} {fault}").format(what=field.encode_name, fault=fault)
            at = FieldError(f"/{field.encode_name}", detail, "out_of_range")
            raise Refused(400, "invalid", at.detail, errors=[at])
    return found


def parameters(shape: type[msgspec.Struct], described: Mapping[str, str]) -> list[OpenApiParameter]:
    """The query parameters of ``shape`` for the schema; each must be described."""
    found = []
    for field in msgspec.structs.fields(shape):
        schema = msgspec.json.schema(field.type)
        found.append(OpenApiParameter(field.encode_name, schema, description=described[field.encode_name]))
    return found


def taken(request: Request, shape: type[Q]) -> Q:
    """The body as ``shape``; raises 400 with where it differs. Unknown keys are refused by the shape."""
    try:
        return _kept(msgspec.convert(request.data, shape))
    except msgspec.ValidationError as error:
        raise Refused(400, "invalid", _("the body cannot be read: {reason}").format(reason=error)) from None


class StructSchema(OpenApiSerializerExtension):
    """Lets the schema generator read structs: their types are the documentation."""

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
    """The structs and enumerations that a type is made of, itself included."""
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
