"""The shim: one small process per part that starts the user's command, supervises it and records how it ended.

It runs without the agent: the order is in ``order.json`` of the part's folder, and so are its reports (``taken``,
``exit.json``, the logs). Standard library only, and little of it, because there is one shim per part. A shim whose part
has ended with all its processes may serve another part: see :mod:`agents.supervisor.fork_server`.

Renaming the order to ``taken`` is the at-most-once lock: the process that does it decides whether the command ever
runs. The shim keeps the agent's user; only the command drops privileges, so a job cannot kill its supervisor on a host
where the agent is root.
"""

import os
import sys

from agents.isolation.prctl import CHILD_SUBREAPER, DUMPABLE, prctl
from agents.supervisor import procfs
from agents.supervisor.lean import signal
from agents.supervisor.life import Life
from agents.supervisor.record import claim
from agents.supervisor.secret_file import take


class Shim:
    """This process. It serves one part at a time, and keeps its signal handlers and its name between parts."""

    def __init__(self) -> None:
        self.born = procfs.start_time(os.getpid())
        self.life: Life | None = None
        try:
            prctl(DUMPABLE, 0)
        except OSError:
            pass
        prctl(CHILD_SUBREAPER, 1)
        self.wake, writer = os.pipe()
        os.set_blocking(self.wake, False)
        os.set_blocking(writer, False)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        signal.signal(signal.SIGTERM, self._note_shutdown)
        # Caught, not ignored: the command would inherit ignored signals, while handlers are reset by exec.
        for number in _CAUGHT:
            signal.signal(number, _do_nothing)

    def _note_shutdown(self, *_: object) -> None:
        if self.life is None:
            os._exit(0)
        self.life.host_goes_down = True

    def serve(self, folder: str, given: "dict[str, str] | None" = None) -> None:
        """Run the part whose order is in ``folder``, unless another process has claimed it; ``given`` are variables
        that its command gets beside those of its order."""
        who = {"pid": os.getpid(), "born": self.born}
        claimed = claim(folder, who)
        if claimed is None:
            return
        record, order = claimed
        if given:
            order = {**order, "env": {**given, **order["env"]}}
        if secrets := order.get("secret_file"):
            # Read now: its content is on no disk, and from now on in no file.
            told = take(secrets)
            order = {**order, "secrets": (told or {}).get("mask", ()), "is_incomplete": told is None}
            order["env"] = {**order["env"], **(told or {}).get("env", {})}
        self.life = Life(folder, order, who, record, self.wake)
        self.life.live()
        self.life = None


_CAUGHT = (
    signal.SIGCHLD,
    signal.SIGUSR1,
    signal.SIGINT,
    signal.SIGHUP,
    signal.SIGUSR2,
    signal.SIGPIPE,
    signal.SIGXFSZ,
)


def _do_nothing(*_: object) -> None:
    """Do nothing: arrived signals are read from the wake pipe."""


if __name__ == "__main__":
    Shim().serve(sys.argv[1])
