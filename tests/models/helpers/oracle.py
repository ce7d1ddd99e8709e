"""transformers' own eager forward, and the same tokens through hal in pieces."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import numpy as np
import torch
from transformers import PreTrainedModel

from hal.common.contract.batch import Batch
from hal.common.contract.limits import Limits
from hal.models import Model, attach


def run_on_hal(module: PreTrainedModel, block_size: int = 16, **limits: int) -> Model:
    """A copy of the module on hal attention; the module itself stays eager."""
    bounds = {"max_model_len": 128, "max_num_seqs": 4, "max_num_batched_tokens": 64} | limits
    return attach(copy.deepcopy(module), limits=Limits(**bounds, block_size=block_size))


def eager_logits(module: PreTrainedModel, tokens: Sequence[int]) -> torch.Tensor:
    """Logits [tokens, vocabulary] of one whole sequence, no cache."""
    with torch.no_grad():
        logits: torch.Tensor = module(torch.tensor([list(tokens)])).logits[0]
    return logits


def paged_logits(model: Model, sequences: Sequence[Sequence[int]], pieces: Sequence[Sequence[int]]) -> list[torch.Tensor]:
    """Logits of whole sequences, computed together: step s takes pieces[s][i] tokens of sequence i (0 takes none)."""
    pages = [model.attention.pages.allocate(-(-len(tokens) // model.plan.block_size)) for tokens in sequences]
    table = np.full((len(pages), max(map(len, pages))), 0, dtype=np.int32)
    for row, held in zip(table, pages, strict=True):
        row[: len(held)] = held
    done = [0] * len(sequences)
    found: list[list[torch.Tensor]] = [[] for _ in sequences]
    for counts in pieces:
        ids = [t for tokens, start, count in zip(sequences, done, counts, strict=True) for t in tokens[start : start + count]]
        done = [start + count for start, count in zip(done, counts, strict=True)]
        logits = model.forward(torch.tensor(ids), Batch(list(counts), done, table))
        for parts, piece in zip(found, logits.split(list(counts)), strict=True):
            parts.append(piece)
    for held in pages:
        model.attention.pages.free(held)
    return [torch.cat(parts) for parts in found]


def random_prompts(lengths: Sequence[int], seed: int = 1, vocabulary: int = 120) -> list[list[int]]:
    """Prompts of random tokens."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(0, vocabulary, (length,), generator=generator).tolist() for length in lengths]
