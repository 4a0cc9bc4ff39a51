"""Converts a batch script for Slurm to a job file, and reports what became of each directive.

:func:`convert` is pure and never raises: whatever the text, each ``#SBATCH`` line stands once in the report.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from switchyard.slurm import options, values
from switchyard.slurm.values import UnreadableValue

TAKEN, DIFFERS, IGNORED, REFUSED = "taken", "differs", "ignored", "refused"

LONGEST_SCRIPT: Final = 100_000
"""The longest script in bytes: it is one argument of a shell, and the kernel takes 128 KiB."""

MOST_LINES: Final = 500
"""So many directives are read; the rest is one line of the report."""

LONGEST_VALUE: Final = 4_000
MOST_NAMED: Final = 256
CLASSES: Final = ("urgent", "high", "medium", "low")
KEY: Final = "SLURM_STEP_KEY"

STEP: Final = 'step="${PYTHONPATH##*:}/switchyard/step.py"'
"""Where the in-job runtime is: the last folder of PYTHONPATH is the agent's, with what it gives to stages."""

_WORD = re.compile(r"[\w.@/+-]{1,100}", re.ASCII)
_NAME = re.compile(r"[^\w .,:;=+@#()\[\]~-]")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")


@dataclass(frozen=True, slots=True)
class Finding:
    """What became of one option: ``taken``, ``differs``, ``ignored`` or ``refused``, and as what or why."""

    option: str
    verdict: str
    said: str


@dataclass(slots=True)
class Line:
    """One directive of the script, or, with number 0, one option of the command line."""

    number: int
    text: str
    findings: list[Finding] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Batch:
    """A converted script: the job file, the report, and options that are the submitting command's to obey."""

    spec: dict[str, Any]
    report: list[Line]
    waits: bool = False
    is_test: bool = False
    is_parsable: bool = False

    def having(self, *verdicts: str) -> list[tuple[Line, Finding]]:
        """Return the findings with these verdicts."""
        return [(line, one) for line in self.report for one in line.findings if one.verdict in verdicts]


def convert(
    script: str,
    *,
    name: str = "sbatch",
    given: Sequence[str] = (),
    now: datetime | None = None,
    environ: Mapping[str, str] | None = None,
    key: str = "",
    arguments: Sequence[str] = (),
) -> Batch:
    """Convert a script. ``given`` are options of the command line, which come before those of the script.

    ``now`` (with a zone) is what ``--begin=now+1hour`` counts from, ``environ`` what ``--export`` copies from, ``key``
    the secret by which the nodes of a job know each other, ``arguments`` those of the script.
    """
    return _Conversion(script, name, now, environ or {}, key, list(arguments)).convert(given)


class _Conversion:
    """One conversion: what is asked, what was said about it, and the job file that grows."""

    def __init__(
        self,
        script: str,
        name: str,
        now: datetime | None,
        environ: Mapping[str, str],
        key: str,
        arguments: list[str],
    ) -> None:
        self.script, self.name, self.now, self.environ, self.key = script, name, now, environ, key
        self.arguments = arguments
        self.report: list[Line] = []
        self.asked: dict[str, str] = {}
        self.place: dict[str, tuple[Line, int]] = {}
        self.spec: dict[str, Any] = {"apiVersion": "v1", "kind": "Job"}
        self.env: dict[str, str] = {}
        self.launch: list[str] = []
        self.nodes, self.tasks_per_node, self.cpus, self.devices = 1, 1, 1, 0

    def convert(self, given: Sequence[str]) -> Batch:
        self._read(given)
        for step in (
            self._identity, self._tasks, self._accelerators, self._memory, self._times, self._control, self._output,
            self._variables, self._flags,
        ):  # fmt: skip
            step()
        for option in self.asked:
            if option in options.WITHOUT:
                self._say(option, IGNORED, options.WITHOUT[option][1])
        self._run()
        return Batch(
            self.spec,
            self.report,
            waits="wait" in self.asked,
            is_test="test-only" in self.asked,
            is_parsable="parsable" in self.asked,
        )

    # -- reading

    def _read(self, given: Sequence[str]) -> None:
        """Collect what is asked. Of an option that is written twice the last one holds; the command line has the last
        word."""
        count = 0
        for directive in options.directives(self.script):
            count += 1
            if count > MOST_LINES:
                continue
            line = Line(directive.number, directive.text[: LONGEST_VALUE + 10])
            self.report.append(line)
            if directive.is_late:
                line.findings.append(Finding("#SBATCH", IGNORED, "stands behind the first command; Slurm skips it too"))
                continue
            if len(directive.text) > LONGEST_VALUE:
                line.findings.append(Finding("#SBATCH", REFUSED, f"is longer than {LONGEST_VALUE:,} characters"))
                continue
            words, read = options.words(directive.text[len("#SBATCH") :]), 0
            if words and words[0].lower() in ("hetjob", "packjob"):
                line.findings.append(Finding(words[0], REFUSED, options.HETEROGENEOUS))
                continue
            found, read = options.read(words)
            self._take(line, found)
            if read < len(words):
                said = "stands behind the options; Slurm skips it too"
                line.findings.append(Finding(words[read][:60], IGNORED, said))
            if not line.findings:
                line.findings.append(Finding("#SBATCH", IGNORED, "says nothing"))
        if count > MOST_LINES:
            said = f"{count - MOST_LINES:,} more lines; at most {MOST_LINES} are read"
            self.report.append(Line(0, "#SBATCH ...", [Finding("#SBATCH", REFUSED, said)]))
        found, _ = options.read(given)
        for word in found:
            line = Line(0, word.written)
            self.report.append(line)
            self._take(line, [word])

    def _take(self, line: Line, found: Sequence[options.Word]) -> None:
        for word in found:
            if not word.option:
                line.findings.append(Finding(word.written[:60], IGNORED, word.fault))
            elif word.fault or len(word.value) > LONGEST_VALUE or "\0" in word.value:
                fault = word.fault or "its value is too long"
                line.findings.append(Finding(f"--{word.option}", REFUSED, fault))
            else:
                if word.option in self.place:
                    said = "the command line says it too" if line.number == 0 else f"line {line.number} says it again"
                    self._say(word.option, IGNORED, said)
                self.asked[word.option] = word.value
                line.findings.append(Finding(f"--{word.option}", IGNORED, ""))
                self.place[word.option] = line, len(line.findings) - 1

    def _say(self, option: str, verdict: str, said: str) -> None:
        line, at = self.place[option]
        line.findings[at] = Finding(f"--{option}", verdict, said)

    def _each(self, option: str, act: Callable[[str], tuple[str, str]]) -> None:
        """Let ``act`` take the value of an option, if it was given, and report what it returns or cannot read."""
        if option not in self.asked:
            return
        value = self.asked[option].strip()
        try:
            if not value and options.KNOWN[option] == options.VALUE:
                raise UnreadableValue("a value is missing")
            verdict, said = act(value)
        except UnreadableValue as error:
            verdict, said = REFUSED, str(error)
        self._say(option, verdict, said)

    def _set(self, key: str, value: Any, said: str = "") -> tuple[str, str]:
        self.spec[key] = value
        return TAKEN, said or f"{key}: {_shown(value)}"

    # -- who it is

    def _identity(self) -> None:
        def job_name(text: str) -> tuple[str, str]:
            clean = _clean_name(text)
            self.spec["name"] = clean
            return (TAKEN, f"name: {clean}") if clean == text else (DIFFERS, f"name: {clean}")

        def partition(text: str) -> tuple[str, str]:
            first, comma, _ = text.partition(",")
            self.env["SLURM_JOB_PARTITION"] = _word(first)
            verdict, said = self._set("pool", first)
            return (DIFFERS, f"pool: {first}, the first of them") if comma else (verdict, said)

        def account(text: str) -> tuple[str, str]:
            self.env["SLURM_JOB_ACCOUNT"] = _word(text)
            return self._set("project", text)

        def qos(text: str) -> tuple[str, str]:
            if text == "normal":
                self.spec["priority"] = "medium"
                return DIFFERS, "priority: medium"
            self.spec["priority"] = _word(text)
            if text in CLASSES:
                return TAKEN, f"priority: {text}"
            return DIFFERS, f"priority: {text}, if there is a class of that name; limits are those of the project"

        def priority(text: str) -> tuple[str, str]:
            number = values.whole(text, 0) if text.lower() != "top" else 10_000
            if number == 0:
                return self._set("hold", True)
            if number > 10_000:
                return IGNORED, "a number is at most 10000; name a class with --qos"
            return self._set("priority", number, f"priority: {number}, for administrators")

        def label(key: str) -> Callable[[str], tuple[str, str]]:
            def take(text: str) -> tuple[str, str]:
                if not text:
                    return IGNORED, "it is empty"
                self.spec.setdefault("labels", {})[key] = text[:200]
                return (TAKEN if len(text) <= 200 else DIFFERS), f"labels: {key}"

            return take

        self.spec["name"] = _clean_name(self.name)
        self._each("job-name", job_name)
        self._each("partition", partition)
        self._each("account", account)
        self._each("qos", qos)
        self._each("reservation", lambda text: self._set("reservation", _word(text)))
        self._each("priority", priority)
        self._each("comment", label("comment"))
        self._each("wckey", label("wckey"))

    # -- how much

    def _tasks(self) -> None:
        counts: dict[str, int] = {}

        def number(option: str) -> Callable[[str], tuple[str, str]]:
            def take(text: str) -> tuple[str, str]:
                counts[option] = values.whole(text)
                return TAKEN, ""

            return take

        def nodes(text: str) -> tuple[str, str]:
            least, dash, most = text.partition("-")
            counts["nodes"] = values.whole(least)
            if dash:
                values.whole(most, counts["nodes"])
            if counts["nodes"] > 1024:
                raise UnreadableValue("a job has at most 1024 nodes")
            return (DIFFERS, f"nodes: {least}, the least") if dash and most != least else (TAKEN, f"nodes: {least}")

        def nodelist(text: str) -> tuple[str, str]:
            names = _names(text)
            have = counts.get("nodes", len(names))
            if have != len(names):
                raise UnreadableValue(
                    f"name as many nodes as the job has: it has {have}, and {len(names)} are named; `only_on` of the "
                    "job file takes any of more"
                )
            counts["nodes"] = have
            self.spec["only_on"] = names
            return TAKEN, f"only_on: {len(names)} nodes" if len(names) > 1 else f"only_on: {names[0]}"

        def mincpus(text: str) -> tuple[str, str]:
            self.cpus = max(self.cpus, values.whole(text))
            return TAKEN, f"cpus: at least {text}"

        self._each("nodes", nodes)
        self._each("nodelist", nodelist)
        self._each("constraint", lambda text: self._set("constraint", _features(text)))
        for option in ("ntasks", "ntasks-per-node", "cpus-per-task"):
            self._each(option, number(option))
        tasks, each, cpus = counts.get("ntasks"), counts.get("ntasks-per-node"), counts.get("cpus-per-task", 1)
        self.nodes = counts.get("nodes") or (-(-tasks // each) if tasks and each else 1)
        is_too_many = self.nodes > 1024
        self.nodes = min(self.nodes, 1024)
        self.tasks_per_node = each if each and not tasks else -(-(tasks or self.nodes) // self.nodes)
        self.cpus = self.tasks_per_node * cpus
        self._each("mincpus", mincpus)
        self.spec["cpus"] = self.cpus
        if self.nodes > 1:
            self.spec["nodes"] = self.nodes
        where = f"nodes: {self.nodes}, cpus: {self.cpus}"
        if tasks and "ntasks" in counts:
            self.env["SLURM_NTASKS"] = str(tasks)
            if is_too_many:
                self._say("ntasks", REFUSED, "a job has at most 1024 nodes")
            elif counts.get("nodes") or each or tasks == 1:
                self._say("ntasks", TAKEN, f"{where}, and so many tasks of srun")
            elif self.nodes == 1:
                self._say("ntasks", TAKEN, f"{where}, and so many tasks of srun, all on one node; --nodes says more")
        if each:
            self.env["SLURM_NTASKS_PER_NODE"] = str(each)
            self.env.setdefault("SLURM_NTASKS", str(each * self.nodes))
            self._say("ntasks-per-node", TAKEN, where)
        if "cpus-per-task" in counts:
            self.env["SLURM_CPUS_PER_TASK"] = str(cpus)
            self._say("cpus-per-task", TAKEN, f"cpus: {self.cpus} on each node, {cpus} for each of its tasks")

    def _accelerators(self) -> None:
        asked: list[tuple[str, values.Resource]] = []

        def per_node(option: str, read: Callable[[str], list[values.Resource]], times: int) -> None:
            def take(text: str) -> tuple[str, str]:
                found = read(text)
                if not found:
                    return TAKEN, "no device"
                asked.extend(
                    (option, values.Resource(one.kind, one.model, min(one.count * times, 10**6))) for one in found
                )
                return TAKEN, ""

            self._each(option, take)

        def total(text: str) -> tuple[str, str]:
            found = values.gpus(text)
            if not found:
                return TAKEN, "no device"
            shares = [values.Resource(one.kind, one.model, -(-one.count // self.nodes)) for one in found]
            asked.extend(("gpus", one) for one in shares)
            return (DIFFERS if any(one.count % self.nodes for one in found) else TAKEN), ""

        per_node("gres", values.resources, 1)
        per_node("gpus-per-node", values.gpus, 1)
        per_node("gpus-per-task", values.gpus, self.tasks_per_node)
        self._each("gpus", total)
        chosen: values.Resource | None = None
        for option, one in asked:
            verdict = DIFFERS if self._verdict(option) == DIFFERS or one.kind == "mps" else TAKEN
            if chosen is None:
                chosen = one
                self.spec["devices"] = ask = one.ask()
                self.devices = 0 if one.kind == "mps" else one.count
                self._say(option, verdict, f"devices: {_shown(ask)} on each node")
            elif (one.kind, one.count) == (chosen.kind, chosen.count) and one.model in ("", chosen.model):
                self._say(option, verdict, "devices: as said already")
            else:
                self._say(option, IGNORED, f"a node is asked for one kind of device; {chosen.kind} is taken")

    def _memory(self) -> None:
        def taken(count: int, how: str) -> tuple[str, str]:
            if not count:
                return IGNORED, "all memory of a node cannot be asked for; say how much"
            self.env[f"SLURM_{how}"] = str(count >> 20)
            return TAKEN, ""

        def per_node(text: str) -> tuple[str, str]:
            count = values.size(text)
            verdict, said = taken(count, "MEM_PER_NODE")
            return self._set("memory", values.written(count)) if verdict == TAKEN else (verdict, said)

        def on_disk(text: str) -> tuple[str, str]:
            count = values.size(text)
            return self._set("disk", values.written(count)) if count else (IGNORED, "no disk space is asked for")

        def times(factor: int, what: str, how: str) -> Callable[[str], tuple[str, str]]:
            def take(text: str) -> tuple[str, str]:
                count = values.size(text)
                if not factor:
                    return IGNORED, f"no {what} are asked for"
                verdict, said = taken(count, how)
                if verdict != TAKEN:
                    return verdict, said
                whole = values.written(count * factor)
                return self._set("memory", whole, f"memory: {whole} on each node, for {factor} {what}")

            return take

        def cores_of_devices(text: str) -> tuple[str, str]:
            count = values.whole(text)
            if not self.devices:
                return IGNORED, "no GPUs are asked for"
            self.cpus = max(self.cpus, count * self.devices)
            return self._set("cpus", self.cpus)

        self._each("cpus-per-gpu", cores_of_devices)
        self._each("mem-per-cpu", times(self.cpus, "cores", "MEM_PER_CPU"))
        self._each("mem-per-gpu", times(self.devices, "GPUs", "MEM_PER_GPU"))
        self._each("mem", per_node)
        self._each("tmp", on_disk)

    # -- when

    def _times(self) -> None:
        def limit(text: str) -> tuple[str, str]:
            found = values.seconds(text)
            if found is None:
                return IGNORED, "the limit is the pool's"
            return self._set("time_limit", values.span(found))

        def at(key: str) -> Callable[[str], tuple[str, str]]:
            def take(text: str) -> tuple[str, str]:
                now = self.now or datetime.now().astimezone()
                return self._set(key, values.utc(values.moment(text, now)))

            return take

        def deadline(text: str) -> tuple[str, str]:
            _, said = at("deadline")(text)
            return DIFFERS, f"{said}; it moves ahead in the queue, and is not removed when that passes"

        self._each("time", limit)
        self._each("begin", at("begin"))
        self._each("deadline", deadline)

    # -- on what conditions

    def _control(self) -> None:
        def dependency(text: str) -> tuple[str, str]:
            found = values.dependencies(text)
            self.spec["depends_on"] = found.needs
            said = f"depends_on: {len(found.needs)}"
            return (DIFFERS, f"{said}, without {found.left_out[0]}") if found.left_out else (TAKEN, said)

        def array(text: str) -> tuple[str, str]:
            made = values.array(text)
            first = [int(number) for number in re.findall(r"(?:^|,)([0-9]+)", text)]
            last = [int(number) for number in re.findall(r"([0-9]+)(?::[0-9]+)?(?:,|%|$)", text)]
            self.env["SLURM_ARRAY_TASK_MIN"], self.env["SLURM_ARRAY_TASK_MAX"] = str(min(first)), str(max(last))
            return self._set("array", made)

        def exclude(text: str) -> tuple[str, str]:
            names = _names(text)
            return self._set("avoid", names, f"avoid: {len(names)} nodes")

        def signal(text: str) -> tuple[str, str]:
            is_script, name, before_s = values.signal(text)
            self.launch += ["--signal", f"{'B:' if is_script else ''}{name}@{before_s}"]
            who = "the script alone" if is_script else "srun's tasks, or the script where there are none"
            return TAKEN, f"{name} to {who}, {before_s} s before the time limit"

        self._each("dependency", dependency)
        self._each("array", array)
        self._each("exclude", exclude)
        self._each("signal", signal)
        self._each("hold", lambda _: self._set("hold", True))
        if "requeue" in self.asked:
            self.spec["retry"] = {"max": 3, "on": ["node_fail", "node_reboot"]}
            self._say(
                "requeue", DIFFERS, "retry: up to 3 attempts when a node fails; a preempted job is always queued again"
            )
        if "no-requeue" in self.asked:
            self.spec["retry"] = {"max": 1}
            self._say("no-requeue", DIFFERS, "retry: {max: 1}; a preempted job is queued again all the same")

    # -- what it leaves

    def _output(self) -> None:
        def chdir(text: str) -> tuple[str, str]:
            if not text:
                raise UnreadableValue("name a folder")
            self.launch += ["--chdir", text]
            if text.startswith("/"):
                return DIFFERS, "the script starts there, on the node; nothing is sent along"
            return TAKEN, "the script starts there, in the copy of the folder that is sent along"

        def into(option: str) -> Callable[[str], tuple[str, str]]:
            def take(text: str) -> tuple[str, str]:
                if not text or text == "/dev/null":
                    return IGNORED, "what it prints is kept all the same: `yard logs`"
                if not text.startswith("/") and not self.asked.get("chdir", "").startswith("/"):
                    return DIFFERS, "what it prints is kept: `yard logs`; its folder goes with the attempt"
                self.launch += [f"--{option}", text]
                return TAKEN, "written there, on the node, as the user of the stage; `yard logs` has it too"

            return take

        def mode(text: str) -> tuple[str, str]:
            if text not in ("append", "truncate"):
                raise UnreadableValue("give append or truncate")
            self.launch += ["--open-mode", text]
            return TAKEN, "for what --output and --error name"

        self._each("chdir", chdir)
        self._each("output", into("output"))
        self._each("error", into("error"))
        self._each("open-mode", mode)

    def _variables(self) -> None:
        def export(text: str) -> tuple[str, str]:
            words = options.split_commas(text)
            missing, sends_all = [], False
            for word in words:
                name, equals, value = word.partition("=")
                if name in ("ALL", "NONE", "NIL") and not equals:
                    sends_all = sends_all or name == "ALL"
                elif not _VARIABLE.fullmatch(name) or name.startswith("YARD_"):
                    raise UnreadableValue(
                        "name variables as NAME or NAME=VALUE, with commas between; none begins with YARD_"
                    )
                elif equals or name in self.environ:
                    self.env[name] = (value if equals else self.environ[name])[:LONGEST_VALUE]
                else:
                    missing.append(name)
            said = f"env: {', '.join(list(self.env)[:20])}" if self.env else "no variable is sent"
            if missing:
                return DIFFERS, f"not set here: {', '.join(missing[:20])}"
            if sends_all:
                return DIFFERS, "your environment is not sent; name the variables that the job needs"
            return TAKEN, said

        kept, self.env = self.env, {}
        self._each("export", export)
        self.env = {**self.env, **kept}

    def _flags(self) -> None:
        for option, said in (
            ("wait", "the command waits for the end of the job"),
            ("test-only", "nothing is queued; a dry run tells when it would start"),
            ("parsable", "the number alone is printed"),
            ("quiet", "the report is not printed"),
        ):
            if option in self.asked:
                self._say(option, TAKEN, said)
        if "wrap" in self.asked:
            self._say("wrap", IGNORED, "a script is not wrapped again")

    # -- what runs

    def _run(self) -> None:
        self.env["SLURM_JOB_NAME"] = self.spec["name"]
        if self.nodes > 1:
            self.env[KEY] = self.key
            self.spec["secrets"] = [KEY]
        self.spec["env"] = self.env
        script = self.script
        if "\r\n" in script:
            said = "has DOS line breaks (\\r\\n); no shell reads them"
            self.report.append(Line(0, "(the script)", [Finding("script", REFUSED, said)]))
        if "\0" in script or len(script.encode(errors="surrogatepass")) > LONGEST_SCRIPT:
            fault = f"a script has at most {LONGEST_SCRIPT:,} bytes and no NUL"
            self.report.append(Line(0, "(the script)", [Finding("script", REFUSED, fault)]))
            script = ""
        self.spec["run"] = launcher(script, self.launch, self.arguments)

    def _verdict(self, option: str) -> str:
        line, at = self.place[option]
        return line.findings[at].verdict


def launcher(script: str, launch: Sequence[str], arguments: Sequence[str]) -> str:
    """Return what a stage runs: the in-job runtime, which is given the script on its standard input."""
    from shlex import quote

    end = "SBATCH"
    while re.search(rf"^{end}$", script, re.MULTILINE):
        end += "_"
    words = " ".join(quote(word) for word in (*launch, "--", *arguments))
    return f"""{STEP}
[ -r "$step" ] || {{ echo "this node's agent is too old for batch scripts" >&2; exit 1; }}
exec python3 -I "$step" batch {words} <<'{end}'
{script}
{end}
"""


def _clean_name(text: str) -> str:
    """Return a name that a job file accepts, as near to the given one as can be."""
    name = _NAME.sub("-", text)[:100].strip()
    return name if re.match(r"\w", name) else re.sub(r"^\W+", "", name) or "sbatch"


def _names(text: str) -> list[str]:
    """Return the nodes of a host list. Raises UnreadableValue where there are none, or too many."""
    from switchyard.step import expand

    try:
        names = list(dict.fromkeys(expand(text, MOST_NAMED + 1)))
    except ValueError as error:
        raise UnreadableValue(str(error)) from None
    if not names or len(names) > MOST_NAMED:
        raise UnreadableValue(f"name from 1 to {MOST_NAMED} nodes, such as node[01-04],node7")
    return names


def _features(text: str) -> str:
    """Return an expression of features as ``constraint`` of the job file takes it."""
    if re.search(r"[*\[\]]", text):
        raise UnreadableValue(
            "counts (a*2) and sets ([a|b]) are not known; `topology` keeps nodes alike, and stages may differ in "
            "what they ask"
        )
    if not re.fullmatch(r"[\w.:/+=&|() -]{1,1000}", text, re.ASCII):
        raise UnreadableValue("write features as a, a&b, a|b or a&(b|c): names or values of labels, or label=value")
    return text


def _shown(value: Any) -> str:
    """Write a value as a job file has it."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{name}: {each}" for name, each in value.items()) + "}"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _word(text: str) -> str:
    return text if _WORD.fullmatch(text) else "".join(_WORD.findall(text))[:100]
