"""Builds a job from a command line: a job file, or a command after ``--``, and options."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from switchyard.cli import clean
from switchyard.problem import SpecError

if TYPE_CHECKING:
    import argparse

    from switchyard.bundle import Bundle

_PLAIN = (
    "name",
    "project",
    "pool",
    "cpus",
    "memory",
    "disk",
    "nodes",
    "priority",
    "begin",
    "precision",
    "site",
    "constraint",
)


def options(parser: argparse.ArgumentParser) -> None:
    """Add the options that ``submit`` and ``run`` share."""
    parser.add_argument("file", nargs="?", help="a job file in YAML or JSON, or a batch script; - reads standard input")
    parser.add_argument("--strict", action="store_true", help="refuse a batch script of which anything is ignored")
    job = parser.add_argument_group("the job")
    job.add_argument("--name", help="its name; for a command, the default is the name of the program")
    job.add_argument("--kind", help="what it does: train, infer, preprocess, ...; picks fitting devices")
    job.add_argument(
        "--devices",
        action="append",
        metavar="ASK",
        help="gpu, gpu:2, H100:8, npu:0.5, model=A100,count=2; repeat for alternatives",
    )
    job.add_argument(
        "--nodes",
        type=_nodes,
        metavar="N",
        help="how many nodes, or a range such as 1-4; the other demands are per node",
    )
    job.add_argument("--cpus", type=float, metavar="N", help="cores per node; fractions are fine")
    job.add_argument("--memory", metavar="SIZE", help="memory per node, such as 8GiB")
    job.add_argument("--disk", metavar="SIZE", help="disk space for its own files per node, such as 200GiB")
    job.add_argument(
        "--time", dest="time_limit", metavar="SPAN", help="the longest it may run: 90s, 30m, 12h, 1-02:00:00"
    )
    job.add_argument("--expected", metavar="SPAN", help="how long it will probably run; better starts for all")
    job.add_argument("--begin", metavar="TIME", help="not before this time")
    job.add_argument("--priority", metavar="CLASS", help="urgent, high, medium, low, or a number for admins")
    job.add_argument(
        "--avoid",
        action="append",
        metavar="NODE",
        help="a node that it must not run on, or all with a label: rack=r2; may be repeated",
    )
    job.add_argument(
        "--only-on",
        action="append",
        metavar="NODE",
        help="a node that it may run on, or all with a label: rack=r2; may be repeated, and no other will do",
    )
    job.add_argument("--constraint", metavar="LABELS", help="labels that its nodes must have: 'ib&(a100|h100)'")
    job.add_argument("--site", help="run only at this site, which its data may not leave: on its nodes or as its guest")
    job.add_argument(
        "--sites",
        metavar="NAMES",
        help="clusters that it may leave for: any, never, or names such as berlin,oslo",
    )
    job.add_argument("--precision", help="such as bf16, fp8, int8")
    job.add_argument("--project", help="who it is charged to")
    job.add_argument("--pool", help="the pool of nodes it runs in")
    job.add_argument(
        "--env", action="append", default=[], metavar="K=V", help="an environment variable; K alone copies it from here"
    )
    job.add_argument("--label", action="append", default=[], metavar="K=V", help="a label to find it by")
    job.add_argument(
        "--set", action="append", default=[], metavar="K=V", help="any key of the job file: stages.train.retry.max=3"
    )
    job.add_argument("--hold", action="store_true", help="queue it on hold")
    code = parser.add_argument_group("its code")
    code.add_argument("--workdir", metavar="DIR", help="send this folder along; the job starts inside its copy")
    code.add_argument("--no-workdir", action="store_true", help="send nothing")
    parser.add_argument("--idempotency-key", metavar="KEY", help="submitting twice under one key queues one job")


def _nodes(text: str) -> int | dict[str, int]:
    """Parse a number of nodes, or a range."""
    least, dash, most = text.partition("-")
    return {"min": int(least), "max": int(most)} if dash else int(least)


def spec_of(args: argparse.Namespace) -> dict[str, Any]:
    """Return the job of the command line, with ``workdir`` if a folder is to be sent. Raises SpecError."""
    from switchyard import jobfile

    if bool(args.file) == bool(args.command):
        raise SpecError("give either a job file or a command after --, such as: yard submit -- python train.py")
    spec = _of_file(args) if args.file else _of_command(args.command)
    for key in _PLAIN:
        if getattr(args, key) is not None:
            spec[key] = getattr(args, key)
    if args.priority and re.fullmatch(r"-?\d+", args.priority):
        spec["priority"] = int(args.priority)
    for key in ("time_limit", "expected"):
        if getattr(args, key):
            spec[key] = getattr(args, key)
    if args.devices:
        asks = [devices(text) for text in args.devices]
        spec["devices"] = asks[0] if len(asks) == 1 else {"any_of": asks}
    for key, option, named in (("avoid", "--avoid", args.avoid), ("only_on", "--only-on", args.only_on)):
        if named:
            spec[key] = [dict([_pair(text, option)]) if "=" in text else text for text in named]
    if args.sites:
        spec["sites"] = args.sites if args.sites in ("any", "never") else args.sites.split(",")
    if args.kind:
        _set_kind(spec, args.kind)
    if args.hold:
        spec["hold"] = True
    _merge(spec, "env", dict(_pair(text, "--env", copy=True) for text in args.env))
    _merge(spec, "labels", dict(_pair(text, "--label") for text in args.label))
    jobfile.put(spec, args.set)
    if args.no_workdir:
        spec.pop("workdir", None)
    elif args.workdir:
        spec["workdir"] = args.workdir
        spec.pop("bundle", None)
    elif args.command and (named := uses_file_of(args.command, Path.cwd())):
        spec["workdir"] = "."
        if not args.quiet:
            print(
                f"sends this folder along, because {clean.line(named)} is in it (--no-workdir sends nothing)",
                file=sys.stderr,
            )
    return spec


def pack(spec: dict[str, Any], *, quiet: bool = False) -> Bundle | None:
    """Pack the ``workdir`` of ``spec`` and remove the key from it; print what was left out."""
    folder = spec.get("workdir")
    if isinstance(folder, dict):
        return None  # a git repository, which the control plane fetches
    spec.pop("workdir", None)
    if not folder:
        return None
    from switchyard import bundle

    packed = bundle.pack(folder)
    if not quiet:
        for text in packed.left_out:
            print(f"leaves out {clean.line(text)}", file=sys.stderr)
    return packed


ASK_KEYS = ("kind", "vendor", "model", "count", "milli", "memory", "partition", "sharing")


def devices(text: str) -> dict[str, Any]:
    """Parse the short form of an ask: ``gpu:2``, ``H100:8``, ``npu:0.5``, ``vendor=huawei,kind=npu,memory=16GiB``.

    A word with a digit or a capital letter is a model, any other a kind. A share below one becomes ``milli``.
    """
    ask: dict[str, Any] = {}
    for at, part in enumerate(text.split(",")):
        key, equals, value = (word.strip() for word in part.partition("="))
        if equals:
            if key not in ASK_KEYS or not value:
                raise SpecError(f"--devices {text!r}: {part!r} is none of {', '.join(ASK_KEYS)}")
            ask[key] = _whole(value, text) if key in ("count", "milli") else value
        elif at == 0 and key:
            name, colon, count = key.rpartition(":") if re.search(r":[0-9.]+$", key) else (key, "", "")
            ask["model" if re.search(r"[0-9A-Z]", name) else "kind"] = name
            if colon:
                ask |= _count(count, text)
        else:
            raise SpecError(f"--devices {text!r} cannot be read; write it like gpu:2, H100:8 or kind=npu,milli=500")
    return ask


def uses_file_of(command: Sequence[str], folder: Path) -> str | None:
    """Return the first word of ``command`` that is a file or folder below ``folder``, or a module in it."""
    for at, word in enumerate(command):
        name = word.partition("=")[2] if word.startswith("--") and "=" in word else word
        if not name or name.startswith(("-", "/", "~", "..")) or name == ".":
            continue
        module = name.replace(".", "/") if at and command[at - 1] == "-m" else None
        try:
            if (folder / name).exists() or (module and (folder / f"{module}.py").exists()):
                return name
        except (OSError, ValueError):
            continue
    return None


def _of_file(args: argparse.Namespace) -> dict[str, Any]:
    """Read a job file, or convert a batch script for Slurm."""
    from switchyard import jobfile
    from switchyard.cli import batch

    text = jobfile.text_of(args.file)
    return batch.spec_of(args, text) if batch.is_meant(args.file, text) else jobfile.read_text(text, args.file)


def _of_command(command: list[str]) -> dict[str, Any]:
    words = [Path(word).name for word in command]
    script = next((word for word in words[1:] if word.endswith((".py", ".sh"))), words[0])
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", script).strip("-.")[:60] or "command"
    return {"apiVersion": "v1", "kind": "Job", "name": name, "command": list(command)}


def _set_kind(spec: dict[str, Any], kind: str) -> None:
    if spec.get("stages"):
        raise SpecError("a job with stages gives each stage its kind; use --set stages.NAME.kind=" + kind)
    spec["stages"] = [{"name": kind, "kind": kind}]


def _merge(spec: dict[str, Any], key: str, more: dict[str, str]) -> None:
    if more:
        spec[key] = {**(spec.get(key) or {}), **more}


def _pair(text: str, option: str, *, copy: bool = False) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if equals and key:
        return key, value
    if copy and key:
        import os

        if key in os.environ:
            return key, os.environ[key]
        raise SpecError(f"{option} {text}: {text} is not set here; write {text}=VALUE")
    raise SpecError(f"{option} {text!r} must be written KEY=VALUE")


def _count(text: str, whole: str) -> dict[str, int]:
    number = float(text) if re.fullmatch(r"\d+(\.\d+)?|\.\d+", text) else 0.0
    if 0 < number < 1:
        return {"milli": round(number * 1000)}
    if number >= 1 and number == int(number):
        return {"count": int(number)}
    raise SpecError(f"--devices {whole!r}: {text} is neither a whole number of devices nor a share of one below 1")


def _whole(text: str, whole: str) -> int:
    if text.isdecimal() and len(text) < 10 and int(text) > 0:
        return int(text)
    raise SpecError(f"--devices {whole!r}: {text!r} is no whole number above 0")
