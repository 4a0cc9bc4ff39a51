"""Stage 3: the pre-trained model is fine-tuned on prose. Writes ``tuned.npz``."""

from __future__ import annotations

from pathlib import Path

from finetune import framework, training, weights
from finetune.perplexity import perplexity
from finetune.settings import Settings
from switchyard import runtime


def main() -> None:
    settings = Settings.read("Fine-tunes the pre-trained model on prose.", rate=2e-3)
    shape, flat = weights.load(Path(runtime.input_dir("pretrain")) / "pretrained.npz")
    print(f"fine-tuning a transformer of {flat.size:,} weights", flush=True)
    if settings.freeze:
        print("all weights are frozen: nothing will be learned", flush=True)
    model = framework.build(shape, flat, settings.framework)

    loss = training.run("train", model, training.read_tokens("prose.train"), settings)

    path = Path(runtime.output_dir()) / "tuned.npz"
    weights.save(path, shape, model.state().flat)
    after = perplexity(model, training.read_tokens("prose.heldout"))
    runtime.report(step=settings.steps, total=settings.steps, loss=loss, perplexity=after, model=str(path))
    print(f"perplexity of held-out prose: {after:.2f}", flush=True)
    print(f"model={path}", flush=True)


if __name__ == "__main__":
    main()
