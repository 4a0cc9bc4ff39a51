"""Reads a small file with few system calls. Standard library only: the shim imports it.

A pipe, a link or an endless file in its place does not make the reader block, follow it or use memory.
"""

import os

_PIECE = 65536
_MOST = 16 << 20
_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK


def content(path: str) -> bytes | None:
    """Return the whole file; None if it cannot be read for any reason, or is not small."""
    try:
        descriptor = os.open(path, _FLAGS)
    except OSError:
        return None
    try:
        pieces = [os.read(descriptor, _PIECE)]
        size = len(pieces[0])
        # A file of /proc answers in pieces of a page, so a short answer alone is no end.
        while pieces[-1] and size <= _MOST:
            pieces.append(os.read(descriptor, _PIECE))
            size += len(pieces[-1])
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return b"".join(pieces) if size <= _MOST else None
