"""Builds the sdist and from it the wheel, installs the wheel alone in a new environment, and checks it there.

Run as a script; the exit code is 0 when every check holds.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import tomllib
import venv
from pathlib import Path

ROOT = Path(__file__).parents[2]
SETUPTOOLS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
MAPPED = SETUPTOOLS["package-dir"]
DATA = (".toml", ".json", ".jsonl", ".html", ".txt")
LEFT_OUT = {f"hal/matrix/{name}" for name in ("support.json", "support.html", "parity.json")}
"""What is made of the package's data, and for people who look at the repository."""
COMPOSITE = ROOT / "examples" / "composite-deepseek-v3.2.json"
HEAVY = ("torch", "numpy", "triton", "transformers", "safetensors")


def run(*command: str | Path, cwd: Path) -> str:
    """The standard output of a command that must succeed."""
    result = subprocess.run([str(part) for part in command], cwd=cwd, capture_output=True, text=True)
    if result.returncode != 0:
        raise SystemExit(f"{' '.join(map(str, command))}\n{result.stdout}{result.stderr}")
    return result.stdout


UNMADE = """
import hal
for ask in (lambda: hal.Batch([1], [1], [[0]]), lambda: hal.ops, lambda: hal.testing):
    try:
        ask()
    except ImportError as error:
        print(error)
"""


def files_on_disk() -> set[str]:
    """Every file the wheel must hold, by its installed path."""
    found = set()
    for name, folder in MAPPED.items():
        top = ROOT / folder
        for path in top.rglob("*"):
            relative = path.relative_to(top)
            linked = any((top / part).is_symlink() for part in (relative, *relative.parents) if part != Path())
            if not linked and path.is_file() and (path.suffix in (".py", *DATA) or path.name == "py.typed"):
                found.add("/".join((*name.split("."), *relative.parts)))
    return found - LEFT_OUT


def check(name: str, holds: bool, detail: object = "") -> None:
    """One line for a check; a failed one ends the run."""
    if not holds:
        raise SystemExit(f"FAILED {name}: {detail}")
    print(f"ok {name}")


def main() -> None:
    """Runs every check in a temporary folder outside the checkout."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        run(sys.executable, "-m", "build", "--outdir", folder / "dist", ROOT, cwd=folder)
        (wheel,) = (folder / "dist").glob("*.whl")
        venv.create(folder / "clean", with_pip=True)
        binaries = folder / "clean" / "bin"
        run(binaries / "pip", "install", "--quiet", "--disable-pip-version-check", wheel, cwd=folder)
        check_installed(folder, binaries)


def check_installed(folder: Path, binaries: Path) -> None:
    """The checks on a wheel installed with its core requirements only."""
    python = binaries / "python"
    where = run(python, "-c", "import hal; print(hal.__path__[0])", cwd=folder).strip()
    check("hal comes from the clean environment", where.startswith(str(folder)), where)
    installed = Path(where).parent
    listed = {path.relative_to(installed).as_posix() for path in (installed / "hal").rglob("*") if path.is_file()}
    listed = {name for name in listed if "__pycache__" not in name}
    check("the wheel holds exactly the files on disk", listed == files_on_disk(), listed ^ files_on_disk())
    for name in (*HEAVY, "models", "config", "matrix"):
        code = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({name!r}) is not None)"
        run(python, "-c", code, cwd=folder)
    check("neither torch nor a stray top-level package is there", True)
    caught = run(python, "-c", "from hal import *; import hal; hal.CheckpointError, Batch; print('had')", cwd=folder)
    check("every name can be had without torch", caught.strip() == "had", caught)
    told = run(python, "-c", UNMADE, cwd=folder)
    check("what needs torch names the extra", told.count("hal-attention[torch]") == 3, told)
    explained = run(binaries / "hal", "explain", COMPOSITE, "--device", "cuda:sm_90", "--device", "cpu", cwd=folder)
    check("hal explain answers", "top 2048" in explained, explained)
    check("hal doctor prints", "torch" in run(binaries / "hal", "doctor", cwd=folder))
    check("hal matrix prints", "cpu" in run(binaries / "hal", "matrix", cwd=folder))


if __name__ == "__main__":
    main()
