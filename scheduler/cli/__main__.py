"""The engine from the command line, without the record.

python -m scheduler.cli simulate TRACE --profile hybrid --nodes 8x8
python -m scheduler.cli compare TRACE --profiles static,dynamic,hybrid,fifo --nodes 8x8
python -m scheduler.cli replay ~/.switchyard/decisions --id 88213
python -m scheduler.cli diff ~/.switchyard/decisions --with dynamic --days 7
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from scheduler.cli import past, worlds


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; 0 when it worked, 1 where something came out otherwise than recorded, 2 with a sentence on
    stderr when it could not."""
    parser = argparse.ArgumentParser(prog="python -m scheduler.cli", description="The engine, without the record.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    worlds.add(commands)
    past.add(commands)
    args = parser.parse_args(argv)
    try:
        return int(args.run(args))
    except BrokenPipeError:
        return 0
    except (OSError, ValueError) as error:
        print(f"{error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
