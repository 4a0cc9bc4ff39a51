"""Stage 2: a small language model learns program code from nothing. Writes ``pretrained.npz``."""

from __future__ import annotations

from pathlib import Path

from finetune import framework, training, weights
from finetune.perplexity import perplexity
from finetune.settings import Settings
from finetune.tokens import Vocabulary
from switchyard import runtime


def main() -> None:
    settings = Settings.read("Trains a language model on program code.")
    vocabulary = Vocabulary.load(Path(runtime.input_dir("preprocess")) / "vocabulary.json")
    shape = weights.Shape.of(settings, len(vocabulary))
    flat = weights.fresh(shape, settings.seed)
    print(f"a transformer of {flat.size:,} weights: {shape}", flush=True)
    model = framework.build(shape, flat, settings.framework)

    loss = training.run("pretrain", model, training.read_tokens("code.train"), settings)

    path = Path(runtime.output_dir()) / "pretrained.npz"
    weights.save(path, shape, model.state().flat)
    after = perplexity(model, training.read_tokens("code.heldout"))
    runtime.report(step=settings.steps, total=settings.steps, loss=loss, perplexity=after, model=str(path))
    print(f"perplexity of held-out code: {after:.2f}", flush=True)
    print(f"model={path}", flush=True)


if __name__ == "__main__":
    main()
