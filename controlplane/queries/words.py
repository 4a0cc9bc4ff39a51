"""Texts in the reader's language: reasons for waiting by code, stored clauses, alarms, notes of agents and traces."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

from django.utils.translation import get_language, gettext
from django.utils.translation import gettext_noop as _

from controlplane.jobs.clauses import ShownValues, in_words, shown
from controlplane.jobs.reasons import phrase_text
from scheduler.core.explain.counterfactual import SENTENCES

# The templates of the catalogue of reasons, for translators; a test compares them with the catalogue.
REASONS = (
    _("on hold by {who}"),
    _("stage {stage} did not complete, and this one needs it"),
    _("waits for {stages}"),
    _("not before {time}"),
    _("attempt {attempt} of {of} may start in {seconds} s"),
    _("cannot run as written: {detail}"),
    _("it cannot be planned as the record has it, and is set aside; administrators see why"),
    _("its code cannot be fetched: {detail}"),
    _("its image cannot be fetched: {detail}"),
    _("no node of pool {pool} has {asks}"),
    _("needs {asks}, more than pool {pool} has"),
    _("its data may not leave {site}"),
    _("avoids {avoided}; of the other nodes {nodes} would do, and it needs {needed}"),
    _("asks {asked} {kind}; the hard limit of project {project} is {limit}"),
    _("project {project} holds {held} of {nominal} {kind} and may borrow {borrow} more"),
    _("{user} already runs {running} of {limit} stages"),
    _("pool {pool} is stopped by {who}"),
    _("may run for {lasts} and would overlap the maintenance at {time}"),
    _("{nodes} matching nodes are down, draining or out of contact"),
    _("{victims} make room; up to {seconds} s left"),
    _("its earlier start was given to project {project}, which is owed more"),
    _("its time was {time}, but {devices} of its devices are still busy"),
    _("the timetable lets it start at {time}"),
    _("enough is free, but not inside one {domain}"),
    _("{free} {kind} are free, but no node has the {needed} it needs"),
    _("needs secret {secret}, which project {project} does not have"),
    _("project {project} may not use pool {pool} any more"),
    _("needs {asks}; the largest free share of a node is {free}"),
    _("what is free is promised to {promised} and would be late"),
    _("project {project} is above its fair share"),
    _("{ahead} stages are ahead"),
    _("not yet looked at"),
)


# Counterfactual changes by kind; a test compares them with those of the search.
CHANGES = (
    _("released from its hold"),
    _("with pool {pool} started again"),
    _("without needing stage {stage}"),
    _("without its earliest start"),
    _("with its code uploaded again"),
    _("with an image that can be fetched"),
    _("without an image"),
    _("with secret {secret} set again"),
    _("with pool {pool} allowed to project {project}"),
    _("with a time limit of {limit}"),
    _("on {nodes} nodes instead of {was}"),
    _("with {count} {kind} per node instead of {was}"),
    _("with {milli}/1000 of a {kind} instead of {was}"),
    _("with {cores} cores per node instead of {was}"),
    _("on any {kind} instead of {was}"),
    _("on {count} {kind} instead of {was}"),
    _("without one {domain} for all its nodes"),
    _("with the nodes that it avoids"),
    _("in pool {pool}"),
    _("with its data allowed to leave {site}"),
    _("with a quota of {quota} {kind} for project {project} instead of {was}"),
    _("in priority class {name}"),
    _("with {nodes} back in service"),
    _("with the devices of {nodes} found healthy"),
)


# Texts of alarms; ``{fault}`` may be another of these, or a message of a library or of Python.
ALARMED = (
    _("it cannot be planned: {fault}"),
    _("{stage} runs here and cannot be planned: {fault}"),
    _("no cycle comes through: {fault}"),
    _("there is no profile {name}; {other} decides instead"),
    _("its profile {version} cannot be used: {fault}; {other} decides instead"),
    _("nothing thinks beside its profile: {fault}"),
    _("nothing is learned from it: {fault}"),
    _("why it waits cannot be written: {fault}"),
    _("a decision has no row: {fault}"),
    _("its inputs: {fault}"),
    _(
        "an agent on another machine has this node's identity: its state folder was copied or moved; it is "
        "refused and nothing new is placed here; a node that was moved joins again with a token of its own"
    ),
    _(
        "two agents that are alive have this node's identity: its state folder was copied; the second one is "
        "refused and nothing new is placed here until the copy is gone and somebody resumes the node"
    ),
    _(
        "its agent does not know {n} of the parts that it acknowledged ({part}): its state folder is an older"
        " one or another; they may be alive and are not started again; stop their stages to have them ended"
    ),
    _(
        "{lost} of {total} nodes fell silent together ({nodes}): the fault is more likely on this side; nothing of "
        "theirs is started elsewhere until they are back, or staff release the fuse"
    ),
    _(
        "its agent has seen order {seen}, and the record knows {known}: the record was restored from a backup, or the "
        "node joined again; {n} parts run there that nobody knows here ({part}); they go on, and an administrator "
        "stops them one by one on the node's page"
    ),
    _("{free} GiB are free, below the floor of {floor} GiB"),
    _("inventory refused: {fault}"),
    _("report refused: it could not be recorded: {fault}"),
    _("report refused: {fault}"),
    _("this is no report: it has more than {n} values"),
    _("inventory: device {device} is listed twice; the second is left out"),
    _("inventory: {fault}; its links stay as they were"),
    _("device {device} has a link to itself; a link ends at another device, a switch or the host"),
    _("measurement: {fault}"),
    _("it is nested too deeply"),
    _("device {device} {field} is {value}; {fault}"),
    _("device {device} {field}; {fault}"),
    _("device {device} {field}: {fault}"),
    _("{rule}; broken by {rows}"),
    _("at most {most} long"),
    _("at most {most}"),
    _("at least {least}"),
    _("no NUL may be in it"),
    _("this is no report: it has {n} bytes; {fault}"),
    _("{field} is {value}; {fault}"),
)
RULES = (
    _("a stage has at most one live attempt, and has one exactly while it is active"),
    _("no device is claimed beyond what it has, and its sums are those of its open claims"),
    _("a final job has one final event, and only final stages"),
    _("the spans of a log, and of each of its streams, follow each other without gap or overlap"),
    _("an ended part holds nothing, an open claim belongs to a part that lives"),
    _("an attempt has ended exactly when all its parts have"),
    _("no claim ends before it begins, and no attempt either"),
    _("the events of a job are numbered without a gap, from 1 or from those that went because they were old"),
    _("no slot of a device is in two open claims"),
)

# Notes of trace readers on a workload, and their reasons for leaving rows out.
TRACES = (
    _("made up: no trace of a real cluster"),
    _("1 row cannot run and was left out: {why} (first: line {line})"),
    _("{count} rows cannot run and were left out: {why} (first: line {line})"),
    _("1 row said the same as an earlier one; with no job number to tell them apart, all were kept"),
    _("{count} rows said the same as an earlier one; with no job number to tell them apart, all were kept"),
    _('1 row came after later ones; all were sorted by "{column}"'),
    _('{count} rows came after later ones; all were sorted by "{column}"'),
    _("{count} ran longer than their limit"),
    _("the first {count} stages of the trace"),
    _("{count} rows lie outside the days that were asked for"),
    _("{count} rows need stages that are not in the file before them; they do not wait for those"),
)
LEFT_OUT = (
    _("without a start and an end"),
    _("not completed"),
    _("zero run time"),
    _("run time zero or not known"),
    _("no processors named"),
    _("zero duration"),
    _("no GPU asked for"),
)

# The system as the one who acted.
ACTORS = (_("engine"), _("agent"))

# Why a simulation failed, apart from errors in the work itself.
FAULTS = (
    _("its process could not be started: {reason}"),
    _("its process is gone"),
    _("it took longer than {n} minutes"),
    _("the server that ran it was stopped"),
)

# Who can change the cause of a wait reason.
ACTS = (_("user"), _("lead"), _("admin"), _("user or admin"), _("lead or admin"))

# Notes of agents on their hosts, devices and parts; the fields are names, numbers and foreign texts.
NOTES = (
    _("its clock is about {n} s ahead of the control plane's"),
    _("its clock is about {n} s behind the control plane's"),
    _("its checkpoint folder holds more than {n} files: checkpoints there may be overlooked"),
    _("checkpoint {path} lies outside of YARD_CHECKPOINT_DIR: no attempt resumes from there"),
    _("all tasks waited for {resource} in more than {n} % of the last ten seconds"),
    _("the file system at {mount} ({n} GiB) has less than {share} left"),
    _("this agent's {name} failed once ({reason}); it goes on, and its log has more"),
    _("this agent's {name} failed several times ({reason}); it goes on, and its log has more"),
    _("this agent's {name} failed again and again ({reason}); it goes on, and its log has more"),
    _("{source} cannot be read: {reason}"),
    _("{n} cards of {vendor} tell the same uuid {uuid}; place tells them"),
    _("card {n} of {vendor} cannot be used: {reason}"),
    _("no report since {time} UTC"),
    _("devices {devices} belong to another node already; they are left out"),
    _("from the administration ({who})"),
    _("nothing on this host tells of it any more"),
    _("it is not listed any more"),
    _("killed {n} min ago and still there: {who}"),
    _("used by what no stage started: {who}"),
    _("its PCIe link runs at {width} of {widest}: reseat the card or look at the riser"),
    _("a broken memory row could not be remapped"),
    _("a memory row waits to be remapped: reset the GPU when it is free"),
    _("{n} memory errors since the driver was loaded could not be corrected"),
    _("MIG is enabled and has no instance: nothing can run"),
    _("Xid {n}: double-bit memory error"),
    _("Xid {n}: row remapping failed"),
    _("Xid {n}: NVLink error"),
    _("Xid {n}: the card fell off the bus"),
    _("Xid {n}: uncontained memory error"),
    _("Xid {n}: its system processor does not answer"),
    _("Xid {n}: its system processor failed"),
    _("Xid {n}: a memory row was remapped"),
    _("Xid {n}: many corrected memory errors"),
    _("Xid {n}: a contained memory error"),
    _("Xid {n}: a memory error that could not be handled: reset the GPU, and have it replaced if that does not help"),
    _("Xid {n}: NVLink error: reset the GPU, and look at cable and switch if that does not help"),
    _("Xid {n}: the driver asks for an action that this library does not tell; nvidia-smi -q or the kernel's log does"),
    _("its driver asks for a reset of the GPU"),
    _("its driver asks for a reboot of the host"),
    _("its driver asks to end all work between GPUs; after that it says what comes next"),
    _("its driver asks to let the work end, to start none and to reset the GPU"),
    _("its driver asks to recover the IMEX domain of the rack"),
    _("its driver asks for a reset of the GPU's PCIe bus"),
    _("its driver asks for a reboot of the whole system"),
    _("its driver asks for an action; nvidia-smi -q says which"),
    _("a memory page waits to be retired: reset the GPU when it is free"),
    _("its PCIe link runs at generation {n} of {most} under load: reseat the card or look at the riser"),
    _("let go of as {file} asks; it is asked again ten minutes after, or without the file"),
    _("its driver says that it has to be reset"),
    _("its driver calls its memory {health}"),
    _("{source} knows of no card"),
    _("{tool} calls its health {health}"),
    _("{tool} calls its state {state}"),
    _("cores {cores} could not be set: {reason}"),
    _("CPU weight {n} (nice {nice}) could not be set: {reason}"),
    _("I/O weight {n} (level {level}) could not be set: {reason}"),
    _("I/O weight {n} could not be set: this machine's kernel interface is not known"),
    _("the memory limit was not lowered to {n} MiB: {used} MiB are in use, and a limit below would end it"),
    _("the memory limit of {n} MiB could not be set: nobody watches it"),
    _("the memory limit of {n} MiB could not be noted: {reason}"),
    _("the memory limit could not be taken back: nobody watches it"),
    _("it forks faster than it can be suspended"),
    _("looks for image {image}"),
    _("pulls image {image}"),
    _("makes its container"),
    _("its container is being removed"),
    _("fetches its inputs"),
    _("ended; {size} of its devices are not free yet"),
    _("{n} processes do not end although killed: pid {pids}"),
    _("queue class and quantum have no effect: no device of this part takes turns (see --queued of its agent)"),
)


def change_text(change: Mapping[str, Any]) -> str:
    """A change of a counterfactual, in the reader's language."""
    known = SENTENCES.get(str(change.get("kind")))
    if known is None or (get_language() or "en").startswith("en"):
        return str(change.get("text") or "")
    return gettext(known[0]).format_map(ShownValues(shown(change.get("params") or {})))


def told_text(one: Mapping[str, Any], name: str) -> str:
    """The text ``name`` of an object, in the reader's language if ``<name>_said`` has it in clauses."""
    return in_words(str(one.get(name) or ""), one.get(f"{name}_said"))


def funnel_text(waiting: Mapping[str, Any]) -> list[tuple[str, int]]:
    """The number of nodes left after each filter of a search, with the filters in the reader's language."""
    funnel, said = waiting["funnel"], waiting["funnel_said"]
    if len(said) != len(funnel):
        return [(label, count) for label, count in funnel]
    return [(in_words(label, [one]), count) for (label, count), one in zip(funnel, said, strict=True)]


def trace_text(note: str) -> str:
    """A note on a trace in the reader's language, including why rows were left out."""
    return phrase_text(note, (*TRACES, *LEFT_OUT), inner=("why",))


def alarm_text(says: str) -> str:
    """The text of an alarm in the reader's language, including its fault or the broken rule."""
    return phrase_text(says, (*ALARMED, *RULES), inner=("fault", "rule"))


def note_text(note: str) -> str:
    """A note of an agent in the reader's language; it may be several sentences, and begin with a code."""
    code, space, rest = note.partition(" ")
    if space and re.fullmatch(r"[A-Z][A-Z0-9_]+", code):
        return f"{code} {note_text(rest)}"
    whole = phrase_text(note, NOTES)
    return whole if whole != note else "; ".join(phrase_text(one, NOTES) for one in note.split("; "))


def partition_text(profile: str, slot: int | None, device: str = "") -> str:
    """A partition such as ``1g.10gb at slot 3 of GPU 2`` in the reader's language."""
    place = profile if slot is None else gettext("{profile} at slot {slot}").format(profile=profile, slot=slot)
    return gettext("{partition} of {device}").format(partition=place, device=device) if device else place


def division_text(division: Mapping[str, Any] | None) -> str:
    """The partitioning of a device in one line; empty if it has none."""
    if division is None:
        return ""
    times = Counter(one["profile"] for one in division["made"])
    if times:
        text = ", ".join(f"{count} × {profile}" for profile, count in sorted(times.items()))
    elif division["makes"]:
        text = gettext("divided as asked, where the pool allows it")
    else:
        text = gettext("not divided yet: nothing can run on it")
    return f"{division['mode']}: {text}"
