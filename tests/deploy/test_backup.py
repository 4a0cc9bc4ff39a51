"""A backup holds all, is whole or none, and comes back in one step: real databases, real programs of PostgreSQL."""

from __future__ import annotations

import bisect
import io
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tarfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest

from controlplane.backup import keys
from controlplane.backup.folders import pack, unpack
from controlplane.backup.manifest import BackupUnusable, Manifest, digest
from deploy.local.postgres import binaries
from deploy.local.service import ROOT
from tests.conftest import CLUSTER, TABLES

AT = f"host={CLUSTER.sockets} user=switchyard passfile={CLUSTER.password_file}"


@dataclass(frozen=True)
class Installation:
    """A database and a home of its own, without processes."""

    name: str
    home: Path

    @property
    def environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "DATABASE_URL": f"postgresql://switchyard@/{self.name}?host={CLUSTER.sockets}&passfile={CLUSTER.password_file}",
            "YARD_HOME": str(self.home),
            "YARD_SECRET_KEY_FILE": str(self.home / "django.key"),
        }

    def run(self, *words: str | Path, **more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "manage.py", *map(str, words)],
            cwd=ROOT,
            env={**self.environment, **more},
            capture_output=True,
            text=True,
            check=False,
        )

    def done(self, *words: str | Path, **more: str) -> str:
        ended = self.run(*words, **more)
        assert ended.returncode == 0, ended.stderr
        return ended.stdout

    def refused(self, *words: str | Path, **more: str) -> str:
        ended = self.run(*words, **more)
        assert ended.returncode != 0, ended.stdout
        assert "Traceback" not in ended.stderr
        return ended.stderr

    def python(self, text: str) -> str:
        return self.done("shell", "--no-imports", "--command", text)

    def sql(self, text: str, *values: object) -> list[tuple[Any, ...]]:
        with psycopg.connect(f"{AT} dbname={self.name}", autocommit=True) as link:
            found = link.execute(text, values or None)  # type: ignore[arg-type]
            return found.fetchall() if found.description else []


@contextmanager
def database(template: str = "template1") -> Iterator[str]:
    name = f"test_{secrets.token_hex(4)}"
    with psycopg.connect(f"{AT} dbname=postgres", autocommit=True) as link:
        link.execute(f'CREATE DATABASE "{name}" TEMPLATE "{template}"')  # type: ignore[arg-type]
        try:
            yield name
        finally:
            link.execute(f'DROP DATABASE "{name}" WITH (FORCE)')  # type: ignore[arg-type]


def installation(name: str, home: Path) -> Installation:
    home.mkdir()
    (home / "django.key").write_text(secrets.token_urlsafe(64))
    return Installation(name, home)


@pytest.fixture(scope="module")
def template(django_db_setup: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A database with the tables and a few rows."""
    with database(TABLES) as name:
        first = installation(name, tmp_path_factory.mktemp("template") / "home")
        first.done("migrate", "--verbosity", "0")  # all of it where no test of the run asks for the database
        first.python(
            "from tests.record.yard import Yard; yard = Yard(); yard.agent('a')\n"
            "for n in range(3): yard.submit(name=f'job-{n}')"
        )
        yield name


@contextmanager
def copy_of(template: str, home: Path) -> Iterator[Installation]:
    with database(template) as name:
        made = installation(name, home)
        bundle = made.home / "blobs" / "ab" / ("ab" + "0" * 62)
        bundle.parent.mkdir(parents=True)
        bundle.write_bytes(os.urandom(3_000_000))
        (made.home / "blobs" / ".incoming-x").write_text("not whole yet")
        log = made.home / "blobs" / "logs" / "ff" / str(uuid.uuid4()) / "out"
        log.parent.mkdir(parents=True)
        log.write_text("a line\n" * 1000)
        yield made


@pytest.fixture
def here(template: str, tmp_path: Path) -> Iterator[Installation]:
    with copy_of(template, tmp_path / "home") as made:
        yield made


@dataclass(frozen=True)
class Kept:
    """A backup, and where it was made: for tests that change neither."""

    here: Installation
    backup: Path
    said: str


@pytest.fixture(scope="module")
def kept(template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kept]:
    folder = tmp_path_factory.mktemp("kept")
    with copy_of(template, folder / "home") as made:
        yield Kept(made, folder / "backup", made.done("backup", folder / "backup"))


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_it_comes_back_onto_an_empty_installation(kept: Kept, tmp_path: Path) -> None:
    assert "blobs.tar" in kept.said
    assert kept.backup.stat().st_mode & 0o077 == 0
    assert "is whole" in kept.here.done("backup", "--verify", kept.backup)
    with database() as name:
        other = installation(name, tmp_path / "other")
        said = other.done("restore", kept.backup)
        assert other.sql("SELECT name FROM jobs_job ORDER BY number") == [("job-0",), ("job-1",), ("job-2",)]
        assert other.sql("SELECT DISTINCT state FROM jobs_stage") == [("HELD",)], "they may have run since"
        assert "3 jobs wait in the backup and may have run since; they are held: #1, #2, #3" in said
        expected = files(kept.here.home / "blobs")
        del expected[".incoming-x"]
        assert files(other.home / "blobs") == expected
        assert other.sql(
            "SELECT action, via, actor LIKE '%%@server', after->>'folder', after->'hold' FROM access_auditentry "
            "WHERE kind = 'server'"
        ) == [("server.restore", "system", True, str(kept.backup), True)]
        assert kept.here.sql("SELECT action, after->>'folder' FROM access_auditentry WHERE kind = 'server'") == [
            ("server.backup", str(kept.backup))
        ], "checking it is none"
        assert other.done("check_invariants")
        assert (other.home / "django.key").read_text() != (kept.here.home / "django.key").read_text()


def test_it_comes_back_where_it_was_made_and_replaces_all_that_came_after(here: Installation, tmp_path: Path) -> None:
    backup = tmp_path / "backup"
    here.done("backup", backup)
    here.python(
        "from controlplane.accounts.models import User; from controlplane.jobs import service\n"
        "for n in range(20): service.submit({'name': f'after-{n}', 'run': 'true'}, User.objects.get())"
    )
    here.sql("CREATE TABLE of_a_newer_release (id int)")
    # One of those that waited has been started since; the others have not.
    here.sql(
        "INSERT INTO jobs_attempt (id, stage_id, number, epoch, alternative, why_here, said, estimate, created_at, "
        "stop_why, stop_note, cause, detail) "
        "SELECT gen_random_uuid(), s.id, 1, 1, 0, '', '{}', '{}', now(), '', '', '', '' "
        "FROM jobs_stage s JOIN jobs_job j ON j.id = s.job_id WHERE j.number = 2"
    )
    assert "--yes" in here.refused("restore", backup)
    said = here.done("restore", backup, "--yes", "--skip", "5")
    assert here.sql("SELECT count(*) FROM jobs_job") == [(3,)]
    assert here.sql("SELECT to_regclass('of_a_newer_release')") == [(None,)]
    assert here.sql("SELECT number, s.state FROM jobs_stage s JOIN jobs_job j ON j.id = s.job_id ORDER BY 1") == [
        (1, "PENDING"),
        (2, "HELD"),
        (3, "PENDING"),
    ]
    assert "1 job waits in the backup and may have run since; it is held: #2" in said
    assert "the next job is #24," in said, "23 were given, whatever --skip says"
    assert here.done("check_invariants")
    assert "is made" in here.done("backup", tmp_path / "again"), "and it can be backed up as before"


PEOPLE = """
from controlplane.accounts import service
from controlplane.accounts.models import User
from controlplane.fleet import service as fleet
from controlplane.fleet.models import Node
from controlplane.pools.models import Pool
for name in ("stays", "leaves", "goes", "changes"):
    user = User(username=name, email=f"{name}@example.org")
    user.set_password("former password of " + name)
    user.save()
    service.make_token(user, "kept")
    service.make_token(user, "leaked")
pool = Pool.objects.get()
fleet.make_join_token(pool, uses=5)
fleet.make_join_token(pool, uses=2)
for name in ("stolen", "rotated"):
    fleet.enrol(fleet.make_join_token(pool), name)
from django.contrib.sessions.backends.db import SessionStore
SessionStore().save()
"""
SINCE = """
from controlplane.accounts import service
from controlplane.accounts.models import Token, User
from controlplane.fleet import service as fleet
from controlplane.fleet.models import JoinToken, Node
service.revoke_token(User.objects.get(username="stays"), Token.objects.get(user__username="stays", name="leaked").pk)
User.objects.filter(username="leaves").update(is_active=False)
User.objects.get(username="goes").delete()
user = User.objects.get(username="changes")
user.set_password("another password")
user.save()
service.make_token(user, "later")
JoinToken.objects.filter(uses_left=5).update(uses_left=1)
JoinToken.objects.filter(uses_left=2).delete()
fleet.revoke(Node.objects.get(name="stolen"))
node = Node.objects.get(name="rotated")
secret = fleet.next_credential(node.pk)
assert fleet.authenticate(f"Node {node.pk}:{secret}") == node
"""
VALID = """
from controlplane.accounts.models import SignInLink, Token, User
from controlplane.fleet.models import JoinToken, Node
from django.contrib.sessions.models import Session
print("tokens", sorted(f"{token.user}:{token.name}" for token in Token.objects.all()))
print("active", sorted(user.username for user in User.objects.filter(is_active=True)))
print("password", User.objects.get(username="changes").check_password("another password"))
print("joins", sorted(JoinToken.objects.filter(uses_left__gt=0).values_list("uses_left", flat=True)))
print("nodes", [node.name for node in Node.objects.exclude(credential_digest__startswith="revoked ")])
print("sessions", Session.objects.count())
"""


def test_what_was_revoked_since_is_revoked_again_where_the_record_tells(here: Installation, tmp_path: Path) -> None:
    here.python(PEOPLE)
    here.done("backup", tmp_path / "backup")
    here.python(SINCE)
    newest = here.sql("SELECT credential_digest FROM fleet_node WHERE name = 'rotated'")
    said = here.done("restore", tmp_path / "backup", "--yes")
    assert here.python(VALID).splitlines() == [
        "tokens ['changes:kept', 'changes:leaked', 'leaves:kept', 'leaves:leaked', 'stays:kept']",
        "active ['ada', 'changes', 'stays']",
        "password True",
        "joins [1]",
        "nodes ['a', 'rotated']",
        "sessions 0",
    ]
    assert here.sql("SELECT credential_digest FROM fleet_node WHERE name = 'rotated'") == newest
    assert "3 access tokens, 1 join tokens, 2 nodes' credentials, 2 people, 1 passwords" in said
    assert "Valid again" not in said
    assert "Roles, members of projects" in said
    assert here.sql("SELECT after->>'revoked' <> '' FROM access_auditentry WHERE action = 'server.restore'") == [
        (True,)
    ]
    # Once more, as after something that failed: nothing comes back.
    valid = here.python(VALID)
    here.done("restore", tmp_path / "backup", "--yes")
    assert here.python(VALID) == valid


def test_elsewhere_it_is_said_what_is_valid_again_and_all_can_be_revoked(kept: Kept, tmp_path: Path) -> None:
    with copy_of(kept.here.name, tmp_path / "home") as made:
        made.python(PEOPLE)
        made.done("backup", tmp_path / "backup")
        with database() as name:
            other = installation(name, tmp_path / "other")
            said = other.done("restore", tmp_path / "backup")
            assert "any of 8 access tokens, 2 join tokens and 3 nodes' credentials, passwords" in " ".join(said.split())
            assert "stays:leaked" in other.python(VALID)
            said = other.done("restore", tmp_path / "backup", "--yes", "--revoke-tokens")
            assert "8 access tokens, 5 join tokens, 0 nodes' credentials" in said
            assert other.python(VALID).splitlines()[0] == "tokens []"


def test_the_record_of_another_installation_revokes_nothing(kept: Kept, tmp_path: Path) -> None:
    with copy_of(kept.here.name, tmp_path / "home") as made, database() as name:
        made.python(PEOPLE)
        made.done("backup", tmp_path / "backup")
        other = installation(name, tmp_path / "other")
        other.done("migrate", "--verbosity", "0")
        other.python("from tests.record.yard import Yard; Yard().agent('b')")
        assert "Valid again" in other.done("restore", tmp_path / "backup", "--yes")
        assert "stays:leaked" in other.python(VALID)


def test_who_is_connected_is_said_and_nothing_happens(kept: Kept) -> None:
    with psycopg.connect(f"{AT} dbname={kept.here.name} application_name='yard celery'"):
        said = kept.here.refused("restore", kept.backup, "--yes")
    assert "1 others are connected to the database; stop them first:" in said
    assert "yard celery as switchyard from this host, since 20" in said


@pytest.fixture
def copied(kept: Kept, tmp_path: Path) -> Path:
    """A copy of the backup, to be harmed."""
    return Path(shutil.copytree(kept.backup, tmp_path / "copied"))


def test_a_dump_that_breaks_off_changes_nothing(kept: Kept, copied: Path) -> None:
    """Even where its digest is right: the whole comes in one transaction."""
    dump = copied / "database.dump"
    content = bytearray(dump.read_bytes())
    content[len(content) // 2 :] = bytes(each ^ 0x55 for each in content[len(content) // 2 :])
    dump.write_bytes(content)
    redigested(copied)
    assert "the database is as it was" in kept.here.refused("restore", copied, "--yes")
    assert kept.here.sql("SELECT count(*) FROM jobs_job") == [(3,)]


def redigested(folder: Path) -> None:
    """Have the manifest say of each file what it is now."""
    told = Manifest.read(folder)
    told.pieces[:] = [digest(folder / piece.name) for piece in told.pieces]
    told.write(folder)


@pytest.mark.parametrize(
    ("without", "says"),
    [
        (
            "--exclude-table-data=public.jobs_event",
            "jobs_event had {rows} rows when the backup was made, and the dump has 0",
        ),
        (
            "--exclude-table=public.jobs_shadow",
            "jobs_shadow had {rows} rows when the backup was made, and the dump has no such",
        ),
    ],
)
def test_a_dump_that_lost_rows_changes_nothing(kept: Kept, copied: Path, without: str, says: str) -> None:
    """Though PostgreSQL's programs find nothing wrong with it, nor does the manifest with its digest."""
    table = without.partition("=public.")[2]
    rows = Manifest.read(copied).rows
    assert rows["jobs_job"] == 3
    assert rows["jobs_event"] == kept.here.sql("SELECT count(*) FROM jobs_event")[0][0] > 0
    pg_dump = binaries() / "pg_dump"
    address = ["--host", str(CLUSTER.sockets), "--username", "switchyard", "--dbname", kept.here.name]
    usual = ["--format=custom", "--no-owner", "--no-privileges", "--file", str(copied / "database.dump")]
    environment = {**os.environ, "PGPASSFILE": str(CLUSTER.password_file)}
    subprocess.run([pg_dump, *address, *usual, without], env=environment, check=True)
    redigested(copied)
    told = Manifest.read(copied)
    told.rows["access_auditentry"] += 1  # that of the backup, which came after its snapshot
    told.write(copied)
    assert "is whole" in kept.here.done("backup", "--verify", copied)
    said = kept.here.refused("restore", copied, "--yes")
    assert "the database is as it was" in said
    assert says.format(rows=rows[table]) in said
    assert kept.here.sql("SELECT count(*) FROM jobs_event") == [(rows["jobs_event"],)]


def test_a_dump_that_is_cut_short_changes_nothing(kept: Kept, copied: Path) -> None:
    """In its list of contents, or in the rows after it."""
    dump = copied / "database.dump"
    content = dump.read_bytes()

    def is_listed(size: int) -> bool:
        dump.write_bytes(content[:size])
        return not subprocess.run(
            [binaries() / "pg_restore", "--list", dump], capture_output=True, check=False
        ).returncode

    first = bisect.bisect_left(range(len(content)), True, key=is_listed)
    for size, says in ((first // 2, "is no dump that pg_restore reads"), (first + 1_000, "the database is as it was")):
        dump.write_bytes(content[:size])
        redigested(copied)
        assert says in kept.here.refused("restore", copied, "--yes")
        assert kept.here.sql("SELECT count(*) FROM jobs_job") == [(3,)]


def test_a_backup_of_a_newer_release_is_refused(kept: Kept, copied: Path) -> None:
    told = Manifest.read(copied)
    told.migrations["jobs"].append("9999_of_tomorrow")
    told.write(copied)
    assert "does not know its jobs.9999_of_tomorrow" in kept.here.refused("restore", copied, "--yes")


@pytest.mark.parametrize("harm", ["a byte", "a file", "the manifest", "half a manifest", "a name", "a format"])
def test_what_is_not_whole_is_refused_in_a_sentence(copied: Path, harm: str) -> None:
    manifest, blobs = copied / "manifest.json", copied / "blobs.tar"
    match harm:
        case "a byte":
            content = bytearray(blobs.read_bytes())
            content[2_000_000] ^= 1
            blobs.write_bytes(content)
        case "a file":
            blobs.unlink()
        case "the manifest":
            manifest.unlink()
        case "half a manifest":
            manifest.write_bytes(manifest.read_bytes()[:200])
        case "a name":
            manifest.write_text(manifest.read_text().replace("blobs.tar", "../blobs.tar"))
        case "a format":
            manifest.write_text(manifest.read_text().replace('"format": 1', '"format": 2'))
    with pytest.raises(BackupUnusable, match=str(copied)):
        Manifest.read(copied).check(copied)


def test_one_that_is_killed_leaves_nothing_that_is_taken_for_a_backup(here: Installation, tmp_path: Path) -> None:
    with psycopg.connect(f"{AT} dbname={here.name}") as link:
        link.execute("LOCK TABLE jobs_job")  # pg_dump waits for it
        making = subprocess.Popen(
            [sys.executable, "manage.py", "backup", str(tmp_path / "backup")], cwd=ROOT, env=here.environment
        )
        while not (
            waits := here.sql(
                "SELECT 1 FROM pg_stat_activity WHERE datname = %s AND wait_event_type = 'Lock'", here.name
            )
        ):
            assert making.poll() is None
        assert waits
        making.send_signal(signal.SIGKILL)
        making.wait()
    assert not (tmp_path / "backup").exists()
    (left,) = tmp_path.glob(".backup-unfinished-*")
    with pytest.raises(BackupUnusable, match=r"holds no manifest\.json"):
        Manifest.read(left)
    (tmp_path / "backup").mkdir()
    assert "is there already" in here.refused("backup", tmp_path / "backup")


def test_keys_come_along_sealed_and_only_when_asked_for(kept: Kept, here: Installation, tmp_path: Path) -> None:
    key = (here.home / "django.key").read_bytes()
    passphrase, wrong = tmp_path / "passphrase", tmp_path / "wrong"
    passphrase.write_text("a passphrase of some length\n")
    with pytest.raises(BackupUnusable, match="others can read"):
        keys.passphrase(passphrase)
    wrong.write_text("another passphrase\n")
    for each in (passphrase, wrong):
        each.chmod(0o600)
    here.done("backup", tmp_path / "with", "--with-keys", passphrase)
    assert not any(key in content for content in files(tmp_path / "with").values())
    (here.home / "django.key").write_text(secrets.token_urlsafe(64))
    assert "holds no keys" in here.refused("restore", kept.backup, "--yes", "--with-keys", passphrase)
    assert "is not the one" in here.refused("restore", tmp_path / "with", "--yes", "--with-keys", wrong)
    here.done("restore", tmp_path / "with", "--yes", "--with-keys", passphrase)
    assert (here.home / "django.key").read_bytes() == key


def test_a_link_in_a_folder_is_not_followed_and_a_hostile_archive_writes_nothing(
    tmp_path: Path,
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("of somebody else")
    blobs = tmp_path / "blobs"
    (blobs / "logs").mkdir(parents=True)
    (blobs / "logs" / "out").write_text("of another piece")
    (blobs / "bundle").write_text("x")
    (blobs / "link").symlink_to(secret)
    packed = tmp_path / "blobs.tar"
    assert pack(blobs, packed, {blobs / "logs"}) == 1
    for name, kind in [("../out", tarfile.REGTYPE), ("/out", tarfile.REGTYPE), ("out", tarfile.SYMTYPE)]:
        with tarfile.open(packed, "w") as archive:
            told = tarfile.TarInfo(name)
            told.type, told.linkname = kind, str(secret)
            archive.addfile(told, io.BytesIO())
        with pytest.raises(BackupUnusable, match="no file below its folder"):
            unpack(packed, tmp_path / "into")
    assert files(tmp_path / "into") == {}
    # A folder that is a link leads nowhere else.
    shutil.rmtree(tmp_path / "into")
    (tmp_path / "into").mkdir()
    (tmp_path / "into" / "ab").symlink_to(tmp_path)
    with tarfile.open(packed, "w") as archive:
        archive.addfile(tarfile.TarInfo("ab/secret"), io.BytesIO())
    with pytest.raises(OSError, match="exists"):
        unpack(packed, tmp_path / "into")
    assert secret.read_text() == "of somebody else"
