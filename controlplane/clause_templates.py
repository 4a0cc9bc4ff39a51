"""The clauses that the control plane says: of jobs, of what an alarm is about, and of simulations; see
:mod:`controlplane.clauses`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from scheduler.core.model.clauses import _

RECORD: Final[Mapping[str, str]] = {
    "Comma": _(", "),
    "Because": _(": {why}"),
    "Aside": _(" ({why})"),
    "Then": _("; {what}"),
    "Submitted": _("{job} submitted by {actor}"),
    "LocalJoined": _("{stage} was submitted by {account} on node {node} itself while it was cut off, and began there"),
    "LocalCancelled": _("on node {node}, before it began"),
    "LocalJobHolds": _("node {node} was cut off, and a job that was submitted on it holds these devices"),
    "LocalDevicesHeld": _("others hold its devices in the record; it is offered again"),
    "LocalUngranted": _(
        "{account} submitted jobs for project {project} on node {node}, and nobody granted that or the project is gone;"
        " they stay on the node until an administrator grants it"
    ),
    "LocalUserGone": _(
        "jobs for project {project} that {account} submitted on node {node} have no user: theirs is not active; they"
        " stay on the node until an administrator names another"
    ),
    "LocalRefused": _("jobs for project {project} stay on node {node}, for the record does not take them: {fault}"),
    "JobState": _("{job} {state}"),
    "InAdministration": _("from the administration"),
    "CancelledBy": _("{actor} cancelled {job}"),
    "HeldBy": _("{actor} put on hold {job}"),
    "ReleasedBy": _("{actor} released {job}"),
    "RequeuedBy": _("{actor} queued {job} again"),
    "SignalSent": _("{actor} sent {signal} to {stage}"),
    "TraceAsked": _("{actor} asked {tool} to profile rank {rank} of {stage} for {seconds} s"),
    "TracePartEnded": _("the stage ended before the trace was complete"),
    "TraceUnheard": _("its agent did not answer within {waited_s}; it may be away, or of an older release"),
    "TraceLost": _("its agent began and told nothing more; it may be away"),
    "ChangedBy": _("{actor} changed {job}: {changes}"),
    "ChangedTo": _("{name} {was} -> {now}"),
    "MayStart": _("{stage} may start: all it needs has completed"),
    "NeedFailed": _("{need} did not complete, and {stage} needs it"),
    "AskedToSave": _("{stage} was asked to save now: its nodes are to be free in {in_s}"),
    "SourceFetched": _("code fetched: commit {commit}, {rev} of {url}"),
    "WithoutSubmodules": _("; its submodules are empty folders, for they are not fetched"),
    "WithoutLfs": _("; files in Git LFS are pointers, for their contents are not fetched"),
    "SourceFailed": _("its code could not be fetched from {url} at {rev}"),
    "GitAddressRefused": _(": the server may not ask that address; private networks are those of YARD_GIT_NETWORKS"),
    "GitHostUnknown": _(": no such host is known"),
    "GitNoAnswer": _(": the server did not answer as a git server does"),
    "GitTimedOut": _(": it took longer than two minutes"),
    "GitTlsFailed": _(": its certificate is not trusted"),
    "GitRedirected": _(": it is redirected elsewhere; write the address to which it leads, often with .git at its end"),
    "GitDenied": _(": it asks for a password, or refuses this one; set secret to one of the project that opens it"),
    "GitNotFound": _(": there is no such repository, or it is private and needs a secret"),
    "GitRevUnknown": _(": it has no such branch, tag or commit; an id must be written in full"),
    "GitServerTooOld": _(": its server cannot send one commit alone"),
    "GitUnsafe": _(": it has objects that git itself holds to be malformed or an attack"),
    "GitTooLarge": _(": the files of the commit are more than a bundle may have; keep data on shared storage"),
    "GitTooManyBundles": _(": its user has as many bytes of bundles here as one may have"),
    "GitSecretMissing": _(": the project does not have its secret any more"),
    "GitKeyUnavailable": _(": its secret cannot be opened; operators see why"),
    "GitDiskFull": _(": the disk of the control plane is full"),
    "GitNotInstalled": _(": the workers have no git; an operator must install it"),
    "JobMayStart": _("{job} may start: what it waited for has ended"),
    "NeverOk": _("{other} ended as {state}, and {job} was to start only after it had completed ({when})"),
    "NeverNotOk": _("{other} completed, and {job} was to start only if it had not ({when})"),
    "RungFew": _(
        "rung {rung}, step {step}: {metric} {value}; goes on, since nothing is compared before {factor} have reached it"
        " ({among} so far)"
    ),
    "RungPassed": _(
        "rung {rung}, step {step}: {metric} {value}; goes on, among the best 1/{factor} of {among} (at least as good as"
        " {cutoff})"
    ),
    "RungAny": _(
        "rung {rung}, step {step}: {metric} {value}; goes on, since any number is among the best 1/{factor} of {among}"
    ),
    "RungNoNumber": _(
        "stopped early at rung {rung}, step {step}: {metric} is no finite number, which is never among the best"
        " 1/{factor} of {among}"
    ),
    "RungMissed": _(
        "stopped early at rung {rung}, step {step}: {metric} {value} is not among the best 1/{factor} of {among};"
        " {cutoff} was needed"
    ),
    "Placed": _("{stage} placed: {why}"),
    "GoesOnWith": _("{stage} resized {was} -> {now} nodes of {within}"),
    "Runs": _("{stage} runs"),
    "AskedToStop": _("{stage} was asked to stop ({cause})"),
    "HeldIdle": _("{stage} held its devices idle: {why}"),
    "IdleDevices": _("over {window_s} they were used to {used}, and its utilization_policy asks for at least {least}"),
    "NodeDrained": _("node {node} is drained, {why}"),
    "AllocationEnded": _("the engine that ran it says that its allocation has ended"),
    "PilotLeaves": _("provider {provider} gives it back: {why}"),
    "PilotGone": _("provider {provider} brings it again when there is work for it"),
    "PilotIdle": _("there was no work for it"),
    "PilotEnds": _("the time of its allocation is nearly over"),
    "PilotWaited": _("the engine did not grant it in time"),
    "PilotDisabled": _("the provider was disabled, or does not have its shape any more"),
    "PilotNeverCame": _("its agent did not join"),
    "PilotsStray": _("the last {count} pilots ended before their agents joined; see what they printed"),
    "ProgramMissing": _("a program that it needs cannot be run on the control plane's server: {what}"),
    "ProgramTooSlow": _("{what} took too long"),
    "ProgramTooLoud": _("{what} printed more than it may"),
    "AnswerUnreadable": _("{what} answered what cannot be understood"),
    "AskedBefore": _("{what} was asked for before"),
    "SlurmSaid": _("Slurm: {what}"),
    "RaySaid": _("Ray: {what}"),
    "KubernetesSaid": _("Kubernetes: {what}"),
    "EndpointMissing": _("the administrator of the server has set up no endpoint {what} that is in order"),
    "EndpointUnreachable": _("endpoint {what} cannot be reached"),
    "EndpointUntrusted": _("endpoint {what} has no certificate that the server trusts"),
    "EndpointSilent": _("endpoint {what} took too long to answer"),
    "DeviceUnnamed": _("the devices of shape {what} need a vendor, or the resource of a device plugin"),
    "EndpointTooLoud": _("{what} answered more than it may"),
    "ProgramSaid": _("its program failed: {what}"),
    "SettingsWrong": _("its settings do not fit this release: {what}"),
    "SiteUnreachable": _("it does not answer ({what})"),
    "SiteTlsFailed": _("no secure connection to it can be made ({what}); its certificate may be stale, or ours"),
    "SiteOtherCertificate": _("it shows another certificate than the one that is expected"),
    "SiteFilesUnusable": _("the files of its certificates on the control plane's server cannot be used ({what})"),
    "SiteWithoutToken": _("it has no token: ask its operators for one"),
    "SiteTokenUnreadable": _("its token cannot be decrypted; set it again"),
    "SiteDenied": _("it does not accept our token: {what}"),
    "SiteBusy": _("it is busy: {what}"),
    "SiteNonsense": _("it answers what cannot be used {what}"),
    "SiteForgot": _("it does not know the job, or does not show it: {what}"),
    "SiteRefused": _("the site refused it: {what}"),
    "SiteSilent": _("site {site} has been silent for long, and its job file says to start again elsewhere"),
    "SiteGone": _("{actor} confirmed that nothing of it runs at site {site} any more"),
    "AwayRuns": _("runs at site {site} as #{number}"),
    "AwayWaits": _("waits at site {site} as #{number}"),
    "AwayWaitsFor": _("waits at site {site} as #{number}: {reason}"),
    "LeftFor": _("leaves for site {site}, where it ends in about {there_s} instead of {here_s} here"),
    "LeftForUnforeseen": _("leaves for site {site}, where it ends in about {there_s}; no start is foreseen here"),
    "LeftForImpossible": _("leaves for site {site}, since it cannot run here"),
    "BudgetUsedUp": _("budget {budget} of project {project} is used up"),
    "Resized": _("resized {was} -> {now}: {why}"),
    "AsAsked": _("{why}, as {actor} asked"),
    "Completed": _("{stage} completed"),
    "Ended": _("{stage} ended: {cause}"),
    "EndedAfter": _("{stage} ended after {ran_s}: {cause}"),
    "Detail": _(", {detail}"),
    "QueuedOnceMore": _("; queued again"),
    "OnRank": _("rank {rank} on {node}: {detail}"),
    "NodeLost": _("node {node} was lost"),
    "GaveBack": _("{stage} gave its memory back: {devices}"),
    "KeptMemory": _("{stage} did not give all memory back: {devices}"),
    "LeftDevices": _("{stage} left its devices: {devices}"),
    "Unmeasured": _("{device} could not be measured"),
    "Left": _("{device} {left_bytes} {after} s after the end"),
    "LeftOf": _("{device} had {most_bytes} in use, {left_bytes} {after} s after the end"),
    "LeftBefore": _(" ({before_bytes} before the start)"),
    "Adjusted": _("{stage} adjusted in place: {changes}"),
    "Suspended": _("suspended"),
    "GoesOn": _("resumed"),
    "AsStarted": _("{name} as it started"),
    "SetTo": _("{name} {value}"),
    "LogCut": _("the log of {stage}, rank {rank}, reached {limit_bytes}: what comes after is dropped"),
    "Entered": _("{actor} entered {stage} (rank {rank} on {node}): {command}"),
    "Forwards": _("{actor} forwards port {port} of {stage} (rank {rank} on {node})"),
    "OpensPort": _("{actor} opens port {name} ({port}) of {stage} (rank {rank} on {node}) in a browser"),
    "PortsUnused": _("nobody used its ports for {idle_s}"),
    "WentOut": _("{actor} left {stage} ({command}): {how}"),
    "GuestCode": _("ended with exit code {code}"),
    "GuestSignal": _("ended by signal {signal}"),
    "GuestPart": _("the stage ended, and with it whoever was inside"),
    "GuestGone": _("the caller went away"),
    "GuestIdle": _("nothing was typed or shown for {idle_s}"),
    "GuestRight": _("the right to be there was taken away"),
    "GuestLink": _("the connection to the node was lost"),
    "GuestLost": _("the control plane lost sight of it"),
    "GuestSilent": _("the node did not answer"),
    "GuestOld": _("the agent of the node knows no sessions; upgrade it"),
    "GuestBroken": _("what was sent was no session"),
    "SaveAsAsked": _("the job file names it"),
    "SaveMeasured": _("its saves took {save_s}"),
    "SaveAlike": _("saves of stages like it took {save_s}"),
    "SaveAssumed": _("no save was measured, {save_s} are assumed"),
    "InterruptedEvery": _("; what it holds is interrupted about every {between_s}"),
    # What a forecast rests on, by scheduler.core.model.basis, and what advice on memory does.
    "BasisLimits": _("declared limits"),
    "BasisDeclared": _("as declared"),
    "BasisOwnRun": _("from {runs} run of this stage"),
    "BasisOwnRuns": _("from {runs} runs of this stage"),
    "BasisOtherRequest": _("from {runs} run of this stage with another request"),
    "BasisOtherRequests": _("from {runs} runs of this stage with another request"),
    "BasisNamesakes": _("from stages of this name by others"),
    "BasisAhead": _("from what runs and waits ahead"),
    "BasisTrace": _("a trace"),
    "BasisTruth": _("the truth"),
    "UnknownNoneLikeIt": _("unknown: no like stage has ended"),
    "UnknownTooWide": _("unknown: like stages differ too much"),
    "UnknownUneven": _("unknown: starts like this one came too unevenly"),
    "BasisPeaks": _("peaks of {seen} finished stages like it"),
    "BasisRanOut": _("; {ran_out} of them ran out of memory"),
    # One line of advice on a receipt, by controlplane.usage.advice.
    "StillOpen": _("it has not ended: advice comes with the end"),
    "MeasuredSoon": _("its last measurements are counted within a few minutes; advice comes then"),
    "DidNotComplete": _("no advice: only a job that completed shows what it needs"),
    "TooLittleMeasured": _("no advice: too little of its run was measured"),
    "UsedAsAsked": _("it used what it asked for"),
    "DeviceUnused": _("{stage} had {device} and did no work on it: it would do without"),
    "QuarterWouldDo": _(
        "{stage} used {used_bytes} of {had_bytes} of {device}, {busy} busy at most: a quarter of it would do"
    ),
    "HalfWouldDo": _("{stage} used {used_bytes} of {had_bytes} of {device}, {busy} busy at most: half of it would do"),
    "FewerCores": _("{stage} used {used} of {had} cores at most: {cores} would do"),
    "LessMemory": _("{stage} used {used_bytes} of {had_bytes} of memory at most: {memory_bytes} would do"),
    # How many nodes were left after each filter of a search, by scheduler.core.model.funnel.
    "FunnelAll": _("nodes"),
    "FunnelInPool": _("in pool {pool}"),
    "FunnelAllowed": _("where its data lie or not avoided"),
    "FunnelMatching": _("with matching devices"),
    "FunnelWithEngine": _("with a container engine"),
    "FunnelReady": _("ready and healthy"),
    "FunnelEnoughFree": _("with enough free"),
    "FunnelNoPromiseDelayed": _("without delaying a promise"),
    # What a stage asks of each of its nodes; with clauses of the engine between.
    "OnNodes": _("{nodes} nodes x "),
    "Either": _(" or "),
    "OneShare": _("{share} {device}"),
    "Shares": _("{count} x {share} {device}"),
    "OnePartition": _("{partition} of {device}"),
    "Partitions": _("{count} x {partition} of {device}"),
    "Kind": _("{kind}"),
}
FAULTS: Final[Mapping[str, str]] = {
    # What the scheduler had to leave out, or could not do.
    "NoCycle": _("no cycle comes through: {fault}"),
    "ProfileMissing": _("there is no profile {profile}; {other} decides instead"),
    "ProfileUnusable": _("its profile {profile} cannot be used: {fault}; {other} decides instead"),
    "ShadowUnusable": _("nothing thinks beside its profile: {profile} cannot be used: {fault}"),
    "NothingLearned": _("nothing is learned from it: {fault}"),
    "ReasonUnwritten": _("why it waits cannot be written: {fault}"),
    "DecisionUnwritten": _("a decision has no row: {fault}"),
    "DecisionUnrecorded": _("decision {decision} has a row but no record: {fault}"),
    "InputsUnusable": _("its inputs: {fault}"),
    "DeviceUnusable": _("device {device} cannot be used: {fault}"),
    # Of nodes.
    "NoReportSince": _("no report since {time} UTC"),
    "DrainsOnReturn": _("it goes on draining once it reports"),
    "DevicesOfAnother": _("devices {devices} belong to another node already; they are left out"),
    "Coded": _("{code} {why}"),
    "UnknownPart": _("part {part} runs on it, which the record does not know"),
    "CopiedElsewhere": _(
        "an agent on another machine has this node's identity: its state folder was copied or moved; it is refused and "
        "nothing new is placed here; a node that was moved joins again with a token of its own"
    ),
    "Copied": _(
        "two agents that are alive have this node's identity: its state folder was copied; the second one is refused "
        "and nothing new is placed here until the copy is gone and somebody resumes the node"
    ),
    "PartsForgotten": _(
        "its agent does not know {count} of the parts that it acknowledged ({part}): its state folder is an older one "
        "or another; they may be alive and are not started again; stop their stages to have them ended"
    ),
    "RecordBehind": _(
        "its agent has seen order {seen}, and the record knows {known}: the record was restored from a backup, or the "
        "node joined again; {count} parts run there that nobody knows here ({part}); they go on, and an administrator "
        "stops them one by one on the node's page"
    ),
    "FellSilent": _(
        "{lost} of {total} nodes fell silent together ({nodes}): the fault is more likely on this side; nothing of "
        "theirs is started elsewhere until they are back, or staff release the fuse"
    ),
    # Of reports, and of a field in one.
    "InventoryRefused": _("inventory refused: {fault}"),
    "ReportRefused": _("report refused: {fault}"),
    "NoOrders": _("no orders can be made for it: {fault}"),
    "ReportUnrecorded": _("report refused: it could not be recorded: {fault}"),
    "TooManyValues": _("this is no report: it has more than {most} values"),
    "TooManyBytes": _("this is no report: it has {size} bytes; at most {most}"),
    "NoReport": _("this is no report: {fault}"),
    "DeviceTwice": _("inventory: device {device} is listed twice; the second is left out"),
    "LinksKept": _("inventory: {fault}; its links stay as they were"),
    "LinkToItself": _("device {device} has a link to itself; a link ends at another device, a switch or the host"),
    "Measured": _("measurement: {fault}"),
    "FetchedTooFast": _("fetched is {size} bytes in {took} s; at most {most} Gbit/s"),
    "DeviceFieldIs": _("device {device} {field} is {value}; {fault}"),
    "DeviceField": _("device {device} {field}: {fault}"),
    "FieldIs": _("{field} is {value}; {fault}"),
    "Field": _("{field}: {fault}"),
    "AtMost": _("at most {most}"),
    "AtLeast": _("at least {least}"),
    "AtMostLong": _("at most {most} long"),
    "NoNul": _("no NUL may be in it"),
    "TooDeep": _("it is nested too deeply"),
    # Of the installation.
    "DiskLow": _("{free_gib} GiB are free, below the floor of {floor_gib} GiB"),
    "Broken": _("{rule}; broken by {rows}"),
    # The rules, by the numbers of controlplane.operations.invariants.
    "OneLiveAttempt": _("a stage has at most one live attempt, and has one exactly while it is active"),
    "ClaimsAddUp": _("no device is claimed beyond what it has, and its sums are those of its open claims"),
    "OneFinalEvent": _("a final job has one final event, and only final stages"),
    "SpansFollow": _("the spans of a log, and of each of its streams, follow each other without gap or overlap"),
    "EndedHoldsNothing": _("an ended part holds nothing, an open claim belongs to a part that lives"),
    "PartsEndAttempts": _("an attempt has ended exactly when all its parts have"),
    "NoEndBeforeBegin": _("no claim ends before it begins, and no attempt either"),
    "EventsNumbered": _(
        "the events of a job are numbered without a gap, from 1 or from those that went because they were old"
    ),
    "SlotsOnce": _("no slot of a device is in two open claims"),
    # What a simulation does now, and why it has no result.
    "Cell": _("{profile} x{load}, seed {seed}: {done} / {total}"),
    "BrokerSilent": _("it could not be started: the message broker does not answer"),
    "ProcessEnded": _("its process ended with status {status}"),
    "NotStarted": _("its process could not be started: {fault}"),
    "ProcessGone": _("its process is gone"),
    "TookTooLong": _("it took longer than {minutes} minutes"),
    "ServerStopped": _("the server that ran it was stopped"),
}
