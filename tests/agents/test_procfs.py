"""What the kernel tells of processes that have just begun."""

from __future__ import annotations

import os
import subprocess
import sys

from agents.supervisor import procfs


def test_a_process_without_an_environment_is_nameless_until_it_has_one() -> None:
    own = procfs.start_time(os.getpid())
    assert own is not None
    said = "print(flush=True); import time; time.sleep(300)"
    bare = subprocess.Popen([sys.executable, "-ISc", said], env={}, stdout=subprocess.PIPE)
    named = subprocess.Popen([sys.executable, "-ISc", said], env={procfs.MARK: "7.0"}, stdout=subprocess.PIPE)
    try:
        for process in (bare, named):
            assert process.stdout is not None
            process.stdout.readline()
        found = procfs.nameless(own)
        assert bare.pid in found
        assert named.pid not in found
        born = procfs.start_time(bare.pid)
        assert born is not None
        assert bare.pid not in procfs.nameless(born + 1)
    finally:
        for process in (bare, named):
            process.kill()
            process.communicate()
    assert bare.pid not in procfs.nameless(own)
