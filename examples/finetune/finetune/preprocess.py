"""Stage 1: two texts to token numbers. Writes ``vocabulary.json`` and ``<code|prose>.<train|heldout>.npy``."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from finetune import corpus
from finetune.settings import Settings
from finetune.tokens import Vocabulary
from switchyard import runtime

LEARN_FROM = 150_000


def main() -> None:
    settings = Settings.read("Turns program code and prose into tokens.")
    folder = Path(runtime.output_dir())
    print("reading the standard library: code to pre-train on, prose to fine-tune on", flush=True)
    texts = {name: corpus.split(text) for name, text in corpus.texts().items()}
    runtime.report(step=1, total=3)

    # The vocabulary sees both texts, as that of any base model has seen more than one domain, but nothing held out.
    sample = texts["code"][0][:LEARN_FROM] + texts["prose"][0][:LEARN_FROM]
    vocabulary = Vocabulary.learn(sample, settings.vocabulary)
    vocabulary.save(folder / "vocabulary.json")
    print(f"vocabulary of {len(vocabulary)} tokens learned from {len(sample):,} characters", flush=True)
    runtime.report(step=2, total=3, vocabulary=len(vocabulary))

    counts = {}
    for name, parts in texts.items():
        for part, text in zip(("train", "heldout"), parts, strict=True):
            numbers = vocabulary.encode(text)
            np.save(folder / f"{name}.{part}.npy", numbers)
            counts[f"{name}_{part}_tokens"] = len(numbers)
            print(f"{name}.{part}: {len(text):,} characters are {len(numbers):,} tokens", flush=True)
    runtime.report(step=3, total=3, **counts)


if __name__ == "__main__":
    main()
