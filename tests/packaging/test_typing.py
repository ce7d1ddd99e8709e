"""What a user's own strict type checker makes of programs that import hal."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import hal

ROOT = Path(__file__).parents[2]
ENGINE = ROOT / "examples" / "engine.py"
PAGES = {name: (ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "docs/engine.md")}
PROGRAMS = {
    "misspelt": ("import hal\n\nhal.Plna\n", 'Module has no attribute "Plna"'),
    "misspelt_import": ("from hal import Plna\n", 'Module "hal" has no attribute "Plna"'),
    "misspelt_operator": ("import hal\n\nhal.ops.paged_atention\n", 'Module has no attribute "paged_atention"'),
    "operator_of_wrong_type": (
        "import hal\n\n\ndef merge(t: str) -> None:\n    hal.ops.merge_states(t, t, t, t)\n",
        'Argument 1 to "merge_states" has incompatible type "str"',
    ),
    "misspelt_argument": ("import hal\n\nhal.Limits(1, 2, 3, blocksize=4)\n", "Unexpected keyword argument"),
}
SOUND = {
    "every_name": "import hal\n\n" + "".join(f"hal.{name}\n" for name in dir(hal)),
    "errors": "import hal\n\ntry:\n    hal.detect()\nexcept (hal.CheckpointError, hal.NoBackend) as error:\n    print(error)\n",
    "operator": (
        "import torch\n\nimport hal\n\n\ndef merge(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:\n"
        "    return hal.ops.merge_states(a, b, a, b)[0]\n"
    ),
    "whole_engine": ENGINE.read_text(encoding="utf-8"),
    # Pages about whole models are left out: transformers takes a checker minutes.
    **{Path(name).stem.lower(): "\n".join(re.findall(r"```python\n(.*?)```", text, re.S)) for name, text in PAGES.items()},
}


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """What mypy --strict says of each program, by its name, of all of them in one run and with none of the project's settings."""
    folder = tmp_path_factory.mktemp("programs")
    texts = {**{name: text for name, (text, _) in PROGRAMS.items()}, **SOUND}
    for name, text in texts.items():
        (folder / f"{name}.py").write_text(text)
    settings = ["--strict", "--config-file=", "--follow-imports=silent", "--cache-dir", str(ROOT / ".mypy_cache" / "user")]
    result = subprocess.run(
        [sys.executable, "-m", "mypy", *settings, *sorted(f"{name}.py" for name in texts)],
        cwd=folder,
        env={**os.environ, "MYPYPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    found: dict[str, list[str]] = {name: [] for name in texts}
    for line in result.stdout.splitlines():
        place = re.match(r"(\w+)\.py:\d+: error: (.*)", line)
        if place is not None:
            found[place.group(1)].append(place.group(2))
    assert any(found.values()), result.stdout + result.stderr
    return found


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_mistake_is_an_error(name: str, said: dict[str, list[str]]) -> None:
    assert any(PROGRAMS[name][1] in error for error in said[name]), said[name]


@pytest.mark.parametrize("name", SOUND)
def test_a_sound_program_is_clean(name: str, said: dict[str, list[str]]) -> None:
    assert said[name] == []


def test_dir_has_every_public_name() -> None:
    modules = {"backend", "convert", "layouts", "ops", "pages", "parallel", "testing"}
    assert set(hal.__all__) | modules == set(dir(hal))
    assert all(hasattr(hal, name) for name in dir(hal))
