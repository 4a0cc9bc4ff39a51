"""A container engine small enough to read: it speaks podman's command line and runs real processes, without walls.

Mounts, namespaces and capabilities are ignored; images are names in a file. What is real: a container has a monitor
that outlives whoever started it, its processes end with its first one, memory is limited, and states are kept on disk.
Installed under an engine's name in a folder of PATH; its state lies beside it. As ``docker`` it has a daemon
(``docker daemon``), whose children the containers are. Image names decide what goes wrong:
``*missing*`` cannot be pulled, ``*slow*`` takes its time, ``*broken*`` cannot be made a container of.
"""

import contextlib
import ctypes
import json
import os
import signal
import sys
import time
from pathlib import Path

IS_DOCKER = os.path.basename(sys.argv[0]) == "docker"
STATE = Path(__file__).resolve().parent / "standin-state"
NEVER = "0001-01-01T00:00:00Z"


def fail(text: str, code: int = 125) -> None:
    print(f"Error: {text}", file=sys.stderr)
    sys.exit(code)


def record(name: str) -> Path:
    return STATE / f"{name}.json"


def known(name: str) -> dict:
    try:
        return json.loads(record(name).read_text())
    except FileNotFoundError:
        fail(f'no container with name or ID "{name}" found: no such container', 1)
        raise


def note(name: str, **news: object) -> None:
    draft = record(name).with_suffix(".draft")
    draft.write_text(json.dumps({**known(name), **news}))
    draft.rename(record(name))


def info() -> None:
    if IS_DOCKER:
        print(json.dumps({"ServerVersion": "0-standin", "MemoryLimit": True}))
        return
    host = {"security": {"rootless": True}, "cgroupVersion": "v2", "cgroupControllers": ["memory", "cpu"]}
    print(json.dumps({"host": host, "version": {"Version": "0-standin"}}))


def image(words: list[str]) -> None:
    sys.exit(0 if (STATE / "images" / words[-1].replace("/", "_")).exists() else 1)


def pull(words: list[str]) -> None:
    name = words[-1]
    if "slow" in name:
        time.sleep(1.0)
    if "missing" in name:
        print("Trying to pull...", file=sys.stderr)
        fail(f"initializing source docker://{name}: reading manifest: manifest unknown")
    (STATE / "images").mkdir(parents=True, exist_ok=True)
    (STATE / "images" / name.replace("/", "_")).touch()


def create(words: list[str]) -> None:
    flags: dict[str, list[str]] = {}
    while words and words[0].startswith("--"):
        name, _, value = words.pop(0).partition("=")
        flags.setdefault(name, []).append(value)
    chosen, argv = words[0], words[1:]
    if "broken" in chosen:
        fail("creating container storage: no space left on device")
    name = flags["--name"][0]
    env = dict(line.split("=", 1) for line in Path(flags["--env-file"][0]).read_text().splitlines())
    env.update({each: os.environ[each] for each in flags.get("--env", [])})
    env.setdefault("PATH", os.environ["PATH"])
    content = {
        "argv": argv,
        "env": env,
        "cwd": flags["--workdir"][0],
        "user": flags.get("--user", [""])[0],
        "memory": int(flags.get("--memory", ["0"])[0]),
        "oom": False,
        "code": 0,
        "started": NEVER,
        "pid": 0,
    }
    with record(name).open("x") as file:
        json.dump(content, file)
    print(name)


def family(root: int) -> list[int]:
    found, rest = [], [root]
    while rest:
        with contextlib.suppress(OSError):
            pid = rest.pop()
            for task in os.listdir(f"/proc/{pid}/task"):
                children = [int(each) for each in Path(f"/proc/{pid}/task/{task}/children").read_text().split()]
                found += children
                rest += children
    return found


def end_family(root: int) -> None:
    """End all below ``root``, again and again until nobody is left: as the end of a pid namespace does."""
    while left := [pid for pid in family(root) if not is_zombie(pid)]:
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in left:
                with contextlib.suppress(OSError):
                    os.kill(pid, number)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


def is_zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


def resident(pids: list[int]) -> int:
    total = 0
    for pid in pids:
        with contextlib.suppress(OSError, IndexError):
            total += int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return total


def become(box: dict, word: int) -> None:
    try:
        os.setsid()
        os.chdir(box["cwd"])
        if box["user"] and os.geteuid() == 0:
            uid, _, gid = box["user"].partition(":")
            os.setgroups([])
            os.setresgid(int(gid), int(gid), int(gid))
            os.setresuid(int(uid), int(uid), int(uid))
        os.execvpe(box["argv"][0], box["argv"], box["env"])
    except OSError:
        os.write(word, b"x")
    finally:
        os._exit(127)


def monitor(name: str, box: dict, word: int) -> int:
    """Run the container's first process and see everything to its end; answers its exit code."""
    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    refused, refuse = os.pipe()
    os.set_inheritable(refuse, False)
    main = os.fork()
    if main == 0:
        become(box, refuse)
    os.close(refuse)
    if os.read(refused, 1):
        os.waitpid(main, 0)
        os.write(2, f"Error: crun: executable file `{box['argv'][0]}` not found in $PATH: not found\n".encode())
        return 127
    note(name, started="2026-01-01T00:00:00Z", pid=main, monitor=os.getpid())
    os.write(word, b"up")
    while True:
        pid, status = os.waitpid(main, os.WNOHANG)
        if pid:
            break
        if box["memory"] and resident(family(os.getpid())) > box["memory"]:
            note(name, oom=True)
            os.kill(main, signal.SIGKILL)
        time.sleep(0.01)
    end_family(os.getpid())
    code = os.waitstatus_to_exitcode(status)
    code = code if code >= 0 else 128 - code
    with contextlib.suppress(SystemExit):
        note(name, code=code, pid=0)
    return code


def daemon() -> None:
    """Start whatever clients ask for, with their outputs, as children of this process."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        for asked in STATE.glob("*.ask"):
            client, name = asked.read_text(), asked.stem
            asked.unlink()
            if os.fork() == 0:
                os.setsid()
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                for number in (1, 2):
                    os.dup2(os.open(f"/proc/{client}/fd/{number}", os.O_WRONLY), number)
                code = 125
                try:
                    code = monitor(name, known(name), os.pipe()[1])
                finally:
                    with contextlib.suppress(SystemExit):
                        note(name, done=code)
                    os._exit(0)
        time.sleep(0.005)


def start_by_daemon(name: str) -> None:
    draft = STATE / f"{name}.draft"
    draft.write_text(str(os.getpid()))
    draft.rename(STATE / f"{name}.ask")
    while "done" not in known(name):
        time.sleep(0.01)
    sys.exit(known(name)["done"] & 255)


def start(words: list[str]) -> None:
    name = words[-1]
    if IS_DOCKER:
        start_by_daemon(name)
    box = known(name)
    _, word = os.pipe()
    keeper = os.fork()
    if keeper == 0:
        os.setsid()
        try:
            os._exit(monitor(name, box, word))
        finally:
            os._exit(125)
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(keeper, 0)[1]) & 255)


def container(words: list[str]) -> None:
    box = known(words[-1])
    if "Pid" in words[1]:
        print(box["pid"])
    else:
        print(f"{str(box['oom']).lower()} {box['code']} {box['started']}")


def kill(words: list[str]) -> None:
    box = known(words[0])
    if not box["pid"]:
        fail(f"can only kill running containers; {words[0]} is not running: container state improper")
    os.kill(box["pid"], signal.Signals[words[2]])


def exec_(words: list[str]) -> None:
    """One more command in a container, as a process that no client's end takes along: it is the container's."""
    flags = []
    while words[0].startswith("--"):
        flags.append(words.pop(0))
    box = known(words.pop(0))
    if not box["pid"]:
        fail("can only create exec sessions on running containers: container state improper", 255)
    env = box["env"] | dict(flag[6:].split("=", 1) for flag in flags if flag.startswith("--env="))
    if "--interactive" not in flags:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    child = os.fork()
    if child == 0:
        if "--tty" not in flags:
            os.setsid()
        os.chdir(box["cwd"])
        try:
            os.execvpe(words[0], words, env)
        except OSError:
            fail(f"crun: executable file `{words[0]}` not found in $PATH", 127)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    sys.exit(code if code >= 0 else 128 - code)


def remove(words: list[str]) -> None:
    box = known(words[-1])
    if box.get("monitor") and not is_zombie(box["monitor"]):
        end_family(box["monitor"])
    record(words[-1]).unlink()


def main() -> None:
    STATE.mkdir(exist_ok=True)
    with (STATE / "asked.log").open("a") as log:
        log.write(json.dumps(sys.argv[1:]) + "\n")
    word, *words = sys.argv[1:]
    acts = {"image": image, "pull": pull, "create": create, "start": start, "container": container, "kill": kill}
    if word == "info":
        info()
    elif word == "daemon":
        daemon()
    else:
        {**acts, "rm": remove, "exec": exec_}[word](words)


if __name__ == "__main__":
    main()
