"""The JSON Schema of the job file, for editors, made of the parser's own keys, choices and bounds.

What the parser accepts is valid by it. It cannot say all that the parser knows: which names exist, what excludes each
other across levels, and how a size or a duration is written in every detail. A key that is null is one left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any, Final

from agents.protocol import MOST_PORTS
from controlplane.jobs import (
    array_file,
    away,
    constraint,
    curves,
    demand,
    depends_on,
    flow,
    git_ask,
    mounts,
    notify,
    profiling,
    promotion,
    spec,
    utilization_policy,
    web_ports,
)
from scheduler.core.model import retry
from scheduler.core.model.halving import MOST_STEPS, Goal

Schema = dict[str, Any]

PATH: Final = "/api/v1/schemas/job.json"
_DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
_SCALAR: Final[Schema] = {"type": ["string", "number", "boolean"]}


def _text(longest: int, description: str = "") -> Schema:
    return _told({"type": "string", "minLength": 1, "maxLength": longest}, description)


def _whole(low: int, high: int, description: str = "") -> Schema:
    return _told({"type": "integer", "minimum": low, "maximum": high}, description)


def _pattern(pattern: str, description: str = "") -> Schema:
    return _told({"type": "string", "pattern": f"^(?:{pattern})$"}, description)


def _one_of(words: Iterable[str], description: str = "") -> Schema:
    return _told({"enum": list(words)}, description)


def _list(items: Schema, most: int, least: int = 0, description: str = "") -> Schema:
    found: Schema = {"type": "array", "items": items, "maxItems": most}
    return _told({**found, "minItems": least} if least else found, description)


def _told(schema: Schema, description: str) -> Schema:
    return {**schema, "description": description} if description else schema


def _mapping(properties: Mapping[str, Schema], required: Iterable[str] = (), description: str = "") -> Schema:
    """Return a mapping with these keys only; all but the required ones may be null."""
    needed = list(required)
    each = {key: one if key in needed else {"anyOf": [one, {"type": "null"}]} for key, one in properties.items()}
    # A description is read where the key is, not inside of a choice.
    for key, one in properties.items():
        if "description" in one and key not in needed:
            inner = {name: value for name, value in one.items() if name != "description"}
            each[key] = {"description": one["description"], "anyOf": [inner, {"type": "null"}]}
    found: Schema = {"type": "object", "additionalProperties": False, "properties": each}
    return _told({**found, "required": needed} if needed else found, description)


def _given(*keys: str) -> Schema:
    """The condition that these keys are there and not null."""
    return {"required": list(keys), "properties": {key: {"not": {"type": "null"}} for key in keys}}


_NOT_BOTH: Final[Schema] = {"not": _given("run", "command")}
_SHARE: Final[Schema] = {
    "type": ["number", "string"], "pattern": r"^\s*[0-9]{1,3}(?:\.[0-9]{1,6})?%?\s*$", "minimum": 0, "maximum": 100,
}  # fmt: skip
_SIZE: Final[Schema] = {"type": ["integer", "string"], "pattern": r"^\s*[0-9]+(?:\.[0-9]+)?\s*[A-Za-z]*\s*$"}
_DURATION: Final[Schema] = {
    "type": ["number", "string"], "pattern": r"^\s*(?:[0-9]|[Pp][0-9Tt])", "maxLength": 60, "minimum": 0,
}  # fmt: skip
_MOMENT: Final[Schema] = {"type": "string", "pattern": "^[0-9]{4}", "maxLength": 40}
_LABEL: Final = "[A-Za-z0-9][A-Za-z0-9._/-]{0,62}"
_SHA256: Final = "[0-9a-f]{64}"


_NAMED: Final[Schema] = {
    "anyOf": [
        _text(253),
        {
            "type": "object",
            "minProperties": 1,
            "maxProperties": 1,
            "propertyNames": {"pattern": f"^{_LABEL}$"},
            "additionalProperties": {"type": ["string", "integer"], "pattern": f"^{spec.LABEL_VALUE.pattern}$"},
        },
    ]
}


def _size(description: str) -> Schema:
    return _told(_SIZE, f"{description}: 8GiB, 512MB or a number of bytes")


def _bandwidth(description: str) -> Schema:
    pattern = r"^\s*[0-9]{1,15}(?:\.[0-9]{1,9})?\s*[KMGTkmgt](?:i?B|bit)/s\s*$"
    return _told({"type": "string", "pattern": pattern, "maxLength": 40}, f"{description}: 500MB/s or 10Gbit/s")


def _duration(description: str) -> Schema:
    return _told(_DURATION, f"{description}: 90s, 12h, 1-02:00:00, PT1H30M or a number of seconds")


def _run() -> dict[str, Schema]:
    return {
        "run": _told({**_text(demand.LONGEST_SCRIPT), "pattern": r"\S"}, "A script for /bin/sh"),
        "command": _list(
            {"type": ["string", "number"]}, 4096, 1, "Instead of run: a list of words that is executed as it is"
        ),
        "env": _told(
            {
                "type": "object",
                "propertyNames": {"pattern": "^(?!YARD_)[A-Za-z_][A-Za-z0-9_]{0,127}$"},
                "additionalProperties": _SCALAR,
            },
            "Variables; names that begin with YARD_ are set by Switchyard",
        ),
        "image": _text(400, "A container image to run in, such as registry.local/pytorch:2.9"),
    }


def _devices() -> Schema:
    way = _keyed(
        demand.DEVICE_KEYS,
        {
            **_run(),
            "kind": _pattern("[a-z][a-z0-9-]{0,19}", "cpu, gpu, npu, or any kind that the cluster has"),
            "vendor": _text(120, "The vendor, such as nvidia"),
            "model": _text(120, "A part of the model's name: H100 fits NVIDIA H100 80GB HBM3"),
            "count": _whole(1, 64, "How many, on each node"),
            "milli": _whole(1, 4_096_000, "The share of each device in thousandths"),
            "memory": _size("Memory of each device that must be free"),
            "partition": _text(200, "A partition of each device by its profile, or smallest"),
            "sharing": _one_of(("soft", "hard"), "What must hold all who share each device to their memory"),
        },
    )
    way = {**way, "allOf": [_NOT_BOTH]}
    several = {
        "type": "object",
        "properties": {"any_of": _list(way, 16, 1, "Alternatives, in order of preference")},
        "required": ["any_of"],
        "additionalProperties": False,
    }
    return {"description": "What each node must give", "anyOf": [several, way]}


def _retry() -> Schema:
    causes = sorted(str(cause).lower() for cause in retry.RETRYABLE | retry.NO_FAULT)
    # Words of the list are read in small and in capital letters.
    letters = "|".join("".join(f"[{c.upper()}{c}]" if c.isalpha() else c for c in word) for word in causes)
    return _mapping(
        {
            "max": _whole(1, 100, "Attempts in all"),
            "on": {
                "description": "After which causes it is tried again",
                "type": "array",
                "items": {"anyOf": [{"enum": causes}, _pattern(letters)]},
            },
            "backoff": _duration("The first pause between two attempts, which doubles"),
        },
        description="What happens after a failure",
    )


def _shared() -> Schema:
    """Return the keys that a stage has, and a job as defaults of its stages."""
    text = _text
    source = _mapping(
        {
            "job": _whole(1, 2**53, "The number of an earlier job of the project, with from and output"),
            "from": text(63, "A stage that it needs, or a stage of that job"),
            "output": text(63, "Which output of that stage"),
            "source": text(2000, "An absolute path, or the https:// address of a file"),
            "sha256": _pattern(_SHA256, "The digest of the source, or of the output of an earlier job"),
            "path": text(600, "The name of the input for the stage"),
            "shard": {"type": "boolean", "description": "Each rank reads its share"},
        }
    )
    return {
        **_run(),
        "nodes": {
            "description": "How many nodes; all start together or none. A range makes the stage elastic",
            "anyOf": [
                _whole(1, spec.MAX_NODES),
                _mapping({"min": _whole(1, spec.MAX_NODES), "max": _whole(1, spec.MAX_NODES)}, ["max"]),
            ],
        },
        "devices": _devices(),
        "cpus": {"type": "number", "minimum": 0.01, "maximum": 4096, "description": "Cores on each node"},
        "memory": _size("Memory on each node"),
        "disk": _size("Disk space for its own files on each node, which ends it if it takes up more"),
        "disk_bandwidth": _bandwidth("Bandwidth of the disk on each node"),
        "network_bandwidth": _bandwidth("Bandwidth of the network on each node"),
        "time_limit": _duration("The longest that one attempt may run"),
        "expected": _duration("How long it will probably run"),
        "begin": _told(_MOMENT, "Not before this time, with a zone: 2027-01-31T18:00:00Z"),
        "deadline": {
            "description": "By when it is to be done: a time, or a duration after the submission",
            "anyOf": [_MOMENT, _DURATION],
        },
        "retry": _retry(),
        "on_node_lost": _one_of(retry.ON_NODE_LOST, "What happens when its node is silent"),
        "preemption": _mapping(
            {
                "allowed": {"type": "boolean"},
                "grace": _duration("How long it has between being asked to stop and being killed"),
                "to": _one_of(("main", "group"), "Who gets the signal"),
            },
            description="How it may be stopped for somebody more urgent",
        ),
        "checkpoint": _mapping(
            {
                "keep": _whole(1, 1000, "Only so many complete checkpoints are kept"),
                "interval_hint": _duration("How often the stage is told to save"),
                "framework": {"description": "Kept for those who read it"},
                "dir": {"type": "null", "description": "A stage saves in YARD_CHECKPOINT_DIR"},
            },
            description="Its checkpoints",
        ),
        "precision": _one_of(spec.PRECISIONS, "Devices that are fast at it are preferred"),
        "task": _one_of(demand.TASKS, "What its model is for"),
        "topology": _mapping(
            {
                "within": _pattern(_LABEL, "The label that the nodes should have alike, such as rack"),
                "mode": _one_of(("required", "preferred")),
            },
            ["within"],
            "Where the nodes of a gang are",
        ),
        "launcher": _one_of(("per-node", "per-device"), "One process per node, or one per device"),
        "inputs": _list(source, flow.MOST, description="What it reads"),
        "mounts": _list(
            _keyed(
                mounts.KEYS,
                {
                    "source": text(400, "A folder of the nodes, in one that the pool declares"),
                    "path": text(400, "Where it lies in the container; where it is on the node, if left out"),
                    "readonly": {"type": "boolean", "description": "Nothing can be written there; true if left out"},
                },
                ["source"],
            ),
            mounts.MOST,
            description="Folders of the nodes that it sees",
        ),
        "outputs": _list(_pattern("[A-Za-z0-9][A-Za-z0-9_.-]{0,62}"), flow.MOST, description="What it leaves"),
        "secrets": _list(
            {
                "anyOf": [
                    text(128),
                    _mapping({"name": text(128), "env": text(128), "file": {"type": "boolean"}}, ["name"]),
                ]
            },
            demand.MOST_SECRETS,
            description="Secrets of the project that it gets, and variables that are shown nowhere",
        ),
        "avoid": _list(_NAMED, spec.MOST_AVOIDED, description="Nodes that it must not run on, by name or by label"),
        "only_on": _list(
            _NAMED, spec.MOST_AVOIDED, description="The only nodes that it may run on, by name or by label"
        ),
        "constraint": _text(constraint.LONGEST, "Labels that its nodes must have: ib&(a100|h100)"),
        "site": _pattern(_LABEL, "The site that its data may not leave"),
        "sites": {
            "description": "The other clusters that it may leave for",
            "anyOf": [_one_of((away.ANY, away.NEVER)), _list(_pattern(_LABEL), away.MOST, least=1)],
        },
        "data": _mapping(
            {
                "site": _pattern(_LABEL, "Where its data are"),
                "leave": _one_of(("may", away.NEVER), "Whether they may leave that place"),
            },
            description="Where its data are",
        ),
        "on_site_lost": _one_of(away.ON_SITE_LOST, "What follows when a site stays silent for long"),
        "utilization_policy": _mapping(
            {
                "min": _pattern(r"\s*[0-9]{1,3}(?:\.[0-9]{1,3})?\s*%\s*", "The least mean utilisation: 10%"),
                "window": _duration("Over how long, from 5 minutes to a day"),
                "action": _one_of(utilization_policy.ACTIONS, "What happens below it"),
            },
            description="What happens if it holds accelerators and hardly uses them",
        ),
        "ports": _list(
            _mapping(
                {
                    "name": _pattern(r"[a-z0-9](?:[a-z0-9-]{0,30}[a-z0-9])?", "By which it is opened"),
                    "port": {"type": "integer", "minimum": web_ports.LEAST, "maximum": 65_535},
                    "protocol": _one_of(web_ports.PROTOCOLS),
                    "path": _text(web_ports.LONGEST_PATH, "Where a browser begins: /lab?token={token}"),
                },
                ["name", "port"],
            ),
            MOST_PORTS,
            description="Ports on which it serves pages to those who may enter it",
        ),
        "idle_timeout": _duration("It is stopped once nobody used its ports for so long, from 5 minutes to 7 days"),
        "profiling": _mapping(
            {"allow": _list(_one_of(profiling.TOOLS), len(profiling.TOOLS), description="The tools")},
            description="With what it may be profiled while it runs; with nothing if left out",
        ),
        "setup": _told(
            {**_text(demand.LONGEST_SCRIPT), "pattern": r"\S"},
            "A script for /bin/sh that runs on each node before run or command",
        ),
    }


def _stage() -> Schema:
    stage = _keyed(
        spec.STAGE_KEYS,
        {
            **_shared(),
            "name": _pattern(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}", "Other stages and the logs refer to it"),
            "promote": _promote(),
            "kind": _one_of(demand.AFFINITY, "Decides on which devices it runs where devices says nothing"),
            "needs": _list(
                {
                    "anyOf": [
                        {"type": "string"},
                        _mapping({"stage": {"type": "string"}, "when": _one_of(("afterok",))}, ["stage"]),
                    ]
                },
                spec.MAX_STAGES,
                description="The stages that must complete first",
            ),
        },
        ["name"],
    )
    return {**stage, "allOf": [_NOT_BOTH]}


def _workdir() -> Schema:
    repository = _keyed(
        git_ask.KEYS,
        {
            "url": _told(
                {"type": "string", "pattern": "^https?://", "maxLength": 500}, "The https:// address of the repository"
            ),
            "rev": _pattern(git_ask.REV.pattern, "A branch, a tag or the full id of a commit; HEAD if left out"),
            "secret": _text(128, "The secret of the project that is the password of a private repository"),
            "username": _text(128, "The user who goes with the secret; git if left out"),
        },
        ["url"],
    )
    return {
        "description": "A folder on your machine that is packed and sent, or a git repository that is fetched",
        "anyOf": [{"type": ["string", "null"]}, _mapping({"git": repository}, ["git"])],
    }


def _array() -> Schema:
    ends = {"type": "array", "items": {"type": "number"}, "minItems": 2, "maxItems": 2}
    ranges = [
        {"type": "object", "properties": {kind: ends}, "required": [kind], "additionalProperties": False}
        for kind in array_file.RANGES
    ]
    values = _list({**_SCALAR, "maxLength": array_file.LONGEST_TEXT}, array_file.MOST_VALUES, 1)
    found = _keyed(
        array_file.ARRAY_KEYS,
        {
            "indexes": {
                "description": "The indexes of the elements, as Slurm writes them: 0-15:2,20",
                "type": ["string", "integer"],
                "pattern": r"^\s*[0-9]+(?:-[0-9]+(?::[0-9]+)?)?\s*(?:,\s*[0-9]+(?:-[0-9]+(?::[0-9]+)?)?\s*)*$",
                "minimum": 0,
                "maximum": array_file.HIGHEST_INDEX,
            },
            "parameters": {
                "description": "A sweep: the values of each parameter; with a sample also ranges",
                "type": "object",
                "minProperties": 1,
                "maxProperties": array_file.MOST_PARAMETERS,
                "propertyNames": {"pattern": "^[A-Za-z][A-Za-z0-9_]{0,62}$"},
                "additionalProperties": {"anyOf": [values, *ranges]},
            },
            "max_parallel": _whole(1, array_file.MOST_ELEMENTS, "How many elements run at once"),
            "sample": _whole(1, array_file.MOST_ELEMENTS, "So many points instead of all combinations"),
            "seed": {"type": "integer", "description": "Another seed draws other points"},
            "halving": _told(
                _keyed(
                    array_file.HALVING_KEYS,
                    {
                        "metric": _text(curves.LONGEST_NAME, "The name of a number that every element reports"),
                        "goal": _one_of(Goal, "Whether the smallest or the largest value is best"),
                        "min_steps": _whole(1, MOST_STEPS, "The reported step at which elements are first compared"),
                        "reduction_factor": _whole(
                            2,
                            array_file.LARGEST_FACTOR,
                            "The best of so many go on, and the next rung is so many times later",
                        ),
                        "rungs": _whole(1, array_file.MOST_RUNGS, "How often elements are compared"),
                    },
                    ["metric", "min_steps"],
                ),
                "Successive halving: elements of a sweep that are not among the best at a rung are stopped early",
            ),
        },
    )
    either = [_given("indexes"), _given("parameters")]
    return {**found, "description": "Makes many jobs of the file", "oneOf": either}


def _depends_on() -> Schema:
    numbers = depends_on.NAME.pattern
    one = _mapping(
        {
            "job": {
                "description": "An earlier job or array by its number, or an element as 42_7",
                "anyOf": [{"type": "integer", "minimum": 0}, _pattern(numbers)],
            },
            "when": _one_of(map(str, depends_on.When), "What of it must have happened"),
        }
    )
    alone = {"properties": {"when": {"const": "singleton"}}, "required": ["when"]}
    one = {**one, "if": alone, "then": {"not": _given("job")}, "else": _given("job")}
    return _list(one, depends_on.MOST, description="Earlier jobs for whose end it waits")


def _notify() -> Schema:
    one = {
        "on": {**_list(_one_of(notify.EVENTS), len(notify.EVENTS), 1, "Of which events"), "uniqueItems": True},
        "to": _pattern("email|webhook:[^\\s].{0,90}", "email, or webhook: and the name of a webhook of the project"),
    }
    return _list(_mapping(one, ["on", "to"]), notify.MOST, description="Who is told of what")


def _promote() -> Schema:
    bound = {"type": "number", "minimum": -promotion.LARGEST, "maximum": promotion.LARGEST}
    gate = _keyed(
        promotion.GATE_KEYS,
        {
            "metric": _text(curves.LONGEST_NAME, "A number that the stage reports"),
            "at_most": _told(bound, "It passes up to this"),
            "at_least": _told(bound, "It passes from this on"),
            "goal": _one_of(promotion.GOALS, "Which number is better"),
            "better_than_serving": {"type": "boolean", "description": "It must be better than that of what serves"},
        },
        ["metric"],
    )
    canary = _keyed(
        promotion.CANARY_KEYS,
        {
            "percent": _told(_SHARE, "The share of the requests that the new revision gets: 10%"),
            "for": _duration("How long it is tried, from its first answer"),
            "errors_at_most": _told(_SHARE, "The share of its answers that may fail: 1%"),
            "first_byte_at_most": _duration("In which 95 of 100 answers must begin"),
        },
    )
    return _told(
        _keyed(
            promotion.KEYS,
            {
                "service": _text(63, "A service of the project"),
                "model": _text(127, "An output of the stage, or STAGE/OUTPUT of one that it needs"),
                "when": _told(gate, "The gate that the model must pass"),
                "canary": _told(canary, "How it is tried before it gets all requests"),
            },
            ["service", "model", "when"],
        ),
        "The service to which its model goes when the stage has completed, and behind which gate",
    )


def _keyed(keys: Iterable[str], properties: Mapping[str, Schema], required: Iterable[str] = ()) -> Schema:
    """Return a mapping with exactly the keys that the parser knows; KeyError for one that has no description here."""
    return _mapping({key: properties[key] for key in keys}, required)


@cache
def schema(url: str = "") -> Schema:
    """Return the schema; ``url`` is where it is published."""
    job = _keyed(
        spec.JOB_KEYS,
        {
            **_shared(),
            "apiVersion": _one_of(("v1",)),
            "kind": _one_of(("Job",)),
            "name": _text(100, "For people; by default the name of the first stage"),
            "project": _text(200, "Who it is charged to"),
            "pool": _text(200, "The pool of nodes that it runs in"),
            "priority": {"type": ["string", "integer"], "minimum": 0, "maximum": 10_000, "description": "A class"},
            "labels": {
                "description": "Names and values to find it by",
                "type": "object",
                "maxProperties": 64,
                "propertyNames": {"pattern": f"^{_LABEL}$"},
                "additionalProperties": {**_SCALAR, "maxLength": 200},
            },
            "workdir": _workdir(),
            "bundle": _pattern(f"(?:{_SHA256})?", "The SHA-256 of a folder that was sent before, instead of workdir"),
            "hold": {"type": "boolean", "description": "Queue it on hold"},
            "reservation": _text(63, "The reservation of its project in which it runs"),
            "stages": _list(_stage(), spec.MAX_STAGES, 1, "Its stages"),
            "array": _array(),
            "depends_on": _depends_on(),
            "notify": _notify(),
            "promote": _promote(),
        },
    )
    # A command of the job is the default of its stages, each of which may have the other.
    runs = [{"anyOf": [_given(key) for key in ("run", "command", "devices", "stages")]}]
    return {
        "$schema": _DIALECT,
        **({"$id": url} if url else {}),
        "title": "Job file of Switchyard",
        **job,
        "allOf": [*runs, {"anyOf": [_given("stages"), _NOT_BOTH]}],
    }
