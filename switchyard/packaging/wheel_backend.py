"""Builds the client's wheel with the standard library only: a build backend of PEP 517 that needs no network.

The same sources give the same bytes. Only what git keeps of a package is in it: Python files, ``py.typed``, and the
manual page.
"""

from __future__ import annotations

import ast
import base64
import hashlib
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).resolve().parents[1]
ROOT = PACKAGE.parent
LEFT_OUT = {"packaging", "__pycache__"}
FIRST_DAY = (1980, 1, 1, 0, 0, 0)
"""The time of every file in the wheel: the earliest that a zip file can tell."""


def get_requires_for_build_wheel(config_settings: Any = None) -> list[str]:
    return []


def build_wheel(wheel_directory: str, config_settings: Any = None, metadata_directory: str | None = None) -> str:
    """Write the wheel into a folder and return its name."""
    project = tomllib.loads((PACKAGE / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    stem = f"{project['name'].replace('-', '_')}-{version()}"
    name = f"{stem}-py3-none-any.whl"
    told: list[str] = []
    with zipfile.ZipFile(Path(wheel_directory, name), "w", zipfile.ZIP_DEFLATED) as wheel:
        for where, content in files(project, stem):
            entry = zipfile.ZipInfo(where, FIRST_DAY)
            entry.external_attr = 0o100644 << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            wheel.writestr(entry, content)
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
            told.append(f"{where},sha256={digest},{len(content)}")
        record = f"{stem}.dist-info/RECORD"
        wheel.writestr(zipfile.ZipInfo(record, FIRST_DAY), "\n".join([*told, f"{record},,", ""]))
    return name


def version() -> str:
    """Return ``__version__`` of the package, which is not imported for it."""
    for node in ast.parse((PACKAGE / "__init__.py").read_text(encoding="utf-8")).body:
        if (
            isinstance(node, ast.Assign)
            and isinstance(node.targets[0], ast.Name)
            and node.targets[0].id == "__version__"
        ):
            return str(ast.literal_eval(node.value))
    raise LookupError("switchyard/__init__.py has no __version__")


def files(project: dict[str, Any], stem: str) -> Iterator[tuple[str, bytes]]:
    """Yield what the wheel holds, each with its name there."""
    for path in sorted([*PACKAGE.rglob("*.py"), PACKAGE / "py.typed"]):
        inside = path.relative_to(PACKAGE)
        if not LEFT_OUT & set(inside.parts):
            yield f"switchyard/{inside.as_posix()}", path.read_bytes()
    about = f"{stem}.dist-info"
    yield f"{about}/METADATA", metadata(project).encode()
    yield f"{about}/WHEEL", b"Wheel-Version: 1.0\nGenerator: switchyard\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    scripts = "".join(f"{name} = {place}\n" for name, place in project["scripts"].items())
    yield f"{about}/entry_points.txt", f"[console_scripts]\n{scripts}".encode()
    yield f"{stem}.data/data/share/man/man1/yard.1", (ROOT / "docs/reference/yard.1").read_bytes()
    yield f"{about}/licenses/LICENSE", (ROOT / "LICENSE").read_bytes()


def metadata(project: dict[str, Any]) -> str:
    """Return the core metadata, as PEP 566 and PEP 639 have it."""
    lines = [
        "Metadata-Version: 2.4",
        f"Name: {project['name']}",
        f"Version: {version()}",
        f"Summary: {project['description']}",
        f"License-Expression: {project['license']}",
        "License-File: LICENSE",
        f"Requires-Python: {project['requires-python']}",
        *(f"Requires-Dist: {each}" for each in project["dependencies"]),
    ]
    return "\n".join(lines) + "\n"
