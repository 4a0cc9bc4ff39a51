"""One place where what a stranger wrote comes in. Imports nothing, for the shim's are tried with the shim's imports."""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class Door:
    """``take`` reads one input as the product does. ``declared`` are the errors by which it may refuse one; any other
    that comes out of it would have ended who reads, and counts as a death. ``seeds`` are good inputs."""

    def __init__(
        self,
        seeds: "Sequence[bytes]",
        take: "Callable[[bytes], object]",
        declared: "tuple[type[BaseException], ...]" = (),
    ) -> None:
        self.seeds = seeds
        self.take = take
        self.declared = declared


def write(path: str, content: bytes) -> None:
    """Put an input where it is read."""
    import os

    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        while content:
            content = content[os.write(descriptor, content) :]
    finally:
        os.close(descriptor)
