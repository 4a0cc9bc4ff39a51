"""Assembles all frames to one picture, row by row, as a contact sheet; fails if a frame is missing."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import scene


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--frames", type=int, default=24, help="how many frames there must be")
    parser.add_argument("--columns", type=int, default=6)
    args = parser.parse_args()
    folder = Path(os.environ["FRAMES"])
    paths = [folder / f"frame-{number:04}.png" for number in range(args.frames)]
    if missing := [path.name for path in paths if not path.exists()]:
        sys.exit(f"{len(missing)} of {args.frames} frames are missing in {folder}, first {missing[0]}")
    pictures = [scene.read_png(path) for path in paths]
    width, height, _points = pictures[0]
    blank = bytes(3 * width * height)
    lines = []
    for first in range(0, len(pictures), args.columns):
        row = [points for _width, _height, points in pictures[first : first + args.columns]]
        row += [blank] * (args.columns - len(row))
        lines += [points[at : at + 3 * width] for at in range(0, len(blank), 3 * width) for points in row]
    points = b"".join(lines)
    sheet = folder / "sheet.png"
    scene.write_png(sheet, width * args.columns, len(points) // (3 * width * args.columns), points)
    print(f"{len(pictures)} frames of {width} x {height} are in {sheet}")


if __name__ == "__main__":
    main()
