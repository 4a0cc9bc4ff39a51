"""The options of a function, and the service file that they make: a function is a service with our server in it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from typing import Any, Final

from controlplane.services.file import MOST_REPLICAS

MOST_AT_ONCE: Final = 64
MOST_IN_A_BATCH: Final = 256
LONGEST_WAIT_MS: Final = 10_000
LONGEST_S: Final = 900
MOST_TRIES: Final = 10
LONGEST_IDLE_S: Final = 30 * 86_400
LARGEST_EVENT: Final = "6MiB"
FILE: Final = re.compile(r"(?!.*\.\.)[A-Za-z0-9_][A-Za-z0-9_./-]{0,150}\.py")
# By name: the least, the most, and what holds where nothing is said.
NUMBERS: Final[Mapping[str, tuple[int, int, int]]] = {
    "concurrency": (1, MOST_AT_ONCE, 1),
    "batch": (1, MOST_IN_A_BATCH, 1),
    "max_wait_ms": (0, LONGEST_WAIT_MS, 10),
    "timeout_s": (1, LONGEST_S, 30),
    "tries": (1, MOST_TRIES, 3),
    "min": (0, MOST_REPLICAS, 0),
    "max": (1, MOST_REPLICAS, 4),
    "idle_s": (1, LONGEST_IDLE_S, 300),
}
# Beside the last folder of PYTHONPATH, which is the agent's, with what it gives to stages.
_RUN: Final = 'exec "${{FUNCTION_PYTHON:-python3}}" "${{PYTHONPATH##*:}}/switchyard/function.py" {file}'


def service_file(name: str, project: str, path: str, bundle: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the service file of a function whose code is ``path`` in a bundle."""
    at_once = options["concurrency"] * options["batch"]
    given = dict(options.get("template") or {})
    env = given.get("env") or {}
    own = {
        "FUNCTION_CONCURRENCY": str(options["concurrency"]),
        "FUNCTION_BATCH": str(options["batch"]),
        "FUNCTION_MAX_WAIT_MS": str(options["max_wait_ms"]),
        "FUNCTION_TIMEOUT_S": str(options["timeout_s"]),
    }
    template = {
        "time_limit": "7d",
        "cpus": 0.1,
        "memory": "128MiB",
        **given,
        "bundle": bundle,
        "run": _RUN.format(file=shlex.quote(path)),
        "env": {**env, **own} if isinstance(env, dict) else env,
    }
    return {
        "name": name,
        **({"project": project} if project else {}),
        "replicas": {"min": options["min"], "max": options["max"]},
        "target": {"requests": at_once, "idle": f"{options['idle_s']}s"},
        "limits": {
            "concurrency": at_once,
            "body": LARGEST_EVENT,
            # A handler's own end comes first: what the router ends is not told from a replica that failed.
            "first_byte": f"{options['timeout_s'] + options['max_wait_ms'] / 1000 + 5:g}s",
        },
        "drain": f"{options['timeout_s'] + 5}s",
        "template": template,
    }
