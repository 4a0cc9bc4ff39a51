"""The wheel of the client alone works where nothing of the control plane is installed."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PIP = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]


def dependencies(names: Iterator[str]) -> set[str]:
    """The distributions that these need, themselves included."""
    from pip._vendor.packaging.requirements import Requirement

    found: set[str] = set()
    waiting = list(names)
    while waiting:
        asked = Requirement(waiting.pop())
        if (asked.marker is None or asked.marker.evaluate({"extra": ""})) and asked.name not in found:
            found.add(asked.name)
            waiting += distribution(asked.name).requires or []
    return found


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    build = [*PIP, "wheel", "--no-deps", "--no-build-isolation", "--no-index", "-w", str(folder), "./switchyard"]
    subprocess.run(build, cwd=ROOT, check=True)
    (made,) = folder.glob("*.whl")
    return made


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and what it says that it needs, and nothing else."""
    folder = tmp_path_factory.mktemp("installed")
    subprocess.run([*PIP, "install", "--no-deps", "--no-index", "--target", str(folder), str(wheel)], check=True)
    wanted = tomllib.loads((ROOT / "switchyard/pyproject.toml").read_text())["project"]["dependencies"]
    for name in dependencies(iter(wanted)):
        for file in distribution(name).files or []:
            top = file.parts[0]
            if top not in ("..", "bin") and not (folder / top).exists():
                (folder / top).symlink_to(distribution(name).locate_file(top))
    return folder


def python(installed: Path, *words: str) -> str:
    """What a Python says that finds only what is installed there, and the standard library."""
    env = {"PATH": os.defpath, "PYTHONPATH": str(installed), "HOME": str(installed), "PYTHONWARNINGS": "error"}
    done = subprocess.run([sys.executable, "-S", "-P", *words], env=env, cwd="/", capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_command_starts_where_there_is_no_control_plane(installed):
    assert "usage: yard VERB" in python(installed, str(installed / "bin/yard"), "--help")
    assert (installed / "share/man/man1/yard.1").is_file()
    assert "usage: yard version" in python(installed, str(installed / "bin/yard"), "version", "--help")


def test_every_module_is_there_and_needs_no_more_than_it_says(installed):
    code = """if True:
        import importlib, pkgutil, switchyard
        names = [m.name for m in pkgutil.walk_packages(switchyard.__path__, "switchyard.") if "__main__" not in m.name]
        for name in names:
            importlib.import_module(name)
        import rich.live, yaml, websockets.sync.client, httpx
        print(switchyard.__file__, len(names))
    """
    place, count = python(installed, "-c", code).split()
    assert Path(place).is_relative_to(installed)
    assert int(count) > 60


def test_it_has_the_version_of_the_package_and_its_dependencies_are_those_of_the_project(wheel):
    from switchyard import __version__

    project = tomllib.loads((ROOT / "switchyard/pyproject.toml").read_text())["project"]
    whole = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    with zipfile.ZipFile(wheel) as opened:
        told = opened.read(f"switchyard_client-{__version__}.dist-info/METADATA").decode().splitlines()
    assert f"Version: {__version__}" in told
    assert {f"Requires-Dist: {each}" for each in project["dependencies"]} <= set(told)
    assert set(project["dependencies"]) <= set(whole["dependencies"])


def test_all_parts_of_the_project_have_one_version():
    from agents import VERSION
    from switchyard import __version__

    settings = (ROOT / "controlplane/settings.py").read_text()
    assert __version__ == VERSION
    assert f'\nVERSION = "{__version__}"\n' in settings
