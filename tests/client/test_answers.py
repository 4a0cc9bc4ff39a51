"""The types of the client's answers are those of the REST interface: the file is fresh, and each method has the type
that its call answers with."""

from __future__ import annotations

import ast
import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_spec = importlib.util.spec_from_file_location("answers_maker", ROOT / "switchyard/packaging/answers.py")
assert _spec is not None
assert _spec.loader is not None
maker = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(maker)

CLIENT = ast.parse((ROOT / "switchyard/client.py").read_text())
FUNCTIONS = {node.name: node for node in CLIENT.body if isinstance(node, ast.FunctionDef)}
HERE = {"self._path": "/jobs/{}"}
"""Functions of paths that are more than an expression; a job's is the same as an array's, but for its beginning."""


def path_of(node: ast.expr, names: dict[str, ast.expr]) -> str:
    """The path that an expression makes, with {} for what is not known before."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(path_of(each, names) for each in node.values)
    if isinstance(node, ast.FormattedValue):
        return path_of(node.value, names)
    if isinstance(node, ast.BinOp):
        return path_of(node.left, names) + path_of(node.right, names)
    if isinstance(node, ast.Name) and node.id in names:
        return path_of(names[node.id], names)
    if isinstance(node, ast.Call):
        name = ast.unparse(node.func)
        if name in HERE:
            return HERE[name]
        if name in FUNCTIONS and isinstance(told := FUNCTIONS[name].body[-1], ast.Return) and told.value is not None:
            return path_of(told.value, {})
    return "{}"


def calls(function: ast.FunctionDef) -> Iterator[tuple[str, str, str]]:
    """The calls of a method: the HTTP method, the path, and the key that is taken from the answer."""
    names = {
        each.targets[0].id: each.value
        for each in ast.walk(function)
        if isinstance(each, ast.Assign) and isinstance(each.targets[0], ast.Name)
    }
    keys = {
        id(each.value): str(each.slice.value)
        for each in ast.walk(function)
        if isinstance(each, ast.Subscript) and isinstance(each.slice, ast.Constant)
    }
    for node in ast.walk(function):
        if not isinstance(node, ast.Call):
            continue
        name = ast.unparse(node.func)
        if name == "pages":
            yield "GET", path_of(node.args[1], names), "results"
        elif name in ("self._wire.get", "self.wire.get", "self._wire.post", "self.wire.post"):
            yield name.rpartition(".")[2].upper(), path_of(node.args[0], names), keys.get(id(node), "")
        elif name in ("self._wire.call", "self.wire.call") and isinstance(node.args[0], ast.Constant):
            yield str(node.args[0].value), path_of(node.args[1], names), ""


def told() -> Iterator[tuple[str, str, str]]:
    """Each method with the type that it is said to return, and the one with which its call answers."""
    answers = maker.read()
    known = {re.sub(r"\{\w+\}", "{}", path): path for path in answers.paths}
    for owner in CLIENT.body:
        for function in owner.body if isinstance(owner, ast.ClassDef) else ():
            if not isinstance(function, ast.FunctionDef) or function.returns is None:
                continue
            found = list(calls(function))
            if len(found) != 1 or (path := known.get("/api/v1" + found[0][1])) is None:
                continue
            method, _, key = found[0]
            answer = answers.answer(method, path)
            if key and answer in answers.schemas:
                answer = answers.type_of(answers.schemas[answer]["properties"][key])
            yield f"{owner.name}.{function.name}", ast.unparse(function.returns), answer  # type: ignore[attr-defined]


def bare(text: str) -> str:
    return re.sub(r"^(?:Iterator|list|Rows)\[(.*)\]$", r"\1", text.replace("answers.", ""))


OTHERS = {"None", "Draft", "JobRecord", "Iterator[JobRecord]", "str"}
"""Returned by methods that read an answer, and give something else."""

METHODS = [each for each in told() if each[2] and each[1] not in OTHERS and each[0] != "Nodes.join"]


def test_the_types_are_made_from_the_document_that_is_there():
    assert maker.WRITTEN.read_text() == maker.read().text(), "run: python switchyard/packaging/answers.py"


@pytest.mark.parametrize(("method", "said", "answer"), METHODS, ids=[each[0] for each in METHODS])
def test_a_method_has_the_type_of_what_it_answers(method, said, answer):
    assert bare(said) == bare(answer)


def test_most_methods_were_looked_at():
    assert len(METHODS) > 60
    assert {"Client.overview", "Nodes.get", "Nodes.list", "Jobs.why", "Jobs.attempts"} <= {each[0] for each in METHODS}
