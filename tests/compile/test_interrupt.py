"""Ctrl-C while kernels are compiled: all that was started ends at once, and nothing is printed over the prompt."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

pytest.importorskip("triton")
if not Path("/proc/self/environ").exists():
    pytest.skip("processes are found by what /proc says of them", allow_module_level=True)

SECONDS = 1.0
"""What the command promises; a machine whose cores are all taken is given as long again."""


def find_marked(cache: Path) -> set[int]:
    """Every living process that was started with this cache, the first one and all its descendants."""
    found = set()
    for folder in Path("/proc").iterdir():
        with suppress(OSError):
            if folder.name.isdecimal() and f"TRITON_CACHE_DIR={cache}".encode() in (folder / "environ").read_bytes().split(b"\0"):
                found.add(int(folder.name))
    return found


def wait_until(holds: Callable[[], bool], seconds: float) -> bool:
    end = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


@pytest.fixture
def compiling(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """`hal compile` of the whole fleet, with nothing in its cache, in a process group of its own as a shell makes one."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    process = subprocess.Popen(
        [sys.executable, "-m", "hal", "compile", "--jobs", "2"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**environment, "TRITON_CACHE_DIR": str(tmp_path)},
        start_new_session=True,
    )
    yield process
    for one in {process.pid, *find_marked(tmp_path)}:
        with suppress(ProcessLookupError):
            os.kill(one, signal.SIGKILL)
    process.wait()


def has_compiled(cache: Path) -> bool:
    return any(cache.rglob("*.json"))


MOMENTS: dict[str, Callable[[Path], bool]] = {
    "workers_start": lambda cache: len(find_marked(cache)) >= 3,
    "workers_compile": has_compiled,
}


@pytest.mark.parametrize("reach", ["parent_alone", "whole_group"])
@pytest.mark.parametrize("moment", MOMENTS.values(), ids=MOMENTS)
def test_ctrl_c_ends_the_command_and_its_children(
    moment: Callable[[Path], bool], reach: str, compiling: subprocess.Popen[str], tmp_path: Path
) -> None:
    assert wait_until(lambda: moment(tmp_path), 60)
    send = os.kill if reach == "parent_alone" else os.killpg
    send(compiling.pid, signal.SIGINT)
    out, err = compiling.communicate(timeout=2 * SECONDS)
    assert (compiling.returncode, out, err) == (130, "", "")
    assert wait_until(lambda: not find_marked(tmp_path), SECONDS), find_marked(tmp_path)


def test_workers_do_not_outlive_a_parent_that_is_killed(compiling: subprocess.Popen[str], tmp_path: Path) -> None:
    assert wait_until(lambda: has_compiled(tmp_path), 60)
    compiling.kill()
    assert wait_until(lambda: not find_marked(tmp_path), 20), find_marked(tmp_path)
