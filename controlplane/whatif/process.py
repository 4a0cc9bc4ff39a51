"""The process that answers people's questions to the engine: ``python -m controlplane.whatif.process SOCKET``.

It keeps the world between two questions, and ends after a while without questions. It yields to everything else on its
host: it runs at low CPU priority, and is the first to be killed if memory runs out.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
from multiprocessing.connection import Connection
from typing import Final

import django
import msgspec

from controlplane.whatif.messages import LONGEST_S, AskedQuestion

IDLE_S: Final = 300
# Limit of the address space; a world of ten thousand nodes takes less than 1 GiB.
MOST_BYTES: Final = 8 * 2**30


def main() -> int:
    """Answer questions from the socket with this descriptor until it closes or none come for a while."""
    line = Connection(int(sys.argv[1]))
    _yield_to_others()
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings")
    django.setup()
    from django.db import close_old_connections

    from controlplane.whatif.answers import keep_world, reply

    try:
        while line.poll(IDLE_S):
            asked = msgspec.json.decode(line.recv_bytes(), type=AskedQuestion)
            signal.alarm(LONGEST_S + 5)  # also if the worker that asked has gone
            line.send_bytes(msgspec.json.encode(reply(asked.name, asked.params, asked.language)))
            signal.alarm(0)
            keep_world()
            close_old_connections()
    except (EOFError, OSError):
        pass
    return 0


def _yield_to_others() -> None:
    os.nice(10)
    resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))
    try:
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write("800")
    except OSError:
        pass


if __name__ == "__main__":
    sys.exit(main())
