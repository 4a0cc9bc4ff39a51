"""Stage 5: the fine-tuned model in int8 writes a sample. Writes ``tuned.int8.npz`` and ``sample.txt``."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from finetune import framework, training, weights
from finetune.perplexity import perplexity
from finetune.quantised import Quantised
from finetune.settings import Settings
from finetune.tokens import Vocabulary
from switchyard import runtime

if TYPE_CHECKING:
    from finetune.framework import Model

TEMPERATURE = 0.7


def main() -> None:
    settings = Settings.read("Generates text with the fine-tuned model in int8.")
    vocabulary = Vocabulary.load(Path(runtime.input_dir("preprocess")) / "vocabulary.json")
    shape, flat = weights.load(Path(runtime.input_dir("train")) / "tuned.npz")
    folder = Path(runtime.output_dir())
    small = Quantised.of(shape, flat)
    path = folder / "tuned.int8.npz"
    small.save(path)
    print(
        f"weights: {flat.nbytes:,} bytes in fp32, {small.size_bytes:,} bytes in int8 with a scale per channel",
        flush=True,
    )

    prose = training.read_tokens("prose.heldout")
    model = framework.build(shape, flat, settings.framework)
    full = perplexity(model, prose)
    runtime.report(step=1, total=3)
    model.restore(weights.State(small.restored(), flat * 0, flat * 0, 0))
    rounded = perplexity(model, prose)
    runtime.report(step=2, total=3, perplexity_fp=full, perplexity_int8=rounded)
    print(f"held-out prose: perplexity {full:.3f} in floating point, {rounded:.3f} in int8 ({rounded / full - 1:+.2%})")

    begun_at = time.monotonic()
    text, count = write(model, vocabulary, settings)
    pace = count / max(time.monotonic() - begun_at, 1e-9)
    (folder / "sample.txt").write_text(text, encoding="utf-8")
    print(f"--- sample, {count} tokens at {pace:,.0f} tokens/s ---\n{text}\n---")
    runtime.report(step=3, total=3, tokens_per_s=round(pace), model=str(path))
    print(f"model={path}", flush=True)


def write(model: Model, vocabulary: Vocabulary, settings: Settings) -> tuple[str, int]:
    """Continues the prompt until it has ``settings.characters`` characters; the same seed gives the same text."""
    dice = np.random.default_rng([settings.seed, 1])
    tokens = [int(number) for number in vocabulary.encode(settings.prompt)]
    start = len(tokens)
    while len(vocabulary.decode(tokens)) < settings.characters:
        scores = model.scores(np.array(tokens[-model.shape.context :])).astype(np.float64) / TEMPERATURE
        chances = np.exp(scores - scores.max())
        tokens.append(int(dice.choice(chances.size, p=chances / chances.sum())))
    return vocabulary.decode(tokens), len(tokens) - start


if __name__ == "__main__":
    main()
