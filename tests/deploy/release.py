"""The release before this one: what its tables are, and its agent. Renewed when a release is made.

git archive COMMIT agents switchyard/__init__.py switchyard/runtime.py | xz > tests/deploy/releases/agent-COMMIT.tar.xz
"""

from __future__ import annotations

import tarfile
from pathlib import Path
from typing import Final

COMMIT: Final = "21ac832"
# Its last migration of each of our apps.
MIGRATIONS: Final = {
    "access": "0003_project_number",
    "pools": "0010_isolation",
    "fleet": "0015_credentials",
    "jobs": "0024_sessions",
    "simulations": "0001_initial",
}
# Migrations since then that have no way back, with the reason; docs/how-to/upgrade.md names them too.
NO_WAY_BACK: Final[dict[str, str]] = {}


def agent(into: Path) -> Path:
    """Unpack its agent; return the folder that Python imports it from."""
    with tarfile.open(Path(__file__).parent / "releases" / f"agent-{COMMIT}.tar.xz") as archive:
        archive.extractall(into, filter="data")
    return into
