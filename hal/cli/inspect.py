"""hal inspect: what loading a checkpoint folder would do, from its headers."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hal.common.contract.parallel import Parallel
from hal.config import HalError, read_shape

from .console import InputError, fail, make_console, print_json
from .inspect_view import show_plan

SCHEMA = 1
"""Of the JSON: raised when a field changes its name or its meaning."""


def run_inspect(folder: Path, tp: int, *, as_json: bool) -> int:
    """0 for a folder that loads as it is, 2 for one that does not, after a line on stderr that says why."""
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder; give the folder that holds config.json and the .safetensors files")
    parallel = Parallel(tp=tp)
    missing = [name for name in ("torch", "transformers") if find_spec(name) is None]
    if missing:
        raise InputError(f"{' and '.join(missing)} not installed; pip install 'hal-attention[models]'")
    if (folder / "config.json").is_file():
        read_shape(folder)
    plan = _plan(folder, parallel)
    if as_json:
        from hal.models.summary import to_dict

        print_json({"schema": SCHEMA, "hal": version("hal-attention"), "tp": tp, **to_dict(plan)})
    else:
        show_plan(plan, make_console())
    try:
        plan.raise_if_bad()
    except HalError as error:
        return fail(str(error))
    return 0


def _plan(folder: Path, parallel: Parallel) -> Any:
    with _kept_garbage():
        from transformers.utils import logging as transformers_logging

        from hal.models import plan_checkpoint

        transformers_logging.set_verbosity_error()
        return plan_checkpoint(folder, parallel=parallel)


@contextmanager
def _kept_garbage() -> Iterator[None]:
    """Within the block no garbage is collected: imports and plans make next to none, and looking for it takes a third of both."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
