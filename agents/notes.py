"""What an agent notes of its host, devices and parts, as clauses: a code and named values, as in :mod:`agents.ends`.

A note is sent as an English sentence and as clauses beside it, from which the server makes the sentence in the reader's
language. What an operating system, a driver, a tool or a person says stays as it is, inside a value.
"""

from agents.ends import ENDS, _, clause, say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from agents.ends import Clause

NOTES = {
    # Words that have no code: of other programs, and of agents that know no clauses for notes.
    "AsTold": _("{words}"),
    "AndMore": _(" and {more} more"),
    # Of the host.
    "ClockAhead": _("its clock is about {ahead_s} ahead of the control plane's"),
    "ClockBehind": _("its clock is about {behind_s} behind the control plane's"),
    "Stalled": _("all tasks waited for {resource} in more than {percent} % of the last ten seconds"),
    "NearlyFull": _("the file system at {mount} ({size_gib} GiB) has less than {percent}% left"),
    "LoopFailedOnce": _("this agent's {loop} failed once ({error}); it goes on, and its log has more"),
    "LoopFailed": _("this agent's {loop} failed several times ({error}); it goes on, and its log has more"),
    "LoopFailsAgain": _("this agent's {loop} failed again and again ({error}); it goes on, and its log has more"),
    # Of those who are asked about devices.
    "Unreadable": _("{source} cannot be read: {error}"),
    "NoAnswer": _("{source} did not answer within {deadline_s}; is its driver wedged?"),
    "AnswerTooLong": _("{source} answered with more than {most_bytes}"),
    "AnswerNoObject": _("{source} answered with what is no object"),
    "AnswerEmpty": _("{source} printed nothing and ended with {code}"),
    "ReaderEnded": _("the process that asks {source} ended with {code}"),
    "ReaderFailed": _("{source}: {error}"),
    "ToolMissing": _("{source} is not installed"),
    "ToolNotStarted": _("{source} could not be started: {error}"),
    "NoCard": _("{source} knows of no card"),
    "LetGo": _("let go of as {file} asks; it is asked again ten minutes after, or without the file"),
    "SameUuid": _("{count} cards of {vendor} tell the same uuid {uuid}; place tells them"),
    "CardUnusable": _("card {index} of {vendor} cannot be used: "),
    # Of a part.
    "DiskUnmeasured": _("not all of its files can be counted, so its disk space is not held to what it asked for"),
    # Of a device.
    "Untold": _("nothing on this host tells of it any more"),
    "Unlisted": _("it is not listed any more"),
    "StillHeld": _("killed {minutes} min ago and still there: "),
    "UsedByOthers": _("used by what no stage started: "),
    "ProcessPid": _("pid {pid}"),
    "ProcessOf": _("{name} (pid {pid}, {user})"),
    "ProcessOld": _("{name} (pid {pid}, {user}, {minutes} min old)"),
    "NotReturned": _(
        "{kept_gib} GiB of its memory did not come back after a stage ended, and nothing of that stage runs any more"
    ),
    "PcieWidth": _("its PCIe link runs at x{lanes} of x{most}: reseat the card or look at the riser"),
    "PcieGeneration": _(
        "its PCIe link runs at generation {generation} of {most} under load: reseat the card or look at the riser"
    ),
    "RowNotRemapped": _("a broken memory row could not be remapped"),
    "RowRemapPending": _("a memory row waits to be remapped: reset the GPU when it is free"),
    "PageRetirementPending": _("a memory page waits to be retired: reset the GPU when it is free"),
    "EccUncorrected": _("{count} memory errors since the driver was loaded could not be corrected"),
    "MigEmpty": _("MIG is enabled and has no instance: nothing can run"),
    "ResetNeeded": _("its driver says that it has to be reset"),
    "MemoryHealth": _("its driver calls its memory {health}"),
    "HealthCalled": _("{tool} calls its health {health}"),
    "StateCalled": _("{tool} calls its state {state}"),
    "CalledByCommand": _("its command calls it so"),
    # Of NVIDIA's faults (agents.devices.xid).
    "XidDoubleBit": _("Xid {xid}: double-bit memory error"),
    "XidRemapFailed": _("Xid {xid}: row remapping failed"),
    "XidLink": _("Xid {xid}: NVLink error"),
    "XidOffBus": _("Xid {xid}: the card fell off the bus"),
    "XidUncontained": _("Xid {xid}: uncontained memory error"),
    "XidGspSilent": _("Xid {xid}: its system processor does not answer"),
    "XidGspFailed": _("Xid {xid}: its system processor failed"),
    "XidUnhandled": _(
        "Xid {xid}: a memory error that could not be handled: reset the GPU, and have it replaced if that does not help"
    ),
    "XidLinkReset": _("Xid {xid}: NVLink error: reset the GPU, and look at cable and switch if that does not help"),
    "XidRemapped": _("Xid {xid}: a memory row was remapped"),
    "XidManyCorrected": _("Xid {xid}: many corrected memory errors"),
    "XidContained": _("Xid {xid}: a contained memory error"),
    "XidAction": _(
        "Xid {xid}: the driver asks for an action that this library does not tell; nvidia-smi -q or the kernel's log"
        " does"
    ),
    "AsksGpuReset": _("its driver asks for a reset of the GPU"),
    "AsksHostReboot": _("its driver asks for a reboot of the host"),
    "AsksDrainPeers": _("its driver asks to end all work between GPUs; after that it says what comes next"),
    "AsksDrainAndReset": _("its driver asks to let the work end, to start none and to reset the GPU"),
    "AsksImex": _("its driver asks to recover the IMEX domain of the rack"),
    "AsksBusReset": _("its driver asks for a reset of the GPU's PCIe bus"),
    "AsksSystemReboot": _("its driver asks for a reboot of the whole system"),
    "AsksUnknown": _("its driver asks for an action; nvidia-smi -q says which"),
    # Of a foreign engine, whose jobs the parts of a node are.
    "ForeignSilent": _("{engine} does not answer: "),
    "ForeignDrained": _("{engine} has no node that takes jobs: {states}"),
    "ForeignQueued": _("waits at {engine}"),
    "ForeignReason": _(" ({reason})"),
    "ForeignStarts": _(", expected to start within {minutes} min"),
    "ForeignUnknown": _("what became of it is unknown while {engine} does not answer"),
    # What a foreign engine cannot give.
    "LacksSessions": _("nobody can open a session, a port or a profile in its stages"),
    "LacksShares": _("running stages get no other share of cores, and cannot be suspended"),
    "LacksContainers": _("it runs no containers"),
    "LacksGangs": _("no stage of several nodes includes it"),
    "LacksLeases": _("stages with on_node_lost: requeue do not run there"),
    "LacksParts": _("devices are given whole"),
    "LacksUsers": _("stages of all projects run as one user there"),
    "LacksMemorySecrets": _("secrets lie in a file of its shared folder until their stage starts"),
    "LacksSamples": _("the use of its devices is not measured"),
    # Of a part: what it does now, and what of its request could not be.
    "FetchesInputs": _("fetches its inputs"),
    "WaitsForDevice": _("waits for device {device}, which part {part} still holds"),
    "LooksForImage": _("looks for image {image}"),
    "PullsImage": _("pulls image {image}"),
    "MakesContainer": _("makes its container"),
    "RemovesContainer": _("its container is being removed"),
    "NotEnding": _("{count} processes do not end although killed: pid {pids}"),
    "NotFreeYet": _("ended; {kept_gib} GiB of its devices are not free yet"),
    "CheckpointsCut": _("its checkpoint folder holds more than {most} files: checkpoints there may be overlooked"),
    "CheckpointOutside": _("checkpoint {path} lies outside of YARD_CHECKPOINT_DIR: no attempt resumes from there"),
    "NotLimited": _("{engine} cannot limit {resource} on this host"),
    "CoresNotSet": _("cores {cores} could not be set: {error}"),
    "CpuWeightNotSet": _("CPU weight {weight} (nice {nice}) could not be set: {error}"),
    "IoWeightNotSet": _("I/O weight {weight} (level {level}) could not be set: {error}"),
    "IoWeightUnknown": _("I/O weight {weight} could not be set: this machine's kernel interface is not known"),
    "MemoryNotLowered": _(
        "the memory limit was not lowered to {limit_bytes}: {used_bytes} are in use, and a limit below would end it"
    ),
    "MemoryNotWatched": _("the memory limit of {limit_bytes} could not be set: nobody watches it"),
    "MemoryNotNoted": _("the memory limit of {limit_bytes} could not be noted: {error}"),
    "MemoryNotReset": _("the memory limit could not be taken back: nobody watches it"),
    "ForksTooFast": _("it forks faster than it can be suspended"),
    "QueueWithoutEffect": _(
        "queue class and quantum have no effect: no device of this part takes turns (see --queued of its agent)"
    ),
}


_TEMPLATES = {**ENDS, **NOTES}


class NoteText(str):
    """A note in English that knows its clauses. What is made of its text, by formatting or cutting, knows none."""

    __slots__ = ("said",)
    said: "tuple[Clause, ...]"

    def __new__(cls, *said: "Clause") -> "NoteText":
        return cls.read(say(said, _TEMPLATES), said)

    @classmethod
    def read(cls, text: str, said: "Iterable[Clause]") -> "NoteText":
        """A note as it was kept, with its text and its clauses; words without clauses are as they were told."""
        note = super().__new__(cls, text)
        note.said = tuple(said) or ((clause("AsTold", words=text),) if text else ())
        return note


def clauses(note: str) -> "list[Clause]":
    """The clauses of a note; words that are none have the code ``AsTold``."""
    if isinstance(note, NoteText):
        return list(note.said)
    return [clause("AsTold", words=note)] if note else []


def joined(notes: "Iterable[str]") -> NoteText:
    """Several notes as one."""
    said: list[Clause] = []
    for note in notes:
        said += [*([clause("Also")] if said else []), *clauses(note)]
    return NoteText(*said)
