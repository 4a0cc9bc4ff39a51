"""Weights as 8-bit whole numbers: each output channel of a matrix has a scale of its own, so that its largest is 127.

Weight-only quantisation: products are computed in the framework's own precision from the restored weights. What is
saved and compared is therefore the error and the size of int8, not its speed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from finetune.weights import Shape, layout, views

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray


@dataclass(frozen=True)
class Quantised:
    """``codes`` are int8 matrices by name, ``scales`` their float32 scales; vectors stay float32 in ``vectors``."""

    shape: Shape
    codes: dict[str, NDArray[np.int8]]
    scales: dict[str, NDArray[np.float32]]
    vectors: dict[str, NDArray[np.float32]]

    @classmethod
    def of(cls, shape: Shape, flat: NDArray[np.float32]) -> Quantised:
        """Rounds every matrix to the nearest of 255 levels per channel."""
        codes, scales, vectors = {}, {}, {}
        for name, matrix in views(flat, shape).items():
            if matrix.ndim == 1:
                vectors[name] = matrix.copy()
                continue
            # An embedding's channel is its row, one token; a layer's channel is its column.
            axis = 1 if name in {"tokens", "places"} else 0
            scale = np.maximum(np.abs(matrix).max(axis=axis, keepdims=True), 1e-12) / 127
            scales[name] = scale.astype(np.float32)
            codes[name] = np.rint(matrix / scale).astype(np.int8)
        return cls(shape, codes, scales, vectors)

    def restored(self) -> NDArray[np.float32]:
        """The flat weights that the codes stand for."""
        flat = np.empty(layout(self.shape)[-1].stop, np.float32)
        for name, into in views(flat, self.shape).items():
            into[...] = self.codes[name] * self.scales[name] if name in self.codes else self.vectors[name]
        return flat

    @property
    def size_bytes(self) -> int:
        return sum(part.nbytes for group in (self.codes, self.scales, self.vectors) for part in group.values())

    def save(self, path: Path) -> None:
        """Writes codes, scales and vectors."""
        parts: dict[str, Any] = {f"codes/{name}": part for name, part in self.codes.items()}
        parts |= {f"scales/{name}": part for name, part in self.scales.items()}
        parts |= {f"vectors/{name}": part for name, part in self.vectors.items()}
        np.savez(path, **parts)
