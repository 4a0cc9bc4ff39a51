"""The script that a pilot runs: it joins with a token from its environment, runs the agent, and ends what it started.

The token is in the variable ``YARD_JOIN_TOKEN``, never in the script or in a command line. On SIGTERM the stages are
asked to save and have the grace to do so; then the agent ends, and nothing is left.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any, Final

from controlplane.providers import typed
from controlplane.providers.engine import PilotOrder

TOKEN: Final = "YARD_JOIN_TOKEN"
# What an operator says of where an agent runs, for every kind that runs the script.
SETTINGS: Final[Mapping[str, typed.Check]] = {
    "python": typed.is_path,
    "path": typed.is_path,
    "state_below": typed.is_path,
    "grace_s": typed.is_number(0, 3_600),
    "plain_http": typed.is_flag,
    "run_as": typed.is_text(typed.NAME),
}
GRACE_S: Final = 30.0

_SCRIPT: Final = """#!/bin/sh
# Runs a pilot of Switchyard: an agent that lasts as long as this allocation.
umask 022
PATH=${{PATH:-/usr/local/bin:/usr/bin:/bin}}; export PATH
state=$(mktemp -d {below}/yard-pilot-XXXXXX) || exit 1
(umask 077 && printf '%s\\n' "${{YARD_JOIN_TOKEN:?}}" > "$state/join") || exit 1
unset YARD_JOIN_TOKEN
chmod 711 "$state"
{path}
leave() {{
    trap '' TERM INT USR1
    {python} -m agents stop-all --state "$state" --grace {grace}
    # The agent tells how the stages ended; then it goes.
    sleep 2
    kill -TERM "$agent" 2>/dev/null
    wait "$agent"
    rm -rf "$state"
    exit 0
}}
{python} -m agents {words} --state "$state" --join-token-file "$state/join" &
agent=$!
trap leave TERM INT USR1
wait "$agent"
code=$?
{python} -m agents stop-all --state "$state" --grace 1
rm -rf "$state"
exit $code
"""


def of(order: PilotOrder, given: Mapping[str, Any]) -> str:
    """Return the script of one pilot."""
    words = ["--url", order.url, "--name", order.node]
    if given.get("plain_http"):
        words.append("--plain-http")
    if given.get("run_as"):
        words += ["--run-as", given["run_as"]]
    for name, value in sorted(order.labels.items()):
        words += ["--labels", f"{name}={value}"]
    folder = given.get("path", "")
    return _SCRIPT.format(
        below=shlex.quote(given.get("state_below", "/tmp")),
        python=shlex.quote(given.get("python", "/usr/bin/python3")),
        path=f"PYTHONPATH={shlex.quote(folder)}; export PYTHONPATH" if folder else "",
        grace=f"{given.get('grace_s', GRACE_S):g}",
        words=shlex.join(words),
    )
