"""Finds a working container engine on this host, and what it can limit. Blocks; runs in a thread.

An engine on PATH is not enough: a docker client without its daemon is skipped. For an agent without privileges, engines
that need none come first. ``YARD_CONTAINER_ENGINE`` (an engine's name) excludes the others.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from typing import Any, Final

from agents.decode import parse
from agents.runtimes.engines import APPTAINER, DOCKER, PODMAN, Engine

DEADLINE_S: Final = 10.0
# The variables of an engine's own configuration and credentials; none is from a job.
ENGINE_ENV: Final = (
    "PATH", "HOME", "XDG_RUNTIME_DIR", "TMPDIR", "DOCKER_HOST", "DOCKER_CONFIG", "CONTAINERS_CONF",
    "CONTAINERS_STORAGE_CONF", "CONTAINERS_REGISTRIES_CONF", "REGISTRY_AUTH_FILE", "APPTAINER_CACHEDIR",
    "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy", "SSL_CERT_FILE", "SSL_CERT_DIR",
)  # fmt: skip
_ORDER_FOR_ROOT: Final = (PODMAN, DOCKER, APPTAINER)
_ORDER_FOR_OTHERS: Final = (PODMAN, APPTAINER, DOCKER)


def engine_env(own: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of engines: the variables of the agent's own that are on the short list."""
    return {"PATH": os.defpath, **{name: own[name] for name in ENGINE_ENV if name in own}}


def find(own: Mapping[str, str], is_root: bool) -> tuple[Engine | None, str]:
    """Return the engine to use, or None and a sentence that says why there is none."""
    env = engine_env(own)
    order = _ORDER_FOR_ROOT if is_root else _ORDER_FOR_OTHERS
    named = own.get("YARD_CONTAINER_ENGINE", "")
    if named and named not in order:
        return None, f'YARD_CONTAINER_ENGINE is "{named}"; accepted are {", ".join(order)}'
    reasons = []
    for name in [named] if named else order:
        path = shutil.which(name, path=env["PATH"])
        if path is None:
            reasons.append(f"{name} is not on the agent's PATH")
            continue
        try:
            return _asked(name, path, env, is_root), ""
        except (OSError, subprocess.SubprocessError, *UNREADABLE) as error:
            reasons.append(f"{name} does not answer ({_short(error)})")
    return None, "; ".join(reasons)


# Reading an unexpected answer of an engine raises one of these.
UNREADABLE = (ValueError, LookupError, TypeError, AttributeError)


def _short(error: Exception) -> str:
    if isinstance(error, subprocess.CalledProcessError):
        lines = [line for line in (error.stderr or b"").decode(errors="replace").splitlines() if line.strip()]
        return (lines[-1] if lines else f"exit code {error.returncode}")[:200]
    if isinstance(error, subprocess.TimeoutExpired):
        return f"no answer within {DEADLINE_S:g} s"
    return str(error)[:200]


def _ask(env: dict[str, str], *argv: str) -> str:
    answer = subprocess.run(
        argv, env=env, cwd="/", check=True, capture_output=True, timeout=DEADLINE_S, stdin=subprocess.DEVNULL
    )
    return answer.stdout.decode()


def _asked(name: str, path: str, env: dict[str, str], is_root: bool) -> Engine:
    if name == APPTAINER:
        version = _ask(env, path, "--version").split()[-1]
        # Without root its limits need a delegated cgroup v2 tree that it does not tell about beforehand.
        return Engine(name, path, version, not is_root, frozenset({"memory", "cpus", "pids"} if is_root else ()))
    told = parse(_ask(env, path, "info", "--format={{json .}}"))
    return podman(path, told) if name == PODMAN else docker(path, told)


def podman(path: str, told: Mapping[str, Any]) -> Engine:
    """Return the engine as ``podman info`` describes it."""
    host = told["host"]
    rootless = bool(host["security"]["rootless"])
    # Without root only cgroup v2 can be delegated; on v1 podman refuses the options.
    able = host.get("cgroupVersion") == "v2" or not rootless
    words = {"memory": "memory", "cpu": "cpus", "pids": "pids"}
    limits = {words[each] for each in host.get("cgroupControllers") or () if each in words} if able else set()
    return Engine(PODMAN, path, str(told["version"]["Version"]), rootless, frozenset(limits))


def docker(path: str, told: Mapping[str, Any]) -> Engine:
    """Return the engine as ``docker info`` describes its daemon. Raises ValueError if no daemon answered."""
    if not told.get("ServerVersion"):
        raise ValueError("its daemon does not run: " + "; ".join(told.get("ServerErrors") or ["no server"]))
    words = {"MemoryLimit": "memory", "CPUShares": "cpus", "PidsLimit": "pids"}
    limits = frozenset(word for key, word in words.items() if told.get(key))
    rootless = any("rootless" in option for option in told.get("SecurityOptions") or ())
    return Engine(DOCKER, path, str(told["ServerVersion"]), rootless, limits)
