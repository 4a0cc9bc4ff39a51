"""``yard sim``: simulates a trace, the history or the present queue under other profiles, beside the cluster."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from switchyard.cli import clean, exits, output, units
from switchyard.cli.connection import connect
from switchyard.cli.output import Column, Row
from switchyard.problem import UsageError

if TYPE_CHECKING:
    import argparse

    from switchyard.client import Client

EXAMPLES = """
  yard sim run --queue --pool default --profiles hybrid,fifo     what waits now, on the nodes of the pool
  yard sim run week.csv --nodes 8x8:H100 --profiles hybrid,fifo --loads 1,1.2 --seeds 3
  yard sim run --history 7 --detach && yard sim                  the last week; then the list, with its number
"""
VERBS: Final = ("list", "run", "show", "watch", "cancel")
PHASES: Final = {"DONE": exits.OK, "CANCELLED": exits.GONE}
LARGEST_BYTES: Final = 15 << 20
_SETTINGS: Final = (
    "queue",
    "history",
    "jobs",
    "pool",
    "nodes",
    "profiles",
    "loads",
    "seeds",
    "error",
    "name",
    "detach",
)


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("verb", nargs="?", choices=VERBS, default="list", help="list is the default")
    parser.add_argument(
        "what",
        nargs="?",
        default="",
        help="for run: a trace (CSV, SWF, JSON lines) or a scenario (.yaml, .json); for the others: its number",
    )
    group = parser.add_argument_group("what to simulate")
    group.add_argument("--queue", action="store_true", help="what runs and waits now, as if submitted at once")
    group.add_argument("--history", type=float, metavar="DAYS", help="the stages that were completed of late")
    group.add_argument("--jobs", type=int, metavar="N", help="so many made up stages")
    group.add_argument("--pool", help="only stages of this pool, on its nodes unless --nodes tells others")
    group.add_argument("--nodes", metavar="NxG[:MODEL],..", help="the nodes and their accelerators: 8x8:H100,4x8:A100")
    group.add_argument("--profiles", metavar="A,B", help="the profiles to compare; also own ones, as name or name@3")
    group.add_argument("--loads", metavar="X,Y", help="how much faster it arrives: 1,1.2")
    group.add_argument("--seeds", type=int, metavar="N", help="so many worlds of each, with other dice")
    group.add_argument("--error", type=float, metavar="SIGMA", help="how wrong predictions are; 0 knows the truth")
    group.add_argument("--name", help="what it is called")
    group.add_argument("-d", "--detach", action="store_true", help="print its number and let it go on")
    output.options(parser)


def run(args: argparse.Namespace) -> int:
    if fault := _fault(args):
        raise UsageError(fault)
    with connect(args) as client:
        if args.verb == "list":
            output.many(args, client.simulations.list(), LISTED, name=lambda one: one["id"])
            return exits.OK
        if args.verb == "run":
            begun = client.simulations.create(_scenario(args))
            if args.detach:
                output.one(args, begun, lambda: [str(begun["id"])], name=begun["id"])
                return exits.OK
            return _watch(args, client, int(begun["id"]))
        number = int(args.what)
        if args.verb == "watch":
            return _watch(args, client, number)
        if args.verb == "show":
            return _show(args, client.simulations.get(number))
        ended = client.simulations.cancel(number)
        output.one(args, ended, lambda: [f"simulation {number} is being cancelled"], name=number)
        return exits.OK


def _fault(args: argparse.Namespace) -> str:
    """Return what is missing or too much, or an empty text."""
    if args.verb in ("show", "watch", "cancel") and not args.what.isdecimal():
        return f"say which simulation by its number: yard sim {args.verb} 3; yard sim lists them"
    if args.verb == "list" and args.what:
        return f"yard sim list takes no {args.what!r}; yard sim show takes a number"
    if args.verb == "run":
        sources = [args.queue, args.history is not None, args.jobs is not None, bool(args.what)]
        return "" if sum(sources) == 1 else "give one of: a file, --queue, --history DAYS, --jobs N"
    if any(getattr(args, name) for name in _SETTINGS):
        return f"yard sim {args.verb} takes no settings; yard sim run does"
    return ""


def _scenario(args: argparse.Namespace) -> dict[str, Any]:
    """Return the scenario of the command line, or that of a file with what the command line changes in it."""
    of_pool = {"pool": args.pool} if args.pool else {}
    found: dict[str, Any] = {}
    if args.queue:
        found["trace"] = {"queue": of_pool}
    elif args.history is not None:
        found["trace"] = {"history": {"days": args.history, **of_pool}}
    elif args.jobs is not None:
        found["trace"] = {"generate": {"jobs": args.jobs}}
    elif Path(args.what).suffix in (".yaml", ".yml", ".json"):
        found = _of_file(Path(args.what))
    else:
        found["trace"] = _trace(Path(args.what))
    world = dict(found.get("world") or {})
    if args.nodes:
        world["nodes"] = args.nodes
    elif args.pool:
        world = {key: value for key, value in world.items() if key != "nodes"} | of_pool
    if args.error is not None:
        world["error"] = args.error
    told = {
        "name": args.name,
        "world": world or None,
        "profiles": [word.strip() for word in args.profiles.split(",")] if args.profiles else None,
        "loads": _numbers(args.loads) if args.loads else None,
        "seeds": list(range(args.seeds)) if args.seeds else None,
    }
    return found | {key: value for key, value in told.items() if value is not None}


def _of_file(path: Path) -> dict[str, Any]:
    """Return the scenario of a file, with the trace that lies beside it."""
    from switchyard import jobfile

    found = jobfile.parse(_text(path), str(path))
    trace = found.get("trace")
    if isinstance(trace, Mapping) and isinstance(trace.get("file"), str):
        # The file is sent away: a scenario of somebody else names none of yours.
        if Path(trace["file"]).is_absolute() or ".." in Path(trace["file"]).parts:
            raise UsageError(f"{path}: the file of its trace must lie beside it, not at {trace['file']}")
        found["trace"] = {**trace, **_trace(path.parent / trace["file"])}
        del found["trace"]["file"]
    return found


def _trace(path: Path) -> dict[str, Any]:
    return {"text": _text(path), **({"format": "swf"} if path.suffix == ".swf" else {})}


def _text(path: Path) -> str:
    try:
        if path.stat().st_size > LARGEST_BYTES:
            raise UsageError(f"{path} is larger than 15 MiB; give a part of it")
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UsageError(f"{path} is not UTF-8 text; unpack it first, if it is packed") from None


def _numbers(text: str) -> list[float]:
    try:
        return [float(word) for word in text.split(",")]
    except ValueError:
        raise UsageError(f"--loads takes numbers such as 1,1.2, not {text!r}") from None


def _watch(args: argparse.Namespace, client: Client, number: int) -> int:
    """Tell how far it is until it has ended, and then what came of it."""
    drawn = ""
    on_terminal = sys.stderr.isatty()

    def tell(one: Row) -> None:
        nonlocal drawn
        text = f"simulation {one['id']} {one['phase']}"
        if on_terminal:
            text += f" {one['progress']:4.0%} {clean.line(one.get('doing'))}"
        if text != drawn:
            print(
                f"\r\x1b[K{text}" if on_terminal else text, end="" if on_terminal else "\n", file=sys.stderr, flush=True
            )
        drawn = text

    try:
        found = client.simulations.wait(number, told=tell)
    except KeyboardInterrupt:
        print(f"\nit goes on; yard sim watch {number} waits for it, yard sim cancel {number} ends it", file=sys.stderr)
        return exits.INTERRUPTED
    if on_terminal and drawn:
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)
    return _show(args, found)


def _show(args: argparse.Namespace, found: Row) -> int:
    """Print what came of a simulation; return 1 if it failed, 8 if it was cancelled."""
    one, result = found["simulation"], found.get("result")
    if args.output in ("json", "jsonl", "yaml", "name") or not result:
        output.one(args, found, lambda: [_sentence(one)], name=one["id"])
    else:
        print(f"{_sentence(one)}; {_size(result)}; simulated", file=sys.stderr)
        for note in result.get("notes") or []:
            print(f"note: {clean.line(note)}", file=sys.stderr)
        output.many(args, result["summary"], RESULTS, name=lambda row: row["profile"])
    return PHASES.get(one["phase"], exits.FAILURE if one["phase"] == "FAILED" else exits.OK)


def _sentence(one: Row) -> str:
    text = f"simulation {one['id']} {clean.line(one['name'])}: {output.paint(one['phase'], sys.stderr)}"
    told = one.get("fault") or one.get("doing") if one["phase"] != "DONE" else ""
    return text + (f": {clean.line(told)}" if told else "")


def _size(result: Row) -> str:
    return f"{result['stages']} stages, {result['devices']} devices of {result['nodes']} nodes"


def _figure(name: str, show: Callable[[float], str]) -> Callable[[Row], str]:
    """Return what shows a figure, with how far one seed lies from the mean at most."""

    def of(row: Row) -> str:
        value, spread = row["figures"].get(name), (row.get("spread") or {}).get(name)
        if value is None:
            return ""
        return show(value) + (f" ±{show(spread)}" if spread and row.get("seeds", 1) > 1 else "")

    return of


def _plain(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")


def _names(one: Row) -> str:
    return ", ".join(one.get("profiles") or [])


RESULTS = (
    Column("PROFILE", lambda row: row["profile"]),
    Column("LOAD", lambda row: f"{row['load']:g}", right=True),
    Column("WAIT", _figure("wait_avg_s", units.span), right=True),
    Column("WAIT P95", _figure("wait_p95_s", units.span), right=True),
    Column("TO END", _figure("jct_avg_s", units.span), right=True),
    Column("MAKESPAN", _figure("makespan_s", units.span), right=True),
    Column("HELD", _figure("utilisation", units.percent), right=True),
    Column("PREEMPTED", _figure("preemptions", _plain), right=True),
    Column("FAIRNESS", _figure("jain", _plain), right=True),
    Column("COMPLETED", _figure("completed", _plain), right=True),
    Column("FAILED", _figure("failed", _plain), right=True, wide=True),
    Column("SLOWDOWN", _figure("slowdown_max", _plain), right=True, wide=True),
    Column("LOST", _figure("lost_device_s", units.span), right=True, wide=True),
    Column("PROMISES KEPT", _figure("promises_kept", units.percent), right=True, wide=True),
)
LISTED = (
    Column("ID", lambda one: one["id"], right=True),
    Column("SIMULATION", lambda one: one["name"]),
    Column("STATE", lambda one: one["phase"]),
    Column("DONE", lambda one: units.percent(one.get("progress")), right=True),
    Column("OF", lambda one: one.get("source")),
    Column("PROFILES", _names),
    Column("USER", lambda one: one.get("user")),
    Column("ASKED", lambda one: units.clock(one.get("created_at"))),
    Column("FAULT", lambda one: one.get("fault"), wide=True),
)
