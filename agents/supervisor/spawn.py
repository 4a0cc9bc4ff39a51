"""Forks a child directly into its control group. Standard library only: the shim imports it.

Moving a running process between groups of cgroup v2 waits for the kernel's other cores, 15 ms and more on an idle host.
A child that starts in its group (``clone3`` with CLONE_INTO_CGROUP, Linux 5.7) does not wait.
"""

import ctypes
import os

from agents.isolation import cgroup
from agents.supervisor.lean import signal

_CLONE3 = 435
_INTO_CGROUP = 0x200000000
# PyDLL keeps the interpreter's lock over the call, so that the child comes back holding it.
_libc = ctypes.PyDLL(None, use_errno=True)


def fork(groups: dict[str, str]) -> int:
    """Call ``os.fork`` with the child in ``groups``. Only for a process with one thread. Raises OSError."""
    pid = _clone_into(groups[cgroup.UNIFIED]) if cgroup.UNIFIED in groups else None
    others = groups
    if pid is None:
        pid = os.fork()
    else:
        others = {name: folder for name, folder in groups.items() if name != cgroup.UNIFIED}
    if pid == 0:
        try:
            cgroup.join(others)
        except OSError:
            # Then the family is found without its groups; a child must not raise into its parent's code.
            pass
    return pid


def _clone_into(group: str) -> int | None:
    """Return the child's pid (0 in the child); None if the kernel, or a seccomp filter, does not offer the call."""
    try:
        folder = os.open(group, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return None
    try:
        # struct clone_args: flags, pidfd, child_tid, parent_tid, exit_signal, stack, stack_size, tls, set_tid,
        # set_tid_size, cgroup
        arguments = (ctypes.c_uint64 * 11)(_INTO_CGROUP, 0, 0, 0, signal.SIGCHLD, 0, 0, 0, 0, 0, folder)
        pid = int(_libc.syscall(_CLONE3, ctypes.byref(arguments), ctypes.sizeof(arguments)))
    finally:
        os.close(folder)
    return pid if pid >= 0 else None
