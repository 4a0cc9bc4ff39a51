"""Calls ``prctl``, which sets options of the calling process. Standard library only: the shim imports it."""

import ctypes
import os

PDEATHSIG = 1
DUMPABLE = 4
CHILD_SUBREAPER = 36
NO_NEW_PRIVS = 38
libc = ctypes.CDLL(None, use_errno=True)


def prctl(option: int, value: int) -> None:
    """Set one option. Raises OSError when the kernel refuses."""
    if libc.prctl(option, value, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
