"""Measurements of a real stack: ``./script/bench NAME [--json FILE]``. They print and write figures and judge none."""
