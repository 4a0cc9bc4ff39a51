"""The shim's JSON and signals say the same as the usual modules, and cost it none of what those bring along."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.supervisor import lean
from tests.agents.conftest import ROOT

plain = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20)
values = st.recursive(
    plain, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
)


@given(values)
def test_json_is_what_the_usual_module_makes_of_it(value: object) -> None:
    assert lean.dumps(value) == json.dumps(value)
    for text in (json.dumps(value), json.dumps(value, ensure_ascii=False, indent=1)):
        try:
            raw = text.encode()
        except UnicodeEncodeError:  # half of a surrogate pair has no UTF-8
            continue
        assert lean.loads(raw) == value


@given(values, st.data())
def test_a_torn_text_is_refused_like_everywhere(value: object, data: st.DataObject) -> None:
    text = json.dumps(value)
    torn = text[: data.draw(st.integers(0, len(text)))] + data.draw(st.sampled_from(["", "}", "x", " 1"]))
    try:
        expected = json.loads(torn)
    except ValueError:
        with pytest.raises(ValueError, match="not JSON"):
            lean.loads(torn.encode())
    else:
        assert lean.loads(torn.encode()) == expected


def test_a_nest_without_end_is_refused() -> None:
    with pytest.raises(ValueError, match="not JSON"):
        lean.loads(b"[" * 100_000)


def test_signals_have_their_usual_names() -> None:
    assert {number: lean.signal_name(number) for number in signal.Signals} == {
        each: each.name for each in signal.Signals
    }
    assert lean.signal_name(63) == "signal 63"


def test_the_fork_server_imports_little() -> None:
    script = "import sys; sys.path.append('.'); import agents.supervisor.fork_server; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-I", "-S", "-c", script], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    assert "agents.supervisor.life" in loaded
    heavy = {"json", "re", "enum", "signal", "typing", "dataclasses", "collections", "subprocess", "socket", "pathlib"}
    assert heavy.isdisjoint(loaded)
    assert not [
        name for name in loaded if name.partition(".")[0] not in {"__main__", "agents", *sys.stdlib_module_names}
    ]
