"""With Redis stopped or gone, jobs start and end: the database poll sees to it. Afterwards messages come again."""

from __future__ import annotations

import signal
import time
import tomllib
from collections.abc import Callable, Iterator

import psutil
import pytest

from switchyard.client import Client
from tests.chaos.stack import Up, eventually, long, standing

pytestmark = pytest.mark.chaos


@pytest.fixture
def up() -> Iterator[Up]:
    with standing() as stack:
        stack.started()
        yield stack


def frozen(valkey: psutil.Process) -> Callable[[], None]:
    """It holds its connections and never answers, as a host that hangs."""
    valkey.send_signal(signal.SIGSTOP)
    return lambda: valkey.send_signal(signal.SIGCONT)


def gone(valkey: psutil.Process) -> Callable[[], None]:
    """It is not there, and neither is what it held; its keeper cannot start it meanwhile."""
    keeper = valkey.parent()
    assert keeper is not None
    keeper.suspend()
    valkey.kill()
    return keeper.resume


def checks(client: Client) -> dict[str, bool]:
    """Return which of what the server checks is well."""
    return {one["name"]: one["ok"] for one in client.health()["checks"]}


@pytest.mark.parametrize("how", [frozen, long(gone)])
def test_jobs_start_and_end_without_redis(up: Up, how: Callable[[psutil.Process], Callable[[], None]]) -> None:
    known = tomllib.loads((up.home / "client.toml").read_text())
    with Client(known["url"], known["token"]) as client:
        client.jobs.submit({"name": "before", "command": ["true"], "cpus": 0.1}).wait(240)
        mend = how(up.named("valkey-server"))
        try:
            for name in ("first", "second", "third"):
                began = time.monotonic()
                job = client.jobs.submit({"name": name, "command": ["true"], "cpus": 0.1})
                job.wait(240)
                assert job.refresh().state == "COMPLETED"
                print(f"{how.__name__}: {name} ended after {time.monotonic() - began:.1f} s")
            assert eventually(lambda: checks(client)["scheduler"] and not checks(client)["redis"]), checks(client)
        finally:
            mend()
        assert eventually(lambda: checks(client)["workers"])
        client.jobs.submit({"name": "after", "command": ["true"], "cpus": 0.1}).wait(240)
