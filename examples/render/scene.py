"""Traces rays through a simple scene: three balls that turn above a chequered floor. Python only."""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

Vector = tuple[float, float, float]
LIGHT: Vector = (-0.48, 0.8, -0.36)
SKY: Vector = (0.55, 0.7, 0.95)
RADIUS = 0.6
COLOURS: tuple[Vector, ...] = ((0.9, 0.25, 0.2), (0.2, 0.65, 0.35), (0.2, 0.35, 0.9))


def dot(a: Vector, b: Vector) -> float:
    return a[0] * b[0] + a[1] * b[1] + a[2] * b[2]


def along(start: Vector, way: Vector, far: float) -> Vector:
    return start[0] + way[0] * far, start[1] + way[1] * far, start[2] + way[2] * far


def unit(a: Vector) -> Vector:
    size = math.sqrt(dot(a, a))
    return a[0] / size, a[1] / size, a[2] / size


def balls(turn: float) -> list[Vector]:
    """Return the centres of the balls; ``turn`` is from 0 to 1."""
    angles = [2 * math.pi * (turn + n / 3) for n in range(3)]
    return [(math.cos(at) * 1.2, RADIUS, 4 + math.sin(at) * 1.2) for at in angles]


def nearest(start: Vector, way: Vector, centres: list[Vector]) -> tuple[float, int]:
    """Return how far away the ray meets a ball, and which; infinitely far if it meets none."""
    found = math.inf, -1
    for index, centre in enumerate(centres):
        to = along(centre, start, -1.0)
        middle = dot(to, way)
        under = middle * middle - dot(to, to) + RADIUS * RADIUS
        if under > 0 and (far := middle - math.sqrt(under)) > 1e-4:
            found = min(found, (far, index))
    return found


def colour(start: Vector, way: Vector, centres: list[Vector], mirrors: int = 2) -> Vector:
    """Return what is seen from ``start`` in the direction ``way``, over so many mirrors."""
    far, index = nearest(start, way, centres)
    floor = -start[1] / way[1] if way[1] < -1e-6 else math.inf
    if min(far, floor) > 40:
        return SKY
    if far < floor:
        place = along(start, way, far)
        normal = unit(along(place, centres[index], -1.0))
        own, gloss = COLOURS[index], 0.35
    else:
        place, normal = along(start, way, floor), (0.0, 1.0, 0.0)
        own, gloss = ((0.85,) * 3 if (math.floor(place[0]) + math.floor(place[2])) % 2 else (0.25,) * 3), 0.15
    shade = nearest(place, LIGHT, centres)[0] < math.inf
    bright = 0.2 + (0.0 if shade else 0.8 * max(0.0, dot(normal, LIGHT)))
    seen = colour(place, along(way, normal, -2 * dot(way, normal)), centres, mirrors - 1) if mirrors else SKY
    r, g, b = (bright * mine * (1 - gloss) + gloss * other for mine, other in zip(own, seen, strict=True))
    return r, g, b


def frame(turn: float, width: int, height: int) -> bytes:
    """Return the picture at this turn, three bytes for each point, row by row."""
    centres = balls(turn)
    points = bytearray()
    for row in range(height):
        for column in range(width):
            way = unit(((column - width / 2) / height, (height / 2 - row) / height - 0.2, 1.0))
            points += bytes(min(255, int(255 * part)) for part in colour((0.0, 1.5, 0.0), way, centres))
    return bytes(points)


def write_png(path: Path, width: int, height: int, points: bytes) -> None:
    """Write a picture as PNG; the file appears whole."""
    rows = b"".join(b"\0" + points[at : at + 3 * width] for at in range(0, len(points), 3 * width))
    chunks = (
        (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)),
        (b"IDAT", zlib.compress(rows)),
        (b"IEND", b""),
    )
    draft = path.with_suffix(".draft")
    draft.write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(*each) for each in chunks))
    draft.rename(path)


def read_png(path: Path) -> tuple[int, int, bytes]:
    """Return width, height and points of a picture that :func:`write_png` wrote."""
    found = dict(_chunks(path.read_bytes()[8:]))
    width, height = struct.unpack(">II", found[b"IHDR"][:8])
    rows, step = zlib.decompress(found[b"IDAT"]), 3 * width + 1
    return width, height, b"".join(rows[at + 1 : at + step] for at in range(0, len(rows), step))


def _chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def _chunks(content: bytes) -> Iterator[tuple[bytes, bytes]]:
    while content:
        (size,) = struct.unpack(">I", content[:4])
        yield content[4:8], content[8 : 8 + size]
        content = content[12 + size :]
