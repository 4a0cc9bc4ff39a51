"""``yard completion``: prints a completion script for bash, zsh or fish, and the names that these scripts ask for."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from switchyard.cli import exits
from switchyard.cli.verbs import SUMMARY
from switchyard.problem import UsageError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator
    from pathlib import Path

    from switchyard.client import Client

EXAMPLES = """
  source <(yard completion bash)            for this shell; zsh the same
  yard completion bash > ~/.local/share/bash-completion/completions/yard
  yard completion fish > ~/.config/fish/completions/yard.fish
"""

NAMES: Final = {
    **dict.fromkeys(("job", "jobs"), "jobs"),
    "node": "nodes",
    **dict.fromkeys(("project", "default_project"), "projects"),
    "pool": "pools",
}
"""Which names an argument takes, by what it is called."""

PATIENCE_S: Final = 1.0
KEPT_S: Final = 10.0
MOST: Final = 200
_SAFE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=("bash", "zsh", "fish"), nargs="?")
    parser.add_argument(
        "--names",
        choices=tuple(dict.fromkeys(NAMES.values())),
        help="print such names, one a line, as the scripts ask for them: within a second, or none",
    )


def run(args: argparse.Namespace) -> int:
    if args.names:
        print("".join(f"{name}\n" for name in names(args)), end="")
        return exits.OK
    if args.shell is None:
        raise UsageError("say for which shell: bash, zsh or fish")
    print({"bash": _bash, "zsh": _zsh, "fish": _fish}[args.shell]())
    return exits.OK


# Names, while somebody holds a key down


def names(args: argparse.Namespace) -> list[str]:
    """Return names of one kind: from the last seconds, or from the control plane if it answers soon; else none."""
    import threading
    import time

    from switchyard import address
    from switchyard.problem import SwitchyardError

    try:
        found = address.find(args.url, args.token, profile=args.profile)
    except (SwitchyardError, address.ConfigError, OSError):
        return []
    kept = _kept(found.url, found.token, args.names)
    try:
        if 0 <= time.time() - kept.stat().st_mtime < KEPT_S:
            return safe(kept.read_text(encoding="utf-8").splitlines())
    except (OSError, ValueError):
        pass
    told: list[str] = []

    def ask() -> None:
        from switchyard.client import Client

        try:
            with Client(found.url, found.token, timeout_s=PATIENCE_S, tries=1) as client:
                told.extend(safe(_ask(client, args.names)))
        except Exception:  # noqa: BLE001 - nobody reads an error between two keys
            return
        _keep(kept, told)

    # What hangs in a name server or a slow answer is left behind when this process ends.
    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(PATIENCE_S)
    return [] if asking.is_alive() else told


def _ask(client: Client, kind: str) -> Iterator[object]:
    if kind == "jobs":
        yield from (job.number for job in client.jobs.list(user="me", limit=50))
    elif kind == "nodes":
        yield from (node["name"] for node in client.nodes.list())
    elif kind == "projects":
        yield from (project["name"] for project in client.projects.list())
    else:
        yield from (pool["name"] for pool in client.pools())


def safe(found: Iterator[object] | list[str]) -> list[str]:
    """Return the first names that mean nothing to a shell: bash expands what is completed."""
    from itertools import islice

    return list(islice((str(name) for name in found if _SAFE.fullmatch(str(name))), MOST))


def _kept(url: str, token: str, kind: str) -> Path:
    """Return where the names of a kind are kept, for one address and one token."""
    import os
    from hashlib import sha256
    from pathlib import Path

    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "yard" / f"{kind}-{sha256(f'{url} {token}'.encode()).hexdigest()[:16]}"


def _keep(kept: Path, told: list[str]) -> None:
    """Write names into a file of their own and move it into its place, so that nobody reads half of it."""
    import os

    try:
        kept.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        new = kept.with_suffix(f".{os.getpid()}")
        new.write_text("".join(f"{name}\n" for name in told), encoding="utf-8")
        new.replace(kept)
    except OSError:
        # A home that cannot be written to: the next key asks again.
        return


# Scripts


def _actions(verb: str) -> list[argparse.Action]:
    from switchyard.cli.main import parser_of

    return parser_of(verb)._actions


def words() -> dict[str, list[str]]:
    """Return the options of every verb."""
    return {name: sorted({o for a in _actions(name) for o in a.option_strings}) for name in SUMMARY}


def values(verb: str) -> Iterator[tuple[tuple[str, ...], str, tuple[str, ...]]]:
    """Yield what the arguments of a verb take: their options (none: a positional), a kind of names, or a choice."""
    for action in _actions(verb):
        kind = NAMES.get(action.dest, "") if action.nargs != 0 else ""
        chosen = tuple(str(each) for each in action.choices or () if each is not None)
        if kind or chosen:
            yield tuple(action.option_strings), kind, chosen


def _cases(form: str) -> tuple[str, str]:
    """Return the cases for values of options and for positionals, as lines of a shell's ``case``; ``form`` sets
    ``options`` to words."""
    after: list[str] = []
    plain: list[str] = []
    for verb in SUMMARY:
        for flags, kind, chosen in values(verb):
            pattern = "|".join(f"{verb}:{flag}" for flag in flags) or verb
            does = f"names={kind}" if kind else form.format(" ".join(chosen))
            (after if flags else plain).append(f"    {pattern}) {does} ;;")
    return "\n".join(after), "\n".join(dict.fromkeys(plain))


def _bash() -> str:
    cases = "\n".join(f"    {name}) options={' '.join(own)!r} ;;" for name, own in words().items())
    after, plain = _cases("options={!r}")
    return f"""_yard() {{
  local current=${{COMP_WORDS[COMP_CWORD]}} previous=${{COMP_WORDS[COMP_CWORD-1]}} verb= word options= names= value=
  for word in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
    case $word in --) return ;; -*) ;; *) verb=$word; break ;; esac
  done
  case $verb in
    "") options={" ".join(SUMMARY)!r} ;;
{cases}
  esac
  case $verb:$previous in
{after}
    *) value=no ;;
  esac
  if [[ $value == no && $current != -* ]]; then
    case $verb in
{plain}
    esac
  fi
  [[ -z $names ]] || options=$(yard completion --names "$names" 2>/dev/null)
  COMPREPLY=($(compgen -W "$options" -- "$current"))
}}
complete -o default -F _yard yard"""


def _zsh() -> str:
    verbs = "\n".join(f"    {name + ':' + text!r}" for name, text in SUMMARY.items())
    cases = "\n".join(f"    {name}) options=({' '.join(own)}) ;;" for name, own in words().items())
    after, plain = _cases("options=({})")
    return f"""#compdef yard
_yard() {{
  local -a verbs options
  local names= value=
  verbs=(
{verbs}
  )
  if (( CURRENT == 2 )); then
    _describe verb verbs
    return
  fi
  case $words[2] in
{cases}
  esac
  case $words[2]:$words[CURRENT-1] in
{after}
    *) value=no ;;
  esac
  if [[ $value == no ]]; then
    if [[ $PREFIX == -* ]]; then
      compadd -a options
      return
    fi
    options=()
    case $words[2] in
{plain}
    esac
  fi
  if [[ -n $names ]]; then
    options=(${{(f)"$(yard completion --names $names 2>/dev/null)"}})
  fi
  if (( $#options )); then compadd -a options; elif [[ -z $names ]]; then _files; fi
}}
if [[ $funcstack[1] == _yard ]]; then _yard "$@"; else compdef _yard yard; fi"""


def _fish() -> str:
    lines = [f"complete -c yard -f -n __fish_use_subcommand -a {name} -d {_quoted(SUMMARY[name])}" for name in SUMMARY]
    for verb in SUMMARY:
        inside = f"complete -c yard -n '__fish_seen_subcommand_from {verb}'"
        for action in _actions(verb):
            if not action.option_strings:
                continue
            flags = " ".join(f"-l {f[2:]}" if f.startswith("--") else f"-s {f[1:]}" for f in action.option_strings)
            text = _quoted(action.help or "")
            takes = "" if action.nargs == 0 else f" -x -a {_fish_words(action)}" if _fish_words(action) else " -r"
            lines.append(f"{inside} {flags}{takes} -d {text}")
        for flags_, kind, chosen in values(verb):
            if not flags_:
                lines.append(f"{inside} -f -a {_fish_list(kind, chosen)}")
    return "\n".join(lines)


def _fish_words(action: argparse.Action) -> str:
    kind = NAMES.get(action.dest, "")
    return _fish_list(kind, tuple(str(each) for each in action.choices or ())) if kind or action.choices else ""


def _fish_list(kind: str, chosen: tuple[str, ...]) -> str:
    return _quoted(f"(yard completion --names {kind} 2>/dev/null)" if kind else " ".join(chosen))


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
