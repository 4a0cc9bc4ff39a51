"""The law of bad input: what a job, a tool or another node writes is read by the bounded decoders only.

``agents/decode.py`` (JSON by shape, values, digits), ``agents/protocol.py`` (the shapes), ``agents/supervisor/lean.py``
and ``small_file.py`` (the shim's), ``agents/devices/card.py`` and the readers of tools are those. Elsewhere nothing is
decoded, no text becomes a number and no file is read whole, but for what stands here with its reason: the number is how
often, so that one more is looked at too.
"""

from __future__ import annotations

import ast
import importlib
import pkgutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import agents
from agents.decode import BoundedDecoder
from tests.rules.parsed import parsed

ROOT = Path(__file__).resolve().parents[2]
BOUNDED = {
    "agents/decode.py",
    "agents/protocol.py",
    "agents/supervisor/lean.py",
    "agents/supervisor/small_file.py",
}
MODULES = sorted(path for path in (ROOT / "agents").rglob("*.py") if str(path.relative_to(ROOT)) not in BOUNDED)
DECODERS = {"loads", "load", "decode_json", "literal_eval", "Decoder", "convert"}
KERNEL = "what the kernel tells, which no job writes"
OPERATOR = "what the operator of the node says or writes"
LIBRARY = "what a vendor's library or a reader of this folder tells is a number already"
BOUNDED_TEXT = "the text is a file's name or a match, of which the same lines bound the length"
ORDER = "the order, which is claimed before anything of the job runs"
OWN = "a file of the agent's own folder, which no other user may enter"
ALLOWED = {
    "agents/delegated/capacity.py": (2, OPERATOR),
    "agents/delegated/package.py": (1, "files of this package"),
    "agents/delegated/shared_folder.py": (2, OPERATOR),
    "agents/devices/card.py": (4, "this is the decoder of tools: it cuts texts and counts digits first"),
    "agents/devices/foreign.py": (1, KERNEL),
    "agents/devices/models.py": (3, "a file of this package"),
    "agents/devices/readers/amdsmi.py": (2, LIBRARY),
    "agents/devices/readers/dcmi.py": (1, LIBRARY),
    "agents/devices/readers/kfd.py": (1, KERNEL),
    "agents/devices/readers/levelzero.py": (2, LIBRARY),
    "agents/devices/readers/mtml.py": (1, LIBRARY),
    "agents/devices/readers/nvml.py": (6, LIBRARY),
    "agents/devices/readers/nvml_instances.py": (3, LIBRARY),
    "agents/devices/readers/rapl.py": (4, KERNEL),
    "agents/devices/readers/rocm.py": (1, LIBRARY),
    "agents/devices/readers/shared_object.py": (1, LIBRARY),
    "agents/devices/readers/table.py": (1, LIBRARY),
    "agents/devices/returned.py": (1, OPERATOR),
    "agents/devices/vendors/__init__.py": (1, KERNEL),
    "agents/devices/vendors/amd.py": (8, LIBRARY),
    "agents/devices/vendors/ascend.py": (7, LIBRARY),
    "agents/devices/vendors/command.py": (2, OPERATOR),
    "agents/devices/vendors/cpu.py": (11, KERNEL),
    "agents/devices/vendors/enflame.py": (1, LIBRARY),
    "agents/devices/vendors/gaudi.py": (1, LIBRARY),
    "agents/devices/vendors/intel.py": (7, LIBRARY),
    "agents/devices/vendors/mthreads.py": (3, LIBRARY),
    "agents/devices/vendors/simulated.py": (1, OPERATOR),
    "agents/edge/allowance.py": (2, OPERATOR),
    "agents/edge/job_file.py": (4, BOUNDED_TEXT),
    "agents/isolation/beneath.py": (1, KERNEL),
    "agents/isolation/cgroup.py": (2, KERNEL),
    "agents/isolation/run_as.py": (3, OPERATOR),
    "agents/isolation/users.py": (2, OPERATOR),
    "agents/isolation/view.py": (2, KERNEL),
    "agents/link/enrol.py": (2, OWN),
    "agents/resources/adjust.py": (1, KERNEL),
    "agents/resources/cores.py": (1, KERNEL),
    "agents/storage/checkpoint_watch.py": (1, OPERATOR),
    "agents/storage/layouts.py": (7, BOUNDED_TEXT),
    "agents/storage/peers.py": (1, KERNEL),
    "agents/storage/unpack.py": (2, "the arguments that the agent gives its own program"),
    "agents/storage/whole.py": (1, BOUNDED_TEXT),
    "agents/supervisor/command.py": (2, ORDER),
    "agents/supervisor/container_monitor.py": (2, ORDER),
    "agents/supervisor/listeners.py": (3, KERNEL),
    "agents/supervisor/fork_server.py": (1, "what its own shims write into a pipe that nobody else has"),
    "agents/supervisor/lease.py": (2, "small_file bounds it, and lean.number what comes of it"),
    "agents/supervisor/life.py": (13, ORDER),
    "agents/supervisor/procfs.py": (14, KERNEL),
    "agents/supervisor/record.py": (2, "a link's target, which the kernel bounds; its reader takes lean.number of it"),
    "agents/supervisor/session.py": (1, "the arguments that the agent gives its own program"),
    "agents/supervisor/spawn.py": (1, KERNEL),
    "agents/tasks/gang.py": (2, OPERATOR),
    "agents/tasks/journal.py": (2, OWN),
    "agents/tasks/leftovers.py": (1, KERNEL),
    "agents/tasks/progress.py": (2, "agents.decode took it for a number already"),
    "agents/telemetry/bandwidth.py": (3, OPERATOR),
    "agents/telemetry/machine.py": (7, KERNEL),
}


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


def _module(node: ast.expr) -> str:
    """``msgspec.json`` of ``msgspec.json.decode``."""
    return ast.unparse(node.value) if isinstance(node, ast.Attribute) else ""


def unbounded(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Lines that decode, make a number of a text, or read a file whole."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        called = node.func
        name = called.attr if isinstance(called, ast.Attribute) else called.id if isinstance(called, ast.Name) else ""
        where = _module(called)
        if (where.split(".")[0] in ("json", "msgspec", "pickle", "marshal", "ast") and name in DECODERS) or (
            where in ("msgspec.json", "msgspec.msgpack", "msgspec.toml", "msgspec.yaml") and name == "decode"
        ):
            yield node.lineno, f"{where}.{name}"
        elif name in ("eval", "exec") and isinstance(called, ast.Name):
            yield node.lineno, name
        elif (
            (name in ("int", "float") and isinstance(called, ast.Name) and node.args and not _is_number(node.args[0]))
            or name in ("read_text", "read_bytes", "readlines")
            or (name == "read" and _reads_all(node))
        ):
            yield node.lineno, ast.unparse(node)


def _reads_all(node: ast.Call) -> bool:
    return isinstance(node.func, ast.Attribute) and not node.args and not node.keywords


def _is_number(value: ast.expr) -> bool:
    """Whether the expression is one of numbers already: a sum, a rounding, a literal, what a count answers."""
    if isinstance(value, ast.Call):
        called = ast.unparse(value.func).rpartition(".")[2]
        return called in ("round", "len", "max", "min", "sum", "time", "monotonic", "boottime", "count", "number")
    return isinstance(value, ast.BinOp | ast.UnaryOp | ast.Compare | ast.Constant)


@pytest.mark.parametrize("path", MODULES, ids=named)
def test_strangers_are_read_by_the_bounded_decoders_only(path: Path) -> None:
    found = list(unbounded(parsed(path)))
    count, reason = ALLOWED.get(named(path), (0, ""))
    assert len(found) == count, f"{named(path)}: {found} ({reason or 'use agents.decode'})"


def test_what_is_listed_is_there() -> None:
    assert set(ALLOWED) <= {named(path) for path in MODULES}


@pytest.mark.parametrize(
    "line",
    [
        "json.loads(text)", "msgspec.json.decode(text)", "msgspec.json.Decoder(int)", "int(text)", "float(words[2])",
        "path.read_text()", "file.read()", "eval(text)", "msgspec.convert(told, Shape)", "int(text, 16)",
    ],
)  # fmt: skip
def test_the_law_sees_what_it_forbids(line: str) -> None:
    assert len(list(unbounded(ast.parse(line)))) == 1


@pytest.mark.parametrize("line", ["int(round(x))", "float('inf')", "file.read(4096)", "shape.read(text)", "int(a / 2)"])
def test_the_law_lets_pass_what_is_bounded(line: str) -> None:
    assert not list(unbounded(ast.parse(line)))


def every_shape() -> list[tuple[str, BoundedDecoder[Any]]]:
    """The shapes that modules of the agent read, each with where it stands."""
    found = pkgutil.walk_packages(agents.__path__, "agents.")
    names = [module.name for module in found if module.name != "agents.__main__"]
    return [
        (f"{name}.{own}", value)
        for name in names
        for own, value in vars(importlib.import_module(name)).items()
        if isinstance(value, BoundedDecoder)
    ]


# The control plane is who sends these, over a link on which it has proved who it is.
TRUSTED = {"Desired", "Enrolled", "Sources", "LogReceipt"}


# The agent wrote them of what the control plane sent. Their readers look whether they can be written again, or which
# part they are of.
OWN_LINES = {"agents.tasks.journal._lines", "agents.delegated.executor._orders", "agents.edge.ledger._files"}


def numbers_without_ends(kind: Any) -> list[str]:
    """The whole numbers in a shape that may be of any size: msgspec takes those of thousands of digits."""
    found: list[str] = []
    seen: set[int] = set()
    rest = [("", msgspec.inspect.type_info(kind))]
    while rest:
        name, here = rest.pop()
        if id(here) in seen:
            continue
        seen.add(id(here))
        if isinstance(here, msgspec.inspect.IntType) and (here.ge is None or here.le is None):
            found.append(name)
        for inner in ("fields", "types", "item_types"):
            told = getattr(here, inner, None) or ()
            rest += [(f"{name}.{getattr(each, 'name', inner)}", getattr(each, "type", each)) for each in told]
        for inner in ("item_type", "key_type", "value_type", "type"):
            each = getattr(here, inner, None)
            rest += [(f"{name}.{inner}", each)] if isinstance(each, msgspec.inspect.Type) else []
    return found


@pytest.mark.parametrize(("name", "shape"), every_shape(), ids=lambda each: each if isinstance(each, str) else "")
def test_shapes_of_strangers_bound_their_numbers(name: str, shape: BoundedDecoder[Any]) -> None:
    kind = getattr(shape.kind, "__name__", "")
    if kind in TRUSTED or name in OWN_LINES:
        return
    assert numbers_without_ends(shape.kind) == []


def test_a_number_without_ends_is_seen() -> None:
    class Loose(msgspec.Struct):
        name: str
        sizes: list[int]

    assert numbers_without_ends(Loose)
