"""Options that say when an entry of the calendar holds: once, or again and again."""

from __future__ import annotations

import argparse
from datetime import UTC, datetime, timedelta
from typing import Any

from switchyard.cli import spans
from switchyard.problem import UsageError


def options(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    begins = parser.add_mutually_exclusive_group()
    begins.add_argument("--from", dest="begins", metavar="TIME", type=moment, help="when it begins (now if not told)")
    begins.add_argument("--in", dest="wait_s", metavar="SPAN", type=spans.seconds, help="it begins so long from now")
    parser.add_argument(
        "--for", dest="lasts_s", metavar="SPAN", type=spans.seconds, help="how long it lasts, each time"
    )
    parser.add_argument("--cron", metavar="LINE", help='again at the times of this line, such as "0 3 * * 1"')
    parser.add_argument("--zone", metavar="ZONE", help="the time zone of --cron, such as Europe/Berlin (UTC)")
    parser.add_argument("--until", metavar="TIME", type=moment, help="no time of --cron after this one counts")


def moment(text: str) -> datetime:
    """Parse a date and time; without a zone it is this computer's. Raises ``ArgumentTypeError``."""
    try:
        return datetime.fromisoformat(text).astimezone()
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no date and time; write it like 2027-01-31T18:00:00Z or 2027-01-31T18:00"
        ) from None


def is_asked(args: argparse.Namespace) -> bool:
    """Return whether one of the options was given."""
    told = (args.lasts_s, args.begins, args.wait_s, args.cron, args.zone, args.until)
    return any(each is not None for each in told)


def entry(args: argparse.Namespace) -> dict[str, Any]:
    """Return when the entry holds, as the client takes it. Raises :class:`UsageError`."""
    if args.lasts_s is None:
        raise UsageError("it needs --for, how long it lasts")
    begins = args.begins or datetime.now(UTC) + timedelta(seconds=args.wait_s or 0.0)
    if args.cron is None:
        if args.until is not None or args.zone is not None:
            raise UsageError("--until and --zone go with --cron")
        return {"starts_at": begins, "ends_at": begins + timedelta(seconds=args.lasts_s)}
    if args.until is None:
        raise UsageError("what recurs needs --until, when it is over")
    recurs = {"cron": args.cron, "time_zone": args.zone or "UTC", "lasts_s": int(args.lasts_s)}
    return {"starts_at": begins, "ends_at": args.until, **recurs}


def changes(args: argparse.Namespace) -> dict[str, Any]:
    """Return what is to change of an entry: all of its times if one of them is told, and the reason if it is."""
    times = entry(args) if is_asked(args) else {}
    if times and args.cron is None:
        times |= {"cron": "", "lasts_s": None}
    return times | ({"reason": args.reason} if args.reason.strip() else {})
