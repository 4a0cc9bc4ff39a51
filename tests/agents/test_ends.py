"""How a part ended: the clauses and the English sentence that is made of them."""

from __future__ import annotations

import msgspec

from agents.ends import ENDS, Refusal, clause, say, told
from agents.protocol import Exit
from agents.supervisor import command, verdict
from agents.supervisor.lean import dumps


def test_a_sentence_is_its_clauses_one_after_the_other() -> None:
    cause, said = verdict.judge(137, None, None)
    assert cause == "EXIT_CODE"
    assert say(said) == "ended with exit code 137; 128 + 9 often means that its own command was ended by SIGKILL"


def test_units_follow_from_the_names_of_the_values() -> None:
    assert say([clause("TimeLimit", limit_s=0.5)]) == "ran into its limit of 0.5 s"
    used = clause("MemoryOver", used_bytes=96 << 20, asked_bytes=64 << 20)
    assert say([used]) == "used 96 MiB; it asked for 64 MiB"


def test_what_joins_nothing_is_left_out() -> None:
    assert told(clause("ContainerStays", error="busy"))["detail"] == "its container could not be removed: busy"


def test_an_end_crosses_the_wire_with_its_clauses_and_an_older_one_without() -> None:
    end = Exit(cause="EXIT_CODE", code=3, **told(clause("ExitCode", code=3)))
    assert msgspec.json.decode(msgspec.json.encode(end), type=Exit) == end
    older = msgspec.json.decode(b'{"cause":"EXIT_CODE","detail":"ended with exit code 3"}', type=Exit)
    assert (older.detail, older.said) == ("ended with exit code 3", [])
    newer = msgspec.json.decode(b'{"said":[["NeverHeardOf",{"what":"x"}]],"later":1}', type=Exit)
    assert newer.said == [("NeverHeardOf", {"what": "x"})]


def test_a_command_that_could_not_be_begun_says_so_over_its_pipe() -> None:
    order = {"argv": ["nothing"], "env": {"PATH": "/bin"}}
    why = command._refusal(order, None, FileNotFoundError(2, "x"))
    assert command.refused(dumps(why).encode()) == why
    assert say([why]) == 'command "nothing" was not found; PATH is /bin'
    step = command._refusal(order, clause("UserUnchanged", uid=7), PermissionError(1, "x"))
    assert say([step]) == "its user could not be changed to uid 7: Operation not permitted"
    code, params = command.refused(b'["CommandNotFo')
    assert (code, params["error"]) == ("ProcessUnprepared", '["CommandNotFo')


def test_a_refusal_tells_its_clause_and_somebodys_own_words_as_they_are() -> None:
    assert Refusal(clause("NoCommand")).told() == {"detail": ENDS["NoCommand"], "said": [("NoCommand", {})]}
    assert Refusal("the vendor's own words").told() == {"detail": "the vendor's own words", "said": []}
