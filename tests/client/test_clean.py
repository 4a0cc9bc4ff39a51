"""What other people wrote never steers the reader's terminal."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from switchyard.cli import clean

HOSTILE = [
    "\x1b]0;owned\x07title",
    "\x1b]52;c;ZXZpbA==\x1b\\clip",
    "\x1b]8;;http://evil\x1b\\link\x1b]8;;\x1b\\",
    "\x1b[2J\x1b[31mred\x1b[0m",
    "\x9b31mc1",
    "\x9d0;t\x9cc1-osc",
    "\x1bPdcs\x1b\\after",
    "bell\x07back\x08space",
    "\x1b",
    "abc\u202egnp.exe",
    "\x1b(0box",
    "\x00nul\x7fdel",
]
DANGER = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


@pytest.mark.parametrize("text", HOSTILE)
def test_nothing_dangerous_is_left_and_the_words_stay(text):
    assert not DANGER.search(clean.line(text))
    assert not DANGER.search(clean.lines(text))


def test_the_words_between_the_sequences_stay():
    assert [clean.line(text) for text in HOSTILE] == [
        "title", "clip", "link", "red", "c1", "c1-osc", "after", "bellbackspace", "", "abcgnp.exe", "box", "nuldel",
    ]  # fmt: skip


def test_a_name_stays_on_one_line_and_output_keeps_its_lines():
    assert clean.line("a\nerror: b\r\tc") == "a error: b c"
    assert clean.lines("a\n\tb\r\nc") == "a\n\tb\r\nc"


@given(
    st.lists(st.sampled_from([*HOSTILE, "plain\n", "\x1b[", "31m", "\x1b]0;", "x\x07", "行"]), max_size=12), st.data()
)
def test_however_a_text_is_cut_the_same_words_come_out(parts, data):
    whole = "".join(parts)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=6)))
    stream = clean.CleanStream()
    pieces = [stream.feed(whole[a:b]) for a, b in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
    assert not DANGER.search("".join(pieces))
    assert clean.lines(whole).startswith("".join(pieces))


@given(st.recursive(st.text(), lambda inner: st.dictionaries(st.text(), inner) | st.lists(inner), max_leaves=8))
def test_json_keeps_every_character_and_shows_none_that_steers(found):
    text = clean.escaped(found)
    assert not DANGER.search(text)
    assert json.loads(text) == found


@given(st.text(alphabet=st.characters(codec="utf-8"), max_size=200))
def test_no_text_gets_through(text):
    assert not DANGER.search(clean.line(text))
    assert "\n" not in clean.line(text)
