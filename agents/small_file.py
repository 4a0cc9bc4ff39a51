"""Reads a small file with the fewest system calls. Standard library only: the shim imports it."""

import os

_PIECE = 65536


def content(path: str) -> bytes | None:
    """All of the file; None when it cannot be read, for whatever reason."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return None
    try:
        whole = piece = os.read(descriptor, _PIECE)
        # A file of /proc answers in pieces of a page, so a short answer alone is no end.
        while piece and (piece := os.read(descriptor, _PIECE)):
            whole += piece
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return whole
