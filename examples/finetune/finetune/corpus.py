"""Two texts of different kinds that every machine with Python has: program code, and the prose that explains it."""

from __future__ import annotations

import ast
import inspect
import re
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

CODE_CHARACTERS = 900_000
PROSE_CHARACTERS = 700_000

# Large, ordinary modules first; whatever of them this Python lacks is skipped.
PACKAGES = (
    "asyncio",
    "concurrent",
    "email",
    "http",
    "importlib",
    "json",
    "logging",
    "multiprocessing",
    "unittest",
    "xml",
)

Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def texts(code_characters: int = CODE_CHARACTERS, prose_characters: int = PROSE_CHARACTERS) -> dict[str, str]:
    """``code``: sources of the standard library without docstrings and comments. ``prose``: the language reference that
    ``help()`` shows, and the docstrings. Each is cut at its number of characters.
    """
    trees = _modules()
    prose = _fill([*_topics(), *map(_prose_of, trees)], prose_characters)
    code = _fill(map(_code_of, trees), code_characters)  # second: it takes the docstrings out of the trees
    return {"code": code, "prose": prose}


def split(text: str, held_out: float = 0.1) -> tuple[str, str]:
    """Divides ``text`` into a part to learn from and a part to be judged by, ``held_out`` of it.

    Every tenth block of 4,000 characters is held out, so that both parts come from all over the text.
    """
    blocks = [text[start : start + 4000] for start in range(0, len(text), 4000)]
    every = round(1 / held_out)
    kept = [block for number, block in enumerate(blocks) if number % every != every - 1]
    held = blocks[every - 1 :: every]
    return "".join(kept), "".join(held)


def _modules() -> list[ast.Module]:
    root = Path(sysconfig.get_path("stdlib"))
    paths = [path for package in PACKAGES for path in sorted((root / package).rglob("*.py"))]
    paths += sorted(root.glob("*.py"))
    found = []
    for path in paths:
        if "test" in path.parts or path.stat().st_size > 200_000:
            continue
        try:
            found.append(ast.parse(path.read_text(encoding="utf-8")))
        except (SyntaxError, UnicodeDecodeError, ValueError):
            continue  # some Pythons ship files that are meant not to parse
        if len(found) >= 160:
            break
    return found


def _fill(texts: Iterable[str], characters: int) -> str:
    parts: list[str] = []
    size = 0
    for text in texts:
        if size >= characters:
            break
        parts.append(text)
        size += len(text)
    return "\n\n".join(parts)[:characters]


def _documented(tree: ast.Module) -> list[Documented]:
    return [node for node in ast.walk(tree) if isinstance(node, Documented)]


def _prose_of(tree: ast.Module) -> str:
    found = (ast.get_docstring(node) for node in _documented(tree))
    return "\n\n".join(text for text in found if text)


def _code_of(tree: ast.Module) -> str:
    for node in _documented(tree):
        if ast.get_docstring(node) is not None:
            node.body[0] = ast.Pass()
    return ast.unparse(tree)


def _topics() -> list[str]:
    try:
        from pydoc_data.topics import topics
    except ImportError:
        return []
    texts = [inspect.cleandoc(text) for _, text in sorted(topics.items())]
    return [re.sub(r"[*=~-]{4,}", "", text) for text in texts]
