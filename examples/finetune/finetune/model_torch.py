"""The transformer in PyTorch: any device that PyTorch knows, float32 or bfloat16. Same numbers as ``model_numpy``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.nn import functional

from finetune.model_numpy import BETA_FIRST, BETA_SECOND, CLIP, ROOT_TINY, TINY
from finetune.weights import Shape, State, views

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]


class Model:
    """A model that can be trained in place. Weights and moments stay float32; ``bf16`` is for the products."""

    name = "torch"

    def __init__(self, shape: Shape, flat: Array, place: str = "cpu", precision: str = "fp32") -> None:
        self.shape = shape
        self._place = torch.device(place)
        self._bf16 = precision == "bf16"
        self._flat = self._bring(flat).requires_grad_()
        self._first, self._second = torch.zeros_like(self._flat), torch.zeros_like(self._flat)
        self._updates = 0

    def state(self) -> State:
        """The present state, copied to the host."""
        flat, first, second = (part.detach().cpu().numpy().copy() for part in (self._flat, self._first, self._second))
        return State(flat, first, second, self._updates)

    def restore(self, state: State) -> None:
        """Goes on from ``state``."""
        with torch.no_grad():
            self._flat.copy_(self._bring(state.flat))
            self._first.copy_(self._bring(state.first))
            self._second.copy_(self._bring(state.second))
        self._updates = state.updates

    def loss(self, tokens: Array) -> float:
        """Mean negative log-likelihood, in nats, of ``tokens[:, 1:]`` given what comes before; dims (batch, length)."""
        with torch.no_grad():
            return float(self._loss(tokens))

    def scores(self, tokens: Array) -> Array:
        """Scores of the token that follows the sequence ``tokens``; dims (vocabulary,)."""
        with torch.no_grad():
            scores: Array = self._forward(self._numbers(tokens[None, :]))[0, -1].float().cpu().numpy()
        return scores

    def train_step(self, tokens: Array, rate: float) -> float:
        """One update of Adam; returns the loss before it."""
        loss, gradient = self._slope(tokens)
        with torch.no_grad():
            gradient *= torch.clamp(CLIP / (gradient.norm() + TINY), max=1.0)
            self._updates += 1
            self._first.lerp_(gradient, 1 - BETA_FIRST)
            self._second.lerp_(gradient * gradient, 1 - BETA_SECOND)
            root = (self._second / (1 - BETA_SECOND**self._updates)).sqrt_()
            self._flat -= rate / (1 - BETA_FIRST**self._updates) * self._first / (root + TINY)
        return float(loss)

    def gradient(self, tokens: Array) -> tuple[float, Array]:
        """The loss of a batch and its gradient, laid out like the weights."""
        loss, gradient = self._slope(tokens)
        return float(loss), gradient.cpu().numpy()

    def _slope(self, tokens: Array) -> tuple[torch.Tensor, torch.Tensor]:
        loss = self._loss(tokens)
        (gradient,) = torch.autograd.grad(loss, self._flat)
        return loss.detach(), gradient

    def _loss(self, tokens: Array) -> torch.Tensor:
        numbers = self._numbers(tokens)
        scores = self._forward(numbers[:, :-1])
        return functional.cross_entropy(scores.float().flatten(0, 1), numbers[:, 1:].flatten())

    def _forward(self, given: torch.Tensor) -> torch.Tensor:
        with torch.autocast(self._place.type, torch.bfloat16, enabled=self._bf16):
            weights = views(self._flat, self.shape)
            x = weights["tokens"][given] + weights["places"][: given.shape[1]]
            for block in range(self.shape.layers):
                normal = _normalise(x, weights[f"{block}.attention.gain"])
                mixed = self._attend(normal @ weights[f"{block}.attention.in"])
                x = x + mixed @ weights[f"{block}.attention.out"]
                normal = _normalise(x, weights[f"{block}.network.gain"])
                active = functional.relu(normal @ weights[f"{block}.network.in"]).square()
                x = x + active @ weights[f"{block}.network.out"]
            return _normalise(x, weights["gain"]) @ weights["tokens"].T

    def _attend(self, triple: torch.Tensor) -> torch.Tensor:
        batch, length, _ = triple.shape
        parts = triple.view(batch, length, 3, self.shape.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(parts[0], parts[1], parts[2], is_causal=True)
        return mixed.transpose(1, 2).reshape(batch, length, -1)

    def _bring(self, values: Array) -> torch.Tensor:
        return torch.tensor(np.asarray(values, np.float32), device=self._place)

    def _numbers(self, tokens: Array) -> torch.Tensor:
        return torch.tensor(tokens.astype(np.int64), device=self._place)


def _normalise(x: torch.Tensor, gain: torch.Tensor) -> torch.Tensor:
    x = x.float()
    return x * torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + ROOT_TINY) * gain
