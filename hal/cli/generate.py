"""hal generate: one prompt, one answer, streamed."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hal.common.backends.detection import find_device
from hal.common.contract.environment import read_variable
from hal.common.contract.limits import Limits
from hal.config import ModelShape, read_shape
from hal.config.dtypes import model_dtype_name

from .console import InputError, check_backend_name, checked

STDIN = "-"
SHORT_ANSWER = 128
MOST_TEMPERATURE = 100.0
STEP_TOKENS = 2048
"""Prompt tokens per step: long prompts run in pieces of this size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """What the command line asks; an empty device means this machine's best, max_new_tokens None a short answer.

    text: the prompt, or "-" for what stdin has. temperature, top_p, seed: as of Model.generate.
    """

    folder: Path
    text: str
    device: str = ""
    backend: str | None = None
    dtype: str = "auto"
    max_new_tokens: int | None = None
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int | None = None
    raw: bool = False
    stats: bool = False


def run_generate(prompt: Prompt) -> int:
    """0, after streaming the answer to stdout. InputError and hal's other errors come before a weight is read."""
    _check_sampling(prompt)
    if prompt.text == STDIN:
        prompt = replace(prompt, text=_read_stdin())
    if not prompt.text.strip():
        raise InputError("the prompt is empty; give the model something to continue")
    if not prompt.folder.is_dir():
        raise InputError(f"{prompt.folder} is not a folder; give a model folder with config.json and safetensors files")
    if prompt.device:
        checked(find_device, prompt.device)
    if prompt.dtype != "auto":
        checked(model_dtype_name, prompt.dtype)
    check_backend_name(prompt.backend)
    shape = read_shape(prompt.folder)
    missing = [name for name in ("torch", "transformers") if find_spec(name) is None]
    if missing:
        raise InputError(f"{' and '.join(missing)} not installed; pip install 'hal-attention[models]'")
    return _generate(prompt, shape)


def _check_sampling(prompt: Prompt) -> None:
    """Raise InputError; said here because hal.models, which checks too, is only imported once weights are wanted."""
    if not 0.0 <= prompt.temperature <= MOST_TEMPERATURE:
        raise InputError(f"--temperature is {prompt.temperature:g}; expected 0 (the likeliest token) to {MOST_TEMPERATURE:g}")
    if not 0.0 < prompt.top_p <= 1.0:
        raise InputError(f"--top-p is {prompt.top_p:g}; expected more than 0 and at most 1")
    if prompt.seed is not None and not 0 <= prompt.seed < 2**63:
        raise InputError(f"--seed is {prompt.seed}; expected 0 to {2**63 - 1}")


def _read_stdin() -> str:
    """All of stdin without the line break at its end, which a shell adds."""
    try:
        text = sys.stdin.read()
    except UnicodeDecodeError as error:
        raise InputError(f"stdin is no text: {error}; give the prompt as {error.encoding}") from error
    return text.removesuffix("\n").removesuffix("\r")


def _generate(prompt: Prompt, shape: ModelShape) -> int:
    from transformers.utils import logging as transformers_logging

    from hal.models import load
    from hal.models.text import read_tokenizer

    if read_variable("HAL_LOG") is None:
        # Advice on how transformers is called is none of the user's business here.
        transformers_logging.set_verbosity_error()
    started = time.perf_counter()
    tokenizer = read_tokenizer(prompt.folder)
    if tokenizer is None:
        raise InputError(f"{prompt.folder} holds no tokenizer; hal generate needs tokenizer.json beside the weights")
    tokens = _encode(prompt, tokenizer)
    count = _count_new(len(tokens), prompt.max_new_tokens, shape)
    model = load(
        prompt.folder,
        device=prompt.device or None,
        dtype=None if prompt.dtype == "auto" else prompt.dtype,
        backend=prompt.backend,
        limits=Limits(len(tokens) + count, 1, min(len(tokens), STEP_TOKENS)),
        progress=sys.stderr.isatty(),
    )
    loaded = time.perf_counter()
    stream = _Stream(tokenizer)
    model.generate([tokens], count, temperature=prompt.temperature, top_p=prompt.top_p, seed=prompt.seed, on_token=stream.put)
    stream.end()
    if prompt.stats:
        sys.stderr.write(stream.describe(len(tokens), loaded - started, loaded, _where(model)))
    return 0


def _encode(prompt: Prompt, tokenizer: Any) -> list[int]:
    """Token ids; a conversation of one message where the tokenizer has a chat template."""
    if prompt.raw or not tokenizer.chat_template:
        return list(tokenizer.encode(prompt.text))
    messages = [{"role": "user", "content": prompt.text}]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    return list(tokenizer.encode(text, add_special_tokens=False))


def _count_new(num_tokens: int, asked: int | None, shape: ModelShape) -> int:
    """Tokens to write: what is asked for, else a short answer as far as the model's positions reach."""
    most = shape.max_position_embeddings
    if most is not None and num_tokens + (asked or 1) > most:
        raise InputError(
            f"the prompt has {num_tokens} tokens and {asked or 1} more are asked for; the model has {most} positions. "
            "Shorten the prompt or lower --max-new-tokens"
        )
    return asked or (SHORT_ANSWER if most is None else min(SHORT_ANSWER, most - num_tokens))


def _where(model: Any) -> str:
    names = sorted({selection.backend for selection in model.plan.selections if selection is not None})
    return f"{', '.join(names)} in {model.plan.dtype}"


class _Stream:
    """Prints tokens as words are complete, and keeps the time of each."""

    def __init__(self, tokenizer: Any) -> None:
        from transformers import TextStreamer

        self._streamer = TextStreamer(tokenizer, skip_special_tokens=True)
        self._times: list[float] = []

    def put(self, _prompt: int, token: int) -> None:
        """Take the next token."""
        import torch

        self._times.append(time.perf_counter())
        self._streamer.put(torch.tensor([token]))

    def end(self) -> None:
        """Print what is left, and a line break."""
        self._streamer.end()

    def describe(self, num_tokens: int, load_seconds: float, start: float, where: str) -> str:
        """Load time, time to the first token and the rate after it, in a line."""
        first, last, count = self._times[0], self._times[-1], len(self._times)
        rate = f", {(count - 1) / (last - first):.1f} tokens/s after it" if count > 1 else ""
        return (
            f"{where}: loaded in {load_seconds:.1f} s; {num_tokens} prompt tokens, first token after "
            f"{first - start:.2f} s{rate}, {count} tokens\n"
        )
