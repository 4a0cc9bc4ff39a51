"""Tables go forward and back by one release with rows in them, and nobody waits long for a migration that waits."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from django.db.migrations.loader import MigrationLoader

from deploy.local.service import ROOT
from tests.conftest import TABLES
from tests.deploy.release import MIGRATIONS, NO_WAY_BACK
from tests.deploy.test_backup import AT, Installation, database, installation

# All tables with what people and agents put into them: a job that ended with logs, one that runs, one that waits.
ROWS = """
from django.utils import timezone
from controlplane.dispatch import uploads
from controlplane.jobs import logs
from tests.record.yard import Yard, stage
yard = Yard()
agent = yard.agent("a")
ended, runs, waits = (yard.submit(name=name, cpus=1) for name in ("ended", "runs", "waits"))
yard.cycle(); agent.start()
part = stage(ended).attempts.get().parts.get()
logs.append([logs.Piece(part.id, "out", 0, b"one" * 100_000), logs.Piece(part.id, "err", 0, b"two\\n")])
logs.append([logs.Piece(part.id, "out", 300_000, b"three\\n")])
agent.end(stage(ended))
"""
SAID = """
from controlplane.jobs import logs
from controlplane.jobs.models import Part, Job
part = Part.objects.get(attempt__stage__job__name="ended")
print(b"".join(logs.pieces(part, "both"))[-20:], logs.size(part, "both"))
print([(job.name, job.state) for job in Job.objects.order_by("number")])
"""


@pytest.fixture(scope="module")
def template(django_db_setup: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    with database(TABLES) as name:
        made = installation(name, tmp_path_factory.mktemp("template") / "home")
        made.done("migrate", "--verbosity", "0")
        made.python(ROWS)
        yield made


@pytest.fixture
def filled(template: Installation, tmp_path: Path) -> Iterator[Installation]:
    with database(template.name) as name:
        yield Installation(name, Path(shutil.copytree(template.home, tmp_path / "home")))


def counts(here: Installation) -> dict[str, int]:
    tables = here.sql("SELECT tablename FROM pg_tables WHERE schemaname = 'public' AND tablename !~ '^(django|auth)_'")
    return {table: here.sql(f'SELECT count(*) FROM "{table}"')[0][0] for (table,) in tables}


def test_tables_go_back_by_one_release_and_forward_again_with_rows(filled: Installation) -> None:
    before, said = counts(filled), filled.python(SAID)
    assert "three" in said
    assert "('runs', 'RUNNING')" in said
    filled.python(
        "from django.core.management import call_command\n"
        f"for app, name in {[*reversed(MIGRATIONS.items())]}: call_command('migrate', app, name, verbosity=0)"
    )
    last = "SELECT app, max(name) FROM django_migrations WHERE app = ANY(%s) GROUP BY 1"
    assert dict(filled.sql(last, list(MIGRATIONS))) == MIGRATIONS
    old = counts(filled)
    # Roles are groups since this release; the one before knows staff only, and so they come back.
    both = before.keys() & old.keys() - {"access_user_groups"}
    assert {table: old[table] for table in both} == {table: before[table] for table in both}
    filled.done("migrate", "--verbosity", "0")
    # What is counted begins again where the release before counted nothing.
    assert counts(filled) == {**before, "observability_tally": 0}
    assert filled.python(SAID) == said
    assert filled.done("check_invariants")


def test_what_has_no_way_back_says_so() -> None:
    """Whoever adds an operation that cannot be undone says it, with the reason, where an operator looks."""
    graph = MigrationLoader(None)
    older = {key for app, name in MIGRATIONS.items() for key in graph.graph.forwards_plan((app, name))}
    missing = [
        f"{app}.{name}"
        for (app, name), migration in graph.disk_migrations.items()
        if app in MIGRATIONS and (app, name) not in older
        if any(not operation.reversible for operation in migration.operations)
    ]
    assert sorted(missing) == sorted(NO_WAY_BACK)
    text = (ROOT / "docs" / "how-to" / "upgrade.md").read_text()
    assert all(name in text for name in NO_WAY_BACK)


@pytest.fixture(scope="module")
def older(template: Installation) -> Iterator[str]:
    """A database with one migration to do, which wants a table that agents' reports write."""
    with database(template.name) as name:
        Installation(name, template.home).done("migrate", "jobs", "0026", "--verbosity", "0")
        yield name


@pytest.fixture
def back(older: str, template: Installation, tmp_path: Path) -> Iterator[Installation]:
    with database(older) as name:
        yield Installation(name, Path(shutil.copytree(template.home, tmp_path / "home")))


def test_a_migration_that_waits_lets_the_others_go_on_and_says_who_is_in_the_way(back: Installation) -> None:
    with psycopg.connect(f"{AT} dbname={back.name} application_name='a long report'") as link:
        link.execute("LOCK TABLE jobs_part IN ROW EXCLUSIVE MODE")
        said = back.refused("migrate", "--lock-timeout", "200ms", "--tries", "2")
    assert "a migration waited 200ms for a table and let the others go on" in said
    assert "open the longest: a long report for " in said
    assert "It was tried 2 times; what was done before it stays done." in said
    assert back.sql("SELECT to_regclass('jobs_logspan')") == [(None,)]


def test_it_goes_on_by_itself_once_the_way_is_free(back: Installation) -> None:
    with psycopg.connect(f"{AT} dbname={back.name}") as link:
        link.execute("LOCK TABLE jobs_part IN ROW EXCLUSIVE MODE")
        migrating = subprocess.Popen(
            [sys.executable, "manage.py", "migrate", "--lock-timeout", "200ms"],
            cwd=ROOT,
            env=back.environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        with migrating:
            assert migrating.stderr is not None
            assert "it is tried again in 1 s" in migrating.stderr.readline()
            # Meanwhile the others are not kept.
            assert back.sql("SELECT count(*) FROM jobs_part") != []
            link.rollback()
    assert migrating.returncode == 0
    assert back.sql("SELECT count(*) FROM jobs_logspan") == [(3,)]


@pytest.mark.parametrize(
    ("words", "says"), [(["--lock-timeout", "0"], "is like 500ms"), (["--tries", "0"], "from 1 to")]
)
def test_what_cannot_be_meant_is_refused(words: list[str], says: str) -> None:
    from django.core.management import CommandError, call_command

    with pytest.raises(CommandError, match=says):
        call_command("migrate", *words)
