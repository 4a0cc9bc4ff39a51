"""JSON and signals for the shim, from the parts of the standard library that are written in C.

The modules ``json`` and ``signal`` also import regular expressions and enumerations, which would be a megabyte in every
shim. An interpreter without these C parts uses the whole modules, and so does a value that is not plain.
"""

TYPE_CHECKING = False  # that of ``typing`` would cost more than it tells here
if TYPE_CHECKING:
    import signal
    from collections.abc import Callable
    from json.encoder import encode_basestring_ascii as _quoted
    from typing import Any

    make_scanner: Callable[[object], Callable[[str, int], tuple[Any, int]]] | None
else:
    try:
        import _signal as signal
        from _json import encode_basestring_ascii as _quoted
        from _json import make_scanner
    except ImportError:
        import signal
        from json.encoder import encode_basestring_ascii as _quoted

        make_scanner = None

__all__ = ["dumps", "loads", "number", "signal", "signal_name"]


class _Context:
    """The attributes that the C scanner reads from its decoder."""

    strict = True
    object_hook = None
    object_pairs_hook = None
    parse_float = float
    parse_int = int
    parse_constant = float
    memo: dict = {}  # type: ignore[type-arg]  # the scanner's own, empty between two calls


_scan = make_scanner(_Context()) if make_scanner is not None else None


def loads(text: bytes) -> "Any":
    """Return the value of a JSON text in UTF-8. Raises ValueError if it is none."""
    try:
        whole = text.decode().strip(" \t\n\r")
        if _scan is None:
            import json

            return json.loads(whole)
        value, end = _scan(whole, 0)
    except (StopIteration, ValueError, RecursionError, SystemError):
        # SystemError: up to Python 3.11 the scanner wants the exception of ``json``, which nobody has loaded here.
        raise ValueError("not JSON") from None
    if end != len(whole):
        raise ValueError("not JSON alone: something follows it")
    return value


def dumps(value: "Any") -> str:
    """Return the JSON text of a value, in ASCII and without line breaks."""
    kind = type(value)
    if kind is str:
        return _quoted(value)
    if value is None:
        return "null"
    if kind is bool:
        return "true" if value else "false"
    if kind is int:
        return repr(value)
    if kind is dict and all(type(name) is str for name in value):
        return "{" + ", ".join([f"{_quoted(name)}: {dumps(each)}" for name, each in value.items()]) + "}"
    if kind is list or kind is tuple:
        return "[" + ", ".join([dumps(each) for each in value]) + "]"
    if kind is float and value - value == 0:
        return repr(value)
    import json

    return json.dumps(value)


def number(value: object, otherwise: float) -> float:
    """Return the value if it is a number from 0 to a century of seconds or a petabyte, else ``otherwise``.

    Where agent and job are the same user, a job can write files that only the agent should write.
    """
    if isinstance(value, int | float) and 0 <= value <= 1 << 50:
        return float(value)
    return otherwise


def signal_name(number: int) -> str:
    """Return the name of a signal; of several names the first in the alphabet, which is the usual one."""
    names = [name for name, value in vars(signal).items() if name.startswith("SIG") and value == number]
    return min((name for name in names if "_" not in name), default=f"signal {number}")
