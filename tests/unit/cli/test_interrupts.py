"""Ctrl-C at any moment, and readers that leave: the exit code, and nothing that looks like a crash."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

INTERRUPTED_AT_IMPORT = """
import os, signal, sys

class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            sys.meta_path.remove(self)
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupt())
from hal.cli import main
sys.exit(main())
"""
DROPPED = """
import os, signal, sys, time
from hal.cli.interrupts import take_interrupts

class Careless:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(10)

take_interrupts()
one = Careless()
del one
print("went on")
"""
LLAMA = {
    "model_type": "llama",
    "num_hidden_layers": 1,
    "hidden_size": 64,
    "num_attention_heads": 2,
    "vocab_size": 10,
    "max_position_embeddings": 16,
}


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA))
    return path


def run_python(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize(
    "module",
    ["hal.cli.app", "typer", "rich.console", "hal.config.reader", "hal.common.backends.registry", "hal.cli.explain_view"],
)
def test_ctrl_c_during_any_import_ends_without_a_word(module: str, config: Path) -> None:
    result = run_python(INTERRUPTED_AT_IMPORT.format(module=module), "explain", str(config), "--device", "cpu")
    assert (result.returncode, result.stdout, result.stderr) == (130, "", "")


def test_ctrl_c_that_a_destructor_drops_ends_the_process() -> None:
    result = run_python(DROPPED)
    assert (result.returncode, result.stdout, result.stderr) == (130, "", "")


def test_ctrl_c_stays_ignored_where_the_process_was_started_so(config: Path) -> None:
    code = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)" + INTERRUPTED_AT_IMPORT.format(module="rich.console")
    assert run_python(code, "explain", str(config), "--device", "cpu").returncode == 0


COMMANDS = {
    "help": ["--help"],
    "help-of-a-command": ["explain", "--help"],
    "explain": ["explain", "{}", "--device", "cpu"],
    "explain-json": ["explain", "{}", "--device", "cpu", "--json"],
    "matrix": ["matrix"],
    "matrix-json": ["matrix", "--json"],
}


@pytest.mark.parametrize("is_buffered", [True, False], ids=["at_the_end", "at_once"])
@pytest.mark.parametrize("arguments", COMMANDS.values(), ids=COMMANDS)
def test_a_reader_that_has_left_is_no_failure(arguments: list[str], is_buffered: bool, config: Path) -> None:
    """The pipe has no reader from the beginning: the first byte that is written meets that, whenever it is written."""
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, *([] if is_buffered else ["-u"]), "-m", "hal", *arguments]
    result = subprocess.run(
        [part.replace("{}", str(config)) for part in command],
        stdout=writing,
        stderr=subprocess.PIPE,
        text=True,
        timeout=120,
    )
    os.close(writing)
    assert (result.returncode, result.stderr) == (0, "")


def test_a_mistake_stays_one_where_nobody_reads_why(config: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "hal", "explain", str(config), "--device", "nothing"]
    result = subprocess.run(command, stdout=writing, stderr=writing, timeout=60)
    os.close(writing)
    assert result.returncode == 2


def test_a_second_ctrl_c_kills() -> None:
    code = (
        "import os, signal\nfrom hal.cli.interrupts import take_interrupts\ntake_interrupts()\n"
        "try:\n    os.kill(os.getpid(), signal.SIGINT)\nexcept KeyboardInterrupt:\n    os.kill(os.getpid(), signal.SIGINT)"
    )
    result = run_python(code)
    assert (result.returncode, result.stderr) == (-signal.SIGINT, "")
