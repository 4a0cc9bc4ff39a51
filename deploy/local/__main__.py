"""``python -m deploy.local up | demo | sign-in | backup``: see :mod:`deploy.local`."""

from __future__ import annotations

import argparse
import sys


def main() -> int:
    """Dispatch to the command."""
    if sys.argv[1:2] == ["keep"]:
        from deploy.local import keeper

        return keeper.main(sys.argv[2:])
    from deploy.local import up

    parser = argparse.ArgumentParser(prog="switchyard", description="The whole of Switchyard on this machine.")
    commands = parser.add_subparsers(dest="command", required=True)
    up_parser = commands.add_parser("up", help="start the stack and keep it until Ctrl-C")
    up.add_options(up_parser)
    demo_parser = commands.add_parser("demo", help="start the stack, run the example fine-tune and show it")
    up.add_options(demo_parser)
    demo_parser.add_argument("--exit", action="store_true", help="stop after the job and exit with the job's code")
    sign_in_parser = commands.add_parser("sign-in", help="print a new sign-in link of the stack that runs")
    sign_in_parser.add_argument("user", nargs="?", default="admin", help="who signs in by it (default: %(default)s)")
    backup_parser = commands.add_parser("backup", help="back up the stack that runs: the same as manage.py backup")
    backup_parser.add_argument("words", nargs=argparse.REMAINDER, metavar="FOLDER [OPTION...]")
    arguments = parser.parse_args()
    if arguments.command == "backup":
        from deploy.local import backup

        return backup.main(arguments.words)
    if arguments.command == "sign-in":
        from deploy.local import sign_in

        return sign_in.main(arguments.user)
    if arguments.command == "demo":
        from deploy.local import demo

        return demo.main(arguments)
    return up.main(arguments)


if __name__ == "__main__":
    sys.exit(main())
