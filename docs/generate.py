"""Writes the reference pages that repeat what the code says: states, reasons, clauses, metrics, REST, yard's manual.

Run: python docs/generate.py
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from agents.ends import ENDS  # noqa: E402
from agents.protocol import NOTES  # noqa: E402
from agents.telemetry import metrics as agent_metrics  # noqa: E402
from controlplane.clause_templates import FAULTS, RECORD  # noqa: E402
from controlplane.observability.catalogue import METRICS  # noqa: E402
from controlplane.observability.gathering import MOST  # noqa: E402
from docs.rest_page import rest  # noqa: E402
from scheduler.core.explain import counterfactual  # noqa: E402
from scheduler.core.model import clauses as engine  # noqa: E402
from scheduler.core.model import lifecycle, retry  # noqa: E402
from scheduler.core.model.reasons import CATALOGUE  # noqa: E402
from switchyard.packaging.manual import manual  # noqa: E402

NOTE = "<!-- Made by docs/generate.py from the code; change it there. -->"

# Parameters of sentences are set in italics.
STARS = str.maketrans("{}", "**")


def states() -> str:
    """The lifecycle of a stage, a row for each state, and the causes of ends."""
    rows = "\n".join(f"| {state} | {_next(state)} |" for state in lifecycle.State if _next(state))
    causes = "\n".join(f"| `{cause}` | {_after(cause)} |" for cause in lifecycle.Cause)
    return f"""{NOTE}

# States and causes

A **stage** has one of these states; a job's state derives from its stages. *Lost*, *preempted*, *timed out* and *out
of memory* are causes of an attempt's end, not states: whether such an end means another attempt is decided by its
cause and by what the job file says under `retry`, `preemption` and `on_node_lost`.

| from | what may come next, and by which event |
|---|---|
| *submitted* | PENDING, or HELD where it is submitted held |
{rows}

COMPLETED, FAILED and CANCELLED are final; the database refuses to change them.

## Causes

| cause | what follows |
|---|---|
{causes}

## In the words of others

| Switchyard | Slurm | Kubernetes |
|---|---|---|
| PENDING | PD | Pending, QuotaReserved=False |
| HELD | PD (JobHeldUser, JobHeldAdmin) | suspend: true |
| STARTING | CF | ContainerCreating |
| RUNNING | R | Running |
| SUSPENDED | S | - |
| STOPPING | CG | Terminating |
| COMPLETED | CD | Succeeded |
| FAILED | F, TO, OOM, NF | Failed |
| CANCELLED | CA | - |
"""


def _next(state: lifecycle.State) -> str:
    return ", ".join(f"{to} (*{event}*)" for (before, event), to in lifecycle.TABLE.items() if before is state)


def _after(cause: lifecycle.Cause) -> str:
    if cause in retry.NO_FAULT:
        return "queued again; it costs none of the stage's retries"
    if cause is lifecycle.Cause.CANCELLED:
        return "CANCELLED"
    if cause is lifecycle.Cause.EARLY_STOPPED:
        return "CANCELLED: the rule of its sweep stopped it, which is no failure of the array"
    if cause in retry.HOPELESS:
        return "the end: another attempt could not end otherwise"
    extra = "; also with `on_node_lost: requeue`" if cause in retry.NODE_LOST else ""
    return f"FAILED, or queued again where `retry.on` has `{cause.lower()}`{extra}"


def reasons() -> str:
    """The catalogue of reasons for waiting, in order of precedence."""
    rows = "\n".join(
        f'| {rank} | <a id="{entry.code}"></a>`{entry.code}` | {entry.template.translate(STARS)} | {entry.acts} |'
        for rank, entry in enumerate(CATALOGUE, 1)
    )
    changes = "\n".join(
        f"| {text.replace('{', '*').replace('}', '*')} | {who} |" for text, who in counterfactual.SENTENCES.values()
    )
    return f"""{NOTE}

# Why a stage waits

Every stage that waits has at least one reason, with the numbers behind it. If there are several, the one that comes
first in this list is the *primary* reason; the others are shown below it. Codes do not change, so scripts may read them
(`yard why 12 -o json`). The last column says who can do something about it.

| | code | says | who can act |
|---|---|---|---|
{rows}

- `ImageUnavailable`, `DataResidency`, `TopologyUnsatisfied` and `MaintenanceWindow` occur only where images, sites,
  network domains and maintenance windows are known to the control plane.
- `DataResidency`, `NodesAvoided` and `NodesRestricted` are given only if nothing else keeps the stage waiting: on the
  other nodes it would fit.
- If another stage belongs to a job that you may not see, it is called *another project's stage*.
- Each code has an example in `tests/core/test_counterfactual.py` in which it is the primary reason.

## How long it waited, and for what

The time that a stage waits is counted by its primary reason. The tab *Waits* of the job's page, `yard why` and
`GET /api/v1/jobs/N/waits` tell for each stage how long which reason held, and its kind (`of`): `hold`, `dependency`,
`time`, `request`, `quota`, `limit`, `service` (pools and nodes out of service), `capacity` or `order` (of the queue).
What passed before the scheduler looked at the stage is told as not recorded.

## What would let it start

Beside the reasons, `yard why`, the job page and `GET /api/v1/jobs/N/counterfactuals` tell changes with which the stage
would start now, or as soon as named others have made room. They are true because they were tried: each is made on a
copy of what is known, and the same engine plans once more. Whoever would then not start, though they do otherwise, is
named. What gates the stage whatever is free (a hold, a stopped pool, a failed need) is opened first, and other changes
come on top of it. At most {counterfactual.TRIES} plans are made for a job and kept for 15 seconds; above 5,000 waiting
stages none are.

| change | who can make it |
|---|---|
{changes}
"""


def _said(table: Mapping[str, str]) -> str:
    shown = {code: text.strip().replace("{", "*").replace("}", "*") for code, text in table.items()}
    return "\n".join(f"| `{code}` | {text} |" for code, text in shown.items())


def clauses() -> str:
    """The clauses of which sentences are made, by who says them."""
    rooms = {
        "The engine": engine.TEMPLATES,
        "Agents, of an end": ENDS,
        "Agents, of hosts, devices and parts": NOTES,
        "The record": RECORD,
        "Alarms, nodes and simulations": FAULTS,
    }
    tables = "\n\n".join(f"## {title}\n\n| code | says |\n|---|---|\n{_said(table)}" for title, table in rooms.items())
    return f"""{NOTE}

# What is said, in clauses

Where something is told in a sentence (why an attempt runs where it does, how it ended, what happened to a job), the
sentence is English in the REST interface and in `yard`, in every language. Beside it stands what it is made of, for
programs and for the pages, which tell it in the reader's language: a list of clauses, each a stable `code` and
`params`, the values that it shows. They stand under the name of the sentence and `_said`: `why_here_said` and
`detail_said` of stages and attempts, `asks_said` of stages, `basis_said` of forecasts, `text_said` of events,
`why_said` and `replanned_said` of decisions, `why_said` of a dry run, and `<name>_said` among the `params` of a reason
where the value `<name>` is in words. `reason_said` of nodes, `health_reason_said` of devices, `substate_said` of stages
and parts, `doing_said` and `fault_said` of simulations; `alarms_said` of nodes and `notes_said` of parts, of a node's
`conditions` and of a simulation's result have one list of clauses for each sentence, in the same order, and `said` of
each of the `device_errors` is its `detail`. `funnel_said` has one clause for each filter in `funnel`, in that order.

```json
{{"why_here": "2 x H100 on g03; predicted to run 25 min",
 "why_here_said": [{{"code": "Here", "params": {{"devices": "2 x H100", "node": "g03"}}}},
                   {{"code": "RunsFor", "params": {{"lasts_s": 1500.0}}}}]}}
```

A value's name tells its unit: `_s` are seconds, `_bytes` are bytes. A value may be an object with a `text` and a `said`
of its own: what somebody else has said, as part of this sentence. Words that have no code, those of a person, of
another program, or of an agent from before there were clauses, stand in `AsTold`, or the list is empty; so is
that of what was written before there were clauses. A program should take the English sentence where it does not know
a code.

{tables}
"""


def metrics() -> str:
    """What /metrics of the control plane and of agents tell, by name."""

    def row(name: str, kind: str, labels: tuple[str, ...], says: str) -> str:
        return f"| `{name}` | {kind} | {', '.join(f'`{label}`' for label in labels)} | {says} |"

    rows = "\n".join(row(one.name, one.kind, one.labels, one.help) for one in METRICS)
    agents = "\n".join(row(one.name, one.kind, one.labels, one.help) for one in agent_metrics.METRICS)
    native = "\n".join(
        f"| {vendor} | {', '.join(f'`{one.name}`' for one in some)} |" for vendor, some in agent_metrics.NATIVE.items()
    )
    return f"""{NOTE}

# Metrics

[Prometheus and Grafana](../how-to/prometheus.md) says how to scrape. Times are in seconds, memory in bytes, shares
from 0 to 1. A histogram has `_bucket`, `_count` and `_sum`. What is unknown is absent, not 0.

## Of the control plane

`GET /metrics` of any web server. All servers tell the same: gauges come from the database, counters too, and what
processes count (requests, cycles, sockets) is added up in Redis. A text is computed at most every four seconds.

| metric | sort | labels | tells |
|---|---|---|---|
{rows}

**Counters** of jobs, attempts, claims and decisions are kept by the database, in the transaction that makes them
true, from the upgrade to this release on. They outlive processes and the rows that they count, which retention
removes. Counters of requests and cycles begin again where Redis is emptied. A project or pool that is renamed begins
new series; one that is removed has none.

**Bounds.** A metric has at most {MOST:,} label sets (histograms fewer), those of older projects, nodes and devices
first, so that series that are there stay. How many are left out is told by `switchyard_metric_series_left_out`. Above
{MOST:,} devices scrape the agents for them. Running stages are the newest thousand.

**Waits** count from when a stage might start (its needs are met, its `begin` has come) to its first attempt, whether
it was held meanwhile or not. `switchyard_device_seconds_total` rises when devices are given back; for what is held
over time integrate `switchyard_project_devices_held`. Devices of simulated nodes are told like all others; they are
in pools of their own. A node in several pools has their names in `pool`, with commas between.

**Not told**, because the control plane does not have it or could tell only a guess: weighted
shares (they decay in the scheduler's memory), productive device-seconds, utilisation of tensor cores and of memory
bandwidth, link traffic, counts of device errors, steps and tokens of jobs (they are metrics of the jobs, see their
pages).

## Of an agent

`http://ADDRESS:PORT/metrics` of an agent that was started with `--metrics ADDRESS:PORT`.

| metric | sort | labels | tells |
|---|---|---|---|
{agents}

Devices that the vendor's library or tool measures are told by the names of the vendor's own exporter too, in its
units, so that dashboards made for these go on. They are the same measurements, not others; simulated devices have
none.

| vendor | names |
|---|---|
{native}
"""


PAGES = {
    "states.md": states,
    "reasons.md": reasons,
    "clauses.md": clauses,
    "metrics.md": metrics,
    "rest.md": lambda: f"{NOTE}\n\n{rest()}",
    "yard.1": manual,
}

if __name__ == "__main__":
    for name, page in PAGES.items():
        (ROOT / "docs" / "reference" / name).write_text(page(), encoding="utf-8")
