"""Parses what a stage asks of each of its nodes: alternatives with or without an accelerator, and CPU and memory."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import lru_cache
from typing import Any, Final

from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop

from agents.protocol import IMAGE
from controlplane.clauses import Clause, Told, clause, told
from controlplane.jobs import masked
from controlplane.jobs.section import Section
from controlplane.jobs.values import (
    Reader,
    Unacceptable,
    bandwidth,
    choice,
    flag,
    listed,
    matching,
    nearest,
    number,
    shown,
    size,
    text,
    whole,
)
from controlplane.pools import kinds
from scheduler.core.model import partitions
from scheduler.core.model.clauses import plain
from scheduler.core.model.kinds import DISK, MOST_MBPS, NETWORK
from scheduler.core.model.types import Alternative, Ask
from scheduler.core.resources.match import SMALLEST
from scheduler.core.world.request_class import amount

MIB, GIB, TIB = 2**20, 2**30, 2**40
DEFAULT_CPUS: Final = 1.0
DEFAULT_MEMORY: Final = GIB
DEFAULT_GRACE_S: Final = 30.0

DEVICE_KEYS: Final = (
    "kind", "vendor", "model", "count", "milli", "memory", "partition", "sharing", "run", "command", "env", "image",
)  # fmt: skip
# Device kinds by kind of stage, for stages whose file names no device, best first.
AFFINITY: Final[Mapping[str, tuple[str, ...]]] = {
    "preprocess": ("cpu",),
    "extract": ("npu", "gpu", "cpu"),
    "load": ("cpu",),
    "generic": ("cpu",),
    "train": ("gpu", "cpu"),
    "render": ("gpu", "cpu"),
    "serve": ("gpu", "cpu"),
    "validate": ("gpu", "cpu"),
    "infer": ("npu", "gpu", "cpu"),
}
# Kinds of stages for which ``task`` affects the devices; for other kinds it has no effect.
TASKED: Final = ("extract", "infer", "serve", "validate")
_SMALL, _LARGE = ("npu", "gpu", "cpu"), ("gpu", "npu", "cpu")
# Device kinds by ``task`` of a model, best first. Small models with a single pass run well on NPUs at low precision;
# autoregressive models are bound by memory bandwidth, and run better on a GPU.
TASKS: Final[Mapping[str, tuple[str, ...]]] = {
    "text-classification": _SMALL,
    "token-classification": _SMALL,
    "image-classification": _SMALL,
    "detection": _SMALL,
    "segmentation": _SMALL,
    "embedding": _SMALL,
    "ocr": _SMALL,
    "speech": _SMALL,
    "generation": _LARGE,
    "translation": _LARGE,
    "summarization": _LARGE,
    "image-generation": _LARGE,
}
# The share of a GPU that an extracting stage gets.
LIGHT_MILLI: Final = 250

# Model families whose device kind follows from the name, for files that name a model only.
_FAMILIES: Final = (
    ("npu", re.compile(r"ascend|atlas|910[abc]?\b|310p?\b", re.IGNORECASE)),
    (
        "gpu",
        re.compile(r"nvidia|geforce|rtx|[abhlv][0-9]{2,3}s?\b|gb?200|\bt4\b|\bmi[0-9]{3}|radeon|arc", re.IGNORECASE),
    ),
    ("cpu", re.compile(r"xeon|epyc|kunpeng|ryzen|graviton", re.IGNORECASE)),
)

# What a stage may ask of a node as a whole: keys of the job file, and of a stored request.
AMOUNTS: Final[Mapping[str, str]] = {
    "disk": "disk_bytes",
    "disk_bandwidth": "disk_mbps",
    "network_bandwidth": "network_mbps",
}

_NAME_OF_ENV: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_WORDS: Final = re.compile(r"[\w .()+/-]{1,120}")
LONGEST_SCRIPT: Final = 256 * 1024
LARGEST_ENV: Final = 128 * 1024
MOST_SECRETS: Final = 64


@dataclass(frozen=True, slots=True)
class DeviceCatalogue:
    """The kinds of devices in the cluster, and the kind of each model; model names are in lower case."""

    kinds: frozenset[str] = kinds.USUAL
    models: Mapping[str, str] | None = None

    def kind_of(self, model: str) -> str:
        """Return the device kind of a model; empty if it is unknown."""
        word = model.lower()
        for name, kind in (self.models or {}).items():
            if word in name:
                return kind
        return next((kind for kind, pattern in _FAMILIES if pattern.search(model)), "")


@dataclass(frozen=True, slots=True)
class HostDemand:
    """What a stage asks of the CPU and the memory of each node, whichever alternative runs."""

    cpus_milli: int
    memory_bytes: int


def cores(value: object) -> int:
    """Read a number of cores, possibly fractional, as thousandths."""
    return max(10, round(number(0.01, 4096)(value) * 1000))


MEMORY: Final[Reader[int]] = size(MIB, 64 * TIB)
_BANDWIDTH: Final[Reader[int]] = bandwidth(MOST_MBPS)
_IMAGE_NAME: Final = matching(
    re.compile(IMAGE), gettext_noop("the name of a container image such as registry.local/pytorch:2.9")
)


def _image(value: object) -> str:
    """Read the name of a container image, of 400 characters at most."""
    return _IMAGE_NAME(text(400)(value))


def _partition(value: object) -> str:
    """Read the name of a partition profile that some device supports, or the word for the smallest sufficient one."""
    name = str(value).strip()
    if isinstance(value, str) and (name == SMALLEST or _tables_with(name)):
        return name
    known = {SMALLEST, *(profile for table in partitions.tables().values() for profile in table.profiles)}
    close = get_close_matches(name, sorted(known), n=3, cutoff=0.6)
    others = _("the nearest are {words}") if close else _("there are {words}")
    detail = _("must be a kind of partition, and none is called {name}; {others}").format(
        name=shown(value), others=others.format(words=listed(close or sorted(known)))
    )
    raise Unacceptable(detail, "unknown_value")


def _tables_with(profile: str) -> list[partitions.PartitionTable]:
    return [table for table in partitions.tables().values() if profile in table.profiles]


def environment(section: Section, marked: object = None) -> dict[str, str]:
    """Read the environment of this section; numbers and booleans become text.

    ``marked`` is the stage's ``secrets`` list. A refusal never repeats the value of a secret variable, and a value that
    was copied in masked form is refused.
    """
    key = "env"
    value = section.values.get(key)
    if value is None:
        return {}
    if not isinstance(value, dict):
        section.refuse(key, _("{key} must map names to values").format(key=key), "not_a_mapping")
        return {}
    env: dict[str, str] = {}
    for name, word in value.items():
        at = f"/{key}/" + str(name).replace("~", "~0").replace("/", "~1")
        hidden = masked.is_secret(str(name), marked if isinstance(marked, list) else ())
        if not isinstance(name, str) or not _NAME_OF_ENV.fullmatch(name):
            detail = _("{name} cannot name a variable: use letters, digits and _").format(name=shown(name))
            section.refuse(at, detail, "invalid_name")
        elif name.startswith("YARD_"):
            detail = _("{name} is set by Switchyard; choose a name that does not begin with YARD_").format(name=name)
            section.refuse(at, detail, "reserved")
        elif hidden and word == masked.MASKED:
            detail = _("the value of {name} is masked in what was copied; enter it again").format(name=name)
            section.refuse(at, detail, "masked")
            env[name] = word
        elif isinstance(word, bool):
            env[name] = str(word).lower()
        elif isinstance(word, int | float):
            env[name] = str(word)
        elif isinstance(word, str) and "\0" not in word:
            env[name] = word
        else:
            given = _("what is given") if hidden else shown(word)
            detail = _("{name} must be a text or a number without NUL, not {value}").format(name=name, value=given)
            section.refuse(at, detail)
    if sum(len(name) + len(word) for name, word in env.items()) > LARGEST_ENV:
        detail = _("{key} must have at most {n} characters in all").format(key=key, n=LARGEST_ENV)
        section.refuse(key, detail, "too_long")
        return {}
    return env


def secrets(
    section: Section, ways: Sequence[Mapping[str, Any]], project: str, held: Callable[[], Collection[str]]
) -> tuple[list[str], list[dict[str, Any]]]:
    """Read the stage's ``secrets``: variables to mask, and secrets of the project that the stage receives.

    A name that ``env`` sets marks that variable as secret, so that its value is never shown; any other name must be a
    secret of the project. ``held`` returns the names of the project's secrets.
    """
    known = {name for way in ways for name in way["env"]}
    marked: list[str] = []
    named: dict[str, dict[str, Any]] = {}
    for index, each in enumerate(section.each("secrets", MOST_SECRETS)):
        at = f"/secrets/{index}"
        if isinstance(each, str) and each in known:
            if each not in marked:
                marked.append(each)
            continue
        one = _named(section, at, each, project, held)
        if one is None:
            continue
        if one["env"] in known:
            detail = _("env sets the variable {name} already; give the secret another one by env")
            section.refuse(at, detail.format(name=one["env"]), "duplicate")
        elif named.setdefault(one["env"], one) != one:
            section.refuse(at, _("two secrets are given to the variable {name}").format(name=one["env"]), "duplicate")
    return marked, list(named.values())


def _named(
    section: Section, at: str, value: object, project: str, held: Callable[[], Collection[str]]
) -> dict[str, Any] | None:
    """Read one secret of the project and the variable for its value, or for the path of its file; None if refused."""
    before = len(section.refusals)
    if isinstance(value, str):
        part = Section({"name": value}, section.at(at), section.refusals, ("name",))
    else:
        part = Section(value, section.at(at), section.refusals, ("name", "env", "file"))
    name, is_file = part.read("name", text(128), ""), part.read("file", flag, False)
    env = part.read("env", _variable, f"{name}_FILE" if is_file else name)
    if len(section.refusals) > before:
        return None
    if name not in held():
        detail = _("project {project} has no secret {name}, and env sets no such variable; {others}").format(
            project=project, name=shown(name), others=nearest(name, held())
        )
        section.refuse(at, detail, "unknown_value")
        return None
    return {"name": name, "env": env, **({"file": True} if is_file else {})}


def _variable(value: object) -> str:
    """Read the name of an environment variable that a job may set."""
    name = text(128)(value)
    if not _NAME_OF_ENV.fullmatch(name) or name.startswith("YARD_"):
        raise Unacceptable(
            _("must name a variable by letters, digits and _, not beginning with YARD_, not {value}").format(
                value=shown(value)
            ),
            "invalid_name",
        )
    return name


def command(section: Section) -> list[str] | None:
    """Return the command of ``run`` (a shell script) or ``command`` (words, no shell); None if neither is given."""
    if section.has("run") and section.has("command"):
        section.refuse("run", _("give run (a script) or command (a list of words), not both"), "exclusive")
    if section.has("run"):
        script = section.read("run", text(LONGEST_SCRIPT), "")
        return ["/bin/sh", "-c", script] if script else []
    if section.has("command"):
        nothing: list[str] = []
        return section.read("command", _words, nothing)
    return None


def _words(value: object) -> list[str]:
    if not isinstance(value, list) or not 1 <= len(value) <= 4096:
        detail = _('must be a list of words such as [python, train.py]; a script goes into "run"')
        raise Unacceptable(detail, "not_a_list")
    words = [str(word) if isinstance(word, int | float) and not isinstance(word, bool) else word for word in value]
    for word in words:
        if not isinstance(word, str) or "\0" in word or len(word) > LONGEST_SCRIPT:
            raise Unacceptable(_("must hold texts and numbers only, not {value}").format(value=shown(word)))
    if not words[0]:
        raise Unacceptable(_("must begin with the program to start"))
    return words


def alternatives(
    section: Section,
    kind: str,
    task: str,
    argv: list[str] | None,
    env: dict[str, str],
    host: HostDemand,
    known: DeviceCatalogue,
) -> list[dict[str, Any]]:
    """Return the alternatives of a stage in the order of the file; faults are recorded as refusals of the section."""
    ways = _ways(section, kind, task, argv, env, host, known)
    if image := section.read("image", _image, ""):
        ways = [{"image": image, **way} for way in ways]
    return ways


def suited(kind: str, task: str) -> tuple[str, ...]:
    """Return the device kinds for a stage of this kind and task whose file names no device, best first."""
    return TASKS[task] if task and kind in TASKED else AFFINITY[kind]


def usual_precision(kind: str, task: str) -> str:
    """Return the assumed precision of a stage whose file names none; empty if nothing is assumed."""
    return "int8" if task and kind in TASKED and TASKS[task][0] == "npu" else ""


def why(request: Mapping[str, Any]) -> str:
    """Explain in a sentence the devices chosen for a stage whose file names none; empty if the file names them."""
    kind, task = request["kind"], request.get("task", "")
    kinds_ = tuple(way["asks"][0]["kind"] for way in request["alternatives"])
    if request.get("names_devices", True):
        return ""
    if task and kind in TASKED:
        said = _(
            "names no devices: what suits task {task} is {kinds}, in this order, until its speed on them is measured"
        )
    else:
        said = _(
            "names no devices: what suits kind {kind} is {kinds}, in this order, until its speed on them is measured"
        )
    return said.format(task=task, kind=kind, kinds=", ".join(kinds_))


def _ways(
    section: Section,
    kind: str,
    task: str,
    argv: list[str] | None,
    env: dict[str, str],
    host: HostDemand,
    known: DeviceCatalogue,
) -> list[dict[str, Any]]:
    value = section.values.get("devices")
    if value is None:
        if argv is None:
            detail = _('says nothing to run: give "run" (a script) or "command" (a list of words)')
            section.refuse("", detail, "missing")
        return [
            _alternative(i, word, [_accelerator(word, kind)], argv or [], env, host)
            for i, word in enumerate(suited(kind, task))
        ]
    if not isinstance(value, dict):
        detail = _("devices must be a mapping such as {one} or {several}").format(
            one="{kind: gpu, count: 2}", several="{any_of: [...]}"
        )
        section.refuse("devices", detail, "not_a_mapping")
        return []
    if "any_of" not in value:
        places = [("/devices", value)]
    else:
        Section(value, section.at("devices"), section.refusals, ["any_of"])
        ways = Section(value, section.at("devices"), [], ["any_of"]).each("any_of", 16)
        if not ways:
            detail = _("any_of must be a list of 1 to 16 ways to run this stage")
            section.refuse("/devices/any_of", detail, "not_a_list")
        places = [(f"/devices/any_of/{i}", way) for i, way in enumerate(ways)]
    return [_way(i, section, at, way, argv, env, host, known) for i, (at, way) in enumerate(places)]


def _accelerator(kind: str, stage: str = "") -> dict[str, Any]:
    milli = LIGHT_MILLI if stage == "extract" and kind == "gpu" else 1000
    return {"kind": kind, "count": 1, "milli": milli, "memory_bytes": 0, "vendor": "", "model": ""}


def _way(
    index: int,
    stage: Section,
    at: str,
    value: object,
    argv: list[str] | None,
    env: dict[str, str],
    host: HostDemand,
    known: DeviceCatalogue,
) -> dict[str, Any]:
    way = Section(value, stage.at(at), stage.refusals, DEVICE_KEYS)
    vendor = way.read("vendor", matching(_WORDS, gettext_noop("a vendor's name")), "")
    model = way.read("model", matching(_WORDS, gettext_noop("a model's name, or a part of it")), "")
    partition = way.read("partition", _partition, "")
    sharing = way.read("sharing", choice("soft", "hard"), "")
    kind = _kind(way, model, known, partition)
    own = command(way)
    if own is None and argv is None:
        detail = _('says nothing to run: give "run" or "command" to the stage or to each of its devices')
        way.refuse("", detail, "missing")
    words, merged = own or argv or [], {**env, **environment(way, stage.values.get("secrets"))}
    image = way.read("image", _image, "")
    found = _device(index, way, kind, vendor, model, words, merged, host, partition)
    if sharing and kind != "cpu":
        found["asks"][0]["sharing"] = sharing
    return {**found, "image": image} if image else found


def _device(
    index: int,
    way: Section,
    kind: str,
    vendor: str,
    model: str,
    words: list[str],
    merged: dict[str, str],
    host: HostDemand,
    partition: str,
) -> dict[str, Any]:
    if kind == "cpu":
        if partition:
            detail = _("a CPU has no partitions; ask cores by cpus, or thousandths by milli")
            way.refuse("partition", detail, "exclusive")
        if way.has("count") and way.values["count"] != 1:
            detail = _("count is for accelerators; of a CPU ask cores by cpus, or thousandths by milli")
            way.refuse("count", detail, "exclusive")
        own_host = HostDemand(
            way.read("milli", whole(10, 4_096_000), host.cpus_milli), way.read("memory", MEMORY, host.memory_bytes)
        )
        asks = [{**_accelerator("cpu"), "vendor": vendor, "model": model}]
        return _alternative(index, "cpu", asks, words, merged, own_host)
    ask = {
        "kind": kind,
        "count": way.read("count", whole(1, 64), 1),
        "milli": _milli(way, kind, partition),
        "memory_bytes": way.read("memory", MEMORY, 0),
        "vendor": vendor,
        "model": model,
        **({"partition": partition} if partition else {}),
    }
    return _alternative(index, kind, [ask], words, merged, host)


def _milli(way: Section, kind: str, partition: str) -> int:
    """Read the share of each device, in thousandths.

    A partition has a share of its own; the smallest partition is chosen to have at least ``milli``.
    """
    tables = _tables_with(partition)
    if tables and kind not in {table.kind for table in tables}:
        detail = _("{partition} is a partition of a {right}, not of a {kind}")
        way.refuse("partition", detail.format(partition=partition, right=tables[0].kind, kind=kind))
    if tables and way.has("milli"):
        detail = _("partition {partition} has a share of its own; leave milli out, or ask partition: {smallest}")
        way.refuse("milli", detail.format(partition=partition, smallest=SMALLEST), "exclusive")
        return 1000
    if tables:
        return max(table.profiles[partition].milli for table in tables)
    return way.read("milli", whole(1, 1000), 1 if partition else 1000)


def _kind(way: Section, model: str, known: DeviceCatalogue, partition: str) -> str:
    if way.has("kind"):
        named = matching(re.compile(r"[a-z][a-z0-9-]{0,19}"), gettext_noop("a kind of device such as gpu"))
        kind = way.read("kind", named, "cpu")
        if kind not in known.kinds:
            detail = _("no kind of device is called {kind}; {others}").format(
                kind=shown(kind), others=nearest(kind, known.kinds)
            )
            way.refuse("kind", detail, "unknown_value")
        return kind
    kind = known.kind_of(model) if model else next((table.kind for table in _tables_with(partition)), "")
    if not kind and isinstance(way.values, dict) and way.values:
        detail = _("kind is missing: say which of {kinds} is asked").format(kinds=listed(sorted(known.kinds)))
        way.refuse("kind", detail, "missing")
    return kind or "cpu"


def _alternative(
    index: int, kind: str, asks: list[dict[str, Any]], argv: list[str], env: dict[str, str], host: HostDemand
) -> dict[str, Any]:
    cpu = {**_accelerator("cpu"), "milli": host.cpus_milli, "memory_bytes": host.memory_bytes}
    if kind == "cpu":
        # The stage runs on the CPU: one ask, with the vendor and model that were named, if any.
        own = [{**cpu, "vendor": asks[0]["vendor"], "model": asks[0]["model"]}]
        return {"index": index, "asks": own, "argv": argv, "env": env}
    return {"index": index, "asks": [*asks, cpu], "argv": argv, "env": env}


def ways(request: Mapping[str, Any]) -> tuple[Alternative, ...]:
    """Return the alternatives of a stored request as types of the engine."""
    amounts = amounts_asked(request)
    return tuple(
        Alternative(way["index"], (*(Ask(**ask) for ask in way["asks"]), *amounts), way.get("image", ""))
        for way in request["alternatives"]
    )


def amounts(section: Section) -> dict[str, int]:
    """Read what a stage asks of each node as a whole beside cores and memory; what it does not ask for is absent."""
    readers = {"disk": MEMORY, "disk_bandwidth": _BANDWIDTH, "network_bandwidth": _BANDWIDTH}
    found = {name: section.read(key, readers[key], 0) for key, name in AMOUNTS.items()}
    return {name: value for name, value in found.items() if value}


def amounts_asked(request: Mapping[str, Any]) -> tuple[Ask, ...]:
    """Return these of a stored request as the engine's asks; every alternative has them."""
    disk, disk_mbps, network_mbps = (request.get(name, 0) for name in ("disk_bytes", "disk_mbps", "network_mbps"))
    found = []
    if disk or disk_mbps:
        found.append(Ask(DISK, 1, disk_mbps, disk))
    if network_mbps:
        found.append(Ask(NETWORK, 1, network_mbps))
    return tuple(found)


def least_nodes(request: Mapping[str, Any]) -> int:
    """Return the minimum number of nodes of a stage."""
    return int(request.get("least_nodes", request["nodes"]))


def only(request: Mapping[str, Any]) -> tuple[tuple[str, ...], ...]:
    """Return the groups of nodes and labels, of each of which the nodes of a stage must have one."""
    named = request.get("only_on", ())
    return _shared((*((tuple(named),) if named else ()), *(tuple(group) for group in request.get("constraint", ()))))


@lru_cache(maxsize=4096)
def _shared(groups: tuple[tuple[str, ...], ...]) -> tuple[tuple[str, ...], ...]:
    """Return the tuple that all equal groups share, so that thousands of such stages hold them once."""
    return groups


def mount_sources(request: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the folders that the nodes of a stage must have."""
    return tuple(sorted({each["source"] for each in request.get("mounts", ())}))


def most_nodes(request: Mapping[str, Any]) -> int:
    """Return the maximum number of nodes of an elastic stage; 0 for a stage of fixed size."""
    return int(request["nodes"]) if "least_nodes" in request else 0


def spread(request: Mapping[str, Any]) -> str:
    """Format the number of nodes of a stage: ``2`` or ``1-4``."""
    return f"{request['least_nodes']}-{request['nodes']}" if "least_nodes" in request else str(request["nodes"])


def asked(request: Mapping[str, Any]) -> Told:
    """Return what a stage asks of each of its nodes as a sentence and its clauses: ``2 nodes x 8 H100 · 32 cores``."""
    ways: list[Clause] = []
    for way in request["alternatives"]:
        if (words := _asked(way["asks"][0])) not in ways:
            ways.append(words)
    said = [clause("OnNodes", nodes=spread(request))] if request["nodes"] > 1 else []
    if ways != [clause("Kind", kind="cpu")]:
        for i, words in enumerate(ways):
            said += [clause("Either"), words] if i else [words]
        said.append(clause("With"))
    cores_ = request["alternatives"][0]["asks"][-1]["milli"] / 1000
    said.append(clause("OneCore") if cores_ == 1 else clause("SomeCores", cores=f"{cores_:g}"))
    for ask in amounts_asked(request):
        said += [clause("With"), *plain((amount(ask.kind, ask.milli, ask.memory_bytes),))]
    return told(*said)


def device_kind(request: Mapping[str, Any]) -> str:
    """The kind of device that a stage asks for first: ``gpu``, ``npu``, another accelerator's, or ``cpu``."""
    return str(request["alternatives"][0]["asks"][0]["kind"])


def _asked(ask: Mapping[str, Any]) -> Clause:
    if ask["kind"] == "cpu":
        return clause("Kind", kind="cpu")
    count, device = ask["count"], ask["model"] or " ".join(word for word in (ask["vendor"], ask["kind"]) if word)
    if partition := ask.get("partition"):
        if count == 1:
            return clause("OnePartition", partition=partition, device=device)
        return clause("Partitions", count=count, partition=partition, device=device)
    if ask["milli"] == 1000:
        return clause("Devices", count=count, device=device)
    share = f"{ask['milli'] / 1000:g}"
    if count == 1:
        return clause("OneShare", share=share, device=device)
    return clause("Shares", count=count, share=share, device=device)


def memory_bytes(request: Mapping[str, Any]) -> int:
    """Return the memory that a stage asks for on each node; 0 where it asks for none."""
    return int(request["alternatives"][0]["asks"][-1].get("memory_bytes") or 0)


def deadline_at(request: Mapping[str, Any], submitted_at: float) -> float | None:
    """Return the deadline of a stage, given as a time or as a duration after its submission."""
    after_s = request.get("deadline_s")
    return request.get("deadline_at") if after_s is None else submitted_at + after_s
