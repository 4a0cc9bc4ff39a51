"""What the agent keeps for later goes by age and size, oldest use first, and never from under a part that lives."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from agents.runtimes.container import image_file, images_in_use
from agents.storage.collection import FRESH_S, CacheLimits, Collector, collect_files
from agents.storage.content_store import ContentStore
from agents.storage.last_use import age_s, now_s, used_now
from agents.supervisor.container_removal import LINES

DAY_S = 86_400.0


def kept(folder: Path, name: str, size: int, age_s: float) -> Path:
    path = folder / name
    path.write_bytes(b"x" * size)
    at = now_s() - age_s
    os.utime(path, (at, at))
    return path


@pytest.fixture
def bundles(tmp_path: Path) -> Path:
    folder = tmp_path / "bundles"
    folder.mkdir()
    return folder


def test_the_oldest_go_until_the_rest_fits(bundles: Path) -> None:
    for number in range(5):
        kept(bundles, f"b{number}", 100, (10 - number) * DAY_S)
    gone = collect_files(bundles, CacheLimits(250, 0.0), set())
    assert gone == ["b0", "b1", "b2"]
    assert sorted(os.listdir(bundles)) == ["b3", "b4"]


def test_what_is_too_old_goes_though_it_would_fit(bundles: Path) -> None:
    kept(bundles, "old", 1, 31 * DAY_S)
    kept(bundles, "young", 1, 29 * DAY_S)
    assert collect_files(bundles, CacheLimits(1 << 30, 30 * DAY_S), set()) == ["old"]
    kept(bundles, "ancient", 1, 9000 * DAY_S)
    assert collect_files(bundles, CacheLimits(1 << 30, 0.0), set()) == [], "0 is for ever"


def test_what_is_used_or_was_asked_for_a_moment_ago_stays_whatever_its_size(bundles: Path) -> None:
    kept(bundles, "image.sif", 1000, 400 * DAY_S)
    kept(bundles, "fresh", 1000, FRESH_S / 2)
    (bundles / "link").symlink_to("fresh")
    (bundles / "folder").mkdir()
    assert collect_files(bundles, CacheLimits(1, DAY_S), {"image.sif"}) == []
    assert sorted(os.listdir(bundles)) == ["folder", "fresh", "image.sif", "link"]


def test_the_image_of_a_part_that_has_a_run_folder_stays(bundles: Path, tmp_path: Path) -> None:
    """Its plan says from which image it runs; so that outlives the agent."""
    runs = tmp_path / "parts"
    (runs / "p").mkdir(parents=True)
    (runs / "torn").mkdir()
    (runs / "torn" / "container.json").write_text('{"image": 5, "lines"')
    plan = {"image": "registry.local/torch:2.9", "lines": {name: [] for name in LINES}, "env": {}}
    (runs / "p" / "container.json").write_text(json.dumps(plan))
    live, idle = image_file("registry.local/torch:2.9"), image_file("registry.local/torch:1.0")
    assert images_in_use(runs) == {live}
    kept(bundles, live, 10, 90 * DAY_S)
    kept(bundles, idle, 10, 90 * DAY_S)
    store = ContentStore(tmp_path / "stock", 1 << 30)
    collector = Collector(bundles, store, CacheLimits(1 << 30, 30 * DAY_S), lambda: images_in_use(runs))
    assert collector.collect() == [idle]
    (runs / "p" / "container.json").unlink()
    assert collector.collect() == [], "it was in use until just now"


def test_roots_that_nobody_used_go_and_pinned_ones_stay(tmp_path: Path) -> None:
    pinned: set[str] = set()
    store = ContentStore(tmp_path / "stock", 1 << 30, lambda: pinned)
    roots = [store.put_bytes(content) for content in (b"one", b"two", b"three", b"four")]
    for root in roots:
        store.complete(root, "file")
        at = now_s() - 40 * DAY_S
        os.utime(store.folder / "roots" / root, (at, at))
    pinned.add(roots[0])
    store.touch(roots[1])
    with store.hold(roots[2]):
        collector = Collector(tmp_path, store, CacheLimits(1 << 30, 30 * DAY_S), set)
        assert collector.collect() == [roots[3]]
    assert {root for root in roots if store.has(root)} == set(roots[:3])
    assert collector.collect() == [roots[2]]


@pytest.mark.parametrize("jump", [400 * DAY_S, -400 * DAY_S])
def test_a_clock_that_is_set_makes_nothing_older(bundles: Path, monkeypatch: pytest.MonkeyPatch, jump: float) -> None:
    """Neither what was noted by the agent's clock nor what the kernel stamped with the host's."""
    path = kept(bundles, "noted", 1, 0.0)
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + jump)
    used_now(path)
    stamped = bundles / "stamped"
    stamped.write_text("x")
    os.utime(stamped, (real() + jump, real() + jump))
    assert collect_files(bundles, CacheLimits(0, DAY_S), set()) == []
    assert age_s(real() + jump) <= 1
    assert age_s(real()) <= 1


def test_limits_are_the_operators(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usual = CacheLimits.of_host(tmp_path)
    assert 0 < usual.most_bytes <= 20 << 30
    assert usual.most_age_s == 30 * DAY_S
    monkeypatch.setenv("YARD_AGENT_BUNDLE_BYTES", "5000")
    monkeypatch.setenv("YARD_AGENT_CACHE_DAYS", "7")
    assert CacheLimits.of_host(tmp_path) == CacheLimits(5000, 7 * DAY_S)
