"""The embedded PostgreSQL and Valkey: private, durable, and gone with whoever started them."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
import redis

from deploy.local.home import Home
from deploy.local.postgres import Cluster, PostgresUnavailable
from deploy.local.service import ROOT, Service, stop_all
from deploy.local.valkey import Broker


def eventually(claim: Callable[[], bool], patience_s: float = 30) -> bool:
    """Wait for ``claim``; the patience only bounds a failure."""
    deadline = time.monotonic() + patience_s
    while not (held := claim()) and time.monotonic() < deadline:
        time.sleep(0.02)
    return held


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Cluster:
    """A made cluster in a state folder of its own; its server is not running."""
    home = Home(tmp_path_factory.mktemp("home"))
    home.prepare()
    cluster = Cluster(home.postgres, home.sockets, home.secrets)
    cluster.make(os.environ)
    return cluster


@pytest.fixture
def server(cluster: Cluster, tmp_path: Path) -> Iterator[Service]:
    """The running server of the cluster."""
    cluster.clear_stale_lock()
    server = cluster.service(cluster.user, os.environ, tmp_path / "postgres.log")
    server.start()
    assert eventually(cluster.is_ready), server.last_lines()
    yield server
    stop_all([server], 15)


def test_a_killed_server_loses_no_row(cluster: Cluster, server: Service, tmp_path: Path) -> None:
    with psycopg.connect(cluster.url, autocommit=True) as connection:
        connection.execute("CREATE TABLE fact (n int)")
        for n in range(50):
            connection.execute("INSERT INTO fact VALUES (%s)", [n])
    server.signal_group(signal.SIGKILL)
    assert eventually(lambda: server.ended() is not None)

    cluster.clear_stale_lock()
    again = cluster.service(cluster.user, os.environ, tmp_path / "again.log")
    again.start()
    try:
        assert eventually(cluster.is_ready), again.last_lines()
        with psycopg.connect(cluster.url) as connection:
            assert connection.execute("SELECT count(*) FROM fact").fetchone() == (50,)
    finally:
        stop_all([again], 15)


def test_the_server_listens_on_a_private_socket_only(cluster: Cluster, server: Service) -> None:
    with psycopg.connect(cluster.url) as connection:
        assert connection.execute("SHOW listen_addresses").fetchone() == ("",)
        assert connection.execute("SHOW fsync").fetchone() == ("on",)
    assert cluster.sockets.stat().st_mode & 0o077 == 0


def without_password(url: str) -> str:
    return url.partition("&passfile=")[0]


def test_nobody_comes_to_the_database_without_its_password(cluster: Cluster, server: Service, tmp_path: Path) -> None:
    wrong = tmp_path / "pgpass"
    wrong.write_text("*:*:*:switchyard:guessed\n")
    wrong.chmod(0o600)
    for passfile in (os.devnull, str(wrong)):
        with pytest.raises(psycopg.OperationalError, match="password"):
            psycopg.connect(f"{without_password(cluster.url)}&passfile={passfile}").close()
    assert cluster.password_file.stat().st_mode & 0o077 == 0
    with psycopg.connect(cluster.url) as connection:
        rules = connection.execute("SELECT DISTINCT auth_method FROM pg_hba_file_rules").fetchall()
        assert rules == [("scram-sha-256",)]
        kept = connection.execute("SELECT rolpassword FROM pg_authid WHERE rolname = 'switchyard'").fetchone()
    assert kept is not None
    assert kept[0].startswith("SCRAM-SHA-256$")
    password = cluster.password_file.read_text().strip().rpartition(":")[2]
    told = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if os.access(path, os.R_OK)]
    assert not any(password.encode() in words for words in told), "everybody may read the words of a command"


@pytest.mark.skipif(os.getuid() != 0, reason="changing users needs root")
@pytest.mark.parametrize("uid", [65534, 1])
def test_no_other_user_comes_to_the_socket(cluster: Cluster, server: Service, uid: int) -> None:
    script = "import socket, sys; socket.socket(socket.AF_UNIX).connect(sys.argv[1])"
    tried = subprocess.run(
        [shutil.which("python3", path=os.defpath) or sys.executable, "-c", script, f"{cluster.sockets}/.s.PGSQL.5432"],
        user=uid, cwd="/", capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert tried.returncode != 0
    assert "PermissionError" in tried.stderr or "Permission denied" in tried.stderr


def test_a_cluster_of_an_earlier_version_that_trusted_everybody_gets_a_password(
    cluster: Cluster, tmp_path: Path
) -> None:
    (cluster.folder / "pg_hba.conf").write_text("local all all trust\n")
    before = cluster.password_file.read_text()
    cluster.password_file.unlink()
    cluster.adopt(cluster.user, os.environ)
    server = cluster.service(cluster.user, os.environ, tmp_path / "postgres.log")
    server.start()
    try:
        assert eventually(cluster.is_ready), server.last_lines()
        with pytest.raises(psycopg.OperationalError, match="password"):
            psycopg.connect(f"{without_password(cluster.url)}&passfile={os.devnull}").close()
        psycopg.connect(cluster.url).close()
        assert cluster.password_file.read_text() != before
    finally:
        stop_all([server], 15)


@pytest.mark.skipif(os.getuid() != 0, reason="changing users needs root")
def test_a_cluster_that_stages_could_change_is_not_taken_over(cluster: Cluster) -> None:
    os.chown(cluster.folder, 65534, 65534)
    try:
        with pytest.raises(PostgresUnavailable, match="any job could change"):
            cluster.adopt(cluster.user, os.environ)
    finally:
        os.chown(cluster.folder, 0, 0)


def test_valkey_wants_its_password(tmp_path: Path) -> None:
    broker = Broker(tmp_path, tmp_path, tmp_path)
    server = broker.service(os.environ, tmp_path / "valkey.log")
    server.start()
    try:
        assert eventually(broker.is_ready), server.last_lines()
        with pytest.raises(redis.AuthenticationError):
            redis.Redis(unix_socket_path=str(broker.socket)).ping()
        password = broker.password_file.read_text().strip()
        assert redis.Redis(unix_socket_path=str(broker.socket), password=password).ping()
        assert all(path.stat().st_mode & 0o077 == 0 for path in (broker.password_file, tmp_path / "valkey.conf"))
        assert password not in " ".join(server.command)
    finally:
        stop_all([server], 15)


def test_a_server_that_outlived_its_stack_is_stopped(cluster: Cluster, server: Service) -> None:
    cluster.clear_stale_lock()
    assert server.ended() is not None


def test_a_lock_file_with_the_number_of_another_process_does_not_stop_a_start(cluster: Cluster, tmp_path: Path) -> None:
    (cluster.folder / "postmaster.pid").write_text(f"{os.getpid()}\n{cluster.folder}\n1\n5432\n\n\n0 0\n")
    cluster.clear_stale_lock()
    server = cluster.service(cluster.user, os.environ, tmp_path / "postgres.log")
    server.start()
    try:
        assert eventually(cluster.is_ready), server.last_lines()
    finally:
        stop_all([server], 15)


def test_a_cluster_of_another_version_is_refused_with_what_helps(cluster: Cluster) -> None:
    version = cluster.folder / "PG_VERSION"
    kept = version.read_text()
    version.write_text("13\n")
    try:
        with pytest.raises(PostgresUnavailable, match="--fresh"):
            cluster.adopt(cluster.user, os.environ)
    finally:
        version.write_text(kept)


def test_a_half_made_cluster_is_made_again(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path / "postgres", tmp_path, tmp_path, durable=False)
    (tmp_path / "postgres.unfinished").mkdir()
    (tmp_path / "postgres.unfinished" / "PG_VERSION").write_text("1")
    cluster.make(os.environ)
    assert cluster.exists
    assert not (tmp_path / "postgres.unfinished").exists()


def test_parts_die_with_a_killed_parent(tmp_path: Path) -> None:
    program = """
import os, signal, sys, time
from pathlib import Path
from deploy.local.valkey import Broker
folder = Path(sys.argv[1])
service = Broker(folder, folder, folder).service(os.environ, folder / "valkey.log")
service.start()
while not Broker(folder, folder, folder).is_ready():
    time.sleep(0.02)
print(service.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    parent = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert parent.returncode == -signal.SIGKILL, parent.stderr
    child = Path(f"/proc/{parent.stdout.strip()}")
    assert eventually(lambda: not child.exists() or "Z" in (child / "stat").read_text().rsplit(")", 1)[1])
    assert not Broker(tmp_path, tmp_path, tmp_path).is_ready()


def test_a_long_state_folder_gets_its_sockets_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    home = Home(tmp_path / ("deep/" * 20))
    home.prepare()
    try:
        broker = Broker(home.valkey, home.sockets, home.secrets)
        service = broker.service(os.environ, home.logs / "valkey.log")
        service.start()
        assert eventually(broker.is_ready), service.last_lines()
        stop_all([service], 10)
        assert home.sockets.stat().st_mode & 0o777 == 0o700
    finally:
        for path in home.sockets.iterdir():
            path.unlink()
        home.sockets.rmdir()


def test_everything_below_the_state_folder_is_private(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    home.prepare()
    assert home.path.stat().st_mode & 0o077 == 0
    for path in home.path.rglob("*"):
        assert path.stat().st_mode & 0o077 == 0, path
    assert len(home.secret_key_file.read_text()) > 50
