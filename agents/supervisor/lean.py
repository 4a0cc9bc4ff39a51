"""JSON and signals for the shim, from the halves of the standard library that are written in C.

What ``json`` and ``signal`` bring along besides, regular expressions and enumerations, would be a megabyte of every
shim. An interpreter without such halves gets the whole modules, and so does a value that is not plain.
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
    """What the scanner asks of its decoder: plain values."""

    strict = True
    object_hook = None
    object_pairs_hook = None
    parse_float = float
    parse_int = int
    parse_constant = float
    memo: dict = {}  # type: ignore[type-arg]  # the scanner's own, empty between two calls


_scan = make_scanner(_Context()) if make_scanner is not None else None


def loads(text: bytes) -> "Any":
    """The value of a JSON text in UTF-8. Raises ValueError where it is none."""
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
    """The JSON text of a value, in ASCII and without a line break."""
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
    """A number that is none below zero and no more than a century of seconds or a petabyte; ``otherwise`` for the rest.

    Where agent and job are one user, a job may write what only the agent should.
    """
    if isinstance(value, int | float) and 0 <= value <= 1 << 50:
        return float(value)
    return otherwise


def signal_name(number: int) -> str:
    """The name of a signal, for people; of several, the first in the alphabet, which is the usual one."""
    names = [name for name, value in vars(signal).items() if name.startswith("SIG") and value == number]
    return min((name for name in names if "_" not in name), default=f"signal {number}")
