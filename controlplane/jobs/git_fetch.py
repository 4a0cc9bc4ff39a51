"""Fetches one commit of a git repository that a stranger named, and packs its files into a bundle.

Nothing of the repository is run: there is no checkout, so no hooks, filters, submodules or LFS. git speaks HTTP alone,
to the one address that was judged (:mod:`controlplane.addresses`), follows no redirection, reads no configuration of
the host, and asks nobody. Time, memory and bytes are bounded. See docs/decisions/097.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import logging
import os
import re
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import IO, Final

from django.conf import settings

from controlplane import addresses
from controlplane.jobs.git_ask import REV
from controlplane.storage import PIECE, Incoming

log = logging.getLogger(__name__)

MOST_S: Final = 120.0
MOST_MEMORY: Final = 2 << 30
# A pack may be larger than the bundle, for other compressions of the same files.
PACK_TO_BUNDLE: Final = 4
MOST_UNPACKED: Final = 4 << 30
# The limits of a shell hold for git and for all that it starts. Of the file size the unit is 512 bytes.
_LIMITED: Final = 'ulimit -c 0; ulimit -f "$1" && ulimit -v "$2" && ulimit -t "$3" && shift 3 && exec git "$@"'
_MOST_SAID: Final = 16_384
_HERE: Final = "refs/switchyard/commit"
# Of what git says, the first that is found counts; a fault that passes is tried again.
_SAID: Final = (
    ("redirected", r"returned error: 30[0-9]|unable to update url base from redirection"),
    ("denied", r"authentication failed|could not read (?:username|password)|returned error: 40[13]|terminal prompts"),
    ("unknown_rev", r"couldn't find remote ref|not our ref|no such remote ref|unadvertised object|bad object"),
    ("not_found", r"not found|returned error: 404|does not appear to be a git repository"),
    ("unsafe", r"fsck error"),
    ("no_answer", r"early eof|unexpected disconnect|hung up"),
    # What receives the pack was ended by its limit.
    ("too_large", r"invalid index-pack output|died of signal 25|file too large|file size limit|out of memory"),
    ("old_server", r"dumb http transport does not support"),
    ("tls_failed", r"ssl|certificate"),
)
PASSING: Final = frozenset({"unknown_host", "no_answer", "timed_out", "disk_full", "no_git", "key_unavailable"})


class NotFetched(Exception):
    """The commit could not be fetched. ``code`` is stable."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


@dataclass(frozen=True, slots=True)
class Repository:
    """What to fetch from where; ``password`` is empty for a public one."""

    url: str
    rev: str
    username: str = ""
    password: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class FetchedCommit:
    """A commit by its full id, and its files as a bundle, which whoever takes it removes. ``without`` names what of it
    was left out: submodules, lfs."""

    commit: str
    bundle: Incoming
    sha256: str
    size_bytes: int
    without: tuple[str, ...]


def fetch(repository: Repository) -> FetchedCommit:
    """Fetch and pack the commit. Blocks for up to :data:`MOST_S`. Raises NotFetched."""
    if not REV.fullmatch(repository.rev):
        raise NotFetched("unknown_rev")
    try:
        parts = addresses.parsed(repository.url, settings.GIT_NETWORKS)
        host, port, address = addresses.resolved(parts, settings.GIT_NETWORKS)
    except addresses.AddressRefused as error:
        raise NotFetched(error.code) from None
    place = f"{host}:{port}:{f'[{address}]' if ':' in address else address}"
    try:
        with tempfile.TemporaryDirectory(prefix="yard-git-", ignore_cleanup_errors=True) as folder:
            git = _Git(folder, _environment(folder, repository, place), time.monotonic() + MOST_S)
            git.run("init", "--quiet", "--bare", "--template=", ".")
            said = ("fetch", "--quiet", "--depth=1", "--no-tags", "--no-recurse-submodules", "--no-auto-maintenance")
            git.run(*said, "--", repository.url, f"{repository.rev}:{_HERE}")
            commit = git.run("rev-parse", "--verify", "--end-of-options", f"{_HERE}^{{commit}}").decode().strip()
            return _packed(git, commit)
    except FileNotFoundError:
        raise NotFetched("no_git") from None
    except OSError as error:
        log.warning("%s could not be fetched: %s", repository.url, error)
        raise NotFetched("disk_full") from None


class _Git:
    """git in one folder, with an environment of its own, until a moment of the monotonic clock."""

    def __init__(self, folder: str, env: Mapping[str, str], until: float) -> None:
        self.folder, self.env, self.until = folder, env, until

    def start(self, *words: str, err: int | IO[bytes] = subprocess.DEVNULL) -> subprocess.Popen[bytes]:
        blocks = settings.BUNDLE_MAX_BYTES * PACK_TO_BUNDLE // 512
        limits = [str(blocks), str(MOST_MEMORY // 1024), str(int(MOST_S))]
        return subprocess.Popen(
            ["/bin/sh", "-c", _LIMITED, "sh", *limits, *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=err,
            env=dict(self.env),
            cwd=self.folder,
            start_new_session=True,
        )

    def run(self, *words: str) -> bytes:
        """Return what it prints. Raises NotFetched if it fails or takes too long."""
        # A server may send messages without end: into a file, for which the limit holds.
        with tempfile.TemporaryFile(dir=self.folder) as err:
            process = self.start(*words, err=err)
            try:
                out, _ = process.communicate(timeout=max(0.1, self.until - time.monotonic()))
            except subprocess.TimeoutExpired:
                raise NotFetched("timed_out") from None
            finally:
                end(process)
            if process.returncode:
                err.seek(max(0, err.seek(0, os.SEEK_END) - _MOST_SAID))
                said = err.read().decode(errors="replace")
                if words[0] == "fetch":
                    log.info("git fetch ended with %s: %s", process.returncode, said[-500:])
                raise NotFetched(_code(process.returncode, said))
        return out

    def says(self, *words: str) -> bool:
        """Whether it ends with success."""
        try:
            self.run(*words)
        except NotFetched as error:
            if error.code == "timed_out":
                raise
            return False
        return True


def end(process: subprocess.Popen[bytes]) -> None:
    """End a process with all of its group, and close its pipes."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    if process.stdout is not None:
        process.stdout.close()
    process.wait()


def _code(returned: int, said: str) -> str:
    if returned == 127:
        return "no_git"
    if returned in {-signal.SIGXFSZ, 128 + signal.SIGXFSZ}:
        return "too_large"
    low = said.lower()
    return next((code for code, pattern in _SAID if re.search(pattern, low)), "no_answer")


def _environment(folder: str, repository: Repository, place: str) -> dict[str, str]:
    """Return the environment of git. It reads this configuration and no other; no argument of it has a password."""
    scheme = repository.url.partition(":")[0]
    config = {
        "http.followRedirects": "false",
        "http.curloptResolve": place,
        "http.proxy": "",
        "http.lowSpeedLimit": "1000",
        "http.lowSpeedTime": "30",
        "protocol.allow": "never",
        f"protocol.{scheme}.allow": "always",
        "credential.helper": "",
        "core.hooksPath": os.devnull,
        "core.attributesFile": os.devnull,
        "core.bigFileThreshold": "16m",
        "fetch.unpackLimit": "1",
        "fetch.fsckObjects": "true",
        # Old and odd modes of trees are common, and the unpacker of bundles judges every name again.
        **{f"fetch.fsck.{name}": "ignore" for name in ("zeroPaddedFilemode", "badTimezone", "missingSpaceBeforeDate")},
        "transfer.bundleURI": "false",
        "gc.auto": "0",
        "pack.threads": "1",
    }
    if repository.password:
        both = base64.b64encode(f"{repository.username}:{repository.password}".encode()).decode()
        config["http.extraHeader"] = f"Authorization: Basic {both}"
    numbered = {
        name: value
        for n, (key, text) in enumerate(config.items())
        for name, value in ((f"GIT_CONFIG_KEY_{n}", key), (f"GIT_CONFIG_VALUE_{n}", text))
    }
    authority = os.environ.get("GIT_SSL_CAINFO") or os.environ.get("SSL_CERT_FILE")
    return {
        "PATH": os.environ.get("PATH", os.defpath),
        "HOME": folder,
        "LC_ALL": "C",
        "GIT_DIR": folder,
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_ATTR_NOSYSTEM": "1",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_ALLOW_PROTOCOL": scheme,
        **({"GIT_SSL_CAINFO": authority} if authority else {}),
        "GIT_CONFIG_COUNT": str(len(config)),
        **numbered,
    }


def _packed(git: _Git, commit: str) -> FetchedCommit:
    """Pack the files of a commit: the same commit always makes the same bundle."""
    without = []
    if git.says("cat-file", "-e", f"{commit}:.gitmodules"):
        without.append("submodules")
    if git.says("grep", "--quiet", "-e", "filter=lfs", commit, "--", ".gitattributes", "*/.gitattributes"):
        without.append("lfs")
    incoming = Incoming()
    process = git.start("archive", "--format=tar", commit)
    try:
        sha256, size = _compressed(process, incoming, git.until)
    except BaseException:
        incoming.remove()
        raise
    finally:
        end(process)
    return FetchedCommit(commit, incoming, sha256, size, tuple(without))


def _compressed(process: subprocess.Popen[bytes], into: Incoming, until: float) -> tuple[str, int]:
    """Compress what the process prints; return the digest and the size. Raises NotFetched if it is too much."""
    sink, unpacked = _Measured(into), 0
    assert process.stdout is not None
    with gzip.GzipFile(filename="", mode="wb", fileobj=sink, mtime=0, compresslevel=6) as packed:
        while piece := process.stdout.read(PIECE):
            unpacked += len(piece)
            if unpacked > MOST_UNPACKED or sink.size > settings.BUNDLE_MAX_BYTES:
                raise NotFetched("too_large")
            if time.monotonic() > until:
                raise NotFetched("timed_out")
            packed.write(piece)
    if process.wait():
        raise NotFetched(_code(process.returncode, ""))
    if sink.size > settings.BUNDLE_MAX_BYTES:
        raise NotFetched("too_large")
    into.flush()
    os.fsync(into.fileno())
    return sink.digest.hexdigest(), sink.size


class _Measured:
    """Writes into a file, and keeps the digest and the number of the bytes."""

    def __init__(self, file: IO[bytes] | Incoming) -> None:
        self.file, self.digest, self.size = file, hashlib.sha256(), 0

    def write(self, piece: bytes) -> int:
        self.digest.update(piece)
        self.size += len(piece)
        self.file.write(piece)
        return len(piece)

    def flush(self) -> None:
        """Nothing is kept back."""
