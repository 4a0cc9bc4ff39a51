"""The table of verbs, for help, completion, the dispatcher and the test of the documentation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import argparse

VERBS: Final[Mapping[str, Mapping[str, str]]] = {
    "Jobs": {
        "submit": "queue a job and print its number",
        "run": "queue a job, show its output, exit with its code",
        "ps": "list jobs",
        "show": "tell all that is known about a job",
        "queue": "list waiting jobs with their places, expected starts and reasons",
        "why": "tell why a job waits, why it runs where it does, or why it failed",
        "logs": "show what a job printed",
        "exec": "run a command inside a running job",
        "cp": "copy files into a running job, or out of it",
        "port-forward": "make a port of this machine lead to a port of a running job",
        "session": "start notebooks and shells, and open ports of running jobs in a browser",
        "events": "list what happened to a job",
        "values": "list the numbers that a job reported, such as its loss",
        "receipt": "tell what a job held and used, with one line of advice",
        "wait": "wait for jobs to end",
        "adjust": "change what a running job gets, in place",
        "change": "change jobs after their submission",
        "cancel": "end jobs",
        "hold": "keep jobs from starting",
        "release": "let held jobs start",
        "requeue": "stop running jobs and queue them again",
        "signal": "send a signal to the running stages of a job",
        "trace": "profile what a running job does",
        "operation": "watch and cancel actions on many jobs that go on in the background",
        "template": "submit jobs from templates, and make templates",
        "schedule": "submit job files again and again, at the times of a cron line",
    },
    "Services": {
        "serve": "serve a model: make a service of a file, or update it",
        "service": "list, show, scale, roll back and delete services",
        "function": "deploy, call, list, show and delete functions",
    },
    "Nodes and devices": {
        "nodes": "list nodes",
        "devices": "list devices with their load",
        "hardware": "list models of devices with their rates, and how many are free",
        "top": "watch devices live",
        "timeline": "list who held, holds and will hold each device",
        "topology": "draw which devices and nodes stand near each other",
        "pool": "list pools, add and change them, and say who may use them",
        "provider": "list, add and change what brings nodes from another engine, and list its pilots",
        "site": "list, add and change other clusters to which jobs may leave, and list our jobs there",
        "profile": "list profiles of pools, make versions, preview and activate them",
        "drain": "let a node finish and give it nothing new",
        "lost": "confirm that a node which is LOST is gone",
        "fuse": "tell whether most nodes fell silent together, and release what that holds",
        "resume": "give a drained node work again",
        "rotate": "give a node's agent a new credential",
        "edge": "submit, list, show and cancel jobs on this node itself, while it is cut off",
        "survivors": "list, stop and forget what a restored record does not know",
        "cordon": "take a device out of service",
        "uncordon": "put a cordoned device back in service",
        "maintenance": "plan when nodes do not serve",
        "reserve": "list, plan and cancel reservations of nodes for a project",
        "calendar": "list when nodes are out of service or reserved",
        "audit": "list who changed what, and how",
        "decisions": "list what the engine decided, and show the plan of one decision",
        "sim": "simulate a trace, the history or the queue under other profiles",
        "consolidate": "tell who could move so that a job fits",
    },
    "Projects": {
        "project": "list, add and change projects and their members",
        "quota": "list, set and delete quotas of projects",
        "budget": "list, set and delete budgets of device-hours of projects",
        "class": "list, add and change priority classes, and say which projects may use them",
        "limit": "list, set and unset limits of users",
        "usage": "tell who used which devices for how long, and what it costs",
        "secret": "set, list and delete secrets of a project",
        "webhook": "set, test and delete addresses that are told when jobs change",
        "service-account": "list, make and change users for programs, and their tokens",
    },
    "Coming from elsewhere": {
        "spec": "convert job files of Slurm, Kubernetes, SkyPilot and dstack",
        "slurm": "answer as sbatch, squeue, sacct, ... do",
    },
    "This command": {
        "search": "find jobs, nodes, devices, projects and people by name",
        "login": "sign in at a control plane, and remember it",
        "logout": "take the remembered token back, and forget it",
        "token": "list, make and revoke your access tokens",
        "doctor": "tell what is wrong with the installation, or with the way to it",
        "version": "tell the versions of client and control plane",
        "completion": "print a completion script for bash, zsh or fish",
    },
}

SUMMARY: Final = {name: text for group in VERBS.values() for name, text in group.items()}


@dataclass(frozen=True, slots=True)
class Verb:
    """One verb: ``options`` fills its parser, ``run`` runs it and returns the exit code."""

    name: str
    summary: str
    examples: str
    takes_command: bool
    options: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]


def load(name: str) -> Verb:
    """Load the verb in ``switchyard/cli/<name>.py``, with _ for -."""
    module: Any = import_module(f"switchyard.cli.{name.replace('-', '_')}")
    return Verb(
        name,
        SUMMARY[name],
        module.EXAMPLES.strip("\n"),
        getattr(module, "TAKES_COMMAND", False),
        module.options,
        module.run,
    )
