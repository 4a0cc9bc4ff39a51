"""Parts that are forked from the keeper, with their shared libraries already loaded.

Unwritten memory pages exist once for all parts, and a part starts in half the time. The keeper must have one thread:
locks held by other threads at the time of a fork would stay locked in the child.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import importlib
import os
import runpy
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import NoReturn

from setproctitle import setproctitle

# Modules that at least two parts import, and that can be imported before Django's settings are known.
LIBRARIES = (
    "agents.protocol",
    "celery.app.amqp",
    "celery.app.trace",
    "celery.beat",
    "celery.concurrency.thread",
    "celery.contrib.django.task",
    "celery.fixups.django",
    "celery.worker.consumer",
    "channels.routing",
    "channels_redis.core",
    "cryptography.x509",
    "django.contrib.admin",
    "django.contrib.auth.hashers",
    "django.contrib.auth.password_validation",
    "django.contrib.postgres.fields",
    "django.core.cache.backends.redis",
    "django.core.handlers.asgi",
    "django.db.backends.postgresql.base",
    "django.db.migrations.executor",
    "django.db.migrations.migration",
    "django.forms",
    "django.views.generic",
    "django_filters",
    "kombu.transport.redis",
    "msgspec.json",
    "numpy",
    "redis.asyncio",
    "requests",
    "scheduler.core.planning.engine",
    "scheduler.decisions.difference",
    "scheduler.predict.lateness",
    "scheduler.predict.starts",
    "scheduler.scenario.arrivals",
    "smtplib",
    "uvicorn.main",
    "uvicorn.protocols.http.httptools_impl",
    "uvicorn.protocols.websockets.websockets_sansio_impl",
    "yaml",
)
PR_SET_DUMPABLE = 4


@cache
def load() -> None:
    """Import the shared libraries, once, and exempt them from garbage collection, which would copy their pages."""
    gc.disable()
    for name in LIBRARIES:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    gc.enable()


class Forked:
    """A child of this process that runs a module like ``python -m``; used like :class:`subprocess.Popen`.

    ``words`` are the module and its arguments, and ``title`` is its name in lists of processes. The process leads its
    own group, runs with ``environment`` alone, and writes to the descriptor ``log``. ``tie`` is called in it first: it
    changes the user of the process, and ties its life to this one.
    """

    def __init__(
        self, title: str, words: Sequence[str], environment: Mapping[str, str], log: int, tie: Callable[[], None]
    ) -> None:
        self.returncode: int | None = None
        # Until the child has handlers of its own, a signal for it would be lost in those of this process.
        unblocked = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            self.pid = os.fork()
            if self.pid == 0:
                _run(title, words, environment, log, tie, unblocked)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, unblocked)

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the process is known to have ended."""
        if self.returncode is None:
            os.kill(self.pid, number)

    def wait(self) -> int:
        """Wait for the end; return the exit status (negative: a signal)."""
        if self.returncode is None:
            self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.returncode


def _run(
    title: str,
    words: Sequence[str],
    environment: Mapping[str, str],
    log: int,
    tie: Callable[[], None],
    unblocked: Iterable[int],
) -> NoReturn:
    """Run the child, from the fork to its end; never returns into the keeper's code."""
    status = 1
    try:
        os.setpgid(0, 0)
        null = os.open(os.devnull, os.O_RDONLY)
        for descriptor, source in enumerate((null, log, log)):
            os.dup2(source, descriptor)
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))  # also the lock of the state folder, which the keeper alone holds
        signal.set_wakeup_fd(-1)
        tie()
        ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)  # cleared with the change of user: /proc/self is root's
        # Python's defaults at its start.
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, unblocked)
        setproctitle(title)  # finds its place by the environment that the process began with
        os.environ.clear()
        os.environ.update(environment)
        sys.pycache_prefix = environment.get("PYTHONPYCACHEPREFIX")
        sys.dont_write_bytecode = bool(environment.get("PYTHONDONTWRITEBYTECODE"))
        os.chdir("/")  # no job can put anything there
        sys.argv = list(words)
        runpy.run_module(words[0], run_name="__main__", alter_sys=True)
        status = 0
    except SystemExit as end:
        status = _status(end.code)
    except BaseException:  # noqa: BLE001  as the interpreter does
        traceback.print_exc()
    finally:
        try:
            # What the interpreter does at its end.
            threading._shutdown()  # type: ignore[attr-defined]
            atexit._run_exitfuncs()
            sys.stdout.flush()
        finally:
            os._exit(status)


def _status(code: object) -> int:
    """Return the exit status for the argument of ``SystemExit``."""
    if code is None or isinstance(code, int):
        return (code or 0) & 0xFF
    print(code, file=sys.stderr)
    return 1
