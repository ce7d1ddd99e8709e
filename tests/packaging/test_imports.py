"""What importing and planning load, seen from a fresh interpreter."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
COMPOSITE = ROOT / "examples" / "composite-deepseek-v3.2.json"

LOADED_BY = """
import json, sys
before = set(sys.modules)
{statement}
print(json.dumps(sorted({{name.partition(".")[0] for name in set(sys.modules) - before}} - set(sys.stdlib_module_names))))
"""

BLOCKED = """
import sys

class Blocker:
    blocked = {"torch", "numpy", "triton", "transformers", "safetensors", "tokenizers"}

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in self.blocked:
            raise ModuleNotFoundError(f"No module named {name!r} (blocked by the test)", name=name)

sys.meta_path.insert(0, Blocker())
from hal.cli import main
raise SystemExit(main(sys.argv[1:]))
"""

ALL_WITHOUT_TRITON = """
import importlib, pkgutil, sys

sys.modules["triton"] = None
import hal

# A kernel is a decorated function, so its module needs triton; it is loaded when a backend that compiles is opened.
names = [module.name for module in pkgutil.walk_packages(hal.__path__, "hal.") if ".triton.kernels." not in module.name]
for name in names:
    importlib.import_module(name)
print(len(names))
"""


def run_python(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=120)


def loaded_by(statement: str) -> set[str]:
    result = run_python(LOADED_BY.format(statement=statement))
    assert result.returncode == 0, result.stderr
    return set(json.loads(result.stdout))


def test_import_hal_loads_only_the_standard_library() -> None:
    assert loaded_by("import hal") == {"hal"}


def test_planning_loads_only_the_standard_library() -> None:
    statement = (
        "import hal; from hal.config import read_shape; "
        f"shape = read_shape({str(COMPOSITE)!r}); "
        "hal.supports_combination(hal.Request(shape.layer(0), hal.Device.from_arch('cpu'), 'bfloat16')); "
        "hal.plan(shape, hal.Device.from_arch('cpu'), limits=hal.Limits(8192, 8, 512))"
    )
    assert loaded_by(statement) == {"hal"}


def test_explain_works_without_torch_and_its_kin() -> None:
    result = run_python(BLOCKED, "explain", str(COMPOSITE), "--device", "cpu", "--device", "cuda:sm_90")
    assert result.returncode == 0, result.stderr
    assert "top 2048" in result.stdout


def test_doctor_works_without_torch_and_its_kin() -> None:
    result = run_python(BLOCKED, "doctor", "--json")
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["backends"]


def test_matrix_works_without_torch_and_its_kin() -> None:
    result = run_python(BLOCKED, "matrix")
    assert result.returncode == 0, result.stderr


def test_every_module_imports_without_triton() -> None:
    result = run_python(ALL_WITHOUT_TRITON)
    assert result.returncode == 0, result.stderr
    assert int(result.stdout) > 20
