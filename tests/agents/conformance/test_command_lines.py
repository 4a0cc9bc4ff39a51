"""What may stand on an engine's command line, and what never: laws over all engines and all kinds of parts."""

from __future__ import annotations

import itertools
import json
import re
import subprocess
import threading
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agents.protocol import IMAGE, DeviceClaim
from agents.runtimes import engine_probe, engines
from agents.runtimes.engine_watch import EngineWatch
from agents.runtimes.engines import APPTAINER, DOCKER, PODMAN, Box, Engine
from tests.examples_count import examples

EVERYTHING = frozenset({"memory", "cpus", "pids"})
ENGINES = [
    Engine(name, f"/usr/bin/{name}", "1", rootless, limits)
    for name, rootless, limits in itertools.product(
        (PODMAN, DOCKER, APPTAINER), (True, False), (EVERYTHING, frozenset[str]())
    )
]
# Grants that would take a wall down, however they are spelt.
WALLS = re.compile(r"--(privileged|cap-add|pid=host|ipc=host|userns=host|uts=host|allow-setuid|keep-privs|add-caps).*")


def claim(vendor: str, index: int = 0, kind: str = "gpu", simulated: bool = False) -> DeviceClaim:
    return DeviceClaim(f"{vendor}-uuid-{index}", kind, vendor, "m", index, 1000, 0, simulated)


def box(**changes: object) -> Box:
    fields: dict[str, object] = {
        "name": "switchyard-p",
        "image": "registry.local/torch:2.9",
        "argv": ("python", "train.py"),
        "env_file": "/run/p/env.list",
        "cwd": "/run/p/work",
        "readable": ("/data/in",),
        "writable": ("/run/p/work", "/ckpt"),
        "user": (1000, 1000),
        "cpus_milli": 2500,
        "memory_bytes": 8 << 30,
        "image_file": "/cache/torch.sif",
    }
    return Box(**(fields | changes))  # type: ignore[arg-type]


def run_line(engine: Engine, of: Box) -> list[str]:
    """The line that makes the container what it is."""
    made = engines.lines(engine, of)
    return made.create or made.start


def options(engine: Engine, of: Box) -> list[str]:
    """The words before the image."""
    line = run_line(engine, of)
    return line[: len(line) - len(of.argv) - 1]


@pytest.mark.parametrize("engine", ENGINES, ids=str)
@given(argv=st.lists(st.text(st.characters(exclude_characters="\0"), max_size=8), min_size=1, max_size=5))
def test_the_command_follows_the_image_and_is_no_option(engine: Engine, argv: list[str]) -> None:
    of = box(argv=tuple(argv))
    image = of.image_file if engine.name == APPTAINER else of.image
    assert run_line(engine, of)[-len(argv) - 1 :] == [image, *argv]
    assert options(engine, of) == options(engine, box())


@pytest.mark.parametrize("engine", ENGINES, ids=str)
def test_what_somebody_enters_a_container_with_is_no_option_and_takes_no_wall_down(engine: Engine) -> None:
    for tty, stdin in itertools.product((False, True), repeat=2):
        order = {"tty": tty, "stdin": stdin, "argv": ["--privileged", "--user=0", "-v/:/host"]}
        words = engines.guest_words(engine.path, "switchyard-p", {"TERM": "xterm"}, order)
        at = words.index("switchyard-p")
        assert words[:2] == [engine.path, "exec"]
        assert words[at + 1 :] == order["argv"]
        assert {*words[2:at]} <= {"--interactive", "--tty", "--env=TERM=xterm"}
        assert ("--tty" in words[:at], "--interactive" in words[:at]) == (tty, tty or stdin)


@pytest.mark.parametrize("engine", ENGINES, ids=str)
def test_no_wall_is_taken_down(engine: Engine) -> None:
    words = options(engine, box(devices=(claim("nvidia"), claim("amd"), claim("huawei"))))
    assert [word for word in words if WALLS.fullmatch(word)] == []
    needed = {"--containall", "--no-privs"} if engine.name == APPTAINER else {"--cap-drop=ALL"}
    assert needed <= set(words)
    assert engine.name == APPTAINER or "--security-opt=no-new-privileges" in words


@pytest.mark.parametrize("engine", ENGINES, ids=str)
def test_every_option_is_one_word_so_no_value_can_become_an_option(engine: Engine) -> None:
    words = options(engine, box(devices=(claim("nvidia"), claim("amd"))))
    assert words[:2] == [engine.path, "exec" if engine.name == APPTAINER else "create"]
    assert all(word.startswith("--") for word in words[2:])


@pytest.mark.parametrize("engine", ENGINES, ids=str)
def test_only_what_is_writable_can_be_written(engine: Engine) -> None:
    words = options(engine, box())
    writable = [word for word in words if word.startswith(("--mount", "--bind")) and not _is_read_only(word)]
    assert len(writable) == 2
    assert all(any(path in word for path in ("/run/p/work", "/ckpt")) for word in writable)
    assert [word for word in words if "/data/in" in word and _is_read_only(word)]


def _is_read_only(word: str) -> bool:
    return word.endswith((",readonly", ":ro"))


@pytest.mark.parametrize("engine", ENGINES, ids=str)
@settings(max_examples=examples(30), suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(
    env=st.dictionaries(
        st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,8}", fullmatch=True),
        st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=30),
        max_size=6,
    )
)
def test_no_value_of_a_variable_stands_on_a_command_line(engine: Engine, env: dict[str, str]) -> None:
    """Command lines are public on a host; what a file cannot carry is named only."""
    content, several_lines = engines.env_text(engine, env)
    words = options(engine, box(several_lines=several_lines))
    assert [word for word in words if word.startswith("--env=")] == [f"--env={name}" for name in several_lines]
    assert set(several_lines) == (
        set() if engine.name == APPTAINER else {name for name, value in env.items() if re.search(r"[\r\n]", value)}
    )
    if engine.name == APPTAINER:
        assert _as_shell_reads(content, env) == env
    else:
        assert dict(line.split("=", 1) for line in content.split("\n")[:-1]) == {
            name: value for name, value in env.items() if name not in several_lines
        }


def _as_shell_reads(content: str, env: dict[str, str]) -> dict[str, str]:
    """What a shell makes of the file; only asked for a few, for each asks a process."""
    readonly = {"PPID", "UID", "EUID", "IFS", "PWD", "OLDPWD", "_", "PS1", "PS2", "PS4", "PATH", "OPTIND", "MAIL"}
    if not env or len(content) % 7 or readonly & set(env):
        return env
    script = content + "".join(f"printf '%s\\0' \"${name}\"\n" for name in env)
    told = subprocess.run(["/bin/sh"], input=script.encode(), capture_output=True, check=True, env={}).stdout
    return dict(zip(env, told.decode().split("\0"), strict=False))


@pytest.mark.parametrize("engine", ENGINES, ids=str)
def test_what_an_engine_cannot_limit_is_said_and_not_asked_of_it(engine: Engine) -> None:
    words = " ".join(options(engine, box()))
    missing = engines.unlimited(engine, box())
    for word, option in (("memory", "--memory="), ("cpus", "--cpu-shares="), ("pids", "--pids-limit=")):
        assert (option in words) == (word in engine.limits)
        assert any(word in sentence for sentence in missing) == (word not in engine.limits)


@pytest.mark.parametrize("engine", ENGINES, ids=str)
def test_of_what_draws_only_the_claimed_is_shown_where_it_is_known(engine: Engine) -> None:
    held = (claim("intel"),)
    words = " ".join(options(engine, box(devices=held, drawing=["/dev/dri/card1", "/dev/dri/renderD129"])))
    assert "=/dev/dri/renderD129" in words
    assert "=/dev/dri " not in f"{words} "
    assert "=/dev/dri " in " ".join([*options(engine, box(devices=held)), ""])


@pytest.mark.parametrize("engine", ENGINES, ids=str)
def test_adapters_are_shown_to_who_may_have_them_and_to_nobody_else(engine: Engine) -> None:
    assert not any("infiniband" in word or "memlock" in word for word in options(engine, box()))
    words = options(engine, box(rdma="/dev/infiniband"))
    assert any(word.endswith("=/dev/infiniband") for word in words)
    assert engine.name == engines.APPTAINER or "--ulimit=memlock=-1:-1" in words


@pytest.mark.parametrize(
    ("vendor", "podman", "docker", "apptainer"),
    [
        ("nvidia", ["--device=nvidia.com/gpu=nvidia-uuid-3"], ['--gpus="device=nvidia-uuid-3"'], ["--nv"]),
        ("amd", ["--device=/dev/kfd", "--device=/dev/dri"], ["--device=/dev/kfd", "--device=/dev/dri"], ["--rocm"]),
        ("intel", ["--device=/dev/dri"], ["--device=/dev/dri", "--group-add=render"], ["--bind=/dev/dri"]),
        (
            "huawei",
            ["--device=/dev/davinci3", "--device=/dev/davinci_manager", "--device=/dev/devmm_svm"],
            ["--device=/dev/davinci3", "--device=/dev/hisi_hdc"],
            ["--bind=/dev/davinci3"],
        ),
        ("habana", ["--device=/dev/accel/accel3", "--device=/dev/accel/accel_controlD3"], [], []),
        ("cambricon", ["--device=/dev/cambricon_dev3"], ["--device=/dev/cambricon_ctl"], []),
    ],
)
def test_claimed_devices_are_shown_as_their_vendor_documents_it(
    vendor: str, podman: list[str], docker: list[str], apptainer: list[str]
) -> None:
    of = box(devices=(claim(vendor, 3),))
    for name, expected in ((PODMAN, podman), (DOCKER, docker), (APPTAINER, apptainer)):
        words = options(Engine(name, name, rootless=name != DOCKER, limits=EVERYTHING), of)
        assert set(expected) <= set(words), words
        others = [word for word in words if re.search(r"(davinci|accel/accel|cambricon_dev|uuid-)(?!3)\d", word)]
        assert others == []


def test_a_simulated_device_and_a_cpu_are_no_device_files() -> None:
    of = box(devices=(claim("nvidia", simulated=True), claim("GenuineIntel", kind="cpu")))
    for engine in ENGINES:
        assert options(engine, of) == options(engine, box())


def test_a_vendor_nobody_has_written_down_is_refused_in_a_sentence() -> None:
    assert 'devices of vendor "unheard-of"' in engines.unusable(box(devices=(claim("unheard-of"),)))
    assert engines.unusable(box(devices=(claim("nvidia"),))) == ""


@pytest.mark.parametrize("path", ["/a,readonly=false", "/a:b", '/a"b', "relative", "/a\nb"])
def test_a_path_that_could_be_read_as_more_than_a_path_is_refused(path: str) -> None:
    assert "cannot be shown to a container" in engines.unusable(box(writable=(path,)))


@settings(max_examples=examples(40), suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(st.from_regex(IMAGE, fullmatch=True))
def test_no_name_of_an_image_looks_like_an_option(image: str) -> None:
    assert re.match(r"[A-Za-z0-9]", image)
    assert not re.search(r"[\s'\"$`\\;&|<>]", image)


def _program(folder: Path, name: str, script: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)


def test_a_client_without_its_daemon_is_passed_over_and_named(tmp_path: Path) -> None:
    _program(
        tmp_path, "docker", "echo 'Cannot connect to the Docker daemon' >&2; echo '{\"ServerErrors\": [\"x\"]}'; exit 1"
    )
    found, reason = engine_probe.find({"PATH": str(tmp_path)}, is_root=True)
    assert found is None
    assert "docker does not answer (Cannot connect to the Docker daemon)" in reason
    assert "podman is not on the agent's PATH" in reason


def test_without_root_the_engine_that_needs_none_comes_first(tmp_path: Path) -> None:
    told = {"ServerVersion": "28", "MemoryLimit": True, "PidsLimit": True, "SecurityOptions": []}
    _program(tmp_path, "docker", f"echo '{json.dumps(told)}'")
    _program(tmp_path, "apptainer", "echo apptainer version 1.3.4")
    own = {"PATH": f"{tmp_path}:/bin:/usr/bin"}
    free, _ = engine_probe.find({**own, "PATH": str(tmp_path)}, is_root=False)
    assert free is not None
    assert (free.name, free.version, free.rootless) == ("apptainer", "1.3.4", True)
    root, _ = engine_probe.find({**own, "PATH": str(tmp_path)}, is_root=True)
    assert root is not None
    assert (root.name, root.limits) == ("docker", {"memory", "pids"})
    chosen, _ = engine_probe.find({"PATH": str(tmp_path), "YARD_CONTAINER_ENGINE": "docker"}, is_root=False)
    assert chosen is not None
    assert chosen.name == "docker"
    none, reason = engine_probe.find({"YARD_CONTAINER_ENGINE": "lxc"}, is_root=False)
    assert none is None
    assert "podman, apptainer, docker" in reason


def test_a_node_says_which_engine_answers(tmp_path: Path) -> None:
    def spoken() -> str:
        watch = EngineWatch({"PATH": str(tmp_path)}, is_root=True)
        watch.look(20.0)
        watch.close()
        return watch.spoken

    assert spoken() == ""
    _program(tmp_path, "docker", "echo '{}'; exit 0")
    assert spoken() == "", "a client without its daemon runs nothing"
    _program(tmp_path, "docker", 'echo \'{"ServerVersion": "28"}\'')
    assert spoken() == "docker 28 (as root)"


def test_an_engine_that_hangs_keeps_nobody_waiting() -> None:
    answers = threading.Event()

    def ask() -> str:
        answers.wait(20)
        return "podman 5 (rootless)"

    watch = EngineWatch({}, is_root=True, ask=ask)
    watch.look(0.0)
    watch.poll()
    assert watch.spoken == ""
    answers.set()
    watch.poll(20.0)
    watch.close()
    assert watch.spoken == "podman 5 (rootless)"


@pytest.mark.parametrize(
    ("version", "rootless", "limited"), [("v1", True, False), ("v1", False, True), ("v2", True, True)]
)
def test_podman_limits_what_its_host_lends_it(version: str, rootless: bool, limited: bool) -> None:
    host = {"security": {"rootless": rootless}, "cgroupVersion": version, "cgroupControllers": ["memory", "pids", "io"]}
    found = engine_probe.podman("/p", {"host": host, "version": {"Version": "5"}})
    assert found.limits == ({"memory", "pids"} if limited else set())
