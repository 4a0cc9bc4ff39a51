"""Chooses what computes: PyTorch on the device that the stage was given, else on the CPU, else numpy. Says so."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Protocol

from finetune import model_numpy
from switchyard import runtime

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from finetune.weights import Shape, State


class Model(Protocol):
    """What both implementations can do; their docstrings give the details."""

    name: str
    shape: Shape

    def state(self) -> State: ...
    def restore(self, state: State) -> None: ...
    def loss(self, tokens: NDArray[Any]) -> float: ...
    def scores(self, tokens: NDArray[Any]) -> NDArray[Any]: ...
    def train_step(self, tokens: NDArray[Any], rate: float) -> float: ...
    def gradient(self, tokens: NDArray[Any]) -> tuple[float, NDArray[Any]]: ...


def build(shape: Shape, flat: NDArray[Any], wanted: str = "auto") -> Model:
    """A model with the weights ``flat`` on the best device that this process was given and can use."""
    held = runtime.device()
    if wanted not in {"auto", "torch", "numpy"}:
        raise SystemExit(f"--framework is {wanted!r}; it can be auto, torch or numpy")
    torch = None if wanted == "numpy" else _import("torch")
    if wanted == "torch" and torch is None:
        raise SystemExit("--framework torch: torch is not installed here (pip install torch), or choose auto or numpy")
    place = _place(torch, held) if torch else "cpu"
    precision = "bf16" if place != "cpu" and "bf16" in held.precisions else "fp32"
    name = "torch" if torch else "numpy"
    _tell(held, name, place, precision)
    runtime.report(framework=name, computes_on=place, precision=precision)
    if torch is None:
        return model_numpy.Model(shape, flat)
    chosen: Model = importlib.import_module("finetune.model_torch").Model(shape, flat, place, precision)
    return chosen


def _place(torch: Any, held: runtime.Device) -> str:
    """The device that the framework can really use: the one that was given, or the CPU."""
    wanted = held.framework_device
    kind = wanted.partition(":")[0]
    if kind == "npu" and _import("torch_npu") is None:
        return "cpu"
    module = getattr(torch, kind, None)
    return wanted if kind != "cpu" and module is not None and module.is_available() else "cpu"


def _import(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def _tell(held: runtime.Device, name: str, place: str, precision: str) -> None:
    given = "the CPU" if held.kind == "cpu" else f"{held.kind.upper()} {held.model}".rstrip()
    if held.simulated:
        print(f"given: {given}, which is simulated and computes nothing", flush=True)
    elif held.kind != "cpu" and place == "cpu":
        print(f"given: {given}, but {name} here cannot use it", flush=True)
    else:
        print(f"given: {given}", flush=True)
    print(f"computing with {name} on {place}, {precision}", flush=True)
