"""What importing and planning load, seen from a fresh interpreter."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

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
"""

COMMAND = (
    BLOCKED
    + """
from hal.cli import main
raise SystemExit(main(sys.argv[1:]))
"""
)

PLANNED = (
    BLOCKED
    + """
import hal

config = {"model_type": "llama", "num_hidden_layers": 1, "hidden_size": 64, "num_attention_heads": 2, "vocab_size": 10,
          "max_position_embeddings": 16}
plan = hal.plan(hal.read_shape(config), "cpu", limits=hal.Limits(16, 2, 16), dtype="float32")
"""
)

NEEDS_TORCH = {
    "open": "plan.open()",
    "bind": "plan.bind({})",
    "batch": "hal.Batch([1], [1], [[0]])",
    "device-batch": "hal.Batch.from_device(None, None, None)",
    "ops": "hal.ops.paged_attention",
    "import-ops": "import hal.ops",
    "testing": "hal.testing.conformance_cases",
    "import-testing": "from hal.testing import conformance_cases",
    "import-convert": "from hal.convert import convert_cache",
    "pages": "hal.pages.PagePool(4)",
    "import-models": "from hal.models import load",
    "kernels": "hal.kernels('cpu')",
}

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
    result = run_python(COMMAND, "explain", str(COMPOSITE), "--device", "cpu", "--device", "cuda:sm_90")
    assert result.returncode == 0, result.stderr
    assert "top 2048" in result.stdout


def test_doctor_works_without_torch_and_its_kin() -> None:
    result = run_python(COMMAND, "doctor", "--json")
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["backends"]


def test_matrix_works_without_torch_and_its_kin() -> None:
    result = run_python(COMMAND, "matrix")
    assert result.returncode == 0, result.stderr


def test_every_module_imports_without_triton() -> None:
    result = run_python(ALL_WITHOUT_TRITON)
    assert result.returncode == 0, result.stderr
    assert int(result.stdout) > 20


def test_every_public_name_can_be_had_and_caught_without_torch() -> None:
    code = BLOCKED + (
        "import hal\nfrom hal import *\n"
        "missing = [name for name in hal.__all__ if name not in globals()]\n"
        "try:\n    raise hal.HalError('seen')\n"
        "except (hal.CheckpointError, CapacityError):\n    pass\nexcept HalError as error:\n    print(missing, error)\n"
        "print(isinstance(1, (Batch, hal.Attention)))"
    )
    result = run_python(code)
    assert (result.stdout, result.returncode) == ("[] seen\nFalse\n", 0), result.stderr


def test_the_checkpoint_error_is_one_class() -> None:
    assert loaded_by("import hal; hal.CheckpointError; hal.MissingLibraryError") == {"hal"}
    result = run_python("import hal, hal.models; print(hal.models.CheckpointError is hal.CheckpointError)")
    assert result.stdout == "True\n"


@pytest.mark.parametrize("statement", NEEDS_TORCH.values(), ids=NEEDS_TORCH)
def test_what_needs_torch_names_the_extra(statement: str) -> None:
    result = run_python(PLANNED + statement)
    said = result.stderr.splitlines()[-1]
    assert result.returncode == 1
    assert "which is not installed: pip install 'hal-attention[torch]'" in said
    assert said.startswith("hal.common.contract.errors.MissingLibraryError: ")


def test_a_command_that_needs_torch_names_the_extra_in_a_line(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(COMPOSITE.read_text())
    result = run_python(COMMAND, "generate", str(tmp_path), "Hello")
    assert result.returncode == 2
    assert "Traceback" not in result.stderr
    assert "pip install 'hal-attention[" in result.stderr
    assert result.stderr.count("\n") == 1
