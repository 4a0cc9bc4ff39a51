"""Checkpoint layouts of frameworks, and how each is known to be complete. Pure: from a Tree to Founds.

A checkpoint is complete by the marker that its writer writes last, or if a framework has none, by the structure of its
files. In doubt it is incomplete, and an incomplete one is never offered for a resume.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from agents.storage.tree import Tree, join
from agents.storage.whole import is_whole, is_zip, missing, shards_missing

MARKER: Final = "yard-checkpoint.json"
_WEIGHTS = re.compile(r"(model|pytorch_model|adapter_model).*\.(safetensors|bin)|tf_model\.h5|flax_model\.msgpack")
_DIGITS = re.compile(r"(\d+)")


@dataclass(frozen=True, slots=True)
class Found:
    """One checkpoint. ``lacks`` tells what is missing for a complete one; empty if it is complete.

    ``path`` is the checkpoint, ``resume`` the path that its framework resumes from, both relative to the scanned
    folder; None if the framework would resume from another one. ``wins`` marks those that their framework prefers
    whatever their step.
    """

    layout: str
    step: int
    path: str
    resume: str | None
    lacks: str = ""
    modified_ns: int = 0
    size: int = 0
    wins: bool = False

    @property
    def is_complete(self) -> bool:
        return not self.lacks


Recogniser = Callable[[Tree, str], Iterator[Found]]


def _found(tree: Tree, layout: str, step: int, path: str, lacks: str, *, wins: bool = False) -> Found:
    names = [path] if path in tree.leaves else tree.below(path)
    leaves = [tree.leaves[name] for name in names if name.rpartition("/")[2] != MARKER]
    newest = max((leaf.modified_ns for leaf in leaves), default=0)
    return Found(layout, step, path, path, lacks, newest, sum(leaf.size for leaf in leaves), wins)


def _numbered(tree: Tree, folder: str, pattern: str) -> Iterator[tuple[int, str]]:
    for name in tree.folders(folder):
        if match := re.fullmatch(pattern, name):
            yield int(match[1]), join(folder, name)


def hugging_face(tree: Tree, folder: str) -> Iterator[Found]:
    """``checkpoint-<step>/`` of the Transformers Trainer, also with DeepSpeed and FSDP: ``trainer_state.json`` is
    written late."""
    for step, path in _numbered(tree, folder, r"checkpoint-(\d+)"):
        sharded = "latest" in tree.files(path) or any(name.startswith("global_step") for name in tree.folders(path))
        lacks = missing(tree, path, ["trainer_state.json"])
        state = tree.json(join(path, "trainer_state.json"))
        if not lacks and not (isinstance(state, dict) and state.get("global_step", step) == step):
            lacks = f"trainer_state.json is not of step {step}"
        lacks = lacks or (_deepspeed_lacks(tree, path) if sharded else _weights_lack(tree, path))
        lacks = lacks or missing(tree, path, tree.files(path))
        yield _found(tree, "hf-deepspeed" if sharded else "hf-trainer", step, path, lacks)


def _weights_lack(tree: Tree, path: str) -> str:
    if lack := shards_missing(tree, path):
        return lack
    for name in tree.folders(path):
        if name.startswith(("pytorch_model", "model", "optimizer")) and (
            lack := _distributed_lacks(tree, join(path, name))
        ):
            return f"{name}: {lack}"
    if any(_WEIGHTS.fullmatch(name) for name in tree.files(path)):
        return ""
    return (
        "" if any(name.startswith(("pytorch_model", "model")) for name in tree.folders(path)) else "it has no weights"
    )


def deepspeed(tree: Tree, folder: str) -> Iterator[Found]:
    """``global_step<N>/`` with a text file ``latest`` beside it, which is written last and names the newest."""
    tags = list(_numbered(tree, folder, r"global_step(\d+)"))
    named = tree.text(join(folder, "latest")) if "latest" in tree.files(folder) else ""
    if tags or named:
        yield from _by_tracker(tree, folder, "deepspeed", tags, named, _deepspeed_files)


def _deepspeed_lacks(tree: Tree, folder: str) -> str:
    named = tree.text(join(folder, "latest"))
    if not named or not tree.has_folder(join(folder, named)):
        return "latest names no folder that is there"
    return _deepspeed_files(tree, join(folder, named))


def _deepspeed_files(tree: Tree, path: str) -> str:
    if not any(name.startswith("mp_rank_") or "zero_pp_rank_" in name for name in tree.files(path)):
        return "it holds no rank's state"
    return missing(tree, path, tree.files(path))


def megatron(tree: Tree, folder: str) -> Iterator[Found]:
    """``iter_0001000/`` of Megatron-LM, NeMo and MindSpeed; ``latest_checkpointed_iteration.txt`` is written last."""
    tracker = "latest_checkpointed_iteration.txt"
    tags = list(_numbered(tree, folder, r"iter_(\d{7})"))
    told = tree.text(join(folder, tracker)) if tracker in tree.files(folder) else ""
    if tags or told:
        named = f"iter_{int(told):07d}" if told.isascii() and told.isdigit() else told
        yield from _by_tracker(tree, folder, "megatron", tags, named, _megatron_files)


def _megatron_files(tree: Tree, path: str) -> str:
    if ".metadata" in tree.files(path):
        return _distributed_lacks(tree, path)
    return next((f"{leaf} is cut" for leaf in tree.below(path) if not is_whole(tree, leaf)), "")


def _by_tracker(
    tree: Tree, folder: str, layout: str, tags: list[tuple[int, str]], named: str, lacking: Callable[[Tree, str], str]
) -> Iterator[Found]:
    """Layouts whose newest checkpoint is named by a file. An older one is complete if it has the same files as that
    one."""
    newest = join(folder, named) if named and tree.has_folder(join(folder, named)) else None
    if newest is not None and newest not in [path for _, path in tags]:
        digits = _DIGITS.findall(named)
        tags = [*tags, (int(digits[-1]) if digits else 0, newest)]
    at = next((step for step, path in tags if path == newest), -1)
    for step, path in tags:
        lacks = lacking(tree, path)
        if not lacks and path != newest and not (step < at and _shape(tree, path) == _shape(tree, newest or "")):
            lacks = "it is not the one that was written last"
        yield replace(_found(tree, layout, step, path, lacks), resume=folder if path == newest else None)


def _shape(tree: Tree, path: str) -> frozenset[str]:
    return frozenset(leaf[len(path) :] for leaf in tree.below(path))


def lightning(tree: Tree, folder: str) -> Iterator[Found]:
    """``epoch=E-step=S.ckpt``, ``last.ckpt``, ``hpc_ckpt_<n>.ckpt``: one archive each, complete if its end is there.

    The step of ``last`` and ``hpc_ckpt`` is unknown: they count as the newest of their neighbours. Lightning prefers a
    ``hpc_ckpt`` to all others.
    """
    names = [name for name in tree.files(folder) if name.endswith(".ckpt")]
    steps = {name: int(match[1]) for name in names if (match := re.search(r"step=(\d+)", name))}
    whole = [step for name, step in steps.items() if is_zip(tree, join(folder, name))]
    for name in names:
        hpc = re.fullmatch(r"hpc_ckpt_(\d+)\.ckpt", name)
        if name in steps or hpc or re.fullmatch(r"last(-v\d+)?\.ckpt", name):
            path = join(folder, name)
            lacks = "" if is_zip(tree, path) else "the archive has no end"
            yield _found(tree, "lightning", steps.get(name, max(whole, default=0)), path, lacks, wins=bool(hpc))


def ray(tree: Tree, folder: str) -> Iterator[Found]:
    """``checkpoint_000012/`` of Ray Train, with its marker or metadata inside, or listed in its manager's snapshot."""
    listed = tree.json(join(folder, "checkpoint_manager_snapshot.json"))
    known = {str(entry.get("checkpoint_dir_name")) for entry in _entries(listed)}
    for index, path in _numbered(tree, folder, r"checkpoint_(\d{6})"):
        files = tree.files(path)
        signs = {".is_checkpoint", ".metadata.json", ".tune_metadata"} & set(files)
        if _accelerate_states(files) or not (signs or known):
            continue
        cut = missing(tree, path, files) if len(files) > len(signs) or tree.folders(path) else "it is empty"
        is_known = path.rpartition("/")[2] in known
        lacks = cut if ".is_checkpoint" in signs or ".metadata.json" in signs or is_known else "it is not marked"
        yield _found(tree, "ray", index, path, lacks)


def _entries(listed: object) -> list[dict[str, object]]:
    rows = listed.get("checkpoint_results") if isinstance(listed, dict) else None
    return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []


def accelerate(tree: Tree, folder: str) -> Iterator[Found]:
    """``checkpoint_<i>/`` or ``step_<i>/`` of Accelerate: the random state of each process is saved last."""
    folders = [
        (number, path, _accelerate_states(tree.files(path)))
        for number, path in _numbered(tree, folder, r"(?:checkpoint|step|epoch)_(\d+)")
    ]
    processes = max((max(ranks, default=-1) + 1 for _, _, ranks in folders), default=0)
    if not processes:
        return
    for number, path, ranks in folders:
        lacks = _weights_lack(tree, path) or missing(tree, path, tree.files(path))
        if not lacks and ranks != set(range(processes)):
            lacks = f"it has the random state of {len(ranks)} of {processes} processes"
        yield _found(tree, "accelerate", number, path, lacks)


def _accelerate_states(files: list[str]) -> set[int]:
    return {int(match[1]) for name in files if (match := re.fullmatch(r"random_states_(\d+)\.pkl", name))}


def distributed(tree: Tree, folder: str) -> Iterator[Found]:
    """``step-<N>/`` of torch.distributed.checkpoint, FSDP2 and torchtitan: ``.metadata`` appears last, by rename."""
    for name in tree.folders(folder):
        path = join(folder, name)
        files = tree.files(path)
        if ".metadata" in files or any(each.endswith(".distcp") for each in files):
            digits = _DIGITS.findall(name)
            yield _found(tree, "torch-dcp", int(digits[-1]) if digits else 0, path, _distributed_lacks(tree, path))


def _distributed_lacks(tree: Tree, path: str) -> str:
    pieces = [join(path, name) for name in tree.files(path) if name.endswith(".distcp")]
    if lack := missing(tree, path, [".metadata"]):
        return lack
    if not pieces:
        return "it has no .distcp file"
    marked_ns = tree.leaves[join(path, ".metadata")].modified_ns
    # Overwritten in place: the marker is still that of the previous checkpoint.
    return next(
        (f"{piece} is newer than .metadata" for piece in pieces if tree.leaves[piece].modified_ns > marked_ns), ""
    )


def orbax(tree: Tree, folder: str) -> Iterator[Found]:
    """``<step>/`` of Orbax: renamed as a whole when done, or with ``commit_success.txt`` without rename."""
    for name in tree.folders(folder):
        match = re.fullmatch(r"(?:[A-Za-z]\w*_)?(\d+)(\.orbax-checkpoint-tmp.*)?", name)
        if not match:
            continue
        path = join(folder, name)
        inner = [leaf[len(path) + 1 :] for leaf in tree.below(path)]
        signs = {leaf.rpartition("/")[2] for leaf in inner}
        if not (signs & {"_CHECKPOINT_METADATA", "_METADATA", "commit_success.txt"} or match[2]):
            continue
        is_open = bool(match[2]) or any(".orbax-checkpoint-tmp" in leaf for leaf in inner)
        yield _found(tree, "orbax", int(match[1]), path, "it is not committed" if is_open else "")


def confirmed(tree: Tree, folder: str) -> Iterator[Found]:
    """Checkpoints that ``switchyard.runtime.checkpoint`` or a script named in ``yard-checkpoint.json``, which appears
    by rename."""
    marker = join(folder, MARKER)
    told = tree.json(marker)
    if not isinstance(told, dict) or not isinstance(told.get("path"), str):
        return
    step, named = told.get("step"), told["path"].removeprefix("./").rstrip("/")
    if not isinstance(step, int) or named.startswith("/") or ".." in named.split("/") or not named:
        return
    path = folder if named == "." else join(folder, named)
    found = _found(tree, "switchyard", step, path, "")
    confirmed_bytes = told.get("bytes")
    lacks = ""
    if path not in tree.leaves and not tree.below(path):
        lacks = f"{named} is missing"
    elif found.modified_ns > tree.leaves[marker].modified_ns:
        lacks = f"{named} was written to after it was confirmed"
    elif isinstance(confirmed_bytes, int) and confirmed_bytes != found.size:
        lacks = f"{named} has {found.size} bytes; {confirmed_bytes} were confirmed"
    yield replace(found, lacks=lacks)


# In this order: folders that an earlier layout recognises are not examined by later ones.
RECOGNISERS: Final[tuple[Recogniser, ...]] = (
    confirmed, hugging_face, deepspeed, megatron, ray, accelerate, distributed, orbax, lightning,
)  # fmt: skip


def recognise(tree: Tree) -> list[Found]:
    """Return every checkpoint of the folder, complete or not, each once."""
    found: dict[str, Found] = {}
    for folder in tree.every_folder():
        if _is_inside(folder, found):
            continue
        for recogniser in RECOGNISERS:
            for each in recogniser(tree, folder):
                if not _is_inside(each.path, found):
                    found[each.path] = each
    return list(found.values())


def _is_inside(path: str, found: Mapping[str, Found]) -> bool:
    """Whether the path is one of these, or below one."""
    steps = path.split("/")
    return "" in found or any("/".join(steps[:length]) in found for length in range(1, len(steps) + 1))
