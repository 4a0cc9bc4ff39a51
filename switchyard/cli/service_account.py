"""``yard service-account``: users for programs, each of one project; they act by tokens and cannot sign in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from switchyard.cli import clean, exits, output, token, units
from switchyard.cli.connection import connect
from switchyard.cli.output import Column, Row
from switchyard.problem import UsageError

if TYPE_CHECKING:
    import argparse

    from switchyard.client import Client

EXAMPLES = """
  yard service-account create ci@vision --role member --description "tests of the main branch"
  yard service-account make-token ci@vision nightly --days 30 > token.txt
  yard service-account disable ci@vision             its tokens are refused at once, its jobs go on
"""

_CHANGES: dict[str, dict[str, Any]] = {"enable": {"is_active": True}, "disable": {"is_active": False}, "change": {}}
_OF_TOKENS = ("make-token", "revoke-token")
_ACTIONS = ("list", "create", *_CHANGES, "delete", "tokens", *_OF_TOKENS)


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", nargs="?", default="list", choices=_ACTIONS)
    parser.add_argument("account", nargs="?", default="", help="NAME@PROJECT")
    parser.add_argument(
        "its_token",
        metavar="token",
        nargs="?",
        default="",
        help="for make-token its name; for revoke-token also its id",
    )
    parser.add_argument("--role", choices=("viewer", "member"), help="for create and change: its role in the project")
    parser.add_argument("--description", help="for create and change: what it is for")
    parser.add_argument(
        "--scope", action="append", choices=("read", "submit"), help="for make-token; may be repeated (read, submit)"
    )
    parser.add_argument("--days", type=int, help="for make-token: how long it is valid (90)")
    output.options(parser)


def run(args: argparse.Namespace) -> int:
    _check(args)
    with connect(args) as client:
        if args.action == "list":
            output.many(args, client.service_accounts.list(), COLUMNS, name=lambda one: one["name"])
        elif args.action == "tokens":
            output.many(args, client.service_accounts.tokens(args.account), token.COLUMNS, name=lambda one: one["name"])
        elif args.action in _OF_TOKENS:
            _token(args, client)
        elif args.action == "delete":
            client.service_accounts.delete(args.account)
            gone = {"name": args.account}
            output.one(args, gone, lambda: [clean.line(f"there is no {args.account} any more")], name=args.account)
        else:
            told = _made(args, client)
            output.one(args, told, lambda: [_line(told)], name=told["name"])
    return exits.OK


def _made(args: argparse.Namespace, client: Client) -> Row:
    given = {"role": args.role, "description": args.description}
    given = {name: value for name, value in given.items() if value is not None}
    if args.action == "create":
        name, _at, project = args.account.partition("@")
        return client.service_accounts.create(project, name, **given)
    return client.service_accounts.change(args.account, _CHANGES[args.action] | given)


def _token(args: argparse.Namespace, client: Client) -> None:
    accounts = client.service_accounts
    if args.action == "make-token":
        token.show_made(
            args, accounts.create_token(args.account, args.its_token, scopes=args.scope or (), days=args.days)
        )
        return
    gone = token.named(accounts.tokens(args.account), args.its_token)
    accounts.revoke_token(args.account, gone["id"])
    output.one(args, gone, lambda: [clean.line(f"token {gone['name']} is revoked")], name=gone["name"])


def _check(args: argparse.Namespace) -> None:
    """Refuse arguments that do not fit the action."""
    if (args.action == "list") == bool(args.account):
        said = f"say which one: yard service-account {args.action} NAME@PROJECT"
        raise UsageError("list takes no name" if args.account else said)
    if args.account and not all(args.account.partition("@")):
        raise UsageError(f"{args.account} is no NAME@PROJECT, such as ci@vision")
    if (args.action in _OF_TOKENS) != bool(args.its_token):
        said = f"say which token: yard service-account {args.action} {args.account} TOKEN"
        raise UsageError(f"{args.action} takes no token" if args.its_token else said)
    if args.action not in ("create", *_CHANGES) and (args.role or args.description is not None):
        raise UsageError("--role and --description are for create and change")
    if args.action == "change" and not (args.role or args.description is not None):
        raise UsageError("say what is to change: --role or --description")
    if args.action != "make-token" and (args.scope or args.days is not None):
        raise UsageError("--scope and --days are for make-token")


def _line(row: Row) -> str:
    state = "" if row["is_active"] else ", disabled"
    return clean.line(f"{row['name']} is {row['role'] or 'no member'} of project {row['project']}{state}")


COLUMNS = (
    Column("NAME", lambda one: one["name"]),
    Column("ROLE", lambda one: one["role"]),
    Column("ACTIVE", lambda one: "yes" if one["is_active"] else "no"),
    Column("TOKENS", lambda one: str(one["tokens"]), right=True),
    Column("LAST USED", lambda one: units.clock(one.get("last_used_at"))),
    Column("DESCRIPTION", lambda one: one["description"], wide=True),
    Column("CREATED", lambda one: units.clock(one["created_at"]), wide=True),
)
