"""A PostgreSQL cluster whose database has all tables, made once and kept in the folder of the virtual environment.

All migrations take a quarter of a minute of a processor, and each process that runs tests would begin with them. The
copy is found by a hash of all that decides what they make; where one is missing, or the folder cannot be written, they
are run. Tests that are about migrations run them for themselves.
"""

from __future__ import annotations

import fcntl
import hashlib
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import distributions
from pathlib import Path

from deploy.local.postgres import Cluster, binaries
from deploy.local.service import ROOT, Service, User, stop_all

FOLDER = Path(sys.prefix) / "tables"
# Of other branches that use the same virtual environment.
MOST_KEPT = 4
IMPORTED = re.compile(r"^\s*(?:from|import) ((?:controlplane|scheduler|switchyard)[\w.]*)", re.MULTILINE)


# Waits until the first is true, or the service ends.
Wait = Callable[[Callable[[], bool], Service], None]


def make(cluster: Cluster, environment: Mapping[str, str], wait: Wait) -> User:
    """Create the cluster with a database that has all tables; return the user of its server."""
    try:
        FOLDER.mkdir(exist_ok=True)
        lock = (FOLDER / "lock").open("w")
    except OSError:
        return _made_anew(cluster, environment, wait)
    with lock:
        # Who comes second waits for what the first one makes.
        fcntl.flock(lock, fcntl.LOCK_EX)
        kept = FOLDER / _digest()
        if kept.is_dir():
            kept.touch()
            _copy(kept / "postgres", cluster.folder)
            _copy(kept / "pgpass", cluster.password_file)
            return cluster.make(environment)
        user = _made_anew(cluster, environment, wait)
        # A server that must be another user's has folders that were given to it: they are not those of a copy.
        if user == cluster.user:
            _keep(cluster, kept)
        return user


def lay(folder: Path) -> None:
    """Put a copy of the cluster at a place where there is none, if one is kept. Its password is nobody's there."""
    if not (FOLDER / "lock").is_file():
        return
    with (FOLDER / "lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        kept = FOLDER / _digest()
        if kept.is_dir():
            _copy(kept / "postgres", folder)


def _made_anew(cluster: Cluster, environment: Mapping[str, str], wait: Wait) -> User:
    user = cluster.make(environment)
    server = cluster.service(user, environment, cluster.folder.with_suffix(".log"))
    server.start()
    try:
        wait(cluster.is_ready, server)
        command = [sys.executable, "manage.py", "migrate", "--verbosity", "0"]
        subprocess.run(command, cwd=ROOT, env={**environment, "DATABASE_URL": cluster.url}, check=True)
    finally:
        stop_all([server], 60)
    return user


def _keep(cluster: Cluster, kept: Path) -> None:
    unfinished = kept.with_name("unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(mode=0o700)
    _copy(cluster.folder, unfinished / "postgres")
    _copy(cluster.password_file, unfinished / "pgpass")
    unfinished.rename(kept)
    for old in sorted((path for path in FOLDER.iterdir() if path.is_dir()), key=_used_at)[:-MOST_KEPT]:
        shutil.rmtree(old, ignore_errors=True)


def _used_at(path: Path) -> float:
    return path.stat().st_mtime


def _copy(source: Path, target: Path) -> None:
    subprocess.run(["cp", "-a", str(source), str(target)], check=True)


def _digest() -> str:
    """Return a hash of the migrations, of what they import, of the settings, and of all packages and the server."""
    found = hashlib.sha256(str(binaries()).encode())
    for package in sorted(f"{one.name} {one.version}" for one in distributions()):
        found.update(f"{package}\n".encode())
    files = set(ROOT.glob("controlplane/**/migrations/*.py"))
    files |= {path for migration in files for path in _imported(migration.read_text())}
    for path in sorted(files | {ROOT / "controlplane" / "settings.py", Path(__file__)}):
        found.update(f"{path.relative_to(ROOT)}\0".encode() + path.read_bytes())
    return found.hexdigest()[:32]


def _imported(text: str) -> Iterator[Path]:
    for name in IMPORTED.findall(text):
        place = ROOT.joinpath(*name.split("."))
        if (module := place.with_suffix(".py")).is_file():
            yield module
        elif place.is_dir():
            yield from place.glob("*.py")
