"""Whether every token stands for itself: hal pages what attention reads, so nothing else may pass from token to token."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Any

import torch
from transformers import PreTrainedModel

from hal.common.contract.call_values import IndexInputs
from hal.common.contract.compressor import Compressor
from hal.config import HalError, ModelShape
from hal.config.media import read_media_tokens

from .errors import NEXT_STEP, UnsupportedModelError, describe

NUM_TOKENS = 4
EXACT = frozenset({torch.float64, torch.float32})
LIMIT = 1e-3
ROUNDED = 0.02
ROUTED = 0.1
"""Behind the first layer of a model in a short type: rounding may send a token to another expert of almost the same score."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """Tokens of one run, int64 [1, tokens]; positions None leaves counting them to the model. cache: a transformers cache."""

    tokens: torch.Tensor
    positions: torch.Tensor | None = None
    cache: Any = None


@dataclass(slots=True)
class ProbeRun:
    """What one run showed: the attention modules and what each was given, by layer id, every tensor's rows by token."""

    modules: dict[int, torch.nn.Module] = field(default_factory=dict)
    products: dict[int, Mapping[str, torch.Tensor]] = field(default_factory=dict)
    logits: torch.Tensor | None = None


def draw_samples(module: PreTrainedModel, shape: ModelShape) -> tuple[Sample, Sample]:
    """The same few tokens twice: in order, and turned round by one at their own positions with one of them exchanged."""
    count = min(NUM_TOKENS, shape.max_position_embeddings or NUM_TOKENS)
    tokens = list(islice(_usable_tokens(module, shape.vocab_size), count + 1))
    exchanged = _exchanged(count)
    others = [tokens[-1] if place == exchanged else token for place, token in enumerate(tokens[:count])]
    positions = torch.arange(count, device=module.device)
    in_order = torch.tensor(tokens[:count], device=module.device)
    turned = torch.tensor(others, device=module.device)
    return Sample(tokens=in_order[None]), Sample(tokens=turned.roll(1)[None], positions=positions.roll(1)[None])


def run_sample(module: PreTrainedModel, shape: ModelShape, sample: Sample) -> torch.Tensor:
    """Logits [tokens, vocabulary]. UnsupportedModelError where the model's code cannot run plain tokens or gives none such."""
    keywords: dict[str, Any] = {}
    if sample.positions is not None:
        keywords = {"position_ids": sample.positions, "attention_mask": open_mask(sample.tokens, shape)}
    if sample.cache is not None:
        keywords["past_key_values"] = sample.cache
    try:
        with torch.inference_mode():
            output = module(input_ids=sample.tokens, use_cache=False, **keywords)
    except HalError:
        raise
    except Exception as error:
        how = "" if sample.positions is None else f" at positions {sample.positions[0].tolist()}"
        raise UnsupportedModelError(
            f"{type(module).__name__} cannot run {sample.tokens.shape[1]} text tokens{how}: {describe(error)}. "
            "If it runs without hal, it needs inputs that hal.models does not give; else its config does not fit its class"
        ) from error
    logits: torch.Tensor | None = getattr(output, "logits", None)
    if logits is None or logits.ndim != 3 or logits.shape[:2] != sample.tokens.shape:
        found = "no logits" if logits is None else f"logits {list(logits.shape)}"
        raise UnsupportedModelError(
            f"{type(module).__name__} gives {found} for {sample.tokens.shape[1]} tokens; expected a row of the vocabulary for "
            "each, as a causal language model gives them"
        )
    return logits[0]


def open_mask(tokens: torch.Tensor, shape: ModelShape) -> torch.Tensor:
    """The mask of four dimensions that lets everything be seen; models pass it through untouched.

    Modules that append entries to their keys widen a narrower mask; one as wide as the keys is left alone.
    """
    count = tokens.shape[-1]
    has_entries = any(layer.kind == "compressed" for layer in shape.layers)
    mask = torch.ones((1, 1, 1, 1), dtype=torch.bool, device=tokens.device)
    return mask.expand(1, 1, count, count if has_entries else 1)


def name_rows(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, index: IndexInputs | None, compressor: Compressor | None
) -> Mapping[str, torch.Tensor]:
    """What a layer attends with, each [tokens, ...]."""
    rows = {name: tensor[0].transpose(0, 1) for name, tensor in (("queries", query), ("keys", key), ("values", value))}
    if index is not None:
        rows |= {"index queries": index.q, "index weights": index.weights}
        if isinstance(index.k, torch.Tensor):
            rows["index keys"] = index.k
    if compressor is not None:
        rows["states to compress"] = compressor.kv
    return rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """What two runs disagree in, and by which share of its size."""

    what: str
    share: float


def check_tokenwise(module: PreTrainedModel, in_order: ProbeRun, turned: ProbeRun) -> None:
    """Raise UnsupportedModelError where a token's row changed although its position and the attention's answer did not."""
    found = furthest_apart(module, in_order, turned, shift=1)
    if found is not None:
        raise UnsupportedModelError(
            f"{type(module).__name__}: {found.what} are others for the same tokens at the same positions when their neighbours "
            f"change (by {found.share:.0%}): something besides attention carries state from token to token (a convolution, a "
            f"recurrence), or positions are counted in a way of its own. hal pages keys and values only; {NEXT_STEP}"
        )


def furthest_apart(module: PreTrainedModel, one: ProbeRun, other: ProbeRun, shift: int = 0) -> Difference | None:
    """The first that two runs of the same tokens disagree in, None where they agree as well as their type lets them.

    shift: the second run is turned round by so many places, with one token exchanged that is not compared.
    """
    is_exact = module.dtype in EXACT
    limit = LIMIT if is_exact else ROUNDED
    for layer_id, products in one.products.items():
        name = type(one.modules[layer_id]).__name__
        for what, rows in products.items():
            share = _share_apart(rows, other.products[layer_id][what], shift)
            if share > limit:
                return Difference(what=f"{what} of layer {layer_id} ({name})", share=share)
        limit = LIMIT if is_exact else ROUTED
    share = _share_apart(one.logits, other.logits, shift) if one.logits is not None and other.logits is not None else 0.0
    return Difference(what="logits", share=share) if share > limit else None


def _share_apart(rows: torch.Tensor, others: torch.Tensor, shift: int) -> float:
    kept = [place for place in range(len(rows)) if not shift or place != _exchanged(len(rows))]
    wanted, found = rows[kept].float(), others.roll(-shift, 0)[kept].float()
    size = wanted.norm().item()
    return (wanted - found).norm().item() / size if size else 0.0


def _exchanged(count: int) -> int:
    return max(0, count - 3)


def _usable_tokens(module: PreTrainedModel, vocabulary: int) -> Iterator[int]:
    # The first tokens of a vocabulary are often special ones whose embeddings were never trained.
    avoided = read_media_tokens(module.config).keys() | {getattr(module.get_input_embeddings(), "padding_idx", None)}
    everything = chain(range(vocabulary // 2, vocabulary), range(vocabulary // 2))
    yield from (token for token in everything if token not in avoided)
