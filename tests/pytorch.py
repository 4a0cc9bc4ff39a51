"""Where tests find a real PyTorch, which is no requirement."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


def interpreter() -> str:
    """Return the Python that has PyTorch: ``YARD_TEST_TORCH`` names it, or its environment; empty where it is unset."""
    named = os.environ.get("YARD_TEST_TORCH", "")
    return str(Path(named) / "bin/python") if named and Path(named).is_dir() else named


needs_pytorch = pytest.mark.skipif(
    not interpreter(), reason="no PyTorch: name its interpreter or environment in YARD_TEST_TORCH"
)
