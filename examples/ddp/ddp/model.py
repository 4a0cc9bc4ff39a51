"""A small network that learns a function of eight numbers, with gradients by hand or from PyTorch."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]
INPUTS = 8


def batch(seed: int, step: int, piece: int, rows: int) -> tuple[Vector, Vector]:
    """One piece of the batch of a step: it depends on these numbers alone, never on who computes it."""
    dice = np.random.default_rng([seed, step, piece])
    x = dice.standard_normal((rows, INPUTS))
    return x, np.sin(x).sum(axis=1, keepdims=True) + 0.5 * x[:, :1] * x[:, 1:2]


class Model:
    """Two layers of weights in one flat vector, with numpy."""

    def __init__(self, width: int, seed: int) -> None:
        self.width = width
        dice = np.random.default_rng(seed)
        self.flat = np.concatenate(
            [
                dice.standard_normal(INPUTS * width) / np.sqrt(INPUTS),
                np.zeros(width),
                dice.standard_normal(width) / np.sqrt(width),
                np.zeros(1),
            ]
        )

    def _parts(self) -> tuple[Vector, Vector, Vector, Vector]:
        ends = np.cumsum([INPUTS * self.width, self.width, self.width])
        first, bias, second, last = np.split(self.flat, ends)
        return first.reshape(INPUTS, self.width), bias, second.reshape(self.width, 1), last

    def gradient(self, x: Vector, y: Vector) -> tuple[float, Vector]:
        """Loss and gradient, both as sums over the rows."""
        first, bias, second, last = self._parts()
        hidden = np.tanh(x @ first + bias)
        off = hidden @ second + last - y
        back = (off @ second.T) * (1 - hidden**2) * 2
        parts = [(x.T @ back).ravel(), back.sum(axis=0), (2 * hidden.T @ off).ravel(), 2 * off.sum(axis=0)]
        return float((off**2).sum()), np.concatenate(parts)


class TorchModel(Model):
    """The same with PyTorch's autograd, on the CPU."""

    def gradient(self, x: Vector, y: Vector) -> tuple[float, Vector]:
        import torch

        leaves = [torch.tensor(part, requires_grad=True) for part in self._parts()]
        first, bias, second, last = leaves
        loss = ((torch.tanh(torch.from_numpy(x) @ first + bias) @ second + last - torch.from_numpy(y)) ** 2).sum()
        loss.backward()
        return float(loss.detach()), np.concatenate([leaf.grad.numpy().ravel() for leaf in leaves])
