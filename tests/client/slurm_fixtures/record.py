"""Records what the real Slurm prints, as fixtures for ``tests/client/test_slurm_compat.py``.

Run as root on a machine with Debian's slurm-wlm, slurmdbd, munge and mariadb-server:

    python tests/client/slurm_fixtures/record.py

With Slurm 22.05 it writes ``slurm.json``; with a newer one, whose ``--json`` is that of ``data_parser``, it writes
``slurm_json.json``: these answers, and how steps, node features and heterogeneous jobs look.

It starts munged, mysqld, slurmdbd, slurmctld and slurmd in a temporary folder, on ports of their own, with one node of
eight pretended cores, brings jobs into the states that users meet, records what the clients answer, and stops it all.
What differs from machine to machine (host, user, folders, times of day) is replaced by fixed words.
"""

from __future__ import annotations

import contextlib
import getpass
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

HERE = Path(__file__).parent
NODE = "node1"
CONF = """
ClusterName=fixtures
SlurmctldHost=localhost
SlurmctldPort={ctld}
SlurmdPort={slurmd}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=1,sched_interval=1
PriorityType=priority/basic
JobAcctGatherType=jobacct_gather/linux
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=localhost
AccountingStoragePort={dbd}
AccountingStoragePass={folder}/munge.socket
ReturnToService=2
SlurmdParameters=config_overrides
KillWait=2
MinJobAge=3600
NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 CPUs=8 RealMemory=8000 Feature=ib,a100 State=UNKNOWN
PartitionName=main Nodes={node} Default=YES MaxTime=1-00:00:00 DefaultTime=01:00:00 State=UP DefMemPerCPU=100
"""
DBD = """
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
DbdHost=localhost
DbdPort={dbd}
SlurmUser=root
LogFile={folder}/slurmdbd.log
PidFile={folder}/slurmdbd.pid
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser=root
StorageLoc=slurm
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def until(true: Callable[[], object], what: str, patience_s: float = 60.0) -> None:
    deadline = time.monotonic() + patience_s
    while not true():
        if time.monotonic() > deadline:
            raise SystemExit(f"it did not come to pass: {what}")
        time.sleep(0.2)


class Cluster:
    """A Slurm of one node."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environ = {
            **os.environ, "SLURM_CONF": str(folder / "slurm.conf"), "TZ": "UTC", "LC_ALL": "C", "COLUMNS": "80",
            "MYSQL_UNIX_PORT": str(folder / "mysql.sock"),
        }  # fmt: skip
        self.environ.pop("SLURM_TIME_FORMAT", None)
        self.started: list[subprocess.Popen[bytes]] = []
        self.version = subprocess.run(["/usr/sbin/slurmctld", "-V"], capture_output=True, text=True).stdout.strip()
        self.is_newer = not self.version.startswith("slurm-wlm 22.")

    def start(self) -> None:
        folder = self.folder
        for name in ("state", "spool", "mysql", "work"):
            (folder / name).mkdir()
        ports = {name: free_port() for name in ("ctld", "slurmd", "dbd")}
        names = {"folder": folder, "node": NODE, "host": socket.gethostname().split(".")[0], **ports}
        (folder / "slurm.conf").write_text(CONF.format(**names))
        if self.is_newer:
            (folder / "cgroup.conf").write_text("CgroupPlugin=disabled\n")
        (folder / "slurmdbd.conf").write_text(DBD.format(**names))
        (folder / "slurmdbd.conf").chmod(0o600)
        key = folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        munge = (
            f"--key-file={key} --socket={folder}/munge.socket --pid-file={folder}/munge.pid --seed-file={folder}/seed"
        )
        self.daemon("munged", "--foreground", "--force", f"--log-file={folder}/munge.log", *munge.split())
        until((folder / "munge.socket").exists, "munged listens")
        self.database()
        self.daemon("slurmdbd", "-D")
        until(lambda: self.run("sacctmgr", "-n", "show", "cluster").returncode == 0, "slurmdbd answers")
        self.run("sacctmgr", "-i", "add", "cluster", "fixtures")
        self.run("sacctmgr", "-i", "add", "account", "vision", "Description=x", "Organization=x")
        self.run("sacctmgr", "-i", "add", "user", getpass.getuser(), "Account=vision", "DefaultAccount=vision")
        self.daemon("slurmctld", "-D", "-f", str(folder / "slurm.conf"))
        self.daemon("slurmd", "-D", "-N", NODE, "-f", str(folder / "slurm.conf"))
        until(lambda: "idle" in self.run("sinfo", "-h", "-o", "%t").stdout, "the node is idle")

    def database(self) -> None:
        data, place = self.folder / "mysql", self.folder / "mysql.sock"
        common = [f"--datadir={data}", "--user=root"]
        subprocess.run(
            ["mysql_install_db", "--auth-root-authentication-method=normal", *common], check=True, capture_output=True
        )
        self.daemon(
            "mariadbd",
            "--no-defaults",
            *common,
            f"--socket={place}",
            "--skip-networking",
            "--innodb-lock-wait-timeout=900",
        )
        until(place.exists, "the database listens")

    def daemon(self, *words: str) -> None:
        log = (self.folder / f"{words[0]}.out").open("wb")
        path = f"{self.environ['PATH']}:/usr/sbin"
        environ = {**self.environ, "PATH": path}
        self.started.append(subprocess.Popen(words, env=environ, stdout=log, stderr=log, cwd=self.folder / "work"))

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            words, env=self.environ, cwd=self.folder / "work", capture_output=True, text=True, timeout=60
        )

    def stop(self) -> None:
        self.run("scancel", "--state=RUNNING")
        with contextlib.suppress(SystemExit):
            until(lambda: not self.run("squeue", "-h", "-t", "R,CG").stdout.strip(), "its jobs end", 20.0)
        self.run("scontrol", "shutdown")
        for each in reversed(self.started):
            if each.poll() is None:
                each.send_signal(signal.SIGTERM)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    each.wait(20)
            if each.poll() is None:
                each.kill()
                each.wait()


def situations(cluster: Cluster) -> dict[str, int]:
    """Bring jobs into the states that users meet; return the number of each by its situation."""
    jobs: dict[str, int] = {}

    def submit(name: str, *words: str) -> None:
        told = cluster.run("sbatch", "--parsable", "-J", name, *words)
        if told.returncode:
            raise SystemExit(told.stderr)
        jobs[name] = int(told.stdout.strip().partition(";")[0])

    submit("completed", "-n2", "-c1", "-t5", "--wrap", "env > batch.env; srun sh -c 'env > task.$SLURM_PROCID.env'")
    submit("failed", "-n1", "--wrap", "exit 3")
    submit("killed", "-n1", "--wrap", "kill -9 $$")
    until(lambda: not cluster.run("squeue", "-h").stdout.strip(), "they end")
    submit("stopped", "-n1", "--wrap", "sleep 1000")
    until(lambda: "R" in cluster.run("squeue", "-h", "-o", "%t", "-j", str(jobs["stopped"])).stdout, "it runs")
    cluster.run("scancel", str(jobs["stopped"]))
    until(lambda: not cluster.run("squeue", "-h").stdout.strip(), "it ends")
    submit("running", "-n4", "-c2", "--mem=1000", "-t30", "--wrap", "sleep 1000")
    until(lambda: "R" in cluster.run("squeue", "-h", "-o", "%t").stdout, "it runs")
    submit("pending", "-n4", "-t10", "--wrap", "true")
    submit("held", "-n1", "-H", "--wrap", "true")
    submit("dependent", "-n1", "-d", f"afterok:{jobs['running']}", "--wrap", "true")
    submit("later", "-n1", "-b", "2037-01-01T00:00:00", "--wrap", "true")
    submit("array", "-n1", "-a", "1-3%1", "--wrap", "true")
    until(lambda: "Resources" in cluster.run("squeue", "-h", "-o", "%r", "-j", str(jobs["pending"])).stdout, "it waits")
    time.sleep(2)
    return jobs


def questions(jobs: dict[str, int]) -> Iterator[list[str]]:
    """Yield the command lines whose answers are recorded."""
    order = ["--sort=i"]
    yield ["squeue", *order]
    yield ["squeue", "-h", *order]
    yield ["squeue", "-h", *order, "-o", "%i %j %u %t %T %l %D %R %P %C %r"]
    yield ["squeue", *order, "-o", "%i|%A|%F|%K|%j|%a|%P|%q|%t|%T|%l|%D|%C|%m|%r|%N|%E|%h|%Q"]
    yield ["squeue", *order, "-o", "%.18i %.9P %.8j %.8u %.2t %.10l %.6D %R"]
    yield ["squeue", *order, "-o", "%5i|%.5i|%10j|%.3j|%%|%t"]
    yield ["squeue", "-h", *order, "-t", "PD", "-o", "%i %t"]
    yield ["squeue", "-h", *order, "-t", "pending,running", "-o", "%i %T"]
    yield ["squeue", "-h", "-t", "CD,F,CA", *order, "-o", "%i %t %T"]
    yield ["squeue", "-h", "-t", "all", *order, "-o", "%i %t"]
    yield ["squeue", "-h", "-j", str(jobs["running"]), "-o", "%i %t"]
    yield ["squeue", "-h", "-j", f"{jobs['running']},{jobs['held']}", *order, "-o", "%i %t"]
    yield ["squeue", "-h", "-n", "held,pending", *order, "-o", "%j"]
    yield ["squeue", "-h", "-p", "main", *order, "-o", "%i"]
    yield ["squeue", "-h", "--me", *order, "-o", "%i"]
    yield ["squeue", "-h", "-j", "999999"]
    yield ["squeue", "-h", "-t", "nonsense"]
    yield ["squeue", "-h", "-O", "JobID,Name:12,State", *order]
    yield ["sinfo"]
    yield ["sinfo", "-h"]
    yield ["sinfo", "-N"]
    yield ["sinfo", "-h", "-o", "%P %a %l %D %t %N"]
    yield ["sinfo", "-N", "-h", "-o", "%N %c %t"]
    yield ["sinfo", "-h", "-o", "%P|%a|%D|%T|%N|%c|%C"]
    yield ["sinfo", "-s"]
    for name in ("completed", "failed", "killed", "stopped", "running", "pending", "held", "dependent"):
        yield ["scontrol", "show", "job", str(jobs[name])]
    yield ["scontrol", "-o", "show", "job", str(jobs["failed"])]
    yield ["scontrol", "show", "job", "999999"]
    yield ["scontrol", "show", "node", NODE]
    yield ["scontrol", "show", "partition", "main"]
    yield ["scontrol", "show", "hostnames", "node[01-03,7],gpu2"]
    yield ["scontrol", "hold", "999999"]
    yield ["scontrol", "release", str(jobs["held"])]
    yield ["scontrol", "hold", str(jobs["held"])]
    ended = ",".join(str(jobs[name]) for name in ("completed", "failed", "killed", "stopped"))
    begin = ["-S", "2020-01-01"]
    yield ["sacct", "-X", "-j", ended]
    yield ["sacct", "-X", "-n", "-j", ended]
    yield ["sacct", "-X", "-P", "-n", "-o", "JobID,JobName,State,ExitCode", "-j", ended]
    yield ["sacct", "-X", "-p", "-o", "JobID,State", "-j", ended]
    yield [
        "sacct",
        "-X",
        "-P",
        "-o",
        "jobid,jobname%5,partition,account,alloccpus,state,exitcode,ncpus,nnodes,user",
        "-j",
        ended,
    ]
    yield ["sacct", "-X", "-o", "JobID%20,State%-12,ExitCode", "-j", ended]
    yield ["sacct", "-X", "-P", "-n", "-o", "JobID,State,Start,End", *begin, "-j", str(jobs["pending"])]
    yield ["sacct", "-X", "-n", "-P", "-o", "JobID,State", "-s", "FAILED", *begin, "-E", "now"]
    yield ["sacct", "-X", "-n", "-P", "-o", "JobID", "-j", "999999"]
    yield ["sacct", "-X", "-o", "Nonsense"]
    yield ["scancel", "999999"]
    yield ["scancel", str(jobs["completed"])]
    yield ["scancel", "nonsense"]
    yield ["scancel"]
    yield ["sbatch", "--test-only", "-n1", "--wrap", "true"]
    yield ["sbatch", "--wrap", "true", "-n", "x"]
    yield ["sbatch", "--nonsense", "--wrap", "true"]
    yield ["sbatch", "missing.sh"]
    yield ["sbatch", "noscript.sh"]
    yield ["sbatch", "-p", "nonsense", "--wrap", "true"]
    yield ["scancel", *(str(jobs[name]) for name in ("dependent", "pending", "running"))]
    yield ["sbatch", "-n1", "--wait", "--wrap", "exit 7"]


def newer_situations(cluster: Cluster) -> dict[str, int]:
    """Bring further jobs into the states whose steps and JSON are recorded; return the number of each."""
    jobs: dict[str, int] = {}

    def submit(name: str, *words: str) -> None:
        told = cluster.run("sbatch", "--parsable", "-J", name, *words)
        if told.returncode:
            raise SystemExit(told.stderr)
        jobs[name] = int(told.stdout.strip().partition(";")[0])

    submit("steps", "-n2", "-c1", "-t5", "--wrap", "srun -J first true; srun -n1 sh -c 'exit 3'; exit 0")
    submit("failed", "-n1", "--wrap", "exit 3")
    submit("killed", "-n1", "--wrap", "kill -9 $$")
    submit("plain", "-n1", "--wrap", "true")
    until(lambda: not cluster.run("squeue", "-h").stdout.strip(), "they end")
    submit("stopped", "-n1", "--wrap", "srun sleep 1000")
    until(lambda: "R" in cluster.run("squeue", "-h", "-o", "%t", "-j", str(jobs["stopped"])).stdout, "it runs")
    time.sleep(2)
    cluster.run("scancel", str(jobs["stopped"]))
    until(lambda: not cluster.run("squeue", "-h").stdout.strip(), "it ends")
    submit("running", "-n4", "-c2", "--mem=1000", "-t30", "-C", "ib&a100", "-w", NODE, "--wrap", "srun -n1 sleep 1000")
    until(lambda: "R" in cluster.run("squeue", "-h", "-o", "%t").stdout, "it runs")
    submit("pending", "-n4", "-t10", "--wrap", "true")
    submit("held", "-n1", "-H", "--wrap", "true")
    submit("dependent", "-n1", "-d", f"afterok:{jobs['running']}", "--wrap", "true")
    submit("later", "-n1", "-b", "2037-01-01T00:00:00", "--wrap", "true")
    submit("array", "-n1", "-a", "1-3%1", "--wrap", "true")
    submit("exclusive", "-n1", "--exclusive", "--wrap", "true")
    until(lambda: "Resources" in cluster.run("squeue", "-h", "-o", "%r", "-j", str(jobs["pending"])).stdout, "it waits")
    time.sleep(2)
    return jobs


def newer_questions(jobs: dict[str, int]) -> Iterator[list[str]]:
    """Yield the command lines of which only newer versions are asked."""
    ended = ",".join(str(jobs[name]) for name in ("steps", "failed", "killed", "plain", "stopped"))
    fields = "JobID,JobName,State,ExitCode,AllocCPUS,NNodes,NTasks,NodeList,Partition,Account,User"
    yield ["sacct", "-j", ended]
    yield ["sacct", "-P", "-n", "-o", fields, "-j", ended]
    yield ["sacct", "--parsable2", "--format=JobIDRaw,JobID,State", "-j", f"{jobs['steps']},{jobs['running']}"]
    for step in ("0", "batch", "extern", "7"):
        yield ["sacct", "-P", "-n", "-o", "JobID,JobName,State", "-j", f"{jobs['steps']}.{step}"]
    yield ["sacct", "-P", "-n", "-o", "JobID,State", "-s", "FAILED", "-S", "2020-01-01", "-E", "now"]
    yield ["sacct", "-P", "-n", "-o", "JobID,State", "-s", "F,CA", "-X", "-S", "2020-01-01", "-E", "now"]
    yield ["sacct", "-P", "-n", "-o", "JobID,MaxRSS,AveCPU,Elapsed,TotalCPU", "-j", str(jobs["plain"])]
    yield ["sacct", "-P", "-n", "-o", "JobID", "-S", "2037-01-01"]
    yield ["sacct", "-S", "nonsense"]
    yield ["sacct", "-e"]
    for name in ("running", "pending", "array", "steps", "failed", "stopped"):
        yield ["squeue", "--json", "-t", "all", "-j", str(jobs[name])]
    yield ["squeue", "--json", "-j", "999999"]
    yield ["squeue", "-s", "-h", "-o", "%i %j %u %N", "-j", str(jobs["running"])]
    yield ["squeue", "-s", "-j", str(jobs["running"])]
    yield ["squeue", "-h", "--sort=i", "-o", "%i %f %n"]
    yield ["sinfo", "--json"]
    yield ["sinfo", "-h", "-o", "%N %f %b"]
    yield ["scontrol", "show", "job", str(jobs["running"]), "--json"]
    yield ["scontrol", "show", "job", str(jobs["running"])]
    yield ["scontrol", "show", "node", NODE, "--json"]
    yield ["scontrol", "show", "node", NODE]
    yield ["scontrol", "show", "partition", "main", "--json"]
    for name in ("steps", "stopped", "running"):
        yield ["sacct", "--json", "-j", str(jobs[name])]
    yield ["sbatch", "-C", "nonsense", "--wrap", "true"]
    yield ["sbatch", "-C", "ib&", "--wrap", "true"]
    yield ["sbatch", "-w", "nonsense", "--wrap", "true"]
    yield ["sbatch", "-x", NODE, "--wrap", "true"]
    yield ["sbatch", "-N1", "-w", f"{NODE},{NODE}2", "--wrap", "true"]
    yield ["sbatch", "-w", "node[1-999999999]", "--wrap", "true"]
    yield ["sbatch", "--parsable", "-H", "-n1", ":", "-n2", "--wrap", "true"]
    yield ["sbatch", "--parsable", "-H", "hetjob.sh"]
    yield ["squeue", "-h", "--sort=i", "-n", "het", "-o", "%i %t %C"]


def normalised(text: str, cluster: Cluster) -> str:
    """Replace what is of this machine and this moment."""
    user, host = getpass.getuser(), socket.gethostname()
    text = text.replace(str(cluster.folder / "work"), "/work").replace(str(cluster.folder), "/slurm")
    text = re.sub(r"\b[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\b", "2026-01-02T03:04:05", text)
    if text.startswith("{"):
        text = json.dumps(json.loads(text), separators=(",", ":")).replace(f'"{user}"', '"mia"')
        return re.sub(r"\b1[78][0-9]{8}\b", "1767323045", text)
    text = re.sub(rf"\b{re.escape(user)}\([0-9]+\)", "mia(1000)", text)
    # In a column the name is put where a name of three letters would be.
    text = re.sub(rf"(?<=  ){re.escape(user)}\b", "mia".rjust(len(user)), text)
    text = re.sub(rf"(?<=[ |]){re.escape(user)}(?=[ |\n])", "mia", text)
    text = re.sub(r"CANCELLED by [0-9]+", "CANCELLED by 1000", text)
    text = re.sub(rf"\b{re.escape(host)}\b", "head", text)
    text = re.sub(r"\b(Version|CPULoad|FreeMem|BootTime|SlurmdStartTime|RunTime|AllocNode:Sid)=\S+", r"\1=X", text)
    return re.sub(r"^   OS=.*", "   OS=X", text, flags=re.MULTILINE)


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="slurm-fixtures-") as name:
        cluster = Cluster(Path(name))
        Path(name).chmod(0o755)
        try:
            cluster.start()
            (cluster.folder / "work" / "noscript.sh").write_text("echo\n")
            (cluster.folder / "work" / "hetjob.sh").write_text(
                "#!/bin/sh\n#SBATCH -J het -n1\n#SBATCH hetjob\n#SBATCH -n2\nsrun true\n"
            )
            jobs = newer_situations(cluster) if cluster.is_newer else situations(cluster)
            answers = []
            for words in newer_questions(jobs) if cluster.is_newer else questions(jobs):
                told = cluster.run(*words)
                answers.append(
                    {
                        "words": words,
                        "code": told.returncode,
                        "out": normalised(told.stdout, cluster),
                        "err": normalised(told.stderr, cluster),
                    }
                )
            if cluster.is_newer:
                options = {
                    name: sorted(set(re.findall(r"--([a-z][a-z-]+)", cluster.run(name, "--help").stdout)))
                    for name in ("sbatch", "srun", "salloc")
                }
                recorded = {"version": cluster.version, "jobs": jobs, "options": options, "answers": answers}
                (HERE / "slurm_json.json").write_text(json.dumps(recorded, indent=1) + "\n")
                return
            work = cluster.folder / "work"
            variables = {
                kind: sorted(line.partition("=")[0] for line in text.splitlines() if re.match(r"SLURMD?_\w+=", line))
                for kind, text in (
                    ("batch", (work / "batch.env").read_text()),
                    ("task", (work / "task.1.env").read_text()),
                )
            }
            recorded = {"version": cluster.version, "jobs": jobs, "variables": variables, "answers": answers}
            (HERE / "slurm.json").write_text(json.dumps(recorded, indent=1) + "\n")
        except BaseException:
            for log in sorted(cluster.folder.glob("*.out")) + sorted(cluster.folder.glob("*.log")):
                print(f"--- {log.name}\n{log.read_text(errors='replace')[-1500:]}")
            raise
        finally:
            cluster.stop()
            shutil.rmtree(Path(name) / "mysql", ignore_errors=True)


if __name__ == "__main__":
    main()
