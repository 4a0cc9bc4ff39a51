"""Tells a running stage where it runs and when to stop, and carries its progress and checkpoints to Switchyard.

One file, standard library only, Python 3.9 or newer: the agent puts it on the stage's import path, so nothing has to be
installed. The same script runs unchanged on a CPU, a GPU or an NPU, and outside Switchyard too: there the directories
are the current one, ``should_stop()`` is false and reports go nowhere.

    from switchyard import runtime

    runtime.install_signal()
    step = load(runtime.latest_checkpoint())
    while step < total:
        step = train_one(step, device=runtime.device().framework_device)
        runtime.report(step=step, total=total, loss=loss)
        if runtime.save_due():
            with runtime.saving(step, path_of(step)) as path:
                save(path)
        if runtime.should_stop():
            sys.exit(runtime.EXIT_CHECKPOINTED)

No function here raises into that loop because a disk is full or a file is gone: it warns once on stderr and goes on.
In a run of many processes every rank may read; rank 0 reports and confirms. The notice to stop reaches the nodes of a
gang at different moments: let one rank ask ``save_due()`` and ``should_stop()`` and tell the others, so that all save
and leave at the same step.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import json
import math
import os
import signal
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = [
    "EXIT_CHECKPOINTED",
    "Device",
    "checkpoint",
    "checkpoint_dir",
    "device",
    "input_dir",
    "install_signal",
    "latest_checkpoint",
    "output_dir",
    "phase",
    "report",
    "save_due",
    "saving",
    "should_stop",
    "stop_reason",
]

EXIT_CHECKPOINTED = 85
"""The exit code that says: my state is saved, start me again."""

MARKER = "yard-checkpoint.json"
"""The file in the checkpoint directory that names the newest complete checkpoint; it appears by rename."""

REPORT_EVERY_S = 0.5
"""Reports closer together than this are merged into the next one, so that a fast loop costs the disk nothing."""

LONGEST_TEXT = 200

MOST_TRACED_STEPS = 100
"""A trace ends after so many reports, or after the seconds that were asked for, because one of every step is large."""

_lock = threading.RLock()
_warned: set[str] = set()
_told: dict[str, Any] = {}
_told_at: dict[str, int] = {}
_unsent = False
_sent_at = -math.inf
_phase = ("", False)
_signalled = False
_saved_at = time.monotonic()
_saved_for_stop = False
_answered_save = 0
_looked_for_trace_at = -math.inf
_trace: _TorchTrace | None = None


# ---------------------------------------------------------------------------------------------------- device and paths


@dataclass(frozen=True)
class Device:
    """The accelerator of this stage, or the CPU if it has none.

    ``kind`` is ``cpu``, ``gpu``, ``npu`` or another registered kind, ``model`` its name. ``framework_device`` is the
    device for a framework: ``"cuda:0"``, ``"npu:0"``, ``"xpu:0"``, ``"cpu"``; it is ``"cpu"`` for a simulated device,
    which computes nothing. ``precisions`` are the number formats of the hardware, best for training first.
    ``memory_bytes`` is this stage's share, ``None`` if unknown. ``count`` is the devices per node.
    """

    kind: str
    model: str
    framework_device: str
    precisions: tuple[str, ...]
    memory_bytes: int | None
    count: int
    simulated: bool


def device() -> Device:
    """Return the device of this process; under a launcher with one process per device, that of its local rank."""
    kind = os.environ.get("YARD_DEVICE_KIND") or "cpu"
    model = os.environ.get("YARD_DEVICE_MODEL") or ""
    simulated = os.environ.get("YARD_DEVICE_SIMULATED") == "1"
    return Device(
        kind=kind,
        model=model,
        framework_device="cpu" if simulated else _framework_device(kind, model),
        precisions=_precisions(kind, model),
        memory_bytes=_number("YARD_DEVICE_MEMORY_BYTES"),
        count=_number("YARD_DEVICES_PER_NODE") or 1,
        simulated=simulated,
    )


def checkpoint_dir() -> str:
    """Return the directory for checkpoints, which survives the attempt. Created if missing."""
    return _directory("YARD_CHECKPOINT_DIR")


def output_dir() -> str:
    """Return the directory that later stages of the same job find as ``input_dir(<this stage>)``. Created if
    missing."""
    return _directory("YARD_OUTPUT_DIR")


def input_dir(stage: str) -> str:
    """Return the outputs of an earlier ``stage`` of the same job; read only. Outside a job the current directory."""
    parent = os.environ.get("YARD_INPUT_DIR")
    return os.path.join(parent, stage) if parent else "."


# ---------------------------------------------------------------------------------------------------- stopping


def install_signal() -> None:
    """Make SIGTERM raise the stop notice instead of ending the process; a second SIGTERM ends it as usual.

    Works in the main thread only; in another thread this warns and does nothing.
    """

    def on_term(number: int, frame: object) -> None:
        global _signalled
        _signalled = True
        signal.signal(number, signal.SIG_DFL)

    try:
        signal.signal(signal.SIGTERM, on_term)
    except ValueError:
        _warn("signal", "install_signal() must be called from the main thread; only the stop file is watched now")


def should_stop() -> bool:
    """Return True once Switchyard has asked this stage to stop: save, confirm and exit within the grace time."""
    path = os.environ.get("YARD_STOP_FILE")
    return _signalled or bool(path and os.path.exists(path))


def stop_reason() -> str:
    """Return why the stage is asked to stop, e.g. ``PREEMPTED``; ``SIGTERM`` if only the signal came; empty if not
    asked."""
    if not should_stop():
        return ""
    notice = _read_object(os.environ.get("YARD_STOP_FILE") or "")
    return str(notice.get("reason") or ("SIGTERM" if _signalled else "unknown"))


# ---------------------------------------------------------------------------------------------------- saving


def save_due(every_s: float | None = None) -> bool:
    """Return True if it is time to save: ``every_s`` seconds after the last checkpoint that this process confirmed, and
    at once if Switchyard stops the stage and wants a checkpoint first, or is going to and asks for one ahead, until one
    is confirmed.

    The default of ``every_s`` is ``YARD_CHECKPOINT_EVERY_S``: the job file's interval, or one computed from the
    duration of saves and the rate of interruptions. Without either, and so outside a job, only the stop notice counts.
    Call it after a step; the first call may be at any time.
    """
    if should_stop():
        return not _saved_for_stop and _is_save_wanted()
    if _asked_save() > _answered_save:
        return True
    if every_s is None:
        every_s = _seconds("YARD_CHECKPOINT_EVERY_S")
    return every_s is not None and time.monotonic() - _saved_at >= every_s


@contextlib.contextmanager
def saving(step: int, path: str) -> Iterator[str]:
    """Wrap the saving of ``step`` to ``path``, which is the block's value: confirms it at the end of the block.

    Meanwhile the stage reports that it must not be interrupted, and the duration is reported with the checkpoint. After
    an exception in the block nothing is confirmed. In a run of many processes rank 0 enters it, and waits in the block
    for those who write with it.
    """
    global _saved_at, _answered_save
    began_at, asked = time.monotonic(), _asked_save()
    try:
        with phase("save", critical=True):
            yield path
            _confirm(step, path, began_at, asked)
    finally:
        # A failed save is tried again after the interval, not at every step.
        _saved_at, _answered_save = time.monotonic(), max(_answered_save, asked)


# ---------------------------------------------------------------------------------------------------- reporting


def report(*, step: int | None = None, total: int | None = None, **values: object) -> None:
    """Report the progress of the stage, and any named values: numbers, short texts, or one-element arrays and tensors.

    Each line has the newest of all values so far, so a lost line does no harm, and the step of those that were named at
    another one. Cheap enough for every step: at most two lines a second are written, and the last one always is, at the
    latest when the process ends.
    """
    global _unsent
    with _lock:
        if step is not None:
            _told["step"] = int(step)
        if total is not None:
            _told["total"] = int(total)
        known = _told.setdefault("values", {})
        known.update({name: _plain(value) for name, value in values.items()})
        _told_at.update(dict.fromkeys(values, _told.get("step", 0)))
        _unsent = True
        last = step is not None and step == _told.get("total")
        if last or time.monotonic() - _sent_at >= REPORT_EVERY_S:
            _send_report()
    _attend_trace()


def phase(name: str, critical: bool = False) -> _Phase:
    """Name what the stage is doing now. ``critical=True`` asks not to be interrupted before the phase ends.

    Works as a plain call, until the next phase, or as a ``with`` block, after which the former phase applies again.
    """
    former = _phase
    _enter(name, critical)
    return _Phase(former)


class _Phase:
    def __init__(self, former: tuple[str, bool]) -> None:
        self._former = former

    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: object) -> None:
        _enter(*self._former)


def checkpoint(step: int, path: str) -> bool:
    """Confirm that the file or directory ``path`` is a complete checkpoint of ``step``: a restart resumes from it.

    Call it after the last byte is written. The bytes are forced to disk first, then the marker appears by rename, so a
    crash at any moment leaves either the former checkpoint or this one. Returns whether it is confirmed; it is not if
    ``path`` is missing, the disk is full, or a later attempt of the stage has already confirmed one of its own.
    """
    return _confirm(step, path, None)


def latest_checkpoint() -> str | None:
    """Return the path of the newest confirmed checkpoint, or ``None`` if there is none to resume from.

    The path that Switchyard names comes first, then the marker in the checkpoint directory. A missing path is skipped,
    and so is one that was written to after it was confirmed, because the writer may have been killed.
    """
    named = os.environ.get("YARD_RESUME_FROM")
    if named and os.path.exists(named):
        return named
    marker = os.path.join(checkpoint_dir(), MARKER)
    told = _read_object(marker)
    path = told.get("path")
    if not isinstance(path, str):
        return None
    found = os.path.join(os.path.dirname(marker), path)
    return found if os.path.exists(found) and _is_as_confirmed(found, marker, told) else None


# ---------------------------------------------------------------------------------------------------- internal


def _confirm(step: int, path: str, began_at: float | None, asked: int | None = None) -> bool:
    """See :func:`checkpoint`; ``began_at`` is when its saving began, on the monotonic clock, where that is known, and
    ``asked`` the newest request to save that it answers."""
    global _saved_at, _saved_for_stop, _answered_save
    asked = _asked_save() if asked is None else asked
    directory = checkpoint_dir()
    whole = os.path.abspath(path)
    with _lock:
        newer = _confirmed_by_later_attempt(directory)
        if newer is not None:
            _warn(
                "fenced",
                f"epoch {newer} of this stage has confirmed a checkpoint; this older epoch confirms none",
            )
            return False
        try:
            _force_to_disk(whole)
            _replace(os.path.join(directory, MARKER), json.dumps(_marker(int(step), whole, directory)))
        except (OSError, ValueError) as error:
            _warn("checkpoint", f"checkpoint of step {step} is not confirmed: {error}")
            return False
        _saved_at, _saved_for_stop = time.monotonic(), should_stop()
        _answered_save = max(_answered_save, asked)
        took = {} if began_at is None else {"took_s": round(_saved_at - began_at, 3)}
        _send_report()
        _append({"checkpoint": {"step": int(step), "path": whole, **took}})
    return True


# Device names of PyTorch, or the vendor's build or extension of it, by vendor.
_FRAMEWORK_NAMES = {
    "nvidia": "cuda",
    "amd": "cuda",
    "hygon": "cuda",
    "iluvatar": "cuda",
    "metax": "cuda",
    "kunlunxin": "cuda",
    "intel": "xpu",
    "huawei": "npu",
    "habana": "hpu",
    "cambricon": "mlu",
    "mthreads": "musa",
    "enflame": "gcu",
    "biren": "supa",
    "google": "xla",
}
# The vendor by model name, for an agent that does not report it.
_VENDOR_WORDS = (
    ("intel", ("intel", "arc ", "data center gpu max", "flex ")),
    ("cambricon", ("cambricon", "mlu")),
    ("habana", ("gaudi", "habana")),
    ("mthreads", ("mtt ", "moore threads")),
    ("google", ("tpu",)),
)


def _framework_device(kind: str, model: str) -> str:
    if kind == "cpu":
        return "cpu"
    vendor = os.environ.get("YARD_DEVICE_VENDOR", "").lower()
    if not vendor:
        vendor = next((name for name, words in _VENDOR_WORDS if any(word in model.lower() for word in words)), "")
    name = _FRAMEWORK_NAMES.get(vendor) or {"gpu": "cuda", "npu": "npu", "tpu": "xla"}.get(kind)
    return f"{name}:{_number('LOCAL_RANK') or 0}" if name else "cpu"


def _precisions(kind: str, model: str) -> tuple[str, ...]:
    name = model.upper().replace("-", "").replace(" ", "")
    if kind == "gpu":
        if any(old in name for old in ("V100", "P100", "P40", "T4", "RTX20", "GTX")):
            return ("fp16", "fp32", "int8")
        if any(
            new in name
            for new in ("H100", "H200", "H800", "H20", "B100", "B200", "B300", "L40", "L4", "MI300", "MI325")
        ):
            return ("bf16", "fp16", "fp8", "fp32", "int8")
        return ("bf16", "fp16", "fp32", "int8")
    if kind == "npu":
        return ("fp16", "int8") if "310" in name else ("bf16", "fp16", "fp32", "int8")
    return ("fp32", "int8")


def _marker(step: int, path: str, directory: str) -> dict[str, Any]:
    # Relative if possible, because shared storage may be mounted elsewhere on the node that resumes.
    root = os.path.abspath(directory)
    inside = os.path.commonpath([root, path]) == root
    return {
        "step": step,
        "path": os.path.relpath(path, root) if inside else path,
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        **_identity(),
        "attempt": _number("YARD_ATTEMPT"),
        "epoch": _number("YARD_EPOCH"),
        "bytes": _weight(path)[0],
    }


def _weight(path: str) -> tuple[int, int]:
    """Return the bytes of a file or of all files in a folder, without a marker, and when the last of them was
    written."""
    names = [path] if os.path.isfile(path) else [name for name in _files_below(path) if not os.path.islink(name)]
    found = [os.stat(name) for name in names if os.path.basename(name) != MARKER]
    return sum(each.st_size for each in found), max((each.st_mtime_ns for each in found), default=0)


def _is_as_confirmed(path: str, marker: str, told: dict[str, Any]) -> bool:
    try:
        size, written_ns = _weight(path)
        confirmed_ns = os.stat(marker).st_mtime_ns
    except OSError:
        return False
    return written_ns <= confirmed_ns and told.get("bytes", size) == size


def _is_save_wanted() -> bool:
    # An agent of an earlier release does not tell; then a save is wanted whatever the reason.
    return _read_object(os.environ.get("YARD_STOP_FILE") or "").get("save") is not False


def _asked_save() -> int:
    """Return the number of the newest request to save ahead of a planned stop; 0 if there was none."""
    path = os.environ.get("YARD_SAVE_FILE")
    rev = _read_object(path).get("rev") if path and os.path.exists(path) else None
    return rev if isinstance(rev, int) else 0


def _identity() -> dict[str, str | None]:
    return {"job": os.environ.get("YARD_JOB_ID"), "stage": os.environ.get("YARD_STAGE")}


def _confirmed_by_later_attempt(directory: str) -> int | None:
    # After a network cut the same stage may run twice for a moment; the older attempt must not replace the newer one's.
    mine = _number("YARD_EPOCH")
    marker = _read_object(os.path.join(directory, MARKER))
    theirs = marker.get("epoch")
    same = all(marker.get(key) == value for key, value in _identity().items())
    return theirs if same and mine is not None and isinstance(theirs, int) and theirs > mine else None


def _enter(name: str, critical: bool) -> None:
    global _phase
    with _lock:
        _phase = (name, critical)
        _send_report()
        _append({"phase": {"name": name, "critical": bool(critical)}})


def _send_report() -> None:
    global _unsent, _sent_at
    if _unsent:
        earlier = {name: at for name, at in _told_at.items() if at != _told.get("step", 0)}
        _append({"report": {**_told, "values_at": earlier} if earlier else _told})
        _unsent = False
        _sent_at = time.monotonic()


class _TorchTrace:
    """A profile of this process by ``torch.profiler``, which somebody asked for; see :func:`_attend_trace`."""

    def __init__(self, path: str, seconds: float) -> None:
        self.path = path
        self.thread = threading.get_ident()
        self.ends_at = time.monotonic() + seconds
        self.left = MOST_TRACED_STEPS
        # Nothing is imported for it that the stage has not: a stage without torch has nothing to profile by it.
        torch = importlib.import_module("torch.profiler")
        # Without a schedule PyTorch records all the same, but marks no steps in what it writes.
        self.profiler = torch.profile(schedule=lambda _step: torch.ProfilerAction.RECORD)
        self.profiler.start()

    def step(self) -> bool:
        """Count a step; return True once the trace is written."""
        self.left -= 1
        if self.left > 0 and time.monotonic() < self.ends_at:
            self.profiler.step()
            return False
        self.profiler.stop()
        draft = f"{self.path}.draft.json.gz"
        self.profiler.export_chrome_trace(draft)
        os.rename(draft, f"{self.path}.json.gz")
        return True


def _attend_trace() -> None:
    """Go on with a trace, or begin the one that the file ``YARD_TRACE_FILE`` asks for, which has its seconds.

    One process takes the request, by renaming it, and leaves ``.json.gz``, or a sentence in ``.why``, beside it.
    """
    global _trace, _looked_for_trace_at
    path, now = os.environ.get("YARD_TRACE_FILE"), time.monotonic()
    if not path or (_trace is None and now - _looked_for_trace_at < REPORT_EVERY_S):
        return
    with _lock:
        _looked_for_trace_at = now
        try:
            if _trace is not None:
                if _trace.thread == threading.get_ident() and _trace.step():
                    _trace = None
                return
            os.rename(path, f"{path}.taken")
            with open(f"{path}.taken", encoding="utf-8") as stream:
                seconds = float(stream.read(20))
            if "torch" not in sys.modules:
                raise RuntimeError("the process that reports its progress has not imported torch")
            _trace = _TorchTrace(path, seconds)
        except FileNotFoundError:
            return
        except Exception as error:  # noqa: BLE001
            # Whatever torch raises, the stage goes on.
            _trace = None
            with contextlib.suppress(OSError):
                _replace(f"{path}.why", str(error)[:LONGEST_TEXT])


def _append(line: dict[str, Any]) -> None:
    path = os.environ.get("YARD_REPORT_FILE")
    if not path:
        return
    text = (json.dumps(line) + "\n").encode()
    try:
        # One write to a file opened for append, so that lines of several processes do not mix.
        file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(file, text)
        finally:
            os.close(file)
    except OSError as error:
        _warn("report", f"progress cannot be reported: {error}")


def _plain(value: object) -> object:
    # numpy and torch scalars have .item(); JSON has no NaN and infinity.
    if hasattr(value, "item"):
        with contextlib.suppress(Exception):
            value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, (bool, int, float)):
        return value
    return str(value)[:LONGEST_TEXT]


def _force_to_disk(path: str) -> None:
    for name in [path, *_files_below(path)]:
        file = os.open(name, os.O_RDONLY)
        try:
            os.fsync(file)
        finally:
            os.close(file)


def _files_below(path: str) -> Iterator[str]:
    for folder, _, names in os.walk(path):
        for name in names:
            yield os.path.join(folder, name)


def _replace(path: str, text: str) -> None:
    file, temporary = tempfile.mkstemp(prefix=f".{os.path.basename(path)}.", dir=os.path.dirname(path) or ".")
    try:
        with os.fdopen(file, "w") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def _directory(variable: str) -> str:
    path = os.environ.get(variable) or "."
    try:
        os.makedirs(path, exist_ok=True)
    except OSError as error:
        _warn(variable, f"{path} cannot be made: {error}")
    return path


def _read_object(path: str) -> dict[str, Any]:
    try:
        with open(path, encoding="utf-8") as stream:
            found = json.load(stream)
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _number(variable: str) -> int | None:
    try:
        return int(os.environ.get(variable) or "")
    except ValueError:
        return None


def _seconds(variable: str) -> float | None:
    try:
        found = float(os.environ.get(variable) or "")
    except ValueError:
        return None
    return found if math.isfinite(found) and found > 0 else None


def _warn(topic: str, sentence: str) -> None:
    if topic not in _warned:
        _warned.add(topic)
        with contextlib.suppress(Exception):
            print(f"switchyard.runtime: {sentence}", file=sys.stderr, flush=True)


atexit.register(_send_report)
