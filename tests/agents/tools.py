"""Vendors' tools for tests: scripts on the PATH that print a fixture, or misbehave as real tools do."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from agents.devices.cards import CardProbe
from agents.devices.vendors import (
    ProbedHost,
    amd,
    ascend,
    biren,
    cambricon,
    command,
    enflame,
    gaudi,
    hygon,
    iluvatar,
    intel,
    kunlunxin,
    metax,
    mthreads,
    tpu,
)

FIXTURES = Path(__file__).with_name("fixtures")
MIB, GIB = 1 << 20, 1 << 30

Measured = tuple[float | None, int | None, float | None, float | None]
"""Utilisation, used bytes, watts, degrees."""


@dataclass(frozen=True)
class Case:
    """A tool with two devices: what it prints to which arguments, and what that means."""

    make: Callable[[ProbedHost], CardProbe]
    tool: str
    answers: Mapping[str, str]
    model: str
    memory_bytes: int
    first: Measured
    second: Measured
    uuids: tuple[str, str] | None = None
    cut: str = ""
    """What to strip from the fixtures for the second device to be gone, as a pattern."""
    pci: tuple[str, str] | None = None
    healths: tuple[str, str] = ("OK", "OK")
    vendors: tuple[str, ...] = ()
    """PCI vendors that must be on the host."""


NOTHING: Measured = (None, None, None, None)


def command_probe(host: ProbedHost) -> CardProbe:
    """The probe of a command of the administrator's, as the folder scan makes it."""
    listed = command.Command(name="annealer", run=["list-annealers", "--json"])
    (made,) = command.probes(replace(host, commands=(listed,))).values()
    assert isinstance(made, CardProbe)
    return made


_FRAMED = r"\|\s+1 +[A-Z].*?(?=\+-)\+-[-+]+\+\n"

CASES = {
    "amd-smi": Case(
        amd.probe, "amd-smi", {"static *": "amd-smi_static.json", "metric *": "amd-smi_metric.json"},
        "AMD Instinct MI300X", 196592 * MIB, (0.75, GIB, 520.0, 66.0), NOTHING,
        cut=r",\s*\{\"gpu\": 1,.*\}(?=\s*\])", pci=("0000:05:00.0", "0000:06:00.0"),
    ),
    "rocm-smi": Case(
        amd.probe, "rocm-smi", {"*": "rocm-smi.json"}, "AMD Instinct MI210", 68702699520,
        (0.12, 10850304, 90.0, 44.0), NOTHING, cut=r"\"card1\".*?\},", pci=("0000:43:00.0", "0000:63:00.0"),
    ),
    "npu-smi": Case(
        ascend.probe, "npu-smi", {"info": "npu-smi.txt"}, "Ascend 910B3", 65536 * MIB,
        (0.91, 40960 * MIB, 301.5, 58.0), (None, 3400 * MIB, None, None),
        cut=r"\| 6  .*?=\+\n", pci=("0000:c1:00.0", "0000:c2:00.0"), healths=("OK", "DEGRADED"),
    ),
    "hl-smi query": Case(
        gaudi.probe, "hl-smi", {"-Q *": "hl-smi.csv"}, "HL-225", 98304 * MIB,
        (0.64, 20480 * MIB, 410.0, 55.0), NOTHING, cut=r"1, 01P0.*\n",
        uuids=("01P0-HL2080A0-15-TNAA01-00-00-00", "01P0-HL2080A0-15-TNAA02-00-00-00"),
        pci=("0000:19:00.0", "0000:1a:00.0"),
    ),
    "hl-smi table": Case(
        gaudi.probe, "hl-smi", {"": "hl-smi.txt"}, "HL-225", 98304 * MIB,
        (0.64, 20480 * MIB, 410.0, 55.0), (None, 512 * MIB, None, None),
        cut=r"\|   1  HL-225.*?-\+\n", pci=("0000:19:00.0", "0000:1a:00.0"),
    ),
    "xpu-smi of Intel": Case(
        intel.probe, "xpu-smi", {"discovery *": "xpu-smi_discovery.json", "dump *": "xpu-smi_dump.csv"},
        "Intel(R) Data Center GPU Max 1100", 51539607552, (0.4, 12288 * MIB, 180.5, 49.0), NOTHING,
        cut=r"  \{\"device_id\": 1.*?\},\n|10:00:01\.001.*\n", pci=("0000:29:00.0", "0000:3a:00.0"),
        vendors=("0x8086",),
    ),
    "cnmon 4": Case(
        cambricon.probe, "cnmon", {"": "cnmon_v4.txt"}, "MLU370-S4", 23308 * MIB,
        (0.33, 8192 * MIB, 61.0, 48.0), (None, 0, None, None), cut=r"\| 1     /.*?-\+\n",
    ),
    "cnmon 5": Case(
        cambricon.probe, "cnmon", {"": "cnmon_v5.txt"}, "MLU590", 81920 * MIB,
        (0.97, 65536 * MIB, 402.0, 61.0), (None, 0, None, None), cut=r"\| 1     /.*?-\+\n",
        pci=("0000:1b:00.0", "0000:1d:00.0"),
    ),
    "mthreads-gmi": Case(
        mthreads.probe, "mthreads-gmi", {"": "mthreads-gmi.txt"}, "MTT S4000", 49152 * MIB,
        (0.55, 8192 * MIB, None, 63.0), (None, 100 * MIB, None, None), cut=r"1    MTT.*?N/A +\n(?=-)",
        pci=("0000:41:00.0", "0000:42:00.0"), healths=("OK", "DEGRADED"),
    ),
    "tpu-info": Case(
        tpu.probe, "tpu-info", {"": "tpu-info.txt"}, "TPU v5e", 16 * GIB,
        (0.625, 8 * GIB, None, None), NOTHING, cut=r"\| /dev/vfio/1.*?\n|\| 3    .*?\n",
    ),
    "hy-smi": Case(
        hygon.probe, "hy-smi", {"--show*": "hy-smi.json"}, "BW", 65520 * MIB,
        (0.8, 4096 * MIB, 251.0, 57.0), NOTHING, cut=r",\s*\"card1\".*?\}(?=\})",
        pci=("0000:09:00.0", "0000:36:00.0"),
    ),
    "hy-smi table": Case(
        hygon.probe, "hy-smi", {"": "hy-smi.txt"}, "Hygon DCU", 0,
        (0.8, None, 251.0, 57.0), NOTHING, cut=r"1       N/A.*?\n",
    ),
    "xpu-smi of Kunlunxin": Case(
        kunlunxin.probe, "xpu-smi", {"": "kunlunxin.txt"}, "P800 OAM", 98304 * MIB,
        (0.88, 49152 * MIB, 310.0, 61.0), (None, 0, None, None), cut=r"\|   1  P800.*?-\+\n",
        pci=("0000:03:00.0", "0000:05:00.0"), vendors=("0x1d22", "0x8086"),
    ),
    "ixsmi": Case(
        iluvatar.probe, "ixsmi", {"": "ixsmi.txt", "--query-gpu=*": "ixsmi.csv"}, "Iluvatar BI-V150", 32768 * MIB,
        (0.71, 16384 * MIB, 193.0, 52.0), (None, 116 * MIB, None, None),
        uuids=("GPU-11111111-2222-3333-4444-555555555555", "GPU-11111111-2222-3333-4444-666666666666"),
        cut=r"\| 1    Iluvatar.*?-\+\n|1, GPU.*\n", pci=("0000:13:00.0", "0000:16:00.0"),
    ),
    "mx-smi": Case(
        metax.probe, "mx-smi", {"": "mx-smi.txt", "-L": "mx-smi_list.txt"}, "MetaX C500", 65536 * MIB,
        (0.45, 32768 * MIB, 210.0, 55.0), (None, 858 * MIB, None, None),
        uuids=("GPU-aaaa0000-0000-0000-0000-000000000001", "GPU-aaaa0000-0000-0000-0000-000000000002"),
        cut=r"\| 1           MetaX.*?-\+\n|GPU#1.*\n", pci=("0000:08:00.0", "0000:09:00.0"),
    ),
    "efsmi": Case(
        enflame.probe, "efsmi", {"-q": "efsmi.txt"}, "Enflame S60", 42976 * MIB,
        (0.73, 8192 * MIB, 196.0, 55.0), NOTHING, uuids=("TR0000000001", "TR0000000002"),
        cut=r"DEV ID 1\n.*N/A\n", pci=("0000:17:00.0", "0000:18:00.0"), healths=("OK", "DEGRADED"),
    ),
    "command": Case(
        command_probe,
        "list-annealers",
        {"--json": "command.json"},
        "Example Annealer 128",
        MIB,
        (0.5, 1024, 25.0, -12.5),
        NOTHING,
        cut=r",\s*\{\"uuid\": \"annealer-1.*?\}(?=\s*\])",
        uuids=("annealer-0", "annealer-1"),
        healths=("OK", "DEGRADED"),
    ),
    "brsmi": Case(
        biren.probe, "brsmi", {"gpu *": "brsmi.csv"}, "Biren106M", 32512 * MIB,
        (0.6, 8128 * MIB, 120.5, 51.0), NOTHING, uuids=("BR-0000-0001", "BR-0000-0002"), cut=r"1, BR.*\n",
        pci=("0000:3b:00.0", "0000:5e:00.0"),
    ),
}  # fmt: skip


class Bench:
    """A host with one tool of a case on its PATH; what the tool does can be changed between two looks."""

    def __init__(self, case: Case, folder: Path) -> None:
        self.case = case
        self.bin = folder / "bin"
        self.root = folder / "root"
        self.bin.mkdir(parents=True)
        self.texts = {pattern: (FIXTURES / name).read_text() for pattern, name in case.answers.items()}
        for at, vendor in enumerate(case.vendors):
            device = self.root / f"sys/bus/pci/devices/0000:00:{at:02x}.0"
            device.mkdir(parents=True)
            (device / "vendor").write_text(f"{vendor}\n")
        self.tell(self.texts)

    @property
    def host(self) -> ProbedHost:
        return ProbedHost("test", self.root)

    def probe(self) -> CardProbe:
        return self.case.make(self.host)

    def tell(self, texts: Mapping[str, str]) -> None:
        """Let the tool answer with these texts, by arguments; to all others it answers nothing and fails."""
        arms = []
        for number, (pattern, text) in enumerate(texts.items()):
            file = self.bin / f"{number}.answer"
            file.write_text(text)
            quoted = "*".join(shlex.quote(piece) if piece else "" for piece in pattern.split("*")) or '""'
            arms.append(f"  {quoted}) cat {shlex.quote(str(file))};;")
        self.behave('case "$*" in\n' + "\n".join(arms) + "\n  *) exit 3;;\nesac")

    def behave(self, script: str) -> None:
        """Let the tool be this shell script."""
        draft = self.bin / "draft"
        draft.write_text(f"#!/bin/sh\n{script}\n")
        draft.chmod(0o755)
        draft.rename(self.bin / self.case.tool)
