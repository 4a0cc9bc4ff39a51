"""Removes a container that outlived its monitor. Standard library only: the shim does it without the agent."""

import os
import time

from agents.supervisor.lean import signal
from agents.supervisor.record import read_whole, write_whole

PATIENCE_S = 30.0
# The command lines of a plan; an empty one asks for nothing.
LINES = ("exists", "pull", "create", "start", "signal", "state", "remove", "pid")


def is_gone(folder: str) -> bool:
    """Remove the container of a part if its monitor left one; return False if it is still there."""
    plan = planned(folder)
    told = read_whole(f"{folder}/container-state.json") or {}
    if plan is None or ("end" in told and not told.get("stays")) or not plan["lines"]["remove"]:
        return True
    if _asked(plan, "remove") and not (plan["lines"]["state"] and _asked(plan, "state")):
        return False
    try:
        write_whole(f"{folder}/container-state.json", {"end": {}, **told, "stays": False})
    except OSError:
        pass
    return True


def planned(folder: str) -> dict | None:  # type: ignore[type-arg]
    """Return the container's configuration from the part's folder; None if there is none, or it is invalid."""
    plan = read_whole(f"{folder}/container.json")
    if plan is None:
        return None
    lines, env = plan.get("lines"), plan.get("env")
    if not isinstance(lines, dict):
        return None
    plan["lines"] = {name: lines.get(name, []) for name in LINES}
    if not all(map(_is_words, plan["lines"].values())):
        return None
    if not (isinstance(env, dict) and _is_words([*env, *env.values()])):
        return None
    return plan


def _is_words(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(word, str) and "\0" not in word for word in value)


def _asked(plan: dict, line: str) -> int:  # type: ignore[type-arg]
    """Run a command line of the engine and return its exit code; one that takes too long is killed and counts as
    failed."""
    words = plan["lines"][line]
    nothing = os.open("/dev/null", os.O_RDWR)
    try:
        actions = [(os.POSIX_SPAWN_DUP2, nothing, target) for target in (0, 1, 2)]
        pid = os.posix_spawnp(words[0], words, plan["env"], file_actions=actions, setsigmask=())
    except OSError:
        return 127
    finally:
        os.close(nothing)
    deadline = time.monotonic() + PATIENCE_S
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() >= deadline:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return 127
        time.sleep(0.01)
