"""Delegated executors: the share of the scenarios of every executor that a real Slurm and a real Ray pass.

What an engine cannot give is named by the suite, shown on the page of its node, and does not count. An engine that is
not on this host has no figure.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Final

from bench.stack import ROOT

ENGINES: Final = ("slurm", "ray")
SUITE: Final = "tests/agents/conformance/test_conformance.py"
EXCEPTION: Final = "NAMED EXCEPTION"


def scenarios() -> tuple[dict[str, float], list[str]]:
    """Return the percentages by key, and remarks on what did not count."""
    figures: dict[str, float] = {}
    remarks: list[str] = []
    for engine in ENGINES:
        passed, applying, excepted = _run(engine)
        if applying == 0:
            remarks.append(f"{engine}_scenarios_pct: there is no {engine} on this host")
            continue
        figures[f"{engine}_scenarios_pct"] = 100.0 * passed / applying
        remarks.append(f"{engine}_scenarios_pct: {passed} of {applying}; {excepted} named exceptions")
    return figures, remarks


def _run(engine: str) -> tuple[int, int, int]:
    """Return how many scenarios passed, how many apply, and how many are named exceptions."""
    with tempfile.TemporaryDirectory(prefix="yard-bench-") as folder:
        report = Path(folder) / "report.xml"
        words = ["-q", "-p", "no:django", "-p", "no:cacheprovider", SUITE, "-k", engine, f"--junitxml={report}"]
        subprocess.run([sys.executable, "-m", "pytest", *words], cwd=ROOT, env=os.environ, check=False)
        cases = list(ElementTree.parse(report).iter("testcase"))
    passed = applying = excepted = 0
    for case in cases:
        skipped = case.find("skipped")
        is_bad = case.find("failure") is not None or case.find("error") is not None
        if skipped is not None:
            excepted += EXCEPTION in (skipped.get("message") or "")
            continue
        applying += 1
        passed += not is_bad
    return passed, applying, excepted
