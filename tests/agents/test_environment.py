"""What a stage's process is told, and what can never be told to it."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.devices import visible
from agents.isolation import run_as
from agents.link.server import Server, is_loopback
from agents.main import install_runtime
from agents.protocol import DeviceClaim
from agents.tasks.environment import PartPaths, environment
from deploy.local.service import ROOT
from tests.agents.yard import order

PLACES = PartPaths(Path("/parts/p"))


def claim(vendor: str, index: int, kind: str = "gpu", simulated: bool = False) -> DeviceClaim:
    return DeviceClaim(f"{vendor}-{index}", kind, vendor, "model", index, 1000, 1, simulated=simulated)


@pytest.mark.parametrize(
    ("vendor", "kind", "shown"),
    [
        ("nvidia", "gpu", {"CUDA_VISIBLE_DEVICES": "nvidia-2,nvidia-5", "NVIDIA_VISIBLE_DEVICES": "nvidia-2,nvidia-5"}),
        ("amd", "gpu", {"ROCR_VISIBLE_DEVICES": "2,5", "CUDA_VISIBLE_DEVICES": ""}),
        ("huawei", "npu", {"ASCEND_RT_VISIBLE_DEVICES": "2,5", "CUDA_VISIBLE_DEVICES": ""}),
        ("intel", "gpu", {"ZE_AFFINITY_MASK": "2,5", "CUDA_VISIBLE_DEVICES": ""}),
    ],
)
def test_each_vendor_is_told_its_claimed_devices(vendor: str, kind: str, shown: dict[str, str]) -> None:
    assert shown.items() <= visible.variables([claim(vendor, 2, kind), claim(vendor, 5, kind)]).items()


def test_neither_a_cpu_nor_a_simulated_device_is_shown_to_a_runtime() -> None:
    shown = visible.variables([claim("intel", 0, kind="cpu"), claim("nvidia", 1, simulated=True)])
    assert shown == visible.variables([])
    assert {"CUDA_VISIBLE_DEVICES": "", "NVIDIA_VISIBLE_DEVICES": "void"}.items() <= shown.items()


names = st.sampled_from(
    ["YARD_JOB_ID", "YARD_PART_ID", "CUDA_VISIBLE_DEVICES", "MASTER_ADDR", "LD_PRELOAD", "PATH", "MINE", "PYTHONPATH"]
)


@given(st.dictionaries(names, st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=9)))
def test_no_job_forges_who_it_is_or_what_it_holds(given_env: dict[str, str]) -> None:
    wanted = order("p", "true", env=given_env, devices=[claim("nvidia", 0)])
    told = environment(wanted, PLACES, {"PATH": "/bin", "AGENT_SECRET": "s"}, Path("/runtime"), "/home")
    assert told["YARD_JOB_ID"] == "7"
    assert told["YARD_PART_ID"] == "p"
    assert told["CUDA_VISIBLE_DEVICES"] == "nvidia-0"
    assert told["MASTER_ADDR"] == "127.0.0.1"
    assert told["PYTHONPATH"].endswith("/runtime")
    assert "AGENT_SECRET" not in told
    for name in {"LD_PRELOAD", "PATH", "MINE"} & given_env.keys():
        assert told[name] == given_env[name]


def test_a_stage_is_told_how_often_to_save_where_that_is_known() -> None:
    told = [environment(order("p", "x", checkpoint_every_s=every), PLACES, {}, None, "/") for every in (None, 900.5)]
    assert [each.get("YARD_CHECKPOINT_EVERY_S") for each in told] == [None, "900.5"]


def test_threads_follow_the_cores_shared_by_the_local_processes() -> None:
    wanted = order("p", "true", cpus_milli=16000, devices=[claim("nvidia", index) for index in range(4)])
    told = environment(wanted, PLACES, {}, None, "/home")
    assert (told["OMP_NUM_THREADS"], told["PET_NPROC_PER_NODE"], told["YARD_DEVICES_PER_NODE"]) == ("4", "4", "4")
    assert environment(order("p", "true", cpus_milli=10), PLACES, {}, None, "/")["OMP_NUM_THREADS"] == "1"


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "localhost"])
def test_loopback_may_be_plain(host: str) -> None:
    assert is_loopback(host)
    Server(f"http://[{host}]:8000" if ":" in host else f"http://{host}:8000")


@pytest.mark.parametrize("host", ["10.0.0.1", "example.org", "localhost.example.org", "127.0.0.1.example.org"])
def test_other_hosts_must_be_reached_over_tls(host: str) -> None:
    with pytest.raises(ValueError, match="only over https://"):
        Server(f"http://{host}")
    assert Server(f"https://{host}/yard/").socket_url("/agent") == f"wss://{host}/yard/agent"


@pytest.mark.parametrize("host", ["10.0.0.1", "web:8470"])
def test_an_operator_may_answer_for_a_private_network(host: str) -> None:
    told = Server(f"http://{host}", plain_http=True)
    assert told.is_readable_on_the_way
    assert told.socket_url("/agent") == f"ws://{host}/agent"
    assert not Server(f"https://{host}", plain_http=True).is_readable_on_the_way
    assert not Server("http://127.0.0.1", plain_http=True).is_readable_on_the_way
    with pytest.raises(ValueError, match="is not an address"):
        Server(host, plain_http=True)


def ended(state: Path, *options: str) -> subprocess.CompletedProcess[str]:
    (state / "token").write_text("a-token")
    named = ["--state", str(state / "agent"), "--join-token-file", str(state / "token"), "--name", "n1", *options]
    return subprocess.run(
        [sys.executable, "-m", "agents", *named], cwd=ROOT, capture_output=True, text=True, check=False, timeout=60
    )


def test_an_agent_that_may_not_speak_plain_http_ends_with_the_cure(tmp_path: Path) -> None:
    done = ended(tmp_path, "--url", "http://yard.invalid:9")
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert "--plain-http" in done.stderr
    assert not (tmp_path / "agent" / "node.json").exists()


def test_an_agent_that_may_tries_and_warns(tmp_path: Path) -> None:
    done = ended(tmp_path, "--url", "http://yard.invalid:9", "--plain-http")
    assert done.returncode == 1
    assert "nobody answers at http://yard.invalid:9" in done.stderr
    assert "WARNING http://yard.invalid:9 is plain HTTP" in done.stderr


def test_a_folder_that_the_user_cannot_enter_is_refused_with_the_cure(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    (closed / "parts").mkdir(parents=True)
    closed.chmod(0o700)
    other = dataclasses.replace(run_as.parse(str(os.geteuid())), name="somebody", uid=54321, gid=54321)
    with pytest.raises(ValueError, match=r"somebody, who cannot enter .*closed.*chmod o\+x"):
        other.check(closed / "parts")
    run_as.parse(str(os.geteuid())).check(closed / "parts")


def test_a_stage_is_told_how_much_memory_it_may_use_of_each_accelerator() -> None:
    def told(*claims: DeviceClaim) -> str | None:
        wanted = order("p", "true", devices=list(claims))
        return environment(wanted, PLACES, {}, None, "/home").get("YARD_DEVICE_MEMORY_BYTES")

    assert told(claim("nvidia", 0), msgspec.structs.replace(claim("nvidia", 1), memory_bytes=2**34)) == "1"
    assert told(msgspec.structs.replace(claim("nvidia", 1), memory_bytes=0)) is None
    assert told(claim("intel", 0, kind="cpu")) is None


@pytest.mark.skipif(os.geteuid() != 0, reason="changing users needs root")
def test_root_never_gives_its_rights_to_stages_by_a_harmless_word() -> None:
    with pytest.raises(ValueError, match=r"anything to this machine.*--run-as root"):
        run_as.parse("self")
    assert run_as.parse(None).name == "nobody"
    assert run_as.parse("root").name == "root"


def test_a_stage_finds_the_runtime_and_what_runs_batch_scripts(tmp_path: Path) -> None:
    folder = install_runtime(tmp_path)
    assert folder is not None
    given_files = {path.name: path.stat().st_mode & 0o777 for path in (folder / "switchyard").iterdir()}
    assert given_files == dict.fromkeys(("__init__.py", "function.py", "runtime.py", "step.py"), 0o644)
