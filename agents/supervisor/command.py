"""Turns the forked child into the user's command: sets user, limits, folder and environment, then executes it.

Standard library only: the shim imports it. Nothing of the job's environment takes effect before the last step, exec.
"""

import errno
import os
import resource

from agents.ends import clause
from agents.isolation.beneath import FileRights, make
from agents.isolation.prctl import NO_NEW_PRIVS, PDEATHSIG, prctl
from agents.isolation.view import enter, join
from agents.supervisor import procfs
from agents.supervisor.lean import dumps, loads, signal
from agents.supervisor.lease import extended

TYPE_CHECKING = False
if TYPE_CHECKING:
    from agents.ends import Clause


def drop(uid: int, gid: int, groups: list[int]) -> None:
    """Become another user permanently, and verify it."""
    os.setgroups(groups)
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)
    if os.getresuid() != (uid, uid, uid) or os.getresgid() != (gid, gid, gid):
        raise PermissionError(errno.EPERM, "the user did not change")
    if uid != 0:
        try:
            os.setresuid(0, 0, 0)
        except PermissionError:
            pass
        else:
            raise PermissionError(errno.EPERM, "root could be regained")
    prctl(NO_NEW_PRIVS, 1)


def candidates(command: str, env: dict[str, str]) -> list[str]:
    """Return where to look for a command: its path, or all places of PATH that seem to have it.

    A place is left out only if it certainly has nothing of that name. Whether the user may execute it shows when it is
    tried.
    """
    if "/" in command:
        return [command]
    found = []
    for folder in env.get("PATH", os.defpath).split(":"):
        path = f"{folder or '.'}/{command}"
        if folder.startswith("/"):
            try:
                os.stat(path)
            except (FileNotFoundError, NotADirectoryError):
                continue
            except OSError:
                pass
        found.append(path)
    return found


def _be_nice(nice: int) -> None:
    """Set the nice value for the priority's share of cores; without the right to lower it, use that of other
    processes."""
    try:
        os.setpriority(os.PRIO_PROCESS, 0, nice)
    except OSError:
        pass


def run_command(
    order: dict,  # type: ignore[type-arg]
    lease_until: float,
    out: int,
    err: int,
    word: int,
    shim: int,
    given: int | None = None,
) -> None:
    """In the child: become the command. Never returns; an error is sent through the pipe ``word``, for :func:`refused`.

    ``given`` is the command's input, and its terminal if it is one; without it there is none.

    Makes the job's folders first and looks for the command last: either may wait long for a disk, so the lease is
    checked when only exec is left.

    Every memory page touched here is copied first, so whatever can be done once was done in the fork server.
    """
    step: Clause | None = clause("ProcessUnprepared")
    try:
        os.setsid()
        os.umask(0o022)
        os.dup2(out, 1)
        os.dup2(err, 2)
        if given is not None:
            os.dup2(given, 0)
            if os.isatty(0):
                import fcntl
                import termios

                fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        if order.get("cpus"):
            os.sched_setaffinity(0, order["cpus"])
        if order.get("nice"):
            _be_nice(order["nice"])
        rights = FileRights(order.get("uid"), order.get("gid"), order.get("groups", ()))
        for path in order.get("folders", ()):
            step = clause("FolderNotMade", folder=path)
            make(path, rights)
        step = clause("ViewNotMade")
        if view := order.get("view"):
            enter(view)
        elif joins := order.get("joins"):
            join(*joins)
        if order.get("uid") is not None:
            step = clause("UserUnchanged", uid=order["uid"])
            drop(order["uid"], order["gid"], [*(order.get("groups") or []), *(order.get("device_groups") or [])])
            if most := order.get("processes"):
                # Of all tasks of this user on the host; its own group, where there is one, counts this task alone.
                resource.setrlimit(resource.RLIMIT_NPROC, (most, most))
        prctl(PDEATHSIG, signal.SIGKILL)
        if os.getppid() != shim:
            os._exit(127)
        step = clause("FolderNotEntered", folder=order["cwd"])
        os.chdir(order["cwd"])
        step = None
        paths = candidates(order["argv"][0], order["env"])
        if _is_over(order, lease_until):
            os.write(word, dumps(clause("LeaseOver", lease_s=float(order["lease_s"]))).encode())
            return
        _execute(paths, order["argv"], order["env"])
    except BaseException as error:  # noqa: BLE001 - a forked child must never return into the shim's code
        os.write(word, dumps(_refusal(order, step, error)).encode(errors="replace"))
    finally:
        os._exit(127)


def _is_over(order: dict, lease_until: float) -> bool:  # type: ignore[type-arg]
    lease_s = order.get("lease_s")
    return lease_s is not None and procfs.boottime() >= extended(order["lease"], lease_until, float(lease_s))


def _execute(paths: list[str], argv: list[str], env: dict[str, str]) -> None:
    """Do what ``execvpe`` does without importing anything: the new user may not be able to read our Python files."""
    if "/" in argv[0]:
        os.execve(argv[0], argv, env)
    failure: OSError = FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
    for path in paths:
        try:
            os.execve(path, argv, env)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except PermissionError as error:
            # A folder of the agent's PATH that this user may not enter holds no command for it.
            if os.path.exists(path):
                failure = error
    raise failure


def _refusal(order: dict, step: "Clause | None", error: BaseException) -> "Clause":  # type: ignore[type-arg]
    reason = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else str(error)
    if step:
        params = {**step[1], "error": reason}
        if "folder" in params and isinstance(error, OSError) and error.filename:
            params["folder"] = str(error.filename)
        return step[0], params
    command = order["argv"][0] if order["argv"] else ""
    if isinstance(error, FileNotFoundError):
        path = order["env"].get("PATH")
        if path is None:
            return clause("CommandNotFoundNoPath", command=command)
        return clause("CommandNotFound", command=command, path=path)
    if isinstance(error, PermissionError):
        return clause("CommandForbidden", command=command, uid=os.getuid())
    if isinstance(error, OSError) and error.errno == errno.ENOEXEC:
        return clause("CommandNoProgram", command=command)
    return clause("CommandFailed", command=command, error=reason)


def refused(word: bytes) -> "Clause":
    """Return why the child could not become the command, from what it sent."""
    try:
        code, params = loads(word)
    except (ValueError, TypeError):  # it was cut short
        return clause("ProcessUnprepared", error=word.decode(errors="replace"))
    return code, params
