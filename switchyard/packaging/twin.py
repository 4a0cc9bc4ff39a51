"""Writes ``switchyard/aio``, the asynchronous twin of the client, from the synchronous one.

Run: python switchyard/packaging/twin.py

What waits for the network or the clock becomes a coroutine, and so does whatever calls that; a generator of such things
becomes an asynchronous one. Which call is which follows from the annotations of the sources. Classes that wait are
written anew, with ``Async`` before their name; everything else is imported from where it is.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

PACKAGE: Final = Path(__file__).resolve().parents[1]
MODULES: Final = ("wire", "stream", "entry", "logs", "client")
"""In the order of their imports: each sees only those before it."""

WAITS, ITERATES, ENTERS = "waits", "iterates", "enters"
"""What a call of a function gives in the twin: a coroutine, an asynchronous iterator, an asynchronous context."""

ELSEWHERE: Final[Mapping[str, Mapping[str, tuple[str, str]]]] = {
    "httpx.Client": {"request": ("request", WAITS), "close": ("aclose", WAITS)},
    "httpx.Response": {"iter_text": ("aiter_text", ITERATES), "read": ("aread", WAITS)},
    "ClientConnection": {"send": ("send", WAITS), "recv": ("recv", WAITS)},
    "ExitStack": {"enter_context": ("enter_async_context", WAITS), "close": ("aclose", WAITS)},
    "threading.Condition": {"wait": ("wait", WAITS)},
}
"""Methods of other packages' types that wait, and what they are called there."""

INSTEAD: Final = {
    "httpx.Client": "httpx.AsyncClient",
    "threading.Condition": "asyncio.Condition",
    "time.sleep": "asyncio.sleep",
    "ExitStack": "AsyncExitStack",
    "contextmanager": "asynccontextmanager",
    "__enter__": "__aenter__",
    "__exit__": "__aexit__",
    "__iter__": "__aiter__",
}
IN_A_THREAD: Final = {"pack", "fetch", "send"}
"""Functions that work long, or wait in their own way; they would hold up everything else."""

IN_TEXTS: Final = {
    "Thread-safe; close it": "For one event loop; close it",
    "Thread-safe.": "For one event loop.",
    "in ``with``": "in ``async with``",
    "``with``.": "``async with``.",
    "Iterate over its output": "Iterate over its output with ``async for``",
    "Only one thread may iterate; any may send.": "Only one task may iterate; any may send.",
}
NOTE: Final = "Made by switchyard/packaging/twin.py from switchyard/{name}.py; change it there."


@dataclass
class Signatures:
    """What is known of one class or module: what its functions give and return, and the types of its attributes."""

    kinds: dict[str, str] = field(default_factory=dict)
    returns: dict[str, str] = field(default_factory=dict)
    attributes: dict[str, str] = field(default_factory=dict)


Function = ast.FunctionDef


class Sources:
    """The sources with what is known of their classes and functions."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        self.trees = {name: ast.parse(text) for name, text in texts.items()}
        self.classes: dict[str, Signatures] = {}
        self.functions = Signatures()
        self.home: dict[str, str] = {}
        """The module of each class and function that has a twin."""
        bodies: dict[str, list[tuple[str, Signatures, str, Function]]] = {}
        for module, tree in self.trees.items():
            bodies[module] = []
            for node in tree.body:
                if isinstance(node, ast.ClassDef):
                    known = self.classes[node.name] = Signatures()
                    each = [(node.name, known, module, one) for one in node.body if isinstance(one, Function)]
                elif isinstance(node, Function):
                    each = [("", self.functions, module, node)]
                else:
                    continue
                bodies[module] += each
                for _, known, _, one in each:
                    known.returns[one.name] = _bare(one.returns)
        every = [each for module in bodies.values() for each in module]
        for owner, known, _, one in every:
            if owner:
                self._learn_attributes(known, one)
        while sum(self._judge(*each) for each in every):
            pass
        for owner, known, module, one in every:
            if one.name in known.kinds:
                self.home[owner or one.name] = module

    def _learn_attributes(self, known: Signatures, function: Function) -> None:
        if any(ast.unparse(each) == "property" for each in function.decorator_list):
            known.attributes[function.name] = _bare(function.returns)
        types = _parameters(function)
        for node in ast.walk(function):
            if isinstance(node, ast.AnnAssign) and (name := _own(node.target)):
                known.attributes[name] = _bare(node.annotation)
            elif isinstance(node, ast.Assign):
                for target, value in _pairs(node):
                    if (name := _own(target)) and (found := self._made(value, types)):
                        known.attributes.setdefault(name, found)

    def _made(self, value: ast.expr, types: Mapping[str, str]) -> str:
        if isinstance(value, ast.Call):
            name = ast.unparse(value.func)
            return name if name in self.classes or name in ELSEWHERE else ""
        return types.get(value.id, "") if isinstance(value, ast.Name) else ""

    def _judge(self, owner: str, known: Signatures, module: str, function: Function) -> bool:
        """Find out what a function gives; return whether that is news."""
        twin = Twin(self, module, owner)
        twin.visit_body(function)
        kind = ""
        if any(ast.unparse(each) == "contextmanager" for each in function.decorator_list):
            kind = ENTERS
        elif twin.yields and twin.waits:
            kind = ITERATES
        elif twin.waits or (function.name in ("__enter__", "__exit__") and WAITS in known.kinds.values()):
            kind = WAITS
        elif twin.gives_iterator:
            kind = ITERATES
        if not kind or known.kinds.get(function.name) == kind:
            return False
        known.kinds[function.name] = kind
        return True


class Twin(ast.NodeTransformer):
    """Rewrites one module, class or function."""

    def __init__(self, sources: Sources, module: str, owner: str = "") -> None:
        self._sources, self._module, self._owner = sources, module, owner
        self._types: dict[str, str] = {}
        self._iterators: set[str] = set()
        self.waits = self.yields = self.gives_iterator = False

    def visit_body(self, function: Function) -> list[ast.stmt]:
        """Return the body of a function, rewritten."""
        self._types = {**_parameters(function), "self": self._owner, "cls": self._owner}
        copied = ast.parse(ast.unparse(function)).body[0]
        assert isinstance(copied, Function)
        written: list[ast.stmt] = []
        for one in copied.body:
            told = self.visit(one)
            written += told if isinstance(told, list) else [told]
        return written

    # What an expression is

    def _type(self, node: ast.expr) -> str:
        if isinstance(node, ast.Name):
            return self._types.get(node.id, "")
        if isinstance(node, ast.Attribute):
            known = self._sources.classes.get(self._type(node.value))
            return known.attributes.get(node.attr, "") if known else ""
        if isinstance(node, ast.Await):
            return self._type(node.value)
        if isinstance(node, ast.Call):
            return self._call(node)[1]
        return ""

    def _call(self, node: ast.Call) -> tuple[str, str, str]:
        """Return what a call gives, the type of that, and the name of what is called in the twin."""
        name = ast.unparse(node.func)
        if isinstance(node.func, ast.Attribute):
            owner = self._type(node.func.value)
            if owner in ELSEWHERE:
                other, kind = ELSEWHERE[owner].get(node.func.attr, ("", ""))
                return kind, "", other
            if known := self._sources.classes.get(owner):
                found = known.returns.get(node.func.attr, "")
                return known.kinds.get(node.func.attr, ""), owner if found == "Self" else found, ""
        if name == "time.sleep":
            return WAITS, "", ""
        if name in self._sources.classes or name in ELSEWHERE:
            return "", name, ""
        if name == "cls":
            return "", self._owner, ""
        return self._sources.functions.kinds.get(name, ""), self._sources.functions.returns.get(name, ""), ""

    def _is_iterator(self, node: ast.expr) -> bool:
        if isinstance(node, ast.GeneratorExp):
            return any(self._is_iterator(each.iter) or each.is_async for each in node.generators)
        if isinstance(node, ast.Name):
            return node.id in self._iterators
        return isinstance(node, ast.Call) and self._call(node)[0] == ITERATES

    # What becomes of it

    def visit_Call(self, node: ast.Call) -> ast.expr:
        name = ast.unparse(node.func)
        if name == "list" and len(node.args) == 1 and self._is_iterator(node.args[0]):
            self.waits = True
            source = self.visit(node.args[0])
            each = ast.Name("each")
            return ast.ListComp(each, [ast.comprehension(each, source, [], 1)])
        kind, _, other = self._call(node)
        self.generic_visit(node)
        if name in IN_A_THREAD:
            self.waits = True
            return ast.Await(ast.Call(ast.parse("asyncio.to_thread", mode="eval").body, [node.func, *node.args], []))
        if other and isinstance(node.func, ast.Attribute):
            node.func.attr = other
        if kind != WAITS:
            return node
        self.waits = True
        return ast.Await(node)

    def visit_For(self, node: ast.For) -> ast.stmt:
        goes = self._is_iterator(node.iter)
        if isinstance(node.target, ast.Name):
            self._types[node.target.id] = self._type(node.iter)
        self.generic_visit(node)
        if not goes:
            return node
        self.waits = True
        return ast.AsyncFor(node.target, node.iter, node.body, node.orelse)

    def visit_comprehension(self, node: ast.comprehension) -> ast.comprehension:
        if self._is_iterator(node.iter):
            node.is_async = 1
        self.generic_visit(node)
        return node

    def visit_ListComp(self, node: ast.ListComp) -> ast.expr:
        if any(self._is_iterator(each.iter) for each in node.generators):
            self.waits = True
        self.generic_visit(node)
        return node

    def visit_With(self, node: ast.With) -> ast.stmt:
        held = [item.context_expr for item in node.items]
        goes = [
            self._type(each) in ("threading.Condition", "ExitStack")
            or (isinstance(each, ast.Call) and self._call(each)[0] == ENTERS)
            for each in held
        ]
        for item in node.items:
            if isinstance(item.optional_vars, ast.Name):
                self._types[item.optional_vars.id] = self._type(item.context_expr)
        self.generic_visit(node)
        if not any(goes):
            return node
        if not all(goes):
            raise SystemExit(
                f"{self._module}: one `with` for what waits and what does not: {ast.unparse(node.items[0])}"
            )
        self.waits = True
        return ast.AsyncWith(node.items, node.body)

    def visit_Expr(self, node: ast.Expr) -> ast.stmt:
        if isinstance(node.value, ast.YieldFrom):
            self.yields = True
            source = node.value.value
            goes = self._is_iterator(source)
            self.waits |= goes
            written = self.visit(source)
            body: list[ast.stmt] = [ast.Expr(ast.Yield(ast.Name("each")))]
            loop = ast.AsyncFor if goes else ast.For
            return loop(ast.Name("each"), written, body, [])
        self.generic_visit(node)
        return node

    def visit_Yield(self, node: ast.Yield) -> ast.expr:
        self.yields = True
        self.generic_visit(node)
        return node

    def visit_Return(self, node: ast.Return) -> ast.stmt:
        if node.value is not None and self._is_iterator(node.value):
            self.gives_iterator = True
        self.generic_visit(node)
        return node

    def visit_Assign(self, node: ast.Assign) -> ast.stmt:
        for target, value in _pairs(node):
            if isinstance(target, ast.Name):
                self._types[target.id] = self._type(value)
                if self._is_iterator(value):
                    self._iterators.add(target.id)
        self.generic_visit(node)
        return node

    # Whole functions, classes and modules

    def visit_FunctionDef(self, node: Function) -> ast.stmt:
        known = self._sources.classes[self._owner] if self._owner else self._sources.functions
        kind = known.kinds.get(node.name, "")
        inner = Twin(self._sources, self._module, self._owner)
        node.body = inner.visit_body(node)
        if kind in (ITERATES, ENTERS) and node.returns is not None:
            node.returns = ast.parse(ast.unparse(node.returns).replace("Iterator", "AsyncIterator"), mode="eval").body
        if kind == WAITS or (kind in (ITERATES, ENTERS) and inner.yields):
            named = {each: getattr(node, each) for each in ("name", "args", "body", "decorator_list", "returns")}
            return ast.AsyncFunctionDef(**named)
        return node

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.stmt:
        inner = Twin(self._sources, self._module, node.name)
        node.body = [inner.visit(one) for one in node.body]
        return node


def _bare(annotation: ast.expr | None) -> str:
    """Return the type that an annotation names, without ``| None``; of an iterator, that of its items."""
    if annotation is None:
        return ""
    text = ast.unparse(annotation).strip("'\"").removesuffix(" | None")
    found = re.fullmatch(r"(?:Iterator|list)\[(.*)\]", text)
    return found.group(1) if found else text


def _parameters(function: Function) -> dict[str, str]:
    given = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
    return {each.arg: _bare(each.annotation) for each in given}


def _own(target: ast.expr) -> str:
    is_own = isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) and target.value.id == "self"
    return target.attr if is_own and isinstance(target, ast.Attribute) else ""


def _pairs(node: ast.Assign) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Yield each target of an assignment with its value."""
    for target in node.targets:
        if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
            yield from zip(target.elts, node.value.elts, strict=True)
        else:
            yield target, node.value


def _imports(sources: Sources, nodes: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield imports with those of what has a twin going to the twin."""
    for node in nodes:
        if not isinstance(node, ast.ImportFrom) or node.module is None:
            yield node
            continue
        for alias in node.names:
            home = sources.home.get(alias.name)
            twin = home is not None and node.module == f"switchyard.{home}"
            yield ast.ImportFrom(f"switchyard.aio.{home}" if twin else node.module, [alias], 0)


def _with_names(text: str, sources: Sources) -> str:
    """Return code or a docstring in which every name is that of the twin."""
    twins = {
        name: f"_Async{name[1:]}" if name[0] == "_" else f"Async{name}"
        for name in sources.classes
        if name in sources.home
    }
    for name, other in {**INSTEAD, **twins}.items():
        text = re.sub(rf"(?<![\w.]){re.escape(name)}\b", other, text)
    return text.replace("websockets.sync.client", "websockets.asyncio.client")


def twin_of(sources: Sources, name: str) -> str:
    """Return the text of the twin of one module."""
    tree = sources.trees[name]
    own = {each for each, home in sources.home.items() if home == name}
    head: list[ast.stmt] = []
    for_types: list[ast.stmt] = []
    written: list[ast.stmt] = []
    shared: list[str] = []
    twin = Twin(sources, name)
    for node in tree.body[1:]:
        if isinstance(node, ast.ImportFrom) and node.module == "__future__":
            continue
        if isinstance(node, ast.Import | ast.ImportFrom):
            head += _imports(sources, [node])
        elif isinstance(node, ast.If):
            node.body = list(_imports(sources, node.body))
            for_types.append(node)
        elif isinstance(node, ast.ClassDef | Function):
            if node.name in own:
                written.append(twin.visit(node))
            else:
                shared.append(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            shared += [each.id for each in ast.walk(target) if isinstance(each, ast.Name)]
    if shared:
        head.append(ast.ImportFrom(f"switchyard.{name}", [ast.alias(each) for each in shared], 0))
    code = "from __future__ import annotations\nimport asyncio\nfrom collections.abc import AsyncIterator\n"
    code += "from contextlib import AsyncExitStack, asynccontextmanager\n"
    for node in (*head, *for_types, *written):
        code += _with_names(ast.unparse(ast.fix_missing_locations(node)), sources) + "\n"
    for said, other in IN_TEXTS.items():
        code = code.replace(said, other)
    note = NOTE.format(name=name)
    return _formatted(f'"""The asynchronous twin of ``switchyard.{name}``.\n\n{note}\n"""\n\n{code}\n', name)


def _formatted(text: str, name: str) -> str:
    """Return the text without unused imports, as everything here is formatted."""
    where = str(PACKAGE / "aio" / f"{name}.py")
    sort = ["check", "--no-cache", "--quiet", "--fix-only", "--select", "F401,I,UP034", "--stdin-filename", where, "-"]
    for words in (sort, ["format", "--no-cache", "--quiet", "--stdin-filename", where, "-"]):
        ruff = [sys.executable, "-m", "ruff", *words]
        text = subprocess.run(ruff, input=text, capture_output=True, text=True, check=True, cwd=PACKAGE.parent).stdout
    return text


def pages() -> dict[str, str]:
    """Return the text of every file of ``switchyard/aio`` that is made."""
    sources = Sources({name: (PACKAGE / f"{name}.py").read_text(encoding="utf-8") for name in MODULES})
    return {name: twin_of(sources, name) for name in MODULES}


if __name__ == "__main__":
    for module, text in pages().items():
        (PACKAGE / "aio" / f"{module}.py").write_text(text, encoding="utf-8")
