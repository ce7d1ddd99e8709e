"""Every code block of README and docs does what it says, in a fresh process on the CPU."""

from __future__ import annotations

import doctest
import json
import os
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
import yaml

from .helpers.pages import BLOCKS, COMMANDS, LANGUAGES, PAGES, ROOT, Block, Command

PROGRAMS = [page for page in PAGES if any(block.page == page and block.is_program for block in BLOCKS)]
OWN = [command for command in COMMANDS if command.is_own]
INSTALL = "pip install ."
_WITHOUT_INDEX = ["--quiet", "--no-deps", "--no-index", "--no-build-isolation", "--disable-pip-version-check"]
_MARK = "\x00"
_RUNNER = f"""
import json, sys
scope = {{"__name__": "__main__"}}
for path, line, text in json.load(sys.stdin):
    exec(compile("\\n" * (line - 1) + text, path, "exec"), scope)
    print({_MARK!r}, end="", flush=True)
"""
"""Runs the parts of a program one after the other, under their own lines, and marks where each ends in what it prints."""

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint folder with a tokenizer, as small as one can be."""
    import torch
    import transformers
    from tokenizers import Tokenizer, models, pre_tokenizers

    folder = tmp_path_factory.mktemp("checkpoint")
    words = {word: index for index, word in enumerate(("[UNK]", "What", "is", "the", "capital", "of", "France", "?"))}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]").save_pretrained(folder)
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=len(words),
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=256,
    )
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, checkpoint: Path) -> Callable[[str], Run]:
    """By page: what runs a command in the page's own folder, which holds its files, the examples and a checkpoint."""
    made: dict[str, Run] = {}

    def find(page: str) -> Run:
        if page not in made:
            made[page] = _prepare(page, tmp_path_factory.mktemp("page"), checkpoint)
        return made[page]

    return find


def _prepare(page: str, folder: Path, checkpoint: Path) -> Run:
    (folder / "examples").symlink_to(ROOT / "examples")
    (folder / "model").symlink_to(checkpoint)
    for block in BLOCKS:
        if block.page == page and block.file is not None:
            path = folder / block.file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text, encoding="utf-8")
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("HAL_", "PYTHON"))}
    environ |= {"PYTHONPATH": os.pathsep.join([str(folder / "site"), str(ROOT)]), "COLUMNS": "100", "HF_HUB_OFFLINE": "1"}
    environ["OMP_NUM_THREADS"] = "1"

    def run(*words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        command = [sys.executable, *words]
        return subprocess.run(command, cwd=folder, env=environ, input=stdin, text=True, capture_output=True, check=False)

    if any(command.block.page == page and command.words == INSTALL for command in COMMANDS):
        done = run("-m", "pip", "install", *_WITHOUT_INDEX, "--target", "site", ".")
        assert done.returncode == 0, done.stderr
    return run


@pytest.mark.parametrize("page", PROGRAMS)
def test_the_program_of_a_page_runs_and_prints_what_the_page_says(page: str, runs: Callable[[str], Run]) -> None:
    blocks = [block for block in BLOCKS if block.page == page]
    parts = [block for block in blocks if block.is_program]
    given = json.dumps([(str(PAGES[page]), block.line, block.text) for block in parts])
    done = runs(page)("-c", _RUNNER, stdin=given)
    assert done.returncode == 0, done.stdout + done.stderr
    printed = dict(zip([block.id for block in parts], done.stdout.split(_MARK), strict=False))
    for block, after in pairwise(blocks):
        if after.language == "text":
            assert_shows(after.id, after.text, printed[block.id])


@pytest.mark.parametrize("command", OWN, ids=lambda command: command.id)
def test_a_command_prints_what_the_page_says(command: Command, runs: Callable[[str], Run]) -> None:
    name, *words = shlex.split(command.words)
    done = runs(command.block.page)(*(["-m", "hal"] if name == "hal" else []), *words)
    assert done.returncode == 0, done.stdout + done.stderr
    if command.output is not None:
        assert_shows(command.id, command.output, done.stdout)


def assert_shows(where: str, shown: str, printed: str) -> None:
    """The output on a page, of which `...` may leave out any part, but not all, is what came out."""
    wanted, got = ("\n".join(line.rstrip() for line in text.strip("\n").splitlines()) + "\n" for text in (shown, printed))
    assert wanted.replace("...", "").strip(), f"{where} shows nothing"
    assert doctest.OutputChecker().check_output(wanted, got, doctest.ELLIPSIS), f"{where} shows\n{wanted}\nprinted was\n{got}"


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.id)
def test_a_block_can_be_read(block: Block) -> None:
    assert block.language in LANGUAGES, f"{block.id}: a block of {block.language!r}; expected one of {sorted(LANGUAGES)}"
    if block.language == "python":
        compile(block.text, block.id, "exec")
    elif block.language == "toml":
        tomllib.loads(block.text)
    elif block.language == "yaml":
        assert yaml.safe_load(block.text)
    elif block.language == "sh":
        assert subprocess.run(["bash", "-n"], input=block.text, text=True, capture_output=True).stderr == ""


def test_output_stands_under_what_prints_it() -> None:
    for page in PAGES:
        blocks = [block for block in BLOCKS if block.page == page]
        for before, block in zip([None, *blocks], blocks, strict=False):
            assert block.language != "text" or (before is not None and before.is_program), f"{block.id} is nobody's output"


def test_what_a_console_shows_is_run() -> None:
    assert [command.id for command in COMMANDS if command.output is not None and not command.is_own] == []
    assert OWN
    assert len(PROGRAMS) > 1
