"""Renders the frames of one element of an array: every ``YARD_ARRAY_COUNT``-th, from ``YARD_ARRAY_INDEX`` on.

A frame that is there already is not rendered again, so an element that was interrupted goes on where it was.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import scene

try:
    from switchyard import runtime
except ImportError:  # it also runs without an agent
    runtime = None


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--frames", type=int, default=24, help="how many frames a whole turn has")
    parser.add_argument("--width", type=int, default=160)
    parser.add_argument("--height", type=int, default=120)
    args = parser.parse_args()
    folder = Path(os.environ["FRAMES"])
    folder.mkdir(parents=True, exist_ok=True)
    first, step = int(os.environ.get("YARD_ARRAY_INDEX", 0)), int(os.environ.get("YARD_ARRAY_COUNT", 1))
    mine = range(first, args.frames, step)
    for done, number in enumerate(mine, 1):
        path = folder / f"frame-{number:04}.png"
        if not path.exists():
            scene.write_png(path, args.width, args.height, scene.frame(number / args.frames, args.width, args.height))
        print(f"{path.name} ({done} of {len(mine)})", flush=True)
        if runtime is not None:
            runtime.report(step=done, total=len(mine))


if __name__ == "__main__":
    main()
