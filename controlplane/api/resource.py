"""What all views have in common: bounded bodies, typed answers, strong ETags, and query parameters that are checked."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec
from django.http import HttpResponse
from django.utils.cache import get_conditional_response
from django.utils.translation import gettext as _
from drf_spectacular.extensions import OpenApiSerializerExtension
from drf_spectacular.plumbing import ResolvedComponent
from drf_spectacular.utils import OpenApiParameter
from rest_framework.negotiation import BaseContentNegotiation
from rest_framework.permissions import IsAuthenticated
from rest_framework.renderers import BaseRenderer
from rest_framework.request import Request
from rest_framework.views import APIView

from controlplane.accounts import permissions
from controlplane.accounts.models import User
from controlplane.api import names
from controlplane.api.auth import Scoped
from controlplane.api.body import LARGEST_FILE, BoundedJSON
from controlplane.api.problem import Refused
from controlplane.jobs.section import FieldError
from controlplane.jobs.values import nearest
from controlplane.wellformed import fault_of, fault_of_query

Q = TypeVar("Q", bound=msgspec.Struct)


class StructJSON(BaseRenderer):
    """Renders structs and plain values as JSON, as their reader may see them; times are RFC 3339 in UTC."""

    media_type = "application/json"
    format = "json"
    charset = None

    def render(
        self, data: Any, accepted_media_type: str | None = None, renderer_context: Mapping[str, Any] | None = None
    ) -> bytes:
        request = (renderer_context or {}).get("request")
        return b"" if data is None else names.encode(data, getattr(request, "user", None))


class OneAnswer(BaseContentNegotiation):
    """Picks the body's parser by its type, and answers in JSON whatever the client claims to accept."""

    def select_parser(self, request: Request, parsers: Iterable[Any]) -> Any:
        sent = (request.content_type or "").partition(";")[0].strip().lower()
        aliases = {"application/x-yaml": "application/yaml", "text/yaml": "application/yaml", "": "application/json"}
        return next((parser for parser in parsers if parser.media_type in {"*/*", aliases.get(sent, sent)}), None)

    def select_renderer(
        self, request: Request, renderers: Iterable[Any], format_suffix: str | None = None
    ) -> tuple[Any, str]:
        first = next(iter(renderers))
        return first, first.media_type


class Resource(APIView):
    """A view of the API. ``scope`` is what a token needs for anything but reading."""

    scope = "submit"
    largest_body = LARGEST_FILE
    permission_classes = [IsAuthenticated, Scoped]
    parser_classes: Sequence[Any] = [BoundedJSON]
    renderer_classes: Sequence[Any] = [StructJSON]
    content_negotiation_class = OneAnswer

    def finalize_response(self, request: Request, response: Any, *args: Any, **kwargs: Any) -> Any:
        response = super().finalize_response(request, response, *args, **kwargs)
        if "Cache-Control" not in response:
            response["Cache-Control"] = "private, no-cache"
        if request.method in {"GET", "HEAD"} and response.status_code == 200 and not response.streaming:
            if hasattr(response, "add_post_render_callback"):
                response.add_post_render_callback(lambda done: conditional(request, done))
            else:
                return conditional(request, response)
        return response


def conditional(request: Request, response: HttpResponse) -> HttpResponse:
    """Gives the answer its strong ETag; 304 without a body where the client has it already."""
    if not response.has_header("ETag"):
        response["ETag"] = etag(response.content)
    return get_conditional_response(request, etag=response["ETag"], response=response) or response


def etag(content: bytes) -> str:
    """The strong ETag of a body."""
    return f'"{hashlib.sha256(content).hexdigest()[:32]}"'


def signed_in(request: Request) -> User:
    """The user who asks; the permissions have made sure that there is one."""
    user = request.user
    assert isinstance(user, User)
    return user


def staff(request: Request, deed: str) -> User:
    """The user who asks, who must run the cluster; raises 403 that says what only staff may do."""
    user = signed_in(request)
    if not permissions.is_staff(user):
        raise Refused(403, "permission_denied", _("only staff may {deed}").format(deed=deed))
    return user


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
