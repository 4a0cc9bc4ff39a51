"""The elements of the array render every frame once, and the last job puts them into one picture."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).resolve().parents[2] / "examples/render"
SMALL = ["--width", "16", "--height", "12"]


def ran(script: str, frames: Path, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, script, "--frames", "5", *words],
        cwd=EXAMPLE,
        env={**os.environ, "FRAMES": str(frames), **env},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_elements_render_every_frame_once_and_one_picture_has_them(tmp_path: Path) -> None:
    missing = ran("assemble.py", tmp_path)
    assert missing.returncode == 1
    assert "5 of 5 frames are missing" in missing.stderr
    said = [ran("render.py", tmp_path, *SMALL, YARD_ARRAY_INDEX=str(n), YARD_ARRAY_COUNT="2").stdout for n in (0, 1)]
    assert [text.count("frame-") for text in said] == [3, 2]
    frames = sorted(tmp_path.glob("frame-*.png"))
    assert len({frame.read_bytes() for frame in frames}) == 5, "the balls turn"
    before = [frame.stat().st_mtime_ns for frame in frames]
    ran("render.py", tmp_path, *SMALL)
    assert [frame.stat().st_mtime_ns for frame in frames] == before, "what is there is not rendered again"
    assert ran("assemble.py", tmp_path, "--columns", "3").returncode == 0
    sys.path.insert(0, str(EXAMPLE))
    try:
        import scene
    finally:
        sys.path.remove(str(EXAMPLE))
    width, height, points = scene.read_png(tmp_path / "sheet.png")
    assert (width, height, len(points)) == (48, 24, 48 * 24 * 3)
    _width, _height, first = scene.read_png(frames[0])
    assert points[: 16 * 3] == first[: 16 * 3]
