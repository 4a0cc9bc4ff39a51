"""How well a model foresees a text: the number of tokens between which it is as good as guessing."""

from __future__ import annotations

from math import exp
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from finetune.framework import Model

ROWS = 32


def perplexity(model: Model, text: NDArray[Any]) -> float:
    """exp of the mean loss over ``text``, cut into windows of the model's context. Every run sees the same windows."""
    length = model.shape.context
    count = (len(text) - 1) // length
    if count == 0:
        raise ValueError(f"a text of {len(text)} tokens is shorter than the context of {length} tokens plus one")
    windows = np.arange(count)[:, None] * length + np.arange(length + 1)
    total = 0.0
    for start in range(0, count, ROWS):
        part = windows[start : start + ROWS]
        total += model.loss(text[part]) * len(part)
    return exp(total / count)
