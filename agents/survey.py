"""Prints what an agent would report of this host, without a control plane: devices, a sample of each, and faults."""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

import msgspec

from agents.devices import vendors
from agents.devices.vendors import command
from agents.runtimes.engine_watch import EngineWatch
from agents.telemetry.host import HostView


def main(arguments: list[str]) -> int:
    """Print one JSON object. Exit codes: 0 done, 1 the file of probes is invalid, 2 wrong usage."""
    parser = argparse.ArgumentParser(prog="python -m agents survey", description=__doc__)
    parser.add_argument("--name", default=os.uname().nodename, help="name of the agent (default: the host's)")
    parser.add_argument("--probes", metavar="FILE", default=os.environ.get("YARD_PROBES", ""), help="as for the agent")
    options = parser.parse_args(arguments)
    try:
        commands = command.read_commands(Path(options.probes)) if options.probes else ()
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    host = vendors.ProbedHost(name=options.name, commands=commands)
    engine = EngineWatch.of_this_process()
    view = HostView(options.name, vendors.discover(host), "", "", "127.0.0.1", engine=engine)
    view.look()
    view.sample([], 10.0)
    time.sleep(1.0)  # utilisations need two samples
    samples = view.sample([], 10.0)
    view.sample_host()
    told = {"inventory": view.inventory, "devices": samples, "host": view.host_sample, "told": view.conditions(False)}
    print(msgspec.json.format(msgspec.json.encode(told), indent=2).decode())
    view.close()
    return 0
