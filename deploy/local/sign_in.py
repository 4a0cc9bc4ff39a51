"""A new one-time sign-in link for a running stack."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib

from deploy.local.home import Home
from deploy.local.launcher import Access, NotUp
from deploy.local.lock import Running, is_held
from deploy.local.service import ROOT, importing, python


def main(user: str) -> int:
    """Print a new link; return the exit status."""
    home = Home.from_environment()
    try:
        access = running(home, user)
        if access is None:
            raise NotUp(f"no stack runs on {home.path}; start one with ./script/up, or name its folder in YARD_HOME")
    except NotUp as reason:
        print(f"switchyard: {reason}", file=sys.stderr)
        return 1
    print(access.sign_in)
    return 0


def running(home: Home, user: str = "admin") -> Access | None:
    """Return the access to the stack that runs on ``home`` now, with a fresh sign-in link; None if none runs.

    Raises :class:`NotUp` if one runs but is not up yet, or cannot give a link.
    """
    if not is_held(home):
        return None
    record = Running.read(home)
    if record is None:
        raise NotUp(f"a stack is just starting or stopping on {home.path}; wait a moment and try again")
    given = subprocess.run(
        python(str(ROOT / "manage.py"), "sign_in_link", "--path", "--", user),
        env=importing({**os.environ, **record.environment}),
        cwd="/",
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if given.returncode != 0:
        raise NotUp(f"a stack runs at {record.url} but gives no sign-in link:\n{given.stderr.strip()[-2000:]}")
    # The token is not replaced, because somebody may be using it.
    return Access(record.url, record.url + given.stdout.strip(), _token(home))


def _token(home: Home) -> str:
    try:
        return str(tomllib.loads(home.client_file.read_text(encoding="utf-8"))["token"])
    except (OSError, ValueError, KeyError):
        raise NotUp(f"{home.client_file} cannot be read; stop the stack with Ctrl-C and start it again") from None
