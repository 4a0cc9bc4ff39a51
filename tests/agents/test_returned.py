"""An end is told when the devices gave their memory back, with what was measured: a real agent, the real pynvml, cards
of a stand-in library whose memory the test fills and empties."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from agents.devices.returned import SLACK_BYTES, Returns, is_blind, waits_for
from agents.protocol import QUARANTINED, DeviceClaim, DeviceSample, Here, Phase, Released
from tests.agents.conftest import Hands
from tests.agents.yard import order

GIB = 1 << 30
Names = Callable[[], str]


class Cards:
    """Two cards of the stand-in. Every write replaces what they tell."""

    def __init__(self, folder: Path, compiler: str) -> None:
        source = Path(__file__).with_name("nvml_standin.c")
        library = folder / "libnvidia-ml.so.1"
        subprocess.run([compiler, "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
        self.state = folder / "cards"
        self.environment = {"LD_LIBRARY_PATH": str(folder), "NVML_STANDIN": str(self.state)}
        self.hold(1)

    def hold(self, gib: float, **more: int) -> None:
        """Card 0 has so much of its memory in use."""
        facts: dict[str, object] = {"count": 2, "0.uuid": "GPU-a", "1.uuid": "GPU-b", "0.used": int(gib * GIB), **more}
        draft = self.state.with_suffix(".draft")
        draft.write_text("".join(f"{name} {value}\n" for name, value in facts.items()))
        draft.rename(self.state)


@pytest.fixture
def cards(compiler: str, tmp_path: Path) -> Cards:
    return Cards(tmp_path, compiler)


@pytest.fixture
def agent(hands: Hands, cards: Cards) -> Hands:
    hands.environment |= cards.environment
    return hands


def claim(milli: int = 1000) -> DeviceClaim:
    return DeviceClaim("GPU-a", "gpu", "nvidia", "NVIDIA H100 80GB HBM3", 0, milli, 0)


def up(agent: Hands) -> None:
    agent.start()
    side = agent.yard.side(agent.name)
    agent.yard.wait(lambda: side.inventory and {"GPU-a", "GPU-b"} <= {d.uuid for d in side.inventory.devices})
    measured(agent)


def measured(agent: Hands) -> None:
    """Two more batches have come: what the cards told before the call is known."""
    side = agent.yard.side(agent.name)
    before = len(side.telemetry)
    agent.yard.wait(lambda: sum(any(s.uuid == "GPU-a" for s in b.devices) for b in side.telemetry[before:]) >= 2)


def started(agent: Hands, name: str, milli: int = 1000) -> Path:
    """A part that runs until the file that this answers appears."""
    agent.yard.want(agent.name, order(name, "sh", "-c", "until [ -e go ]; do sleep 0.02; done", devices=[claim(milli)]))
    agent.yard.phase(agent.name, name, Phase.RUNNING)
    return agent.state / "parts" / name / "work" / "go"


def told(agent: Hands, name: str) -> Released:
    end = agent.yard.ended(agent.name, name).exit
    assert end is not None
    assert (end.code, end.cause) == (0, "")
    (one,) = end.released
    return one


def here(agent: Hands, name: str) -> Here:
    return agent.yard.side(agent.name).here[name]


def quarantines(agent: Hands) -> list[str]:
    report = agent.yard.side(agent.name).report
    return [e.detail for e in report.conditions.device_errors if e.code == QUARANTINED] if report else []


def test_an_end_waits_for_the_memory_and_tells_what_was_measured(agent: Hands, cards: Cards, part: Names) -> None:
    up(agent)
    name = part()
    go = started(agent, name)
    cards.hold(31)
    measured(agent)
    go.touch()
    agent.yard.wait(lambda: here(agent, name).substate == "ended; 30.0 GiB of its devices are not free yet")
    assert here(agent, name).phase < Phase.ENDED
    cards.hold(1.01)
    found = told(agent, name)
    assert (found.uuid, found.before_bytes, found.most_bytes) == ("GPU-a", GIB, 31 * GIB)
    assert (found.left_bytes, found.is_back) == (int(1.01 * GIB), True)
    assert found.after_s is not None
    assert found.after_s > 0
    assert quarantines(agent) == []


def test_memory_that_does_not_come_back_quarantines_the_device_until_it_does(
    agent: Hands, cards: Cards, part: Names
) -> None:
    agent.environment["YARD_AGENT_RELEASE_S"] = "1"
    up(agent)
    name = part()
    go = started(agent, name)
    cards.hold(13)
    go.touch()
    found = told(agent, name)
    assert (found.before_bytes, found.left_bytes, found.is_back) == (GIB, 13 * GIB, False)
    agent.yard.wait(lambda: quarantines(agent))
    (sentence,) = quarantines(agent)
    assert sentence.startswith("12.0 GiB of its memory did not come back after a stage ended")
    cards.hold(1)
    agent.yard.wait(lambda: not quarantines(agent))


def test_a_device_that_others_use_too_is_measured_and_not_waited_for(agent: Hands, cards: Cards, part: Names) -> None:
    up(agent)
    one, other = part(), part()
    go, goes_on = started(agent, one, 400), started(agent, other, 400)
    cards.hold(20)
    measured(agent)
    go.touch()
    found = told(agent, one)
    assert (found.most_bytes, found.left_bytes, found.is_back) == (20 * GIB, 20 * GIB, None)
    cards.hold(1)
    goes_on.touch()
    assert told(agent, other).is_back is True


def test_an_agent_that_is_killed_meanwhile_leaves_the_question_to_the_next(
    agent: Hands, cards: Cards, part: Names
) -> None:
    up(agent)
    name = part()
    go = started(agent, name)
    cards.hold(9)
    go.touch()
    agent.yard.wait(lambda: "not free yet" in here(agent, name).substate)
    agent.end(9)
    agent.start()
    agent.yard.wait(lambda: "not free yet" in here(agent, name).substate)
    cards.hold(1)
    found = told(agent, name)
    assert (found.before_bytes, found.left_bytes, found.is_back) == (GIB, GIB, True)


def test_a_card_that_fell_off_the_bus_is_not_waited_for(agent: Hands, cards: Cards, part: Names) -> None:
    up(agent)
    name = part()
    go = started(agent, name)
    cards.hold(3, **{"0.lost": 1})
    side = agent.yard.side(agent.name)
    agent.yard.wait(lambda: side.report and [e.uuid for e in side.report.conditions.device_errors] == ["GPU-a"])
    go.touch()
    found = told(agent, name)
    assert (found.before_bytes, found.left_bytes, found.is_back) == (GIB, None, None)


# -- what is told, without an agent


def sample(used: int | None, age_s: float = 0.0) -> DeviceSample:
    return DeviceSample("GPU-a", age_s, memory_used_bytes=used)


def judged(returns: Returns, folder: Path, shared: set[str] | None = None) -> list[Released]:
    return returns.judge("p", str(folder), [claim()], shared or set(), 10.0)


def test_what_was_measured_before_the_end_is_not_what_is_left(tmp_path: Path) -> None:
    returns = Returns()
    returns.note([sample(5)], {"p": (str(tmp_path), [claim()])}, 9.0)
    returns.begin(str(tmp_path), [claim()])
    assert judged(returns, tmp_path) == [Released("GPU-a", before_bytes=5, most_bytes=5)]
    assert is_blind(judged(returns, tmp_path))
    assert not is_blind(judged(returns, tmp_path), {"GPU-a"})
    returns.note([sample(7, age_s=0.5)], {"p": (str(tmp_path), [claim()])}, 11.0)
    assert judged(returns, tmp_path) == [
        Released("GPU-a", before_bytes=5, most_bytes=7, left_bytes=7, after_s=0.5, is_back=True)
    ]


def test_a_device_that_tells_nothing_is_not_waited_for(tmp_path: Path) -> None:
    returns = Returns()
    returns.note([sample(None)], {}, 11.0)
    returns.begin(str(tmp_path), [claim()])
    assert judged(returns, tmp_path) == []
    assert list(tmp_path.iterdir()) == []


def test_without_a_measurement_before_the_start_nothing_is_claimed(tmp_path: Path) -> None:
    returns = Returns()
    returns.note([sample(40 * GIB)], {}, 11.0)
    (found,) = judged(returns, tmp_path)
    assert (found.left_bytes, found.is_back) == (40 * GIB, None)
    assert waits_for([found]) is None
    returns.keep([found])
    assert returns.quarantined() == []


def test_a_driver_may_keep_a_little(tmp_path: Path) -> None:
    returns = Returns()
    returns.note([sample(GIB)], {}, 1.0)
    returns.begin(str(tmp_path), [claim()])
    for more, is_back in ((SLACK_BYTES, True), (SLACK_BYTES + 1, False)):
        returns.note([sample(GIB + more)], {}, 11.0)
        (found,) = judged(returns, tmp_path)
        assert found.is_back is is_back
    assert judged(returns, tmp_path, {"GPU-a"})[0].is_back is None
