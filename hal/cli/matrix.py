"""hal matrix: who serves which model on which arch, how far that is proved, and what other forms of the table are written."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

from hal.common.backends.detection import find_device
from hal.common.backends.registry import backends
from hal.common.contract.parallel import Parallel
from hal.config import ModelShape
from hal.config.dtypes import model_dtype_name
from hal.config.sizes import FP8, KIND_LAYOUTS
from hal.matrix.cells import DEFAULT_VARIANTS, Cell, Variant, compute_cells, fleet_targets
from hal.matrix.features import FEATURES
from hal.matrix.markdown import support_markdown
from hal.matrix.models import listed_models, read_models
from hal.matrix.page import support_page
from hal.matrix.parity import compute_parity
from hal.matrix.proof import read_evidence
from hal.matrix.support_file import to_text

from .console import InputError, checked, fail, make_console
from .matrix_view import show_cells

STALE = 1
FORMS = ("text", "json", "markdown", "html")
LAYOUTS = ("auto", FP8, *dict.fromkeys(name for names in KIND_LAYOUTS.values() for name in names))


@dataclass(frozen=True, slots=True, kw_only=True)
class Inquiry:
    """What the command line asks; what is left out is everything: the listed models, the whole fleet, each variant alone."""

    configs: tuple[Path, ...] = ()
    targets: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()
    kv_layouts: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    tp: int = 1


def run_matrix(inquiry: Inquiry, *, form: str) -> int:
    """0 after printing the table in one of FORMS."""
    if form == "text":
        # A screen has room for one variant of everything.
        is_open = not (inquiry.dtypes or inquiry.kv_layouts or inquiry.features)
        show_cells(compute(replace(inquiry, dtypes=(Variant().dtype,)) if is_open else inquiry), make_console())
        return 0
    cells = compute(inquiry)
    print(render(cells, form), end="")
    return 0


def compute(inquiry: Inquiry) -> tuple[Cell, ...]:
    """The cells that were asked for. InputError for a model, target, dtype, layout or feature that there is not."""
    missing = [config for config in inquiry.configs if not config.exists()]
    if missing:
        raise InputError(f"{missing[0]} does not exist; give a config.json or the model folder that holds one")
    models: dict[str, ModelShape] = read_models(inquiry.configs) if inquiry.configs else listed_models()
    devices = tuple(checked(find_device, target) for target in inquiry.targets) or fleet_targets()
    repeated = [device.target for device in devices if devices.count(device) > 1]
    if repeated:
        raise InputError(f"--device names {repeated[0]} twice; expected each target once")
    checked(lambda tp: Parallel(tp=tp), inquiry.tp)
    return compute_cells(models, devices, _variants(inquiry), inquiry.tp)


def _variants(inquiry: Inquiry) -> Sequence[Variant]:
    """All that were asked for, crossed; each of the usual ones alone where nothing was."""
    dtypes = [checked(model_dtype_name, dtype) for dtype in inquiry.dtypes]
    _check_names("--kv-layout", inquiry.kv_layouts, LAYOUTS)
    _check_names("--feature", inquiry.features, FEATURES)
    if not (dtypes or inquiry.kv_layouts or inquiry.features):
        return DEFAULT_VARIANTS
    plain = Variant()
    crossed = product(dtypes or (plain.dtype,), inquiry.kv_layouts or (plain.kv_layout,), inquiry.features or (plain.feature,))
    return tuple(dict.fromkeys(replace(plain, dtype=dtype, kv_layout=layout, feature=name) for dtype, layout, name in crossed))


def _check_names(option: str, given: Iterable[str], known: Collection[str]) -> None:
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise InputError(f"{option} is {name!r}; {hint}known: {', '.join(known)}")


def render(cells: Sequence[Cell], form: str) -> str:
    """The table as JSON, Markdown or an HTML page."""
    makers: dict[str, Callable[[], str]] = {
        "json": lambda: to_text(cells),
        "markdown": lambda: support_markdown(cells, read_evidence()),
        "html": lambda: support_page(cells, compute_parity(), read_evidence()),
    }
    return makers[form]()


def generate_files() -> dict[str, str]:
    """Every generated file of matrix/ by its name, for the whole fleet and the listed models."""
    from hal.matrix.markdown import parity_markdown
    from hal.matrix.parity_file import to_text as parity_to_text

    own = [name for name in backends() if _is_foreign(name)]
    if own:
        raise InputError(f"{', '.join(own)} would be in the table, and is none of hal's; set HAL_PLUGINS=none")
    cells, parity = compute(Inquiry()), compute_parity()
    return {
        "support.json": render(cells, "json"),
        "support.md": render(cells, "markdown"),
        "support.html": render(cells, "html"),
        "parity.json": parity_to_text(parity),
        "parity.md": parity_markdown(parity),
    }


def _is_foreign(name: str) -> bool:
    return backends()[name].__module__.partition(".")[0] != __name__.partition(".")[0]


def write_files(folder: Path) -> int:
    """0 after writing the generated files into a folder."""
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder; give the one that holds support.json, which is matrix/ in a checkout")
    for name, text in generate_files().items():
        (folder / name).write_text(text, encoding="utf-8")
    return 0


def check_files(folder: Path) -> int:
    """0 where a folder's generated files are what would be written, STALE with their names where some are not."""
    stale = [name for name, text in generate_files().items() if _read(folder / name) != text]
    if not stale:
        return 0
    fail(f"{', '.join(str(folder / name) for name in stale)} is not what this checkout gives; run hal matrix --write {folder}")
    return STALE


def _read(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.is_file() else None
