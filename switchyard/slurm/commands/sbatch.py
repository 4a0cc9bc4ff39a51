"""``sbatch``: submits a batch script."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from switchyard.cli import batch, clean, demand, ending
from switchyard.problem import ApiProblem, SpecError
from switchyard.slurm import options
from switchyard.slurm.commands.records import LONG, SlurmJob, local_now, moment
from switchyard.slurm.commands.shell import SlurmFault, connect, why

if TYPE_CHECKING:
    from switchyard.client import Client
    from switchyard.slurm.sbatch import Batch

FROM_ENVIRONMENT = {
    "SBATCH_ACCOUNT": "account", "SBATCH_PARTITION": "partition", "SBATCH_QOS": "qos", "SBATCH_TIMELIMIT": "time",
    "SBATCH_JOB_NAME": "job-name", "SBATCH_EXPORT": "export",
}  # fmt: skip
NO_SCRIPT = """sbatch: error: This does not look like a batch script.  The first
sbatch: error: line must start with #! followed by the path to an interpreter.
sbatch: error: For instance: #!/bin/sh"""
PLACES = ("/avoid", "/only_on", "/constraint", "/devices")
"""Keys whose refusal is that no node will do."""
NUMERIC = ("nodes", "ntasks", "ntasks-per-node", "cpus-per-task", "mincpus", "cpus-per-gpu")


def run(words: Sequence[str]) -> int:
    found, read = options.read(words)
    for word in found:
        if not word.option:
            name = word.written.partition("=")[0]
            raise SlurmFault(f"sbatch: unrecognized option '{name}'\nTry \"sbatch --help\" for more information", 255)
    if words[read : read + 1] == [":"]:
        raise SlurmFault(f"sbatch: error: {options.HETEROGENEOUS}")
    given = {word.option: word for word in found}
    path, *arguments = list(words[read:]) or ["-"]
    text, name = _script(given.get("wrap"), path, bool(words[read:]))
    ahead = [f"--{option}={os.environ[key]}" for key, option in FROM_ENVIRONMENT.items() if os.environ.get(key)]
    kept = [*ahead, *[piece for word in found if word.option != "wrap" for piece in _written(word)]]
    made = batch.converted(text, name, kept, arguments)
    _check(made, given)
    spec = made.spec
    batch.add_folder(spec, text, path if path != "-" else name, quiet=True)
    with connect() as client:
        try:
            return test(client, spec) if made.is_test else _submit(client, made, is_quiet="quiet" in given)
        except ApiProblem as problem:
            raise _refused(problem, spec) from None
        except SpecError as error:
            raise SlurmFault(f"sbatch: error: {error}") from None


def _written(word: options.Word) -> list[str]:
    return [
        f"--{word.option}={word.value}"
        if word.value or options.KNOWN[word.option] == options.VALUE
        else f"--{word.option}"
    ]


def _script(wrap: options.Word | None, path: str, is_file: bool) -> tuple[str, str]:
    """Return the script and its name: what is to be wrapped, a file, or standard input."""
    if wrap is not None:
        if is_file:
            raise SlurmFault("sbatch: error: Script arguments not permitted with --wrap option")
        return f"#!/bin/sh\n# This script was created by sbatch --wrap.\n\n{wrap.value}\n", "wrap"
    try:
        if path == "-":
            text = sys.stdin.read(1 << 22)
        else:
            with open(path, encoding="utf-8") as file:
                text = file.read(1 << 22)
    except OSError:
        raise SlurmFault(f"sbatch: error: Unable to open file {path}") from None
    except UnicodeDecodeError:
        raise SlurmFault(NO_SCRIPT) from None
    if not text.startswith("#!"):
        raise SlurmFault(NO_SCRIPT if text.strip() else "sbatch: error: Batch script is empty!")
    return text, "sbatch" if path == "-" else path


def _check(made: Batch, given: dict[str, options.Word]) -> None:
    """Tell what is ignored or different, and refuse what cannot be read."""
    from switchyard.slurm.sbatch import DIFFERS, IGNORED, REFUSED

    for line, one in made.having(REFUSED):
        option = one.option.removeprefix("--")
        if option in NUMERIC and (word := given.get(option)) and not re.fullmatch(r"[0-9]+", word.value):
            raise SlurmFault(f'sbatch: error: Invalid numeric value "{word.value}" for --{option}.')
        where = f"line {line.number}: " if line.number else ""
        raise SlurmFault(f"sbatch: error: {where}{one.option}: {one.said}")
    if "quiet" in given or made.is_parsable:
        return
    for line, one in made.having(IGNORED, DIFFERS):
        if "says it" not in one.said:
            where = f"line {line.number}: " if line.number else ""
            print(f"sbatch: warning: {clean.line(f'{where}{one.option} {one.verdict}: {one.said}')}", file=sys.stderr)


def _submit(client: Client, made: Batch, *, is_quiet: bool) -> int:
    bundle = demand.pack(made.spec, quiet=True)
    job = client.jobs.submit(made.spec, workdir=bundle)
    if made.is_parsable:
        print(job.number, flush=True)
    elif not is_quiet:
        print(f"Submitted batch job {job.number}", flush=True)
    if not made.waits:
        return 0
    return code_of(client, job.number)


def code_of(client: Client, number: int) -> int:
    """Wait for the end of a job and return its exit code: 1 where it has none of its own."""
    record = client.jobs.wait(number)
    code = ending.code_of(client, record)
    return 1 if code and LONG[SlurmJob(record).state] != "FAILED" else code


def test(client: Client, spec: dict[str, Any]) -> int:
    """Tell when a job would start, as ``--test-only`` does."""
    found = client.preview(spec)
    stage = (found.get("stages") or [{}])[0]
    if found.get("verdict") == "never":
        raise SlurmFault("allocation failure: Requested node configuration is not available")
    nodes = ",".join(dict.fromkeys(str(one.get("node")) for one in stage.get("devices") or []))
    expected = stage.get("expected_start") or {}
    start = local_now().isoformat() if stage.get("starts_now") else expected.get("low_at")
    cpus = int(spec.get("cpus") or 1) * (spec.get("nodes") or 1)
    where = f" on nodes {nodes}" if nodes else ""
    said = f"Job 0 to start at {moment(start, 'Unknown')} using {cpus} processors{where}"
    said += f" in partition {spec.get('pool') or 'default'}"
    print(f"sbatch: {clean.line(said)}", file=sys.stderr, flush=True)
    return 0


def _refused(problem: ApiProblem, spec: dict[str, Any]) -> SlurmFault:
    """Say a refusal as Slurm says the like."""
    codes = {str(one.get("code")) for one in problem.errors}
    if "unknown_pool" in codes:
        first, said = (
            f"sbatch: error: invalid partition specified: {spec.get('pool')}\n",
            "Invalid partition name specified",
        )
    elif codes & {"unknown_project", "pool_refused"}:
        first, said = "", "Invalid account or account/partition combination specified"
    elif "unknown_class" in codes:
        first, said = "", "Invalid qos specification"
    elif codes & {"unknown_job"}:
        first, said = "", "Job dependency problem"
    elif faults := [one for one in problem.errors if any(key in str(one.get("pointer")) for key in PLACES)]:
        pointer = str(faults[0].get("pointer"))
        first = f"sbatch: error: {faults[0].get('detail') or ''}\n"
        said = "Requested node configuration is not available"
        if pointer.endswith("/constraint"):
            said = "Invalid feature specification"
        elif faults[0].get("code") == "unknown_value":
            is_device = "/devices" in pointer
            said = "Invalid generic resource (gres) specification" if is_device else "Invalid node name specified"
    else:
        first, said = "", why(problem)
    return SlurmFault(f"{first}sbatch: error: Batch job submission failed: {said}")
