"""Writes ``switchyard/answers.py``, the answers of the REST interface as types, from ``openapi.yaml``.

Run: python switchyard/packaging/answers.py

What a call with a JSON answer may return is written, with all that this consists of. Nothing imports the file while a
program runs: it is for editors and type checkers.
"""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Mapping
from keyword import iskeyword
from pathlib import Path
from typing import Any, Final

import yaml

PACKAGE: Final = Path(__file__).resolve().parents[1]
SCHEMA: Final = PACKAGE.parent / "openapi.yaml"
WRITTEN: Final = PACKAGE / "answers.py"
HEAD: Final = '''"""The answers of the REST interface as types, for editors and type checkers.

Made by switchyard/packaging/answers.py from openapi.yaml; change the control plane, and make it anew. Answers are plain
dictionaries; a list with ``fields`` has only these keys.
"""

from __future__ import annotations

from typing import Any, Literal, NotRequired, TypedDict, overload

'''
PLAIN: Final = {"string": "str", "integer": "int", "number": "float", "boolean": "bool", "null": "None"}


class Answers:
    """The schemas of one document."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self.paths: Mapping[str, Any] = document["paths"]
        self.schemas: Mapping[str, Any] = document["components"]["schemas"]

    def type_of(self, schema: Mapping[str, Any]) -> str:
        """Return the type of a schema as Python writes it."""
        if reference := schema.get("$ref"):
            return str(reference).rpartition("/")[2]
        for union in ("anyOf", "oneOf", "allOf"):
            if union in schema:
                return _joined(self.type_of(one) for one in schema[union])
        if "enum" in schema:
            return f"Literal[{', '.join(repr(value) for value in schema['enum'])}]"
        kinds = schema.get("type")
        if isinstance(kinds, list):
            return _joined(self.type_of({**schema, "type": kind}) for kind in kinds)
        if kinds == "array":
            return f"list[{self.type_of(schema.get('items') or {})}]"
        if kinds == "object":
            inner = schema.get("additionalProperties")
            return f"dict[str, {self.type_of(inner) if isinstance(inner, Mapping) and inner else 'Any'}]"
        return PLAIN.get(str(kinds), "Any")

    def answer(self, method: str, path: str) -> str:
        """Return the type of the JSON that a call answers with; empty where it answers with none."""
        responses = self.paths[path][method.lower()]["responses"]
        for status, response in responses.items():
            content = response.get("content", {})
            if status.startswith("2") and "application/json" in content:
                return self.type_of(content["application/json"]["schema"])
        return ""

    def needed(self) -> list[str]:
        """Return the names of all schemas that answers have, in their order in the document."""
        found: set[str] = set()
        left = [
            name
            for path, calls in self.paths.items()
            for method in calls
            if method in ("get", "post", "put", "patch", "delete")
            for name in self._names(self.answer(method, path))
        ]
        while left:
            name = left.pop()
            if name not in found:
                found.add(name)
                left += self._names(repr(self.schemas[name]))
        return [name for name in self.schemas if name in found]

    def _names(self, text: str) -> list[str]:
        return [name for name in re.findall(r"\w+", text) if name in self.schemas]

    def text(self) -> str:
        """Return the whole file."""
        aliases, classes = [], []
        for name in self.needed():
            schema = self.schemas[name]
            if "properties" in schema:
                classes.append("\n".join(self._class(name, schema)))
            else:
                aliases.append((name, f"{name} = {self.type_of(schema)}"))
        simple = [text for _name, text in aliases if "Literal[" in text]
        late = [text for _name, text in aliases if "Literal[" not in text]
        classes.append("\n".join(self._items("Job")))
        return _formatted(HEAD + "\n".join(simple) + "\n\n\n" + "\n\n\n".join(classes) + "\n\n" + "\n".join(late))

    def _class(self, name: str, schema: Mapping[str, Any]) -> Iterator[str]:
        required = set(schema.get("required", ()))
        fields = {
            key: self.type_of(inner) if key in required else f"NotRequired[{self.type_of(inner)}]"
            for key, inner in schema["properties"].items()
        }
        if any(iskeyword(key) or not key.isidentifier() for key in fields):
            yield f'{name} = TypedDict("{name}", {{{", ".join(f"{key!r}: {text!r}" for key, text in fields.items())}}})'
            return
        yield f"class {name}(TypedDict):"
        yield f'    """{_sentence(name, schema)}"""'
        yield ""
        yield from (f"    {key}: {text}" for key, text in fields.items())

    def _items(self, name: str) -> Iterator[str]:
        """Yield a class of dictionaries whose items have the types of a schema."""
        yield f"class {name}Items(dict[str, Any]):"
        yield f'    """The items of a {name.lower()} in a dictionary that has methods of its own."""'
        for key, inner in self.schemas[name]["properties"].items():
            yield f"\n    @overload\n    def __getitem__(self, key: Literal[{key!r}]) -> {self.type_of(inner)}: ..."
        yield "\n    @overload\n    def __getitem__(self, key: str) -> Any: ..."
        yield "\n    def __getitem__(self, key: str) -> Any:\n        return super().__getitem__(key)"


def _joined(types: Iterator[str]) -> str:
    return " | ".join(dict.fromkeys(types))


def _sentence(name: str, schema: Mapping[str, Any]) -> str:
    """Return the first sentence of what the schema says of itself, without marks of its own language."""
    told = " ".join(str(schema.get("description") or "").replace("``", "").split())
    first = re.split(r"[.;:] ", told, maxsplit=1)[0].rstrip(".:")
    first = re.sub(r":\w+:`~?([^`]*)`", r"\1", first)
    if not first:
        first = "".join(f" {word.lower()}" for word in re.findall(r"[A-Z][a-z]*", name)).strip().capitalize()
    return textwrap.shorten(first, 105, placeholder=" ...") + "."


def _formatted(text: str) -> str:
    ruff = [sys.executable, "-m", "ruff"]
    for words in (
        ["check", "--no-cache", "--quiet", "--fix-only", "--select", "F401,I"],
        ["format", "--no-cache", "--quiet"],
    ):
        command = [*ruff, *words, "--stdin-filename", str(WRITTEN), "-"]
        text = subprocess.run(
            command, input=text, capture_output=True, text=True, check=True, cwd=PACKAGE.parent
        ).stdout
    return text


def read() -> Answers:
    """Return the schemas of this checkout."""
    loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return Answers(yaml.load(SCHEMA.read_text(encoding="utf-8"), Loader=loader))


if __name__ == "__main__":
    WRITTEN.write_text(read().text(), encoding="utf-8")
