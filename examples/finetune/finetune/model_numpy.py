"""The transformer in numpy, with its gradients written by hand. Computes on the CPU, in float32.

Same numbers as ``model_torch``: normalisation by root mean square, causal attention, squared ReLU, tied embeddings,
Adam with clipping to norm 1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from finetune.weights import Shape, State, views

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]

BETA_FIRST, BETA_SECOND, TINY = 0.9, 0.98, 1e-8
CLIP = 1.0
ROOT_TINY = 1e-6


class Model:
    """A model that can be trained in place. ``dtype`` is float64 only to check gradients."""

    name = "numpy"

    def __init__(self, shape: Shape, flat: Array, place: str = "cpu", precision: str = "fp32", dtype: Any = np.float32):
        self.shape = shape
        self._state = State(np.array(flat, dtype), np.zeros(flat.size, dtype), np.zeros(flat.size, dtype), 0)
        self._views = views(self._state.flat, shape)
        future = np.triu(np.ones((shape.context, shape.context), bool), 1)
        self._mask = np.where(future, np.array(-1e9, dtype), np.array(0, dtype))

    def state(self) -> State:
        """The present state; not a copy."""
        return self._state

    def restore(self, state: State) -> None:
        """Goes on from ``state``."""
        for name in ("flat", "first", "second"):
            getattr(self._state, name)[:] = getattr(state, name)
        self._state.updates = state.updates

    def loss(self, tokens: Array) -> float:
        """Mean negative log-likelihood, in nats, of ``tokens[:, 1:]`` given what comes before; dims (batch, length)."""
        scores, _ = self._forward(tokens[:, :-1])
        return self._judge(scores, tokens[:, 1:])[0]

    def scores(self, tokens: Array) -> Array:
        """Scores of the token that follows the sequence ``tokens``; dims (vocabulary,)."""
        last: Array = self._forward(tokens[None, :])[0][-1]
        return last

    def train_step(self, tokens: Array, rate: float) -> float:
        """One update of Adam; returns the loss before it."""
        loss, gradient = self.gradient(tokens)
        state = self._state
        gradient *= min(1.0, CLIP / (float(np.sqrt(gradient @ gradient)) + TINY))
        state.updates += 1
        state.first += (1 - BETA_FIRST) * (gradient - state.first)
        state.second += (1 - BETA_SECOND) * (gradient * gradient - state.second)
        scale = rate / (1 - BETA_FIRST**state.updates)
        root = np.sqrt(state.second / (1 - BETA_SECOND**state.updates))
        state.flat -= scale * state.first / (root + TINY)
        return loss

    def gradient(self, tokens: Array) -> tuple[float, Array]:
        """The loss of a batch and its gradient, laid out like the weights."""
        given, wanted = tokens[:, :-1], tokens[:, 1:]
        scores, kept = self._forward(given)
        loss, up = self._judge(scores, wanted)
        gradient = np.zeros_like(self._state.flat)
        into = views(gradient, self.shape)
        self._backward(given, up, kept, into)
        return loss, gradient

    def _judge(self, scores: Array, wanted: Array) -> tuple[float, Array]:
        """The loss, and its gradient by the scores, which are overwritten."""
        targets = wanted.reshape(-1).astype(np.intp)
        lines = np.arange(targets.size)
        scores -= scores.max(axis=1, keepdims=True)
        right = scores[lines, targets]
        np.exp(scores, out=scores)
        total = scores.sum(axis=1, keepdims=True)
        loss = float(np.mean(np.log(total[:, 0]) - right, dtype=np.float64))
        scores /= total * targets.size
        scores[lines, targets] -= 1 / targets.size
        return loss, scores

    def _forward(self, given: Array) -> tuple[Array, list[Any]]:
        """Scores of every token, and what the way back needs. Rows are tokens: one large product beats many small."""
        weights, length = self._views, given.shape[1]
        kept: list[Any] = []
        x = (weights["tokens"][given] + weights["places"][:length]).reshape(-1, self.shape.width)
        for block in range(self.shape.layers):
            normal, kept_norm = _normalise(x, weights[f"{block}.attention.gain"])
            mixed, kept_mix = self._attend(normal @ weights[f"{block}.attention.in"], length)
            x = x + mixed @ weights[f"{block}.attention.out"]
            normal_2, kept_norm_2 = _normalise(x, weights[f"{block}.network.gain"])
            raw = np.maximum(normal_2 @ weights[f"{block}.network.in"], 0)
            active = raw * raw
            x = x + active @ weights[f"{block}.network.out"]
            kept.append((normal, kept_norm, mixed, kept_mix, normal_2, kept_norm_2, raw, active))
        last, kept_last = _normalise(x, weights["gain"])
        kept.append((last, kept_last))
        return last @ weights["tokens"].T, kept

    def _backward(self, given: Array, up: Array, kept: list[Any], into: dict[str, Array]) -> None:
        weights = self._views
        last, kept_last = kept.pop()
        into["tokens"] += up.T @ last
        x = _back_normalise(up @ weights["tokens"], kept_last, weights["gain"], into["gain"])
        for block in reversed(range(self.shape.layers)):
            normal, kept_norm, mixed, kept_mix, normal_2, kept_norm_2, raw, active = kept.pop()
            name = f"{block}.network"
            into[f"{name}.out"] += active.T @ x
            hidden = x @ weights[f"{name}.out"].T
            hidden *= raw
            hidden *= 2
            into[f"{name}.in"] += normal_2.T @ hidden
            back = hidden @ weights[f"{name}.in"].T
            x = x + _back_normalise(back, kept_norm_2, weights[f"{name}.gain"], into[f"{name}.gain"])
            name = f"{block}.attention"
            into[f"{name}.out"] += mixed.T @ x
            triple = self._back_attend(x @ weights[f"{name}.out"].T, kept_mix)
            into[f"{name}.in"] += normal.T @ triple
            back = triple @ weights[f"{name}.in"].T
            x = x + _back_normalise(back, kept_norm, weights[f"{name}.gain"], into[f"{name}.gain"])
        into["places"][: given.shape[1]] += x.reshape(*given.shape, -1).sum(axis=0)
        _scatter(given, x, into["tokens"])

    def _attend(self, triple: Array, length: int) -> tuple[Array, Any]:
        """Causal attention within sequences of ``length`` rows; dims (rows, 3 x width)."""
        heads, size = self.shape.heads, self.shape.width // self.shape.heads
        batch = len(triple) // length
        # Dims (3, batch, heads, length, size), each matrix in one piece: BLAS copies what is not.
        asks, keys, values = np.ascontiguousarray(
            triple.reshape(batch, length, 3, heads, size).transpose(2, 0, 3, 1, 4)
        )
        shares = asks @ keys.swapaxes(-1, -2)
        shares *= size**-0.5
        shares += self._mask[:length, :length]
        shares -= shares.max(axis=-1, keepdims=True)
        np.exp(shares, out=shares)
        shares /= shares.sum(axis=-1, keepdims=True)
        mixed = (shares @ values).transpose(0, 2, 1, 3).reshape(batch * length, heads * size)
        return mixed, (asks, keys, values, shares)

    def _back_attend(self, up: Array, kept: Any) -> Array:
        asks, keys, values, shares = kept
        batch, heads, length, size = asks.shape
        up = np.ascontiguousarray(up.reshape(batch, length, heads, size).transpose(0, 2, 1, 3))
        back = np.empty((3, batch, heads, length, size), up.dtype)
        back[2] = shares.swapaxes(-1, -2) @ up
        slope = up @ values.swapaxes(-1, -2)
        slope -= (slope * shares).sum(axis=-1, keepdims=True)
        slope *= shares
        slope *= size**-0.5
        back[0] = slope @ keys
        back[1] = slope.swapaxes(-1, -2) @ asks
        return back.transpose(1, 3, 0, 2, 4).reshape(batch * length, 3 * heads * size)


def _normalise(x: Array, gain: Array) -> tuple[Array, Any]:
    inverse = 1 / np.sqrt((x * x).mean(axis=-1, keepdims=True) + ROOT_TINY)
    unit = x * inverse
    return unit * gain, (unit, inverse)


def _back_normalise(up: Array, kept: Any, gain: Array, into: Array) -> Array:
    unit, inverse = kept
    into += (up * unit).sum(axis=0)
    slope = up * gain
    slope -= unit * (slope * unit).mean(axis=-1, keepdims=True)
    slope *= inverse
    return slope


def _scatter(given: Array, rows: Array, into: Array) -> None:
    """Adds each row to the row of its token; sorted sums are many times faster than ``np.add.at``."""
    numbers = given.reshape(-1)
    order = np.argsort(numbers, kind="stable")
    present, starts = np.unique(numbers[order], return_index=True)
    into[present] += np.add.reduceat(rows[order], starts, axis=0)
