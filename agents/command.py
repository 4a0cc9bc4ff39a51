"""In the forked child: become the user's command, with its user, limits, folder and environment.

Standard library only: the shim imports it. Nothing of the job's environment is in effect before the last step, exec.
"""

import errno
import os
import resource
import signal

from agents.prctl import NO_NEW_PRIVS, PDEATHSIG, prctl


def make_folder(path: str, uid: int | None, gid: int | None) -> None:
    """Make a folder and what leads to it; only a folder made here is given to the command's user."""
    if os.path.isdir(path):
        return
    os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
    try:
        os.mkdir(path, 0o755)
    except FileExistsError:
        return
    if uid is not None and uid != os.geteuid():
        os.chown(path, uid, gid if gid is not None else -1, follow_symlinks=False)


def _drop(uid: int, gid: int, groups: list[int]) -> None:
    """Become another user for good, and make sure of it."""
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


def run_command(order: dict, out: int, err: int, word: int, shim: int) -> None:  # type: ignore[type-arg]
    """In the child: become the command. Never returns; a refusal goes up ``word`` as a sentence."""
    step = "its process could not be prepared"
    try:
        os.setsid()
        for number in (signal.SIGPIPE, signal.SIGINT, signal.SIGHUP, signal.SIGUSR2, signal.SIGXFSZ, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        _be_first_to_go()
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        nofile = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (nofile, nofile))
        if order.get("cpus"):
            os.sched_setaffinity(0, order["cpus"])
        os.umask(0o022)
        nothing = os.open("/dev/null", os.O_RDONLY)
        for source, target in ((nothing, 0), (out, 1), (err, 2)):
            os.dup2(source, target, inheritable=True)
        if order.get("uid") is not None:
            step = f"its user could not be changed to uid {order['uid']}"
            _drop(order["uid"], order["gid"], order.get("groups", []))
        prctl(PDEATHSIG, signal.SIGKILL)
        if os.getppid() != shim:
            os._exit(127)
        step = f'its folder "{order["cwd"]}" could not be entered'
        os.chdir(order["cwd"])
        step = ""
        _execute(order["argv"], order["env"])
    except BaseException as error:  # noqa: BLE001 - a forked child must never return into the shim's code
        os.write(word, _refusal(order, step, error).encode(errors="replace"))
    finally:
        os._exit(127)


def _execute(argv: list[str], env: dict[str, str]) -> None:
    """``execvpe`` that imports nothing: the user who is now in charge may not be able to read our Python."""
    if "/" in argv[0]:
        os.execve(argv[0], argv, env)
    failure: OSError = FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
    for folder in env.get("PATH", os.defpath).split(":"):
        path = f"{folder or '.'}/{argv[0]}"
        try:
            os.execve(path, argv, env)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except PermissionError as error:
            # A folder of the agent's PATH that this user may not enter holds no command for it.
            if os.path.exists(path):
                failure = error
    raise failure


def _be_first_to_go() -> None:
    """Have the kernel pick the command, not its supervisors, when the host runs out of memory."""
    try:
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write("500")
    except OSError:
        pass


def _refusal(order: dict, step: str, error: BaseException) -> str:  # type: ignore[type-arg]
    reason = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else str(error)
    if step:
        return f"{step}: {reason}"
    command = order["argv"][0] if order["argv"] else ""
    if isinstance(error, FileNotFoundError):
        return f'command "{command}" was not found; PATH is {order["env"].get("PATH", "not set")}'
    if isinstance(error, PermissionError):
        return f'command "{command}" may not be executed by uid {os.getuid()}; is it marked as executable?'
    if isinstance(error, OSError) and error.errno == errno.ENOEXEC:
        return f'command "{command}" is neither a program nor a script with a #! line'
    return f'command "{command}" could not be executed: {reason}'
