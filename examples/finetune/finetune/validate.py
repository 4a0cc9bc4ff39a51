"""Stage 4: did the fine-tune help? Ends with exit code 1 unless the perplexity fell by the margin set beforehand."""

from __future__ import annotations

from pathlib import Path

from finetune import framework, training, weights
from finetune.perplexity import perplexity
from finetune.settings import Settings
from switchyard import runtime


def main() -> None:
    settings = Settings.read("Compares the model before and after fine-tuning on held-out prose.")
    path = Path(runtime.input_dir("train")) / "tuned.npz"
    shape, tuned = weights.load(path)
    _, pretrained = weights.load(Path(runtime.input_dir("pretrain")) / "pretrained.npz")
    model = framework.build(shape, pretrained, settings.framework)
    prose, code = training.read_tokens("prose.heldout"), training.read_tokens("code.heldout")

    before, code_before = perplexity(model, prose), perplexity(model, code)
    runtime.report(step=1, total=2, perplexity_before=before)
    model.restore(weights.State(tuned, tuned * 0, tuned * 0, 0))
    after, code_after = perplexity(model, prose), perplexity(model, code)
    improvement = 1 - after / before

    runtime.report(
        step=2, total=2, perplexity_before=before, perplexity_after=after, improvement=improvement, model=str(path)
    )
    print(f"held-out prose: perplexity {before:.2f} before, {after:.2f} after: {improvement:.1%} better")
    print(
        f"held-out code:  perplexity {code_before:.2f} before, {code_after:.2f} after (what the new text cost the old)"
    )
    if not improvement >= settings.margin:
        raise SystemExit(
            f"the fine-tune is refused: perplexity {after:.2f} after is {improvement:.1%} below {before:.2f} before, "
            f"and at least {settings.margin:.0%} was required (--margin)"
        )
    print(f"accepted: at least {settings.margin:.0%} was required")
    print(f"model={path}", flush=True)


if __name__ == "__main__":
    main()
