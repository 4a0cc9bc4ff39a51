"""The templates that are part of Switchyard: the files beside this one."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

from controlplane.documents import from_yaml

FOLDER: Final = Path(__file__).parent / "shipped"


@cache
def shipped() -> Mapping[str, Mapping[str, Any]]:
    """Return them by name, each with title, description, parameters and job."""
    return {path.stem: from_yaml(path.read_bytes()) for path in sorted(FOLDER.glob("*.yaml"))}
