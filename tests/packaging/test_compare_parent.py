""".ci/compare-parent: what CI gates on, in repositories of two commits."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
CELL = {
    "model": "a-model",
    "dtype": "bfloat16",
    "kv_layout": "auto",
    "feature": "",
    "backends": ["cuda:triton"],
    "providers": 0,
    "state": "emulated",
    "bytes_per_token": 128,
    "reasons": [],
    "targets": ["cuda:sm_90"],
}
SUPPORT = {"schema": 1, "hal": "0", "providers": [{"cuda:triton": ["write_cache"]}], "reasons": [], "cells": [CELL]}
WORSE = {**SUPPORT, "cells": [{**CELL, "state": "declared"}]}
PARITY = {"schema": 1, "hal": "0", "platforms": ["a", "b"], "has": {"sink": ["a", "b"]}, "holes": []}
HOLE = {**PARITY, "has": {"sink": ["a"]}, "holes": [{"feature": "sink", "platform": "b", "reason": "because"}]}

Tables = tuple[dict[str, Any] | None, dict[str, Any] | None]
CASES: dict[str, tuple[Tables, Tables, str, int, str]] = {
    "nothing": ((SUPPORT, PARITY), (SUPPORT, PARITY), "Do a thing", 0, "nothing changed"),
    "worse": ((SUPPORT, PARITY), (WORSE, PARITY), "Do a thing", 1, "1 worse"),
    "worse_and_said": ((SUPPORT, PARITY), (WORSE, PARITY), "Do a thing\n\nRegresses: on purpose", 0, "Regresses: on purpose"),
    "better": ((WORSE, PARITY), (SUPPORT, PARITY), "Do a thing", 0, "better"),
    "a_new_hole": ((SUPPORT, PARITY), (SUPPORT, HOLE), "Do a thing", 1, "sink is missing on b, where it was not"),
    "a_new_hole_and_said": ((SUPPORT, PARITY), (SUPPORT, HOLE), "Do a thing\n\nRegresses: on purpose", 1, "sink is missing"),
    "the_first_tables": ((None, None), (SUPPORT, PARITY), "Do a thing", 0, "the parent commit has no matrix/support.json"),
}


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "repository"
    (folder / ".ci").mkdir(parents=True)
    (folder / "matrix").mkdir()
    shutil.copy(ROOT / ".ci" / "compare-parent", folder / ".ci")
    git(folder, "init", "--quiet", "--initial-branch=main")
    return folder


def git(folder: Path, *arguments: str) -> None:
    author = ["-c", "user.name=tester", "-c", "user.email=tester@localhost", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", *author, *arguments], cwd=folder, check=True, capture_output=True)


def commit(folder: Path, tables: Tables, message: str) -> None:
    for name, table in zip(("support", "parity"), tables, strict=True):
        if table is not None:
            (folder / "matrix" / f"{name}.json").write_text(json.dumps(table))
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--allow-empty", "--message", message)


def compare(folder: Path) -> subprocess.CompletedProcess[str]:
    hal = folder.parent / "hal"
    hal.write_text(f'#!/bin/sh\nPYTHONPATH="{ROOT}" exec "{sys.executable}" -m hal "$@"\n')
    hal.chmod(0o755)
    return subprocess.run([folder / ".ci" / "compare-parent", hal], capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize(("before", "after", "message", "code", "said"), CASES.values(), ids=CASES)
def test_a_commit_may_not_serve_less(before: Tables, after: Tables, message: str, code: int, said: str, repository: Path) -> None:
    commit(repository, before, "Begin")
    commit(repository, after, message)
    result = compare(repository)
    assert result.returncode == code, result.stdout + result.stderr
    assert said in result.stdout


def test_a_clone_without_the_parent_fails_and_a_first_commit_does_not(repository: Path, tmp_path: Path) -> None:
    commit(repository, (SUPPORT, PARITY), "Begin")
    first = compare(repository)
    assert (first.returncode, first.stdout) == (0, "a first commit has no parent to compare with\n")
    commit(repository, (SUPPORT, PARITY), "Go on")
    git(tmp_path, "clone", "--quiet", "--depth", "1", repository.as_uri(), "shallow")
    result = compare(tmp_path / "shallow")
    assert result.returncode == 1
    assert "fetch-depth: 2" in result.stderr
