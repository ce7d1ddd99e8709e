"""hal matrix diff and hal matrix parity: what changed between two tables, and whether platforms have the same."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from hal.common.contract.errors import InputError as TableError
from hal.matrix.diff import compare_tables
from hal.matrix.markdown import diff_markdown, parity_markdown
from hal.matrix.parity import compute_parity
from hal.matrix.parity_file import find_new_holes, is_parity, to_text
from hal.matrix.support_file import parse

from .console import InputError, fail, make_console
from .matrix_view import show_diff, show_parity

REGRESSED = 1
_PATIENCE_SECONDS = 300


def run_diff(arguments: tuple[str, ...], *, form: str) -> int:
    """0 after printing what changed, REGRESSED where something is worse or gone.

    Two JSON files, or installed versions of hal: a folder with bin/python, or a Python itself. InputError: neither.
    """
    if len(arguments) != 2:
        raise InputError(f"hal matrix diff has {len(arguments)} arguments; expected OLD and NEW")
    if form not in ("text", "markdown"):
        raise InputError(f"hal matrix diff prints text or --markdown, not {form}")
    old, new = ((name, _read_table(name)) for name in arguments)
    if is_parity(_parse_json(*old)) or is_parity(_parse_json(*new)):
        return _diff_parity(old, new)
    try:
        diff = compare_tables(parse(*old), parse(*new))
    except TableError as error:
        raise InputError(str(error)) from error
    if form == "markdown":
        print(diff_markdown(diff), end="")
    else:
        show_diff(diff, make_console())
    return REGRESSED if diff.has_regressed else 0


def _diff_parity(old: tuple[str, str], new: tuple[str, str]) -> int:
    before, after = _parse_json(*old), _parse_json(*new)
    if before is None or after is None or not (is_parity(before) and is_parity(after)):
        raise InputError(f"{old[0]} and {new[0]} are not both parity tables; compare like with like")
    found = find_new_holes(old[0], before, after)
    print("".join(f"{sentence}\n" for sentence in found) + f"{len(before['holes'])} holes -> {len(after['holes'])}")
    return REGRESSED if found else 0


def run_parity(arguments: tuple[str, ...], *, form: str) -> int:
    """0 after printing which platform has what; REGRESSED where a hole has no reason, or a reason no hole."""
    if arguments:
        raise InputError(f"hal matrix parity takes no {arguments[0]!r}; it looks at what is registered")
    parity = compute_parity()
    if form == "json":
        print(to_text(parity), end="")
    elif form == "markdown":
        print(parity_markdown(parity), end="")
    elif form == "text":
        show_parity(parity, make_console())
    else:
        raise InputError("hal matrix parity prints text, --json or --markdown; hal matrix --html has it too")
    without = [
        f"{feature} is missing on {name} without a reason in matrix/{name}.toml or matrix/holes.jsonl"
        for feature, name in parity.unexplained
    ]
    without += [f"a reason explains {feature} on {name}, which is no hole" for feature, name in parity.stale]
    if without:
        fail("; ".join(without))
    return REGRESSED if without else 0


def _read_table(name: str) -> str:
    path = Path(name).absolute()
    python = path / "bin" / "python" if path.is_dir() else path
    if python.is_file() and os.access(python, os.X_OK):
        return _ask_version(python)
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"{name} cannot be read ({error}); give a file of hal matrix --json, or an environment's folder"
        ) from error


def _ask_version(python: Path) -> str:
    """The table of the hal that a Python has installed."""
    command = [str(python), "-m", "hal", "matrix", "--json"]
    kept = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    try:
        # From elsewhere, so that no folder named hal comes before what is installed.
        found = subprocess.run(command, cwd=python.parent, env=kept, capture_output=True, text=True, timeout=_PATIENCE_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InputError(f"{python} does not answer {' '.join(command[1:])}: {error}") from error
    if found.returncode != 0:
        said = (found.stderr.strip().splitlines() or ["nothing"])[-1]
        raise InputError(f"{python} ends {' '.join(command[1:])} with {found.returncode}: {said}")
    return found.stdout


def _parse_json(name: str, text: str) -> dict[str, Any] | None:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise InputError(f"{name} is no JSON: {error}; expected what hal matrix --json prints") from error
    return found if isinstance(found, dict) else None
