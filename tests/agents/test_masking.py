"""No secret reaches a log, in however many pieces it comes; everything else arrives as it was."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agents.masking import MASK, Mask, secrets_of, tells_secret
from agents.supervisor.stream import OutputStream
from tests.agents.conftest import Hands
from tests.agents.test_process import output, ran
from tests.examples_count import examples

Names = Callable[[], str]
TOKEN = b"ghp_" + b"a1B2" * 9
KEY = b"-----BEGIN PRIVATE KEY-----\nMIIEvQIBADAN\nBgkqhkiG9w0BAQEF\n-----END PRIVATE KEY-----"
JWT = b"eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9P"


def masked(pieces: list[bytes], *secrets: str) -> bytes:
    mask = Mask(secrets)
    return b"".join([*map(mask.feed, pieces), mask.end()])


def cut(data: st.DataObject, whole: bytes) -> list[bytes]:
    places = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=6)))
    return [whole[a:b] for a, b in zip([0, *places], [*places, len(whole)], strict=True)]


secrets = st.lists(st.text("abc", min_size=4, max_size=8), min_size=1, max_size=3)
texts = st.text("abc \n", max_size=60)


@given(st.data(), secrets, st.lists(texts, max_size=4))
def test_no_value_survives_in_whatever_pieces_it_comes(
    data: st.DataObject, values: list[str], around: list[str]
) -> None:
    whole = "".join(text + data.draw(st.sampled_from([*values, ""])) for text in around).encode()
    found = masked(cut(data, whole), *values)
    assert not any(value.encode() in found for value in values)
    assert found == masked([whole], *values)


@given(st.data(), st.binary(max_size=200), st.text("xyz", min_size=4, max_size=9))
def test_what_is_no_secret_arrives_as_it_was(data: st.DataObject, whole: bytes, value: str) -> None:
    if value.encode() in whole:
        return
    assert masked(cut(data, whole), value) == whole


@pytest.mark.parametrize(
    "secret", [TOKEN, KEY, JWT, b"hf_" + b"x" * 34, b"AKIA" + b"Q7" * 8, b"yard_" + b"a-" * 21 + b"b"]
)
@given(data=st.data())
def test_well_known_tokens_are_known_by_their_shape(secret: bytes, data: st.DataObject) -> None:
    whole = b"before " + secret + b"\nafter"
    assert masked(cut(data, whole)) == b"before " + MASK + b"\nafter"
    assert masked(cut(data, secret)) == MASK


@pytest.mark.parametrize(
    "text",
    [
        b"ghp_short",
        b"task-" + b"x" * 40,
        b"hf_hub_download",
        b"myghp_" + b"a" * 36,
        b"eyJ plain",
        b"-----BEGIN CERTIFICATE-----\nMII\n",
    ],
)
@given(data=st.data())
def test_what_only_looks_like_a_token_is_left(text: bytes, data: st.DataObject) -> None:
    assert masked(cut(data, text + b" end")) == text + b" end"


def test_little_waits_for_what_follows() -> None:
    mask = Mask(["hunter2-hunter2"])
    assert mask.feed(b"step 1\nloss 0.5 hunt") == b"step 1\nloss 0.5 "
    assert mask.feed(b"ing\n") == b"hunting\n"
    flood = b"z" * 65536
    assert all(len(mask.feed(flood)) == len(flood) for _ in range(3))
    endless = Mask()
    given_back = sum(len(endless.feed(b"-----BEGIN PRIVATE KEY-----" + b"A" * 9000)) for _ in range(9))
    assert given_back > 9000


def test_variables_are_secret_by_mark_or_by_name() -> None:
    env = {
        "HF_TOKEN": "t0ken",
        "WANDB_API_KEY": "key1",
        "PIN": "1234567",
        "TOKENIZERS_PARALLELISM": "false",
        "KEYS": "a",
    }
    assert secrets_of(env, ["PIN"]) == ["t0ken", "1234567", "key1"]
    assert [tells_secret(name) for name in ("DB_PASSWORD", "token", "MONKEY", "TOKENS")] == [True, True, False, False]


# -- with streams and agents


def flowed(tmp_path: Path, pieces: list[bytes], **options: object) -> bytes:
    reader, writer = os.pipe()
    stream = OutputStream(reader, str(tmp_path / "0.out"), 1 << 30, **options)  # type: ignore[arg-type]
    for piece in pieces:
        os.write(writer, piece)
        stream.pump()
    os.close(writer)
    stream.drain()
    return (tmp_path / "0.out").read_bytes()


def test_a_command_that_floods_its_log_keeps_the_beginning_and_a_marker(tmp_path: Path) -> None:
    kept = flowed(tmp_path, [b"z" * 999 + b"\n"] * 40, pace=1000)
    assert kept.startswith((b"z" * 999 + b"\n") * 8)
    assert b"bytes dropped here: more than 1000 bytes a second" in kept
    assert kept.count(b"z") < 12_000


def test_where_it_begins_again_no_half_of_a_secret_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    verdicts = iter([True, False, True, True])
    monkeypatch.setattr(OutputStream, "_has_room", lambda self, count: next(verdicts))
    pieces = [b"the word is hunter2-", b"hunt", b"er2 it was\nnext\n", b"last\n"]
    kept = flowed(tmp_path, pieces, pace=1, mask=Mask(["hunter2-hunter2"]))
    assert kept.startswith(b"the word is \n[switchyard: 23 bytes dropped here")
    assert kept.endswith(b"]\nnext\nlast\n")


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    deadline=None,
    max_examples=examples(20),
)
@given(pieces=st.lists(st.binary(min_size=1, max_size=50), max_size=10))
def test_within_its_pace_all_is_kept(tmp_path: Path, pieces: list[bytes]) -> None:
    (tmp_path / "0.out").write_bytes(b"")
    assert flowed(tmp_path, pieces, pace=1000) == b"".join(pieces)


def test_what_is_shipped_is_masked_and_counted_so(shared: Hands, part: Names) -> None:
    name = part()
    script = (
        'printf "%s" "$PIN" | cut -c1-3 | tr -d "\\n"; sleep 0.1; printf "%s" "$PIN" | cut -c4-; echo "$MY_TOKEN" >&2'
    )
    end = ran(shared, name, "sh", "-c", script, env={"PIN": "123-456-789", "MY_TOKEN": "visible?"}, secrets=["PIN"])
    assert end.code == 0
    assert (output(shared, name), output(shared, name, "err")) == ("***\n", "***\n")
    assert shared.yard.ended(shared.name, name).logs == {"0.out": 4, "0.err": 4}
