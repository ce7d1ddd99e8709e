"""Logits -> the next token."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from .errors import GenerationError


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How tokens are chosen: temperature 0 takes the likeliest, top_p < 1 cuts the tail of the distribution first.

    With a seed every prompt has its own stream, so that its text does not depend on what it is batched with.
    GenerationError for values out of range.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    seed: int | None = None

    def __post_init__(self) -> None:
        for name, kinds in (("temperature", (int, float)), ("top_p", (int, float)), ("seed", (int, type(None)))):
            if not isinstance(getattr(self, name), kinds):
                raise GenerationError(f"{name} is {getattr(self, name)!r}; expected a {'whole ' if name == 'seed' else ''}number")
        if not 0.0 <= self.temperature < float("inf"):
            raise GenerationError(f"temperature is {self.temperature}; expected 0 (greedy) or a positive number")
        if not 0.0 < self.top_p <= 1.0:
            raise GenerationError(f"top_p is {self.top_p}; expected more than 0 and at most 1")

    def generator(self, prompt: int) -> torch.Generator | None:
        """The stream of one prompt, None where nothing is drawn."""
        if self.temperature == 0.0:
            return None
        generator = torch.Generator()
        if self.seed is None:
            generator.seed()
        else:
            generator.manual_seed((self.seed * 1_000_003 + prompt) % 2**63)
        return generator


def choose_tokens(logits: torch.Tensor, sampling: Sampling, generators: list[torch.Generator | None]) -> list[int]:
    """One token per row of logits [rows, vocabulary]; row i draws from generators[i].

    GenerationError for a row that orders nothing: a NaN or infinity in it, or nothing but -inf.
    """
    best = logits.max(dim=-1)
    # A row's maximum is NaN where the row holds one, so that the tokens' one trip to the host tells; a float counts to 2**24.
    values, likeliest = torch.stack((best.values.float(), best.indices.float())).tolist()
    wrong = next((row for row, value in enumerate(values) if not math.isfinite(value)), None)
    if wrong is not None:
        raise GenerationError(
            f"the model's logits for one of {len(values)} next tokens hold {_say_worst(logits[wrong])}; its weights or its dtype "
            "do not compute here: check the checkpoint, or load it with dtype='float32'"
        )
    if sampling.temperature == 0.0:
        return [int(token) for token in likeliest]
    # From the likeliest down, so that no temperature is too small to divide by.
    below = logits.double().cpu()
    below = below - below.amax(dim=-1, keepdim=True)
    probabilities = torch.softmax(below / sampling.temperature, dim=-1)
    ordered, tokens = probabilities.sort(dim=-1, descending=True, stable=True)
    if sampling.top_p < 1.0:
        ordered = ordered.masked_fill(ordered.cumsum(dim=-1) - ordered >= sampling.top_p, 0.0)
    drawn = [torch.multinomial(row, 1, generator=source) for row, source in zip(ordered, generators, strict=True)]
    return [int(row[place]) for row, place in zip(tokens, drawn, strict=True)]


def _say_worst(row: torch.Tensor) -> str:
    for what, count in (("NaN", row.isnan().sum()), ("inf", row.isposinf().sum())):
        if count:
            return f"{int(count)} {what} of {row.numel():,}"
    return "nothing but -inf"
