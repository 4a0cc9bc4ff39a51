"""``sacct``: lists jobs with how they ended, and their steps: the stages that have begun."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Final

from switchyard.cli import units
from switchyard.slurm.commands.records import LONG, SlurmJob, SlurmStep, clock, local_now, moment, sort_key
from switchyard.slurm.commands.shell import SlurmFault, SlurmOptions, connect, jobs_of, user_named
from switchyard.slurm.values import UnreadableValue
from switchyard.slurm.values import moment as read_moment

USUAL: Final = "JobID,JobName,Partition,Account,AllocCPUS,State,ExitCode"
BRIEF: Final = "JobID,State,ExitCode"

FIELDS: Final[Mapping[str, tuple[int, Callable[[SlurmJob], str]]]] = {
    "AllocTRES": (10, lambda job: "" if job.state == "PD" else job.tres),
    "Account": (10, lambda job: job.text("project")),
    "AllocCPUS": (10, lambda job: "0" if job.state == "PD" else str(job.cpus)),
    "AllocNodes": (10, lambda job: "0" if job.state == "PD" else str(job.node_count)),
    "Cluster": (10, lambda job: "switchyard"),
    "Constraints": (20, lambda job: job.features),
    "Comment": (14, lambda job: str((job.job.get("labels") or {}).get("comment") or "")),
    "CPUTime": (10, lambda job: clock(job.elapsed_s * job.cpus, is_padded=True)),
    "CPUTimeRAW": (10, lambda job: str(int(job.elapsed_s) * job.cpus)),
    "DerivedExitCode": (15, lambda job: "0:0"),
    "Elapsed": (10, lambda job: clock(job.elapsed_s, is_padded=True)),
    "ElapsedRaw": (10, lambda job: str(int(job.elapsed_s))),
    "Eligible": (19, lambda job: moment(job.stage.get("eligible_at") or job.job.get("submitted_at"), "Unknown")),
    "End": (19, lambda job: moment(job.job.get("ended_at"), "Unknown")),
    "ExitCode": (8, lambda job: job.exit_code),
    "Group": (9, lambda job: ""),
    "JobID": (-12, lambda job: job.id),
    "JobIDRaw": (-12, lambda job: job.raw_id if isinstance(job, SlurmStep) else str(job.number)),
    "JobName": (10, lambda job: job.name if isinstance(job, SlurmStep) else job.text("name")),
    "NCPUS": (10, lambda job: str(job.cpus)),
    "NNodes": (8, lambda job: str(job.node_count)),
    "NodeList": (15, lambda job: job.node_list or "None assigned"),
    "NTasks": (8, lambda job: str(job.tasks) if isinstance(job, SlurmStep) else ""),
    "Partition": (10, lambda job: job.text("pool")),
    "Planned": (10, lambda job: clock(job.waited_s, is_padded=True)),
    "Priority": (10, lambda job: job.priority),
    "QOS": (10, lambda job: job.qos),
    "Reason": (22, lambda job: job.reason),
    "ReqCPUS": (8, lambda job: str(job.cpus)),
    "ReqMem": (10, lambda job: f"{job.memory_mib}M"),
    "ReqNodes": (8, lambda job: str(job.node_count)),
    "ReqTRES": (10, lambda job: job.tres),
    "Reserved": (10, lambda job: clock(job.waited_s, is_padded=True)),
    "Start": (19, lambda job: "Unknown" if job.state == "PD" else job.start("Unknown")),
    "State": (10, lambda job: LONG[job.state]),
    "Submit": (19, lambda job: moment(job.job.get("submitted_at"), "Unknown")),
    "Timelimit": (10, lambda job: "UNLIMITED" if job.limit_s is None else clock(job.limit_s, is_padded=True)),
    "TimelimitRaw": (12, lambda job: "UNLIMITED" if job.limit_s is None else str(int(job.limit_s) // 60)),
    "User": (9, lambda job: job.text("user")),
    "WCKey": (10, lambda job: str((job.job.get("labels") or {}).get("wckey") or "")),
}
"""Fields with their widths: negative where they stand on the left."""

OF_JOBS: Final = frozenset(
    (
        "Comment", "Constraints", "Eligible", "Partition", "Planned", "Priority", "QOS", "Reason", "ReqMem", "ReqTRES",
        "Reserved", "Timelimit", "TimelimitRaw", "User", "WCKey",
    )
)  # fmt: skip
"""Fields that a step does not have."""

EMPTY: Final = (
    "AdminComment", "AssocID", "AveCPU", "AveDiskRead", "AveDiskWrite", "AveRSS", "AveVMSize", "ConsumedEnergy",
    "ConsumedEnergyRaw", "Container", "GID", "Layout", "MaxDiskRead", "MaxDiskWrite", "MaxPages", "MaxRSS",
    "MaxRSSNode", "MaxRSSTask", "MaxVMSize", "MinCPU", "PlannedCPU", "Reservation", "Restarts", "SubmitLine",
    "Suspended", "SystemCPU", "SystemComment", "TotalCPU", "TRESUsageInAve", "TRESUsageInMax", "UID", "UserCPU",
    "WorkDir",
)  # fmt: skip
"""Fields of steps, and of what is not kept: they are there, and empty."""


def run(words: Sequence[str]) -> int:
    given = SlurmOptions(
        "sacct",
        words,
        {
            "X": "allocations", "allocations": "allocations", "json": "json",
            "P": "parsable2", "parsable2": "parsable2", "p": "parsable",
            "parsable": "parsable", "n": "noheader", "noheader": "noheader", "a": "allusers", "allusers": "allusers",
            "b": "brief", "brief": "brief", "L": None, "allclusters": None, "D": None, "duplicates": None, "T": None,
            "truncate": None, "l": "long", "long": "long", "e": "helpformat", "helpformat": "helpformat",
        },
        {
            "o": "format", "format": "format", "j": "jobs", "jobs": "jobs", "job": "jobs", "S": "starttime",
            "starttime": "starttime", "E": "endtime", "endtime": "endtime", "s": "state", "state": "state",
            "u": "user", "user": "user", "uid": "user", "A": "account", "accounts": "account", "name": "name",
            "r": "partition", "partition": "partition", "q": "qos", "qos": "qos", "delimiter": "delimiter",
            "M": None, "clusters": None, "units": None, "N": "nodelist", "nodelist": "nodelist",
        },
    )  # fmt: skip
    if "helpformat" in given:
        names = [name.ljust(19) for name in sorted({*FIELDS, *EMPTY}, key=str.lower)]
        print("\n".join(" ".join(names[at : at + 4]) for at in range(0, len(names), 4)))
        return 0
    fields = _fields(given.get("format") or (BRIEF if "brief" in given else USUAL))
    begin, end = _span(given)
    states = _states(given.get("state"))
    users = [] if "allusers" in given else [user_named(name) for name in given.listed("user")]
    named = given.listed("jobs")
    numbers = list(dict.fromkeys(number.partition(".")[0] for number in named))
    with connect() as client:
        # Of jobs that are named, those of others are told too, where one may see them.
        mine = users or ([] if "allusers" in given or numbers else ["me"])
        found, _ = jobs_of(client, numbers=numbers, users=mine)
        chosen = [
            job
            for job in found
            if (not states or job.state in states) and _is_between(job, begin, end) and _is_meant(job, given)
        ]
        chosen.sort(key=lambda job: sort_key(job.id))
        if "json" in given:
            from switchyard.slurm.commands import as_json

            print(as_json.document("jobs", map(as_json.accounted, chosen), ["sacct", "--json"]), flush=True)
            return 0
        rows = chosen if "allocations" in given else [row for job in chosen for row in (job, *job.steps)]
        if any("." in number for number in named):
            rows = [row for row in rows if _names(row) & set(named)]
        print("\n".join(_lines(given, fields, rows)), end="\n" if rows or "noheader" not in given else "", flush=True)
    return 0


def _names(row: SlurmJob) -> set[str]:
    """Return by which names ``--jobs`` chooses a row: those of its job and array, and of a step itself with them."""
    jobs = {row.id.partition(".")[0], str(row.number), row.array_id}
    return jobs | ({f"{job}.{row.suffix}" for job in jobs} if isinstance(row, SlurmStep) else set())


Field = tuple[str, int, Callable[[SlurmJob], str]]


def _fields(text: str) -> list[Field]:
    by_name = {name.lower(): (name, *field) for name, field in FIELDS.items()}
    empty = {name.lower(): name for name in EMPTY}
    found: list[Field] = []
    for word in text.split(","):
        name, _, width = word.strip().partition("%")
        if name.lower() in empty and name.lower() not in by_name:
            field: Field = (empty[name.lower()], 10, lambda job: "")
        elif name.lower() in by_name:
            field = by_name[name.lower()]
        else:
            raise SlurmFault(f'sacct: error: Invalid field requested: "{name}"')
        if re.fullmatch(r"-?[0-9]{1,4}", width) and int(width):
            field = (field[0], int(width), field[2])
        found.append(field)
    return found


def _lines(given: SlurmOptions, fields: Sequence[Field], jobs: Sequence[SlurmJob]) -> list[str]:
    headers = "noheader" not in given
    if "parsable" in given or "parsable2" in given:
        between, last = given.get("delimiter") or "|", "" if "parsable2" in given else given.get("delimiter") or "|"
        rows = [[title for title, _, _ in fields]] if headers else []
        rows += [[_value(job, title, value).replace(between, " ") for title, _, value in fields] for job in jobs]
        return [between.join(row) + last for row in rows]
    lines = []
    if headers:
        lines.append("".join(_fitted(title, width, is_title=True) for title, width, _ in fields))
        lines.append("".join("-" * abs(width) + " " for _, width, _ in fields))
    return lines + [
        "".join(_fitted(_value(job, title, value), width) for title, width, value in fields) for job in jobs
    ]


def _value(job: SlurmJob, title: str, value: Callable[[SlurmJob], str]) -> str:
    return "" if title in OF_JOBS and isinstance(job, SlurmStep) else value(job)


def _fitted(text: str, width: int, *, is_title: bool = False) -> str:
    """Fill a value to its column; what is cut ends with a plus."""
    size = abs(width)
    if len(text) > size:
        text = text[:size] if is_title else text[: size - 1] + "+"
    return (text.ljust(size) if width < 0 else text.rjust(size)) + " "


def _states(text: str) -> set[str]:
    short = {long: one for one, long in LONG.items()}
    found = set()
    for word in re.split(r"[\s,]+", text.upper()):
        if word and word not in LONG and word not in short:
            raise SlurmFault(f"sacct: error: Unknown job state: {word}")
        if word:
            found.add(short.get(word, word))
    return found


def _span(given: SlurmOptions) -> tuple[datetime, datetime | None]:
    """Return from when and until when: where nothing is said since midnight, and of jobs that are named all the
    time."""
    now = local_now()

    def read(text: str) -> datetime:
        try:
            if re.fullmatch(r"[0-9]{1,2}:[0-9]{2}(:[0-9]{2})?|midnight|noon", text.lower()):
                # A time of day is today's, whether it has passed or not.
                found = read_moment(text, now.replace(hour=0, minute=0, second=0, microsecond=0))
                return (
                    found if found.date() == now.date() else found.replace(day=now.day, month=now.month, year=now.year)
                )
            if match := re.fullmatch(r"now-([0-9]{1,9})([a-z]*)", text.lower()):
                return now - (read_moment(f"now+{match[1]}{match[2]}", now) - now)
            return read_moment(text, now)
        except (UnreadableValue, OverflowError):
            raise SlurmFault(f"Invalid time specification (pos=0): {text}") from None

    midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)
    usual = datetime.fromtimestamp(0).astimezone() if "jobs" in given else midnight
    begin = read(given.get("starttime")) if "starttime" in given else usual
    end = read(given.get("endtime")) if "endtime" in given else None
    if begin > (end or now):
        first, last = (f"{one:%Y-%m-%dT%H:%M:%S}" for one in (begin, end or now))
        raise SlurmFault(f"sacct: error: Start time ({first}) requested is after end time ({last}).")
    return begin, end


def _is_between(job: SlurmJob, begin: datetime, end: datetime | None) -> bool:
    submitted, ended = units.parse_time(job.job.get("submitted_at")), units.parse_time(job.job.get("ended_at"))
    return (ended is None or ended >= begin) and (end is None or submitted is None or submitted <= end)


def _is_meant(job: SlurmJob, given: SlurmOptions) -> bool:
    wanted = (
        ("name", job.text("name")),
        ("partition", job.text("pool")),
        ("account", job.text("project")),
        ("qos", job.qos),
    )
    return not any(option in given and value not in given.listed(option) for option, value in wanted)
