"""A backup of a running stack."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence

from deploy.local.home import Home
from deploy.local.lock import Running, is_held
from deploy.local.service import ROOT, importing, python


def main(words: Sequence[str]) -> int:
    """Run ``manage.py backup`` with the environment of the stack's parts; return its status."""
    home = Home.from_environment()
    record = Running.read(home) if is_held(home) else None
    if record is None:
        print(f"switchyard: no stack runs on {home.path}; start one with ./script/up first", file=sys.stderr)
        return 1
    command = python(str(ROOT / "manage.py"), "backup", *words)
    return subprocess.run(command, env=importing({**os.environ, **record.environment}), check=False).returncode
