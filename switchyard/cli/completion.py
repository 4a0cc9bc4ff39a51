"""``yard completion``: prints a completion script for bash or zsh."""

from __future__ import annotations

from typing import TYPE_CHECKING

from switchyard.cli import exits
from switchyard.cli.verbs import SUMMARY

if TYPE_CHECKING:
    import argparse

EXAMPLES = """
  source <(yard completion bash)            for this shell
  yard completion bash > ~/.local/share/bash-completion/completions/yard
  yard completion zsh > "${fpath[1]}/_yard"
"""


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=("bash", "zsh"))


def run(args: argparse.Namespace) -> int:
    print(_bash() if args.shell == "bash" else _zsh())
    return exits.OK


def words() -> dict[str, list[str]]:
    """Return the options of every verb."""
    from switchyard.cli.main import parser_of

    return {name: sorted({o for a in parser_of(name)._actions for o in a.option_strings}) for name in SUMMARY}


def _bash() -> str:
    cases = "\n".join(f"    {name}) options={' '.join(own)!r} ;;" for name, own in words().items())
    return f"""_yard() {{
  local current=${{COMP_WORDS[COMP_CWORD]}} verb= word options=
  for word in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
    case $word in --) return ;; -*) ;; *) verb=$word; break ;; esac
  done
  case $verb in
    "") options={" ".join(SUMMARY)!r} ;;
{cases}
  esac
  case $verb:$current in
    show:[!-]*|exec:[!-]*|why:[!-]*|logs:[!-]*|events:[!-]*|wait:[!-]*|cancel:[!-]*|hold:[!-]*|release:[!-]*|show:|exec:|why:|logs:|events:|wait:|cancel:|hold:|release:)
      options=$(yard ps -a -q -n 50 2>/dev/null) ;;
    drain:[!-]*|lost:[!-]*|resume:[!-]*|nodes:[!-]*|drain:|lost:|resume:|nodes:)
      options=$(yard nodes -o name 2>/dev/null) ;;
  esac
  COMPREPLY=($(compgen -W "$options" -- "$current"))
}}
complete -o default -F _yard yard"""


def _zsh() -> str:
    verbs = "\n".join(f"    {name + ':' + text!r}" for name, text in SUMMARY.items())
    cases = "\n".join(f"    {name}) options=({' '.join(own)}) ;;" for name, own in words().items())
    return f"""#compdef yard
_yard() {{
  local -a verbs options
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
  if [[ $PREFIX == -* ]]; then
    compadd -a options
    return
  fi
  case $words[2] in
    show|exec|why|logs|events|wait|cancel|hold|release) compadd -- $(yard ps -a -q -n 50 2>/dev/null) ;;
    drain|lost|resume|nodes) compadd -- $(yard nodes -o name 2>/dev/null) ;;
    *) _files ;;
  esac
}}
_yard "$@\""""
