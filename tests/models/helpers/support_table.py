"""Which text-generating types of transformers run on hal: every one, tiny and random, on one rank.

python -m tests.models.helpers.support_table            writes docs/models.md
python -m tests.models.helpers.support_table llama ...  prints the rows of these types
"""

from __future__ import annotations

import re
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
)

import hal
from hal.config import HalError
from hal.models import attach

from .shrinking import small_configs

TABLE = Path(__file__).parents[3] / "docs" / "models.md"
MOST_PARAMETERS = 30_000_000
MOST_SECONDS = 120
TOLERANCE = 1e-4
LIMITS = hal.Limits(max_model_len=128, max_num_seqs=2, max_num_batched_tokens=32, block_size=128)
RUNS, REFUSED, TOO_LARGE = "runs", "refused", "not buildable small"


@dataclass(frozen=True, slots=True)
class Row:
    """What became of one model type."""

    model_type: str
    verdict: str
    why: str = ""

    def __str__(self) -> str:
        return f"| {self.model_type} | {self.verdict} | {self.why} |"


def list_types() -> list[str]:
    """Every causal and image-text type of the installed transformers."""
    return sorted({*MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, *MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES})


def judge(model_type: str) -> Row:
    """Build the type small, hand it to hal, and hold its logits to transformers' own."""
    try:
        with _time_limit(MOST_SECONDS):
            module = _build(model_type)
            return _run(model_type, module)
    except UnbuildableError as error:
        return Row(model_type, TOO_LARGE, _one_line(error))
    except TimeoutError:
        return Row(model_type, TOO_LARGE, f"takes more than {MOST_SECONDS} s")


class UnbuildableError(Exception):
    """No way of shrinking gives a model that transformers itself can run."""


def _build(model_type: str) -> Any:
    problems = []
    for config in small_configs(model_type):
        try:
            module = _from_config(config)
            with torch.inference_mode():
                module(input_ids=torch.tensor([[5, 6, 7, 8]]), use_cache=False)
            return module
        except TimeoutError:
            raise
        except Exception as error:  # noqa: BLE001 - a model's own code may raise anything; the next way of shrinking follows
            problems.append(str(error) if isinstance(error, UnbuildableError) else f"{type(error).__name__}: {error}")
    raise UnbuildableError(problems[0] if problems else "its config class takes no smaller sizes")


def _from_config(config: Any) -> Any:
    families = (AutoModelForCausalLM, AutoModelForImageTextToText)
    is_composite = config.get_text_config(decoder=True) is not config
    family = next(each for each in (reversed(families) if is_composite else families) if type(config) in each._model_mapping)
    with torch.device("meta"):
        size = sum(parameter.numel() for parameter in family.from_config(config).parameters())
    if size > MOST_PARAMETERS:
        raise UnbuildableError(f"{size // 10**6} million parameters at the smallest")
    torch.manual_seed(0)
    module = family.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.dim() >= 2:
                parameter.normal_(0.0, 0.08)
    return module


def _run(model_type: str, module: Any) -> Row:
    tokens = torch.tensor([5, 6, 7, 8, 20, 21, 22, 23, 9, 10, 11])
    with torch.inference_mode():
        expected = module(input_ids=tokens[None], use_cache=False).logits[0]
    try:
        model = attach(module, limits=LIMITS)
        pages = model.attention.pages.allocate(1)
        parts = [(0, 7), (7, 8), (8, 11)]
        found = [model.forward(tokens[start:stop], hal.Batch([stop - start], [stop], [pages])) for start, stop in parts]
    except HalError as error:
        return Row(model_type, REFUSED, _one_line(error))
    gap = (torch.cat(found) - expected).abs().max().item()
    if not gap <= TOLERANCE * max(1.0, expected.abs().max().item()):
        return Row(model_type, "wrong", f"logits are off by {gap:.1e}")
    return Row(model_type, RUNS)


def _one_line(error: Exception) -> str:
    """The fact that an error states, without what follows from it."""
    text = " ".join(str(error).split()).replace("|", "/")
    text = re.sub(r"0x[0-9a-f]+|[/\w.-]*/site-packages/", "", text)
    return re.split(r"; |\. (?=[A-Z])", text)[0][:180].strip()


@contextmanager
def _time_limit(seconds: int) -> Iterator[None]:
    def stop(*_args: Any) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def judge_all(types: Sequence[str]) -> list[Row]:
    """One row for each type, on one thread and without transformers' own messages."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    rows = []
    for model_type in types:
        start = time.monotonic()
        rows.append(judge(model_type))
        print(rows[-1], f"{time.monotonic() - start:.1f} s", file=sys.stderr, flush=True)
    torch.set_num_threads(threads)
    return rows


def read_table() -> dict[str, Row]:
    """The rows of the page, by type."""
    cells = re.findall(r"^\| (\S+) \| ([^|]+) \| ([^|]*) \|$", TABLE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {name: Row(name, verdict, why.strip()) for name, verdict, why in cells if name not in ("type", "---")}


def write_table(rows: Sequence[Row]) -> None:
    """The page, from its rows."""
    counts = {verdict: sum(row.verdict == verdict for row in rows) for verdict in (RUNS, REFUSED, TOO_LARGE)}
    version = transformers.__version__
    lines = [
        "# Models",
        "",
        f"Every causal and image-text type of transformers {version}, built small with random weights and handed to",
        "`hal.models.attach` on the CPU, one rank: its logits are transformers' own to 1e-4, in three pieces through the paged",
        "cache, or hal says why not. Generated by `python -m tests.models.helpers.support_table`; a test works a",
        "twentieth of it out again, another one each day.",
        "",
        f"{counts[RUNS]} run, {counts[REFUSED]} are refused, {counts[TOO_LARGE]} could not be built small.",
        "",
        "| type | verdict | why |",
        "| --- | --- | --- |",
        *map(str, rows),
    ]
    TABLE.parent.mkdir(exist_ok=True)
    TABLE.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    if sys.argv[1:]:
        judge_all(sys.argv[1:])
    else:
        write_table(judge_all(list_types()))
