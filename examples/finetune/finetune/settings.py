"""What can be set from outside: by a flag, or by an environment variable ``FINETUNE_<NAME>``; the flag wins."""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass, field, fields
from typing import Any


def _setting(default: Any, says: str) -> Any:
    return field(default=default, metadata={"says": says})


@dataclass(frozen=True)
class Settings:
    """All settings of all stages; a stage ignores those it has no use for."""

    steps: int = _setting(900, "optimiser steps of this stage")
    batch: int = _setting(8, "sequences per step")
    rate: float = _setting(4e-3, "peak learning rate")
    vocabulary: int = _setting(512, "tokens in the vocabulary")
    context: int = _setting(64, "tokens that the model sees at once")
    width: int = _setting(64, "numbers per token inside the model")
    heads: int = _setting(4, "attention heads")
    layers: int = _setting(2, "transformer blocks")
    seed: int = _setting(7, "of the first weights and of the order of the text")
    checkpoint_every_s: float = _setting(3.0, "seconds between two checkpoints")
    log_every: int = _setting(10, "steps between two printed lines")
    freeze: bool = _setting(False, "update no weight: a run that learns nothing, which validate must refuse")
    margin: float = _setting(0.25, "how much lower the perplexity must be after fine-tuning, as a share of that before")
    framework: str = _setting("auto", "auto, torch or numpy; auto takes torch where it is installed")
    characters: int = _setting(400, "characters of sample text")
    prompt: str = _setting("The function returns ", "what the sample text starts with")

    @classmethod
    def read(cls, description: str, **defaults: Any) -> Settings:
        """The settings of one stage: flag, else environment, else the stage's own default, else the common one."""
        parser = argparse.ArgumentParser(description=description, argument_default=argparse.SUPPRESS)
        values: dict[str, Any] = {setting.name: setting.default for setting in fields(cls)} | defaults
        for setting in fields(cls):
            name, kind, says = setting.name, type(setting.default), setting.metadata["says"]
            short = name.removesuffix("_s")
            flag, variable = "--" + short.replace("_", "-"), "FINETUNE_" + short.upper()
            if kind is bool:
                parser.add_argument(flag, dest=name, action="store_true", help=says)
            else:
                parser.add_argument(flag, dest=name, type=kind, help=f"{says} (default: {values[name]})")
            if text := os.environ.get(variable):
                values[name] = _value(variable, text, kind)
        if os.environ.get("FREEZE", "0") not in {"", "0"}:
            values["freeze"] = True
        values.update(vars(parser.parse_args()))
        return cls(**values)


def _value(variable: str, text: str, kind: type) -> Any:
    if kind is bool:
        return text.lower() not in {"0", "no", "false"}
    try:
        return kind(text)
    except ValueError:
        raise SystemExit(
            f"{variable} is {text!r}; it must be {'a whole number' if kind is int else 'a number'}"
        ) from None
