"""Decodes and bounds everything that agents report; out-of-range fields are dropped and named, the rest is used.

The bounds are those of :mod:`agents.protocol`. An inventory is used whole or not at all. Of a part's report only the
faulty field is dropped: its progress and paths come from the job, which must not be able to silence its node.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Final

import msgspec

from agents import protocol
from agents.protocol import Conditions, Exit, Here, Inventory, InventoryRef, Kept, Report
from controlplane.clauses import Told, clause, told, verbatim
from controlplane.fleet import bounds, links

MOST_FAULTS: Final = 8
# More fields than any shape has.
_TRIES: Final = 32
# A report of 20,000 parts has some 400,000 values; each costs far more memory than the two bytes it may take to send.
MOST_VALUES: Final = 1_000_000
_NONE: Final = msgspec.Raw(b"null")
UNREADABLE: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


class UnreadableReport(ValueError):
    """Raised for bytes that are no report at all; ``why`` says why."""

    def __init__(self, why: Told) -> None:
        super().__init__(why.text)
        self.why = why


class _Ref(msgspec.Struct, frozen=True):
    hash: protocol.Name
    full: msgspec.Raw = _NONE


class _Letter(Report, frozen=True):
    """The envelope of a report."""

    inventory: _Ref  # type: ignore[assignment]
    here: Annotated[list[msgspec.Raw], msgspec.Meta(max_length=20_000)] = []  # type: ignore[assignment]
    conditions: msgspec.Raw = _NONE  # type: ignore[assignment]
    kept: msgspec.Raw = _NONE  # type: ignore[assignment]
    local: Annotated[list[msgspec.Raw], msgspec.Meta(max_length=protocol.MOST_LOCAL)] = []  # type: ignore[assignment]


_letter = msgspec.json.Decoder(_Letter).decode
_whole = msgspec.json.Decoder(Report).decode


def report(raw: bytes) -> tuple[Report, list[Told], Told | None]:
    """Decode a report; return it with what was dropped, and why its inventory was refused (None if it was not).

    Raises UnreadableReport if not even the envelope can be decoded.
    """
    if raw.count(b",") > MOST_VALUES:
        raise UnreadableReport(told(clause("TooManyValues", most=MOST_VALUES)))
    try:
        return _checked(_whole(raw))
    except UNREADABLE:
        pass  # again, and this time piece by piece
    try:
        letter = _letter(raw)
    except UNREADABLE as error:
        raise UnreadableReport(told(clause("NoReport", fault=_plain(error)))) from None
    faults: list[Told] = []
    full, refused = _inventory(letter.inventory.full)
    taken = Report(
        proto=letter.proto,
        agent=letter.agent,
        boot_id=letter.boot_id,
        start_seq=letter.start_seq,
        seq=letter.seq,
        seen_generation=letter.seen_generation,
        inventory=InventoryRef(hash=letter.inventory.hash, full=full),
        here=[one for item in letter.here if (one := _part(item, faults)) is not None],
        conditions=_of(Conditions, letter.conditions, "conditions", faults) or Conditions(),
        kept=_of(Kept, letter.kept, "kept", faults),
        incarnation=letter.incarnation,
        machine_id=letter.machine_id,
        sessions=letter.sessions,
        # Whole or not at all: half of a job is another job.
        local=[offer for item in letter.local if (offer := _offer(item, faults)) is not None],
    )
    return taken, faults[:MOST_FAULTS], refused


def _checked(taken: Report) -> tuple[Report, list[Told], Told | None]:
    """Apply checks that types cannot express: unique devices and plausible links."""
    full = taken.inventory.full
    return taken, [], None if full is None else _odd(full)


def _odd(inventory: Inventory) -> Told | None:
    seen: set[str] = set()
    for device in inventory.devices:
        if device.uuid in seen:
            return told(clause("DeviceTwice", device=device.uuid))
        seen.add(device.uuid)
    absurd = next(filter(None, map(links.fault, inventory.devices)), None)
    return told(clause("LinksKept", fault=absurd)) if absurd else None


def _inventory(raw: msgspec.Raw) -> tuple[Inventory | None, Told | None]:
    if raw == _NONE:
        return None, None
    try:
        found = msgspec.json.decode(raw, type=Inventory)
    except UNREADABLE as error:
        return None, told(clause("InventoryRefused", fault=_sentence(error, raw)))
    return found, _odd(found)


def _part(raw: msgspec.Raw, faults: list[Told]) -> Here | None:
    before = len(faults)
    found = _of(Here, raw, "part", faults)
    if found is not None and len(faults) > before and found.exit is None and found.phase >= protocol.Phase.ENDED:
        # Without an exit an end counts as a completion; one that cannot be read is none.
        unread = Exit(cause="SUPERVISOR_LOST", detail=faults[-1].text, said=[("AsTold", {"words": faults[-1].text})])
        found = msgspec.structs.replace(found, exit=unread)
    return found


def _offer(raw: msgspec.Raw, faults: list[Told]) -> protocol.LocalOffer | None:
    try:
        return msgspec.json.decode(raw, type=protocol.LocalOffer)
    except UNREADABLE as error:
        faults.append(told(clause("Field", field="local", fault=_sentence(error, raw))))
        return None


def _of(shape: Any, raw: msgspec.Raw, name: str, faults: list[Told]) -> Any:
    """Decode a value without its faulty fields; None if nothing usable is left."""
    if raw == _NONE:
        return None
    try:
        return msgspec.json.decode(raw, type=shape)
    except UNREADABLE as error:
        faults.append(told(clause("Field", field=name, fault=_sentence(error, raw))))
        fault: BaseException = error
    try:
        fields = msgspec.json.decode(raw)
    except UNREADABLE:
        return None
    for _ in range(_TRIES):
        at = _FIELD.search(str(fault))
        if not isinstance(fields, dict) or at is None or at[1] not in fields:
            return None
        del fields[at[1]]
        try:
            return msgspec.convert(fields, shape)
        except (msgspec.ValidationError, RecursionError) as again:
            fault = again
    return None


_FIELD = re.compile(r"`\$\.(\w+)")
_PATH = re.compile(r" - at (?:`key` in )?`\$(.*)`$")
_STEP = re.compile(r"\.(\w+)|\[(\d+)\]")


def _plain(error: BaseException) -> Told:
    if isinstance(error, RecursionError):
        return told(clause("TooDeep"))
    return verbatim(str(error).replace("`", ""))


def _sentence(error: BaseException, raw: msgspec.Raw) -> Told:
    """Describe a fault with device, field, value, and what would be accepted."""
    found = _PATH.search(str(error))
    if found is None:
        return _plain(error)
    expected = bounds.spoken(str(error)[: found.start()])
    where = found[1].lstrip(".") or "it"
    try:
        value = whole = msgspec.json.decode(raw)
    except UNREADABLE:
        return told(clause("Field", field=where, fault=expected))
    steps = _STEP.findall(found[1])
    for name, number in steps:
        try:
            value = value[name] if name else value[int(number)]
        except (KeyError, IndexError, TypeError):
            return told(clause("Field", field=where, fault=expected))
    of_device: dict[str, str] = {}
    if len(steps) > 1 and steps[0][0] == "devices" and isinstance(whole, dict):
        device = whole["devices"][int(steps[1][1])]
        if isinstance(device, dict):
            of_device = {"device": f"{_short(device.get('kind'))}-{_short(device.get('index'))}"}
            where = "".join(f" {name}" if name else f"[{number}]" for name, number in steps[2:]).strip()
    if isinstance(value, dict | list):
        return told(clause("DeviceField" if of_device else "Field", field=where, fault=expected, **of_device))
    is_ = "DeviceFieldIs" if of_device else "FieldIs"
    return told(clause(is_, field=where, value=_short(value), fault=expected, **of_device))


def _short(value: Any) -> str:
    if isinstance(value, dict | list):
        return "…"
    # A number of a million digits is not written out to be cut.
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > 256:
        return f"a number of {value.bit_length()} bits"
    text = str(value)
    return text if len(text) <= 60 else f"{text[:60]}…"
