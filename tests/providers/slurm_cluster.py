"""A real Slurm of a test: its own controller, several daemons for compute nodes on this host, and its own munge."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from deploy.local.port import free_port

PROGRAMS = ("slurmctld", "slurmd", "munged", "sbatch", "squeue", "scancel", "scontrol")
PATH = f"{os.environ['PATH']}:/usr/sbin:/usr/local/sbin"
PATIENCE_S = 120.0

# Without control groups, which a test has no right to; everything else as sites have it.
_CONF = """
ClusterName=trial
SlurmctldHost=localhost
SlurmctldPort={ports[0]}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=batch_sched_delay=0,sched_interval=2,bf_interval=2
ReturnToService=2
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
KillWait=10
MinJobAge=600
SlurmdTimeout=60
{nodes}
PartitionName=main Nodes=ALL Default=YES MaxTime=600 State=UP
"""


def missing() -> list[str]:
    """Return the programs that this host lacks."""
    return [name for name in PROGRAMS if shutil.which(name, path=PATH) is None]


@dataclass
class SlurmOnThisHost:
    """A cluster of ``nodes`` compute nodes in ``folder``."""

    folder: Path
    nodes: int = 2
    cpus: int = 2
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def conf(self) -> Path:
        return self.folder / "slurm.conf"

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "SLURM_CONF": str(self.conf), "PATH": PATH}

    def start(self) -> None:
        """Start it, and wait until all nodes are idle."""
        (self.folder / "state").mkdir()
        key = self.folder / "munge.key"
        key.write_bytes(secrets.token_bytes(1024))
        key.chmod(0o400)
        ports: list[int] = []
        for _ in range(self.nodes + 1):
            ports.append(free_port(ports[-1] + 1 if ports else 33_000 + os.getpid() % 8_000))
        real = f"CPUs={self.cpus} RealMemory=512 State=UNKNOWN"
        nodes = "\n".join(f"NodeName=v{i} NodeHostname=localhost Port={ports[i]} {real}" for i in self._numbers())
        self.conf.write_text(_CONF.format(folder=self.folder, ports=ports, user=_user(), nodes=nodes))
        self._run(
            "munged", "munged", "--foreground", "--force", f"--key-file={key}", f"--socket={self.folder}/munge.sock",
            f"--pid-file={self.folder}/munged.pid", f"--log-file={self.folder}/munged.log",
            f"--seed-file={self.folder}/munged.seed",
        )  # fmt: skip
        self.start_controller()
        for i in self._numbers():
            (self.folder / f"spool-v{i}").mkdir()
            self._run(f"v{i}", "slurmd", "-D", "-N", f"v{i}", "-f", str(self.conf))
        self.until(lambda: self.say("sinfo", "--noheader", "--format=%D %T").split() == [str(self.nodes), "idle"])

    def _numbers(self) -> range:
        return range(1, self.nodes + 1)

    def start_controller(self) -> None:
        self._run("slurmctld", "slurmctld", "-D", "-f", str(self.conf))
        self.until(lambda: "UP" in self.say("scontrol", "ping"))

    def kill_controller(self) -> None:
        process = self.processes.pop("slurmctld")
        process.kill()
        process.wait()

    def resume_drained(self) -> None:
        """Resume what a killed controller drained: it may have forgotten that a job had begun, and finds it there."""
        if "drain" in self.say("sinfo", "--noheader", "--format=%T"):
            self.say("scontrol", "update", "NodeName=ALL", "State=RESUME")

    def _run(self, name: str, *words: str) -> None:
        with (self.folder / f"{name}.out").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                words, env=self.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.folder
            )

    def say(self, *words: str) -> str:
        """Return what a program of Slurm prints, with what it says of faults."""
        done = subprocess.run(words, env=self.environment, capture_output=True, text=True, timeout=30, check=False)
        return done.stdout + done.stderr

    def jobs(self, states: str = "pending,running,completing,configuring") -> list[str]:
        """Return the jobs in these states as ``id state name``."""
        return self.say("squeue", "--noheader", f"--states={states}", "--format=%i %T %j").splitlines()

    def live(self) -> list[str]:
        return self.jobs()

    def empty(self) -> None:
        """End all jobs at once."""
        self.say("scancel", "--signal=KILL", "--user", _user())
        self.say("scancel", "--user", _user())
        self.until(lambda: self.jobs() == [])

    def until(self, holds: object) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not holds():  # type: ignore[operator]
            if time.monotonic() > deadline:
                logs = "\n".join(f"{p.name}: {p.read_text()[-600:]}" for p in sorted(self.folder.glob("*.log")))
                raise AssertionError(f"this Slurm is not as it should be:\n{self.say('sinfo')}\n{logs}")
            time.sleep(0.1)

    def stop(self) -> None:
        """End it and all jobs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.say("scancel", "--user", _user())
        for process in reversed(self.processes.values()):
            process.send_signal(signal.SIGTERM)
        for process in self.processes.values():
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _user() -> str:
    import pwd

    return pwd.getpwuid(os.geteuid()).pw_name


@contextlib.contextmanager
def running(folder: Path, nodes: int = 2) -> Iterator[SlurmOnThisHost]:
    cluster = SlurmOnThisHost(folder, nodes)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()
