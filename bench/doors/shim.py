"""What a job can put in the way of its own supervisor, read by the modules of the shim with nothing else loaded."""

import os

from agents.supervisor import container_removal, lean, lease, procfs, record
from agents.supervisor.command import refused
from agents.supervisor.life import Life
from agents.supervisor.stream import OutputStream
from bench.doors.door import Door, write

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

TAKEN = (
    b'{"part": "p", "argv": ["true"], "memory_bytes": 1048576, "lease_s": 60.0}\n'
    b'{"pid": 4194303, "born": 77}\n{"pid": 4194303, "born": 77, "main": 4194302, "main_born": 78, '
    b'"substate": "2 processes do not end although killed: pid 5", "left": [5, 6], "stopping": "PREEMPTED"}'
)
REPORTS = (
    b'{"report": {"step": 3, "total": 9, "values": {"loss": 0.5, "name": "x"}}}\n',
    b'{"phase": {"name": "saving", "critical": true}}\n',
    b'{"phase": {"name": "train", "critical": false}}\n{"checkpoint": {"step": 1, "path": "a", "took_s": 0.1}}\n',
)
_STOP = b'{"grace_s": 3.0, "why": "PREEMPTED", "save": true}'


def _life(folder: str) -> Life:
    order = {
        "part": "p", "bell": f"{folder}/bell", "reports": f"{folder}/report.jsonl", "notice": f"{folder}/notice",
        "lease": f"{folder}/lease", "lease_s": 60.0, "lease_until": procfs.boottime() + 1e6, "grace_s": 1.0,
        "memory_bytes": 1 << 40,
    }  # fmt: skip
    handle = os.open(f"{folder}/record", os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
    return Life(folder, order, {"pid": os.getpid()}, handle, 0)


def _json(folder: str) -> Door:
    return Door([*REPORTS, _STOP, TAKEN.split(b"\n")[2]], lean.loads, (ValueError,))


def _records(folder: str) -> Door:
    def take(content: bytes) -> None:
        write(f"{folder}/taken", content)
        told = record.shim_record(folder)
        if told:
            procfs.is_alive(told["pid"], told["born"])
            record.family(folder)
        record.ordered(folder)

    return Door([TAKEN], take)


def _claims(folder: str) -> Door:
    def take(content: bytes) -> None:
        write(f"{folder}/order.json", content)
        claimed = record.claim(folder, {"pid": 1, "born": 2})
        assert claimed is not None, "it was there"
        os.close(claimed[0])
        record.shim_record(folder)

    return Door([TAKEN.split(b"\n")[0]], take)


def _stops(folder: str) -> Door:
    """A stop that was told, up to the end that follows from it."""

    def take(content: bytes) -> None:
        life = _life(folder)
        try:
            write(f"{folder}/stop.json", content)
            life._look_for_stop()
            life.killed, life.status = True, 9
            record.write_whole(f"{folder}/exit.json", life._end(0, 0))
        finally:
            os.close(life.record)

    return Door([_STOP], take)


def _stop_links(folder: str) -> Door:
    """The link that tells a stop where the disk is too full for a file."""

    def take(content: bytes) -> None:
        draft = f"{folder}/stop.draft"
        os.symlink(content.replace(b"\0", b"")[:4000] or b"x", draft)
        os.rename(draft, f"{folder}/stop")
        record.stop_order(folder)

    return Door([b"3 1 PREEMPTED", b"0.5 0 CANCELLED"], take)


def _limits(folder: str) -> Door:
    life = _life(folder)
    life.killed = True  # there is nobody to kill

    def take(content: bytes) -> None:
        write(f"{folder}/limits.json", content)
        life.memory_at = 0.0
        life._watch_memory(procfs.boottime())

    return Door([b'{"memory_bytes": 1073741824}'], take)


def _critical_phase(folder: str) -> Door:
    life = _life(folder)

    def take(content: bytes) -> None:
        write(f"{folder}/report.jsonl", content)
        life._is_critical()

    return Door(REPORTS, take)


def _leases(folder: str) -> Door:
    life = _life(folder)

    def take(content: bytes) -> None:
        first, _, second = content.partition(b"|")
        write(f"{folder}/lease", first)
        write(f"{folder}/lease-since", second)
        lease.noted(f"{folder}/lease")
        life.cause, life.kill_at, life.lease_until = "", None, procfs.boottime() + 1.0
        life._watch_lease(procfs.boottime())

    return Door([b"12.5|3.25 0f0f-boot", b"99999999.125|1.000 b"], take)


def _plans(folder: str) -> Door:
    """The plan of a container and the state that its monitor tells. No line of it is run."""

    def take(content: bytes) -> None:
        write(f"{folder}/container.json", content)
        container_removal.planned(folder)
        record.read_whole(f"{folder}/container.json")

    lines = b", ".join(b'"%b": ["/bin/true", "x"]' % name.encode() for name in container_removal.LINES)
    return Door([b'{"part": "p", "rank": 0, "daemon": false, "lines": {%b}, "env": {"A": "b"}}' % lines], take)


def _refusals(folder: str) -> Door:
    """What the child of a shim says before it is the command."""

    def take(content: bytes) -> None:
        code, params = refused(content)
        record.write_whole(f"{folder}/said", {"said": [[code, params]], "detail": lean.dumps(params)})

    return Door([b'["FolderNotMade", {"folder": "/a", "error": "b"}]', b'["LeaseOver", {"lease_s": 3.0}]'], take)


def _output(folder: str) -> Door:
    """What a command prints, masked and capped."""
    from agents.masking import Mask

    def take(content: bytes) -> None:
        reader, writer = os.pipe()
        stream = OutputStream(reader, f"{folder}/0.out", 1 << 16, Mask(["secret-of-the-job", "line one\nline two"]), 0)
        try:
            for at in range(0, min(len(content), 50_000), 17_000):
                os.write(writer, content[at : at + 17_000])
                stream.pump()
        finally:
            os.close(writer)
        while stream.pump():
            pass
        stream.drain()
        os.unlink(f"{folder}/0.out") if os.path.exists(f"{folder}/0.out") else None

    key = b"-----BEGIN RSA PRIVATE KEY-----\nabc\n-----END RSA PRIVATE KEY-----\n"
    return Door([b"step 3 secret-of-the-job ghp_" + b"a" * 36 + b"\n", key, b"plain\nlines\n"], take)


def _small_files(folder: str) -> Door:
    """Whatever else of a part's folder is read whole."""

    def take(content: bytes) -> None:
        write(f"{folder}/note.json", content)
        record.read_whole(f"{folder}/note.json")

    return Door([_STOP, b'{"folder": "/a", "known": [["a", 1]]}'], take)


def _notices(folder: str) -> Door:
    """The stop notice, as the monitor of a container passes it on."""
    from agents.supervisor.container_monitor import ContainerMonitor

    plan = {"lines": {"signal": []}, "notice": f"{folder}/notice", "told": f"{folder}/told", "daemon": True}

    def take(content: bytes) -> None:
        write(f"{folder}/notice", content)
        ContainerMonitor(folder, plan)._give_notice()

    return Door([b'{"reason": "PREEMPTED", "deadline_s": 30.0, "save": true}'], take)


DOORS: "dict[str, Callable[[str], Door]]" = {
    "shim: JSON": _json,
    "shim: taken": _records,
    "shim: order.json": _claims,
    "shim: stop.json": _stops,
    "shim: stop, a link": _stop_links,
    "shim: limits.json": _limits,
    "shim: report.jsonl": _critical_phase,
    "shim: lease": _leases,
    "shim: container.json": _plans,
    "shim: word of its child": _refusals,
    "shim: output": _output,
    "shim: notes": _small_files,
    "monitor: stop notice": _notices,
}
