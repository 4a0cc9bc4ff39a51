"""How a part ended, as clauses: a code and named values, from which the server makes a sentence in any language.

A sentence is its clauses one after the other; each brings the punctuation that joins it to the one before. The agent
sends the English sentence beside them, for servers and people that do not know a code. Codes and the names of their
values are stable; ``_s`` are seconds, ``_bytes`` are bytes. What an operating system or another program says stays as
it is. Imports nothing: the shim and its commands read this too.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any, Literal

    Clause = tuple[str, dict[str, str | int | float]]


def _(template: str) -> str:
    """Marks a template for the translators, whose tools look for this name."""
    return template


ENDS = {
    "Also": _("; "),
    # The command ended by itself or was ended.
    "ExitCode": _("ended with exit code {code}"),
    "CommandSignal": _("; 128 + {number} often means that its own command was ended by {signal}"),
    "SetupFailed": _("its setup ended with exit code {code}; its command was not started"),
    "Signal": _("ended by {signal}"),
    "GraceOver": _("ended by SIGKILL: it had not ended within its grace after {why}"),
    "AsksAgain": _("asks to be started again from its checkpoint"),
    "TimeLimit": _("ran into its limit of {limit_s}"),
    "LeaseOver": _("no report of this node was answered for {lease_s}"),
    "MemoryOver": _("used {used_bytes}; it asked for {asked_bytes}"),
    "DeviceMemoryOver": _("used {used_bytes} of {device}, of which it was given {given_bytes}"),
    "DiskOver": _("its files took up {used_bytes} of the disk; it asked for {given_bytes}"),
    "KernelMemory": _("the kernel ended it for want of memory"),
    "KernelMemoryAsked": _("the kernel ended it: it asked for {asked_bytes}"),
    "ProcessLimit": _("; it met the limit of {most} processes and threads that this node gives a stage"),
    "DeviceFault": _("{device}: {fault}"),
    "NeverStarted": _("stopped before it started"),
    # It was lost.
    "Rebooted": _("the machine was rebooted while it ran"),
    "Gone": _("it was started on this node before, and is gone"),
    "SupervisorGone": _("its supervisor ended without a word; what it had started was ended too"),
    "SupervisorGoneEarly": _("its supervisor, or the agent, ended before its command was started"),
    "StillThere": _("; still there although killed: pid {pids}"),
    "ContainerStays": _("; its container could not be removed: {error}"),
    # It could not be started.
    "NoCommand": _("the stage has no command that could be executed"),
    "CommandNotFound": _('command "{command}" was not found; PATH is {path}'),
    "CommandNotFoundNoPath": _('command "{command}" was not found; PATH is not set'),
    "CommandForbidden": _('command "{command}" may not be executed by uid {uid}; is it marked as executable?'),
    "CommandNoProgram": _('command "{command}" is neither a program nor a script with a #! line'),
    "CommandFailed": _('command "{command}" could not be executed: {error}'),
    "ProcessUnprepared": _("its process could not be prepared: {error}"),
    "UserUnchanged": _("its user could not be changed to uid {uid}: {error}"),
    "NoUserForProject": _("project {project} has number {number}; this node has users for numbers 1 to {most}"),
    "ViewNotMade": _("it could not be closed off from the other stages of this host: {error}"),
    "FolderNotEntered": _('its folder "{folder}" could not be entered: {error}'),
    "FolderNotMade": _('folder "{folder}" could not be made: {error}'),
    "FolderNotAllowed": _('this node does not let "{folder}" be used as storage; accepted are {allowed}'),
    "MountNotAllowed": _('this node lets no stage mount "{folder}"; accepted are folders in {allowed}'),
    "MountMissing": _('folder "{folder}" cannot be mounted: {error}'),
    "MountExchangeable": _(
        'folder "{folder}" cannot be mounted: a user could put another one in its place; mount the folder above it'
    ),
    "MountLeadsOut": _('folder "{folder}" cannot be mounted: it leads to "{real}"'),
    "MountHolds": _('folder "{folder}" cannot be mounted: "{inside}" is in it; mount a folder beside that'),
    "MountElsewhere": _('folder "{folder}" cannot lie at "{path}" without an image; leave out its path'),
    "MountUndeclared": _('pool {pool} does not let jobs mount "{folder}" in this way any more'),
    "RunFolderExists": _("its run folder exists already, so it may have run before"),
    "RunFolderNotMade": _("its run folder could not be made: {error} ({folder})"),
    "VariableRefused": _("environment variable {name} cannot be set: its name or value is not allowed"),
    "VariableLines": _("environment variable {name} cannot have several lines in a container: rename it"),
    "SecretMissing": _("project {project} has no secret {name} any more"),
    "SecretsClosed": _("its secrets could not be opened: {error}"),
    "SecretsGone": _("the values of its secrets are not there any more"),
    "NodeUnfit": _("this node is not fit for it: {check}: {said}"),
    "HostFull": _("this host starts no more processes: {error}"),
    "StartUnrecorded": _("this node could not record the start: {error}"),
    "Discarded": _("an administrator gave it up: this node could not take it over when its agent was started again"),
    "StartFailed": _("this node could not start it ({error})"),
    "NotDivided": _("{kind} {index} could not be divided: {error}"),
    "BundleNotFetched": _("bundle {bundle} could not be fetched: {error}"),
    "BundleNotUnpacked": _("bundle {bundle} could not be unpacked: {error}"),
    "InputNotFetched": _('input "{name}" could not be fetched: {error}'),
    "OutputNotKept": _('output "{name}" could not be kept: {error}'),
    "OutputNotRead": _('output "{name}" could not be read: {error}'),
    # It was to run, or ran, as a job of a foreign engine.
    "ForeignRefused": _("{engine} refused it: {error}"),
    "ForeignGang": _("{engine} is one node here: a stage of several nodes cannot run on it"),
    "ForeignLease": _("{engine} keeps no lease: a stage with on_node_lost: requeue cannot run on it"),
    "ForeignShare": _("{engine} gives whole devices only"),
    "ForeignShapes": _("its devices are of several shapes of {engine}, or of none"),
    "ForeignGone": _("{engine} does not know it any more, and nothing tells how it ended"),
    "ForeignNoWord": _("its job at {engine} ended without a word of its supervisor"),
    "ForeignEnded": _("{engine} ended its job: {state}"),
    "ForeignLog": _("; {words}"),
    "ForeignNonsense": _("{source} answered with what makes no sense: {words}"),
    # Nobody could enter it.
    "NotEntered": _("nothing of it runs here that could be entered"),
    "NotEnteredBy": _("{engine} cannot run another command in a container; take podman or docker"),
    "NotEnteredYet": _("its supervisor did not let anybody in; it may be of an agent that knew no sessions"),
    "NotListening": _("the stage does not listen on port {port} of its node; it listens on {ports}"),
    "ListensNowhere": _("the stage does not listen on port {port} of its node, nor on any other"),
    "PortSilent": _("port {port} of the stage took no connection: {error}"),
    "NotEnteredMany": _("{most} sessions are open on this node; it opens no more"),
    # Nobody could profile it.
    "NotTracedMany": _("{most} traces are being taken on this node; it takes no more"),
    "NoPySpy": _("this node has no py-spy; an operator installs it beside the agent, or in its PATH"),
    "NoTool": _("the agent of this node does not know the tool {tool}; it may be of an older release"),
    "NoPySpyInImage": _("its image has no py-spy; install it there"),
    "ToolForbidden": _("the user of the stage may not execute {program}"),
    "TraceRefused": _("{tool} could not profile it: {said}"),
    "TraceForbidden": _(
        "this node does not let py-spy read other processes of the same user; its operator allows that by"
        " kernel.yama.ptrace_scope=0, or for containers by the capability SYS_PTRACE"
    ),
    "TraceNoStep": _(
        "the stage took up no request within {waited_s}; torch needs a loop that calls switchyard.runtime.report()"
    ),
    "TraceNoRuntime": _("it was started by an agent that could not profile with torch yet"),
    "TraceNotSent": _("it could not be sent to the control plane: {error}"),
    "TraceTooLarge": _("the trace is larger than {most_bytes}; ask for fewer seconds"),
    "TraceEmpty": _("{tool} wrote no trace"),
    "TraceCut": _("its process ended before the trace was complete"),
    "TraceTookLong": _("{tool} did not end within {most_s}"),
    # Nor could its container.
    "NoContainerEngine": _("this node runs no containers: {error}"),
    "ImageUnnamed": _('"{image}" names no container image; write it as registry.local/pytorch:2.9'),
    "ImageNotPulled": _('image "{image}" could not be pulled by {engine}: {error}'),
    "ContainerNotMade": _("{engine} could not make the container: {error}"),
    "ContainerCommand": _(
        '{engine} could not start it: command "{command}" was not found, or may not be executed ({error})'
    ),
    "ContainerUnplanned": _("the agent ended before it had described the container"),
}


def clause(code: str, /, **params: "str | int | float") -> "Clause":
    return code, params


def known(said: "Clause") -> "Clause":
    """A clause of the server's, as far as this agent has words for it."""
    return said if said[0] in ENDS else clause("StartFailed", error=said[0])


def say(said: "Iterable[Clause]", templates: "Mapping[str, str]" = ENDS) -> str:
    """The clauses in one English sentence."""
    return "".join(
        templates[code].format(**{name: _shown(name, params[name]) for name in params}) for code, params in said
    )


def told(*said: "Clause") -> "dict[str, Any]":
    """What an exit tells of them: the sentence, and the clauses."""
    return {"detail": say(said).lstrip("; "), "said": list(said)}


class Refusal(Exception):
    """Something cannot be done; the text is a sentence for the owner of the job, from a clause where there is one."""

    def __init__(self, why: "str | Clause") -> None:
        self.why = why
        self.said: list[Clause] = [] if isinstance(why, str) else [why]
        super().__init__(why if isinstance(why, str) else say(self.said))

    def told(self) -> "dict[str, Any]":
        """What an exit tells of it."""
        return {"detail": str(self), "said": self.said}


class Unlaunchable(Refusal):
    """A part cannot be started."""

    cause: "Literal['LAUNCH_FAILED', 'NODE_UNFIT']" = "LAUNCH_FAILED"


def _shown(name: str, value: "str | int | float") -> str:
    if not isinstance(value, (int, float)):
        return value
    if name.endswith("_s"):
        return f"{value:g} s"
    return f"{value / 2**20:.0f} MiB" if name.endswith("_bytes") else str(value)
