"""How ten frameworks write a checkpoint, step by step, so that a test can cut the writing anywhere."""

from __future__ import annotations

import io
import json
import pickle
import struct
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from agents.storage.tree import Leaf, Tree


@dataclass(frozen=True)
class Write:
    """Bytes appended to a file; the first write of a file empties it."""

    path: str
    content: bytes
    first: bool = True


@dataclass(frozen=True)
class Rename:
    """A file or folder gets its final name in one step."""

    source: str
    target: str


@dataclass(frozen=True)
class Done:
    """From here on the checkpoint of this step is complete."""

    step: int


Step = Write | Rename | Done


@dataclass
class Disk:
    """A folder in memory with a clock that ticks with every step."""

    files: dict[str, bytes] = field(default_factory=dict)
    written_ns: dict[str, int] = field(default_factory=dict)
    now_ns: int = 0
    done: set[int] = field(default_factory=set)

    def do(self, step: Step) -> None:
        self.now_ns += 1
        if isinstance(step, Write):
            self.files[step.path] = step.content if step.first else self.files[step.path] + step.content
            self.written_ns[step.path] = self.now_ns
        elif isinstance(step, Rename):
            for path in [p for p in self.files if p == step.source or p.startswith(step.source + "/")]:
                target = step.target + path[len(step.source) :]
                self.files[target] = self.files.pop(path)
                self.written_ns[target] = self.written_ns.pop(path)
        else:
            self.done.add(step.step)

    def tree(self) -> Tree:
        leaves = {path: Leaf(len(content), self.written_ns[path]) for path, content in self.files.items()}
        return Tree(leaves, lambda path, offset, length: self.files[path][offset : offset + length])


def torn(path: str, content: bytes) -> Iterator[Write]:
    """A file is emptied, then written in three pieces."""
    third = max(1, len(content) // 3)
    yield Write(path, b"")
    for start in range(0, len(content), third):
        yield Write(path, content[start : start + third], first=False)


def archive(word: str) -> bytes:
    """What torch.save writes is a zip archive of stored entries; without the time of day, so that it stays the same."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as file:
        file.writestr(zipfile.ZipInfo("archive/data.pkl"), pickle.dumps(word))
        file.writestr(zipfile.ZipInfo("archive/data/0"), word * 20)
    return stream.getvalue()


def safetensors(size: int = 64) -> bytes:
    header = json.dumps({"w": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
    return struct.pack("<Q", len(header)) + header + bytes(size)


def hugging_face(step: int) -> Iterator[Step]:
    at = f"checkpoint-{step}"
    yield from torn(f"{at}/config.json", b'{"hidden": 64}')
    for shard in (1, 2):
        yield from torn(f"{at}/model-{shard:05d}-of-00002.safetensors", safetensors())
    names = {f"w{shard}": f"model-{shard:05d}-of-00002.safetensors" for shard in (1, 2)}
    yield from torn(f"{at}/model.safetensors.index.json", json.dumps({"weight_map": names}).encode())
    for name in ("optimizer.pt", "scheduler.pt", "rng_state.pth"):
        yield from torn(f"{at}/{name}", archive(name))
    yield from torn(f"{at}/trainer_state.json", json.dumps({"global_step": step}).encode())
    yield Done(step)


def hugging_face_deepspeed(step: int) -> Iterator[Step]:
    at = f"checkpoint-{step}"
    for rank in (0, 1):
        name = f"bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt"
        yield from torn(f"{at}/global_step{step}/{name}", archive("o"))
    yield from torn(f"{at}/global_step{step}/mp_rank_00_model_states.pt", archive("m"))
    yield Write(f"{at}/latest", f"global_step{step}".encode())
    yield from torn(f"{at}/zero_to_fp32.py", b"print('convert')")
    yield from torn(f"{at}/trainer_state.json", json.dumps({"global_step": step}).encode())
    yield Done(step)


def deepspeed(step: int) -> Iterator[Step]:
    for rank in (0, 1):
        yield from torn(f"global_step{step}/zero_pp_rank_{rank}_mp_rank_00_optim_states.pt", archive("o"))
    yield from torn(f"global_step{step}/mp_rank_00_model_states.pt", archive("m"))
    yield Write("latest", f"global_step{step}".encode())
    yield Done(step)


def megatron(step: int) -> Iterator[Step]:
    for rank in (0, 1):
        yield from torn(f"iter_{step:07d}/mp_rank_{rank:02d}/model_optim_rng.pt", archive(str(rank)))
    yield Write("latest_checkpointed_iteration.txt", str(step).encode())
    yield Done(step)


def lightning(step: int) -> Iterator[Step]:
    yield from torn(f"version_0/checkpoints/epoch=0-step={step}.ckpt", archive("m"))
    yield Done(step)


def accelerate(step: int) -> Iterator[Step]:
    at = f"checkpoints/checkpoint_{step}"
    yield from torn(f"{at}/model.safetensors", safetensors())
    for name in ("optimizer.bin", "scheduler.bin", "random_states_0.pkl"):
        yield from torn(f"{at}/{name}", archive(name))
    yield Done(step)


def distributed(step: int) -> Iterator[Step]:
    for rank in (0, 1):
        yield from torn(f"step-{step}/__{rank}_0.distcp", archive("t"))
    yield from torn(f"step-{step}/.metadata.tmp", pickle.dumps({"planner": step}))
    yield Rename(f"step-{step}/.metadata.tmp", f"step-{step}/.metadata")
    yield Done(step)


def ray(step: int) -> Iterator[Step]:
    at = f"checkpoint_{step:06d}"
    yield from torn(f"{at}/model.pt", archive("m"))
    yield from torn(f"{at}/.metadata.json", b'{"epoch": 1}')
    yield Done(step)


def orbax(step: int) -> Iterator[Step]:
    at = f"{step}.orbax-checkpoint-tmp-17"
    yield from torn(f"{at}/default/d/0", b"array")
    yield from torn(f"{at}/default/_METADATA", b'{"tree": 1}')
    yield from torn(f"{at}/_CHECKPOINT_METADATA", b'{"item": "default"}')
    yield Rename(at, str(step))
    yield Done(step)


def confirmed(step: int) -> Iterator[Step]:
    content = f"weights of step {step}".encode()
    yield from torn(f"weights-{step}.bin", content)
    marker = json.dumps({"step": step, "path": f"weights-{step}.bin", "bytes": len(content)})
    yield from torn(".yard-checkpoint.json.x7", marker.encode())
    yield Rename(".yard-checkpoint.json.x7", "yard-checkpoint.json")
    yield Done(step)


def in_place(step: int) -> Iterator[Step]:
    """One file, written over each time: between two confirmations nothing is safe."""
    yield from torn("weights.bin", f"weights of step {step}".encode())
    yield from torn(".marker", json.dumps({"step": step, "path": "weights.bin"}).encode())
    yield Rename(".marker", "yard-checkpoint.json")
    yield Done(step)


WRITERS: dict[str, Callable[[int], Iterator[Step]]] = {
    "hf-trainer": hugging_face,
    "hf-deepspeed": hugging_face_deepspeed,
    "deepspeed": deepspeed,
    "megatron": megatron,
    "lightning": lightning,
    "accelerate": accelerate,
    "torch-dcp": distributed,
    "ray": ray,
    "orbax": orbax,
    "switchyard": confirmed,
}
