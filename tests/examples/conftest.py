"""The example is its own import root, as it is in the bundle that a stage unpacks."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "finetune"))
