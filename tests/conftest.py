"""What all tests share: a real PostgreSQL and a real Valkey, started only when a test needs them, and honest skips.

The addresses of both are fixed before Django reads its settings; the servers themselves start with the first test that
asks for the database or for ``servers``. So a run of pure suites starts nothing (and may say ``-p no:django``).
``DATABASE_URL`` and ``REDIS_URL`` are ignored on purpose: tests never touch a database that holds somebody's rows.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from deploy.local.home import new_secrets_key, write_private
from deploy.local.postgres import DATABASE, Cluster
from deploy.local.service import Service, stop_all
from deploy.local.valkey import Broker
from tests import kept_tables

# A law holds or it does not: how long one example takes on a machine that others use too says nothing of it.
settings.register_profile("house", deadline=None, suppress_health_check=[HealthCheck.too_slow])
# A long run: YARD_LONG=1 ./script/test tests/core, or ./script/test --long. Laws that name a number multiply it, by
# tests.examples_count.
settings.register_profile("long", settings.get_profile("house"), max_examples=5_000)
settings.load_profile("long" if os.environ.get("YARD_LONG") else "house")

# A shell that starts a suite in the background has it ignore Ctrl-C, and every process that a test starts would too.
signal.signal(signal.SIGINT, signal.default_int_handler)
# And "nohup" has it ignore that its terminal went away; what tests start would stay when they are told to end so.
signal.signal(signal.SIGHUP, signal.SIG_DFL)

STATE = Path(tempfile.mkdtemp(prefix="yard-test-"))
SOCKETS = STATE / "run"
CLUSTER = Cluster(STATE / "postgres", SOCKETS, STATE, durable=False)
BROKER = Broker(STATE, SOCKETS, STATE)
# The name of a database with all tables, and no rows but those of the migrations. Nothing connects to it: it is copied.
TABLES = DATABASE
SOCKETS.mkdir(mode=0o700)
BROKER.make_password()  # settings read it before the server starts

(STATE / "static").mkdir()  # WhiteNoise warns where it is missing
write_private(STATE / "django.key", "a key of sixty characters that signs nothing outside of tests")
write_private(STATE / "secrets.keys", new_secrets_key())
# What a person says about the machine that tests run on.
KEPT = {
    "YARD_CHAOS_S",
    "YARD_CHAOS_SEED",
    "YARD_CHROMIUM",
    "YARD_LONG",
    "YARD_SKIPS",
    "YARD_TEST_CONTAINER_IMAGE",
    "YARD_TEST_KUBERNETES_IMAGE",
    "YARD_TEST_RAY",
    "YARD_TEST_TORCH",
    "YARD_VENDOR_SAMPLES",
}
KEPT |= {"YARD_PYTHON_IMAGE", "YARD_POSTGRES_IMAGE", "YARD_VALKEY_IMAGE"}
for name in [name for name in os.environ if name.startswith("YARD_") and name not in KEPT]:
    del os.environ[name]
# Tests start processes by the hundred: where this says that compiled modules are not kept, each compiles its own.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
os.environ |= {
    "DATABASE_URL": CLUSTER.url,
    **BROKER.environment,
    "YARD_HOME": str(STATE),
    "YARD_SECRET_KEY_FILE": str(STATE / "django.key"),
    "DJANGO_SETTINGS_MODULE": "controlplane.settings",
}
atexit.register(shutil.rmtree, STATE, ignore_errors=True)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Load Django's apps before tests are collected; a run of pure suites does without (``-p no:django``)."""
    if config.pluginmanager.hasplugin("django"):
        import django
        from django.conf import settings as configured

        # Each client of a test makes its middleware anew, which would list all static files each time.
        configured.WHITENOISE_AUTOREFRESH = True
        # A hash that is slow on purpose guards nobody here.
        configured.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
        django.setup()
        from tests.emptied_tables import instead_of_flush

        instead_of_flush()


def pytest_collection_finish() -> None:
    """Spare what was imported and collected, which stays until the end, from garbage collection.

    To look through it again and again for what is unused takes a seventh of the time of tests of pages.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)


@dataclass(frozen=True)
class Servers:
    """The two running servers."""

    database_url: str
    redis_url: str


@pytest.fixture(scope="session")
def servers() -> Iterator[Servers]:
    """Start PostgreSQL and Valkey for the session."""
    environment = dict(os.environ)
    valkey = BROKER.service(environment, STATE / "valkey.log")
    valkey.start()
    started = [valkey]
    try:
        user = kept_tables.make(CLUSTER, environment, wait_until_ready)
        postgres = CLUSTER.service(user, environment, STATE / "postgres.log")
        postgres.start()
        started.append(postgres)
        wait_until_ready(CLUSTER.is_ready, postgres)
        wait_until_ready(BROKER.is_ready, valkey)
        yield Servers(CLUSTER.url, BROKER.url)
    finally:
        stop_all(started, 15)


def wait_until_ready(is_ready: Callable[[], bool], service: Service) -> None:
    """Wait for a server, and say its last words when it does not come up."""
    deadline = time.monotonic() + 60
    while not is_ready():
        if service.ended() is not None or time.monotonic() > deadline:
            pytest.exit(f"{service.name} did not start:\n{service.last_lines(20)}", returncode=3)
        time.sleep(0.02)


@pytest.fixture(scope="session")
def django_db_modify_db_settings(servers: Servers) -> None:
    """Make pytest-django wait for the servers, and begin its database with all tables; it migrates what is left."""
    from django.db import connection

    connection.settings_dict["TEST"]["TEMPLATE"] = TABLES


@pytest.fixture(scope="session")
def chromium() -> str:
    """The path of a Chromium; ``script/test`` finds or installs it."""
    named = os.environ.get("YARD_CHROMIUM")
    names = [named] if named else ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable"]
    for name in names:
        if path := shutil.which(name):
            return path
    pytest.skip("no Chromium (set YARD_CHROMIUM, or: apt-get install chromium fonts-noto-cjk)")


@pytest.fixture(scope="session")
def compiler() -> str:
    """The path of a C compiler, for the stand-in of the NVIDIA library."""
    for name in (os.environ.get("CC"), "cc", "gcc", "clang"):
        if name and (path := shutil.which(name)):
            return path
    pytest.skip("no C compiler (apt-get install gcc libc6-dev, or set CC)")


# -- skips: counted, said loudly, and written down for .ci/run

_skipped: dict[str, list[str]] = defaultdict(list)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.skipped and not hasattr(report, "wasxfail"):
        _note_skip(report)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    if report.skipped:
        _note_skip(report)


def _note_skip(report: pytest.TestReport | pytest.CollectReport) -> None:
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    _skipped[reason.removeprefix("Skipped: ")].append(report.nodeid)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say one loud line for each reason; a skip that nobody sees is a hole."""
    for reason, tests in _skipped.items():
        places = ", ".join(sorted({test.split("::")[0] for test in tests}))
        terminalreporter.write_line(f"SKIPPED {len(tests)} in {places}: {reason}", yellow=True, bold=True)


def pytest_sessionfinish() -> None:
    """Append the skips to the file that ``YARD_SKIPS`` names, one JSON object per line."""
    if _skipped and (path := os.environ.get("YARD_SKIPS")):
        with Path(path).open("a", encoding="utf-8") as file:
            for reason, tests in _skipped.items():
                file.writelines(json.dumps({"test": test, "reason": reason}) + "\n" for test in tests)
