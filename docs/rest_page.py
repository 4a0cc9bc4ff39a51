"""The reference page of the REST interface, made from its OpenAPI description."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

OPENAPI = Path(__file__).resolve().parent.parent / "openapi.yaml"
SHAPES = "#/components/schemas/"
# In the order in which people meet them; others follow by name.
FIRST = ("jobs", "arrays", "attempts", "bundles", "events", "overview", "pools", "nodes", "devices", "projects")
INTRODUCTION = """
# The REST interface

Everything that `yard`, the Python client and the pages do goes through `/api/v1`. Each installation has the same as
OpenAPI 3.1 at `/api/v1/openapi.yaml` and to try at `/api/v1/docs`.

- **Who you are.** `Authorization: Bearer TOKEN`, with a token of your user page or of `yard token create`; browsers
  send their session and a CSRF token. [Roles](roles.md) tells who may do what.
- **Lists** come in pages: `limit` up to 500, and `next` and `previous` are addresses to go on at.
  Lists and single resources give only the `fields` that you name (`?fields=number,state`), by default all. An `ETag`
  is that of the answer: for `If-Match` take one of a whole answer.
- **Errors** are `application/problem+json` (RFC 9457): `code` is stable, `detail` is a sentence in the language that
  `Accept-Language` asks for, and `errors` names each field (`pointer`) with what would be accepted.
- **Once.** A `POST` with an `Idempotency-Key` takes effect once within a day, however often it is sent.
- **As it was read.** Answers have an `ETag`: with `If-None-Match` an unchanged one is answered 304 and empty, and with
  `If-Match` a change is made only to what has not changed since (else 412). Some changes demand it (428 without).
- **Units** are in the names: `_s` seconds, `_bytes` bytes, `_w` watts. Times are RFC 3339 in UTC, shares from 0 to 1.
"""


def rest(openapi: Path = OPENAPI) -> str:
    """Return the page: the conventions, each operation with its parameters, body and answers, and the shapes."""
    described = yaml.load(openapi.read_text(encoding="utf-8"), yaml.CSafeLoader)
    by_tag: dict[str, list[str]] = {}
    for path, operations in described["paths"].items():
        for method, operation in operations.items():
            by_tag.setdefault(operation["tags"][0], []).append(_operation(method, path, operation))
    order = sorted(by_tag, key=lambda tag: (FIRST.index(tag) if tag in FIRST else len(FIRST), tag))
    sections = [f"## {tag.replace('-', ' ').capitalize()}\n\n" + "\n\n".join(by_tag[tag]) for tag in order]
    shapes = "\n\n".join(_shape(name, schema) for name, schema in sorted(described["components"]["schemas"].items()))
    return "\n\n".join([INTRODUCTION.strip(), *sections, f"## Shapes\n\n{shapes}"]) + "\n"


def _operation(method: str, path: str, operation: Mapping[str, Any]) -> str:
    parts = [f"### {method.upper()} {path.removeprefix('/api/v1')}", _prose(operation.get("description", ""))]
    parameters = [one for one in operation.get("parameters", ()) if one["in"] != "path"]
    if parameters:
        rows = [f"| `{one['name']}` | {one['in']} | {_type(one['schema'])} | {_cell(one)} |" for one in parameters]
        parts.append("\n".join(["| parameter | in | type | meaning |", "|---|---|---|---|", *rows]))
    if bodies := operation.get("requestBody", {}).get("content", {}):
        kinds = ", ".join(f"`{kind}`" for kind in bodies)
        shape = next(iter(bodies.values())).get("schema", {})
        parts.append(f"Body: {_type(shape)}, as {kinds}.")
        examples = bodies.get("application/json", {}).get("examples", {})
        parts += [f"```json\n{json.dumps(one['value'], indent=2)}\n```" for one in list(examples.values())[:1]]
    answers = [_answer(status, answer) for status, answer in sorted(operation["responses"].items())]
    parts.append("Answers: " + "; ".join(answers) + ".")
    return "\n\n".join(part for part in parts if part)


def _answer(status: str, answer: Mapping[str, Any]) -> str:
    shapes = {_type(body.get("schema", {})) for body in answer.get("content", {}).values()}
    if int(status) >= 400 and shapes <= {_type({"$ref": SHAPES + "Problem"})}:
        return status
    return f"{status} {' or '.join(sorted(shapes))}".strip()


def _shape(name: str, schema: Mapping[str, Any]) -> str:
    parts = [f"### {name} shape", _prose(schema.get("description", ""))]
    if properties := schema.get("properties"):
        required = set(schema.get("required", ()))
        rows = [
            f"| `{field}` | {_type(one)} | {'' if field in required else 'may be absent'} | {_cell(one)} |"
            for field, one in properties.items()
        ]
        parts.append("\n".join(["| field | type | | meaning |", "|---|---|---|---|", *rows]))
    else:
        parts.append(f"{_type(schema)}.")
    return "\n\n".join(part for part in parts if part)


def _type(schema: Mapping[str, Any]) -> str:
    if reference := schema.get("$ref"):
        name = reference.removeprefix(SHAPES)
        return f"[{name}](#{name.lower()}-shape)"
    if either := schema.get("anyOf") or schema.get("oneOf") or schema.get("allOf"):
        return " or ".join(dict.fromkeys(_type(one) for one in either))
    if values := schema.get("enum"):
        return " or ".join(f"`{value}`" for value in values)
    if "const" in schema:
        return f"`{schema['const']}`"
    kind = schema.get("type", "anything")
    if isinstance(kind, list):
        return " or ".join(kind)
    if kind == "array":
        if places := schema.get("prefixItems"):
            return f"list of {', '.join(_type(one) for one in places)}"
        return f"list of {_type(schema.get('items', {}))}"
    if kind == "object" and isinstance(values := schema.get("additionalProperties"), Mapping) and values:
        return f"object of {_type(values)}"
    return str(schema.get("format") or kind)


def _cell(described: Mapping[str, Any]) -> str:
    return " ".join(_prose(described.get("description", "")).split()).replace("|", "\\|")


def _prose(text: str) -> str:
    """Return a docstring as Markdown: it marks code by two backquotes, and its lines are broken anywhere."""
    paragraphs = (" ".join(each.split()) for each in re.split(r"\n\s*\n", text))
    return "\n\n".join(each for each in paragraphs if each).replace("``", "`")
