"""Lists one simulated annealer, as a command for the agent. It is busy while a solver keeps its mark fresh."""

import json
import os
import socket
import time

MARK = os.environ.get("QUBO_MARK", "/tmp/switchyard-example-annealer")  # not TMPDIR: each stage has its own
IDLE_W, BUSY_W = 12.0, 25.0


def is_busy() -> bool:
    """Whether a solver touched the mark within the last seconds."""
    try:
        return time.time() - os.stat(MARK).st_mtime < 3.0
    except OSError:
        return False


def main() -> None:
    busy = is_busy()
    annealer = {
        "uuid": f"example-annealer-{socket.gethostname()}-0",
        "kind": "qpu",
        "vendor": "example",
        "model": "Example Annealer 128",
        "index": 0,
        "simulated": True,
        "memory_bytes": 1 << 20,
        "features": {"variables": 128.0, "watts": BUSY_W},
        "utilisation": 0.97 if busy else 0.0,
        "power_w": BUSY_W if busy else IDLE_W,
    }
    print(json.dumps({"devices": [annealer]}))


if __name__ == "__main__":
    main()
