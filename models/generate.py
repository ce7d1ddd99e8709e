"""The serving loop: prompts in, tokens out, pages back."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

from hal.common.contract.errors import CapacityError

from .errors import GenerationError
from .sampling import Sampling, choose_tokens
from .schedule import Running, plan_turn

if TYPE_CHECKING:
    import torch

    from hal.common.contract.batch import Batch
    from hal.common.contract.plan import Plan
    from hal.common.running.attention import Attention

    from .text import Tokenizer

OnToken = Callable[[int, int], None]


class Served(Protocol):
    """What the loop needs of a model, which is hal.models.Model and says what each of these is."""

    plan: Plan
    attention: Attention
    tokenizer: Tokenizer | None
    media_tokens: dict[int, str]

    def forward(self, input_ids: torch.Tensor, batch: Batch, rows: Sequence[int] | None = None) -> torch.Tensor:
        """Logits of one step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """What one prompt got: its new tokens (an ending token included), their text, and why they end there."""

    prompt_length: int
    tokens: tuple[int, ...]
    finish_reason: Literal["eos", "length"]
    text: str | None = None


def generate(
    model: Served,
    prompts: Sequence[list[int]],
    max_new_tokens: int,
    sampling: Sampling,
    eos_token_ids: frozenset[int],
    on_token: OnToken | None = None,
) -> list[Generation]:
    """One Generation per prompt; see Model.generate. Prompts that do not fit at once wait for pages of finished ones."""
    waiting = deque(_prepare(model, prompts, max_new_tokens, sampling))
    everyone = list(waiting)
    running: list[Running] = []
    pages = model.attention.pages
    try:
        while waiting or running:
            _admit(model, waiting, running)
            for sequence in _advance(model, running, sampling, on_token):
                if _is_finished(sequence, eos_token_ids):
                    running.remove(sequence)
                    _release(model, sequence)
    finally:
        for sequence in running:
            pages.free(sequence.pages)
    return [_finish(model, sequence, eos_token_ids) for sequence in everyone]


def _prepare(model: Served, prompts: Sequence[list[int]], max_new_tokens: int, sampling: Sampling) -> list[Running]:
    if not isinstance(max_new_tokens, int) or isinstance(max_new_tokens, bool) or max_new_tokens < 1:
        raise GenerationError(f"max_new_tokens is {max_new_tokens!r}; expected a whole number of at least 1")
    prepared = []
    for index, prompt in enumerate(prompts):
        _check_tokens(model, index, prompt)
        sequence = Running(
            prompt=index,
            tokens=list(prompt),
            prompt_length=len(prompt),
            max_length=len(prompt) + max_new_tokens,
            generator=sampling.generator(index),
        )
        _check_room(model, sequence)
        prepared.append(sequence)
    return prepared


def _check_tokens(model: Served, index: int, prompt: list[int]) -> None:
    vocabulary, media = model.plan.shape.vocab_size, model.media_tokens
    for token in prompt:
        if not 0 <= token < vocabulary:
            raise GenerationError(f"prompt {index} holds token {token}; the model knows 0 to {vocabulary - 1}")
        if token in media:
            raise GenerationError(
                f"prompt {index} holds token {token}, which stands for an image, video or sound ({media[token]}); hal.models "
                "serves text prompts and would compute without what the token stands for"
            )


def _check_room(model: Served, sequence: Running) -> None:
    limits, pages = model.plan.limits, model.attention.pages
    new = sequence.max_length - sequence.prompt_length
    asked = f"prompt {sequence.prompt} of {sequence.prompt_length} tokens with {new} new ones"
    if sequence.max_length - 1 > limits.max_model_len:
        raise GenerationError(
            f"{asked} reaches {sequence.max_length - 1} tokens in the cache; max_model_len is {limits.max_model_len}"
        )
    needed = sequence.pages_needed(model.plan.tokens_per_page)
    if needed > pages.num_pages:
        raise CapacityError(
            f"{asked} needs {needed} pages of {model.plan.tokens_per_page} tokens, the pool has {pages.num_pages}; "
            f"open it with {needed} pages or more"
        )


def _admit(model: Served, waiting: deque[Running], running: list[Running]) -> None:
    pages, block_size = model.attention.pages, model.plan.tokens_per_page
    while waiting and len(running) < model.plan.limits.max_num_seqs:
        needed = waiting[0].pages_needed(block_size)
        if needed > pages.num_free:
            break
        waiting[0].hold(pages.allocate(needed))
        running.append(waiting.popleft())
    if not running:
        raise CapacityError(
            f"prompt {waiting[0].prompt} needs {needed} pages and {pages.num_free} of {pages.num_pages} are free; "
            "the others are held by someone else"
        )


def _advance(model: Served, running: Sequence[Running], sampling: Sampling, on_token: OnToken | None) -> list[Running]:
    turn = plan_turn(running, model.plan.limits.max_num_batched_tokens)
    ready, rows = turn.finished_rows()
    logits = model.forward(turn.input_ids(), turn.batch(), rows)
    for sequence, count in zip(turn.sequences, turn.counts, strict=True):
        sequence.num_computed += count
    chosen = choose_tokens(logits, sampling, [sequence.generator for sequence in ready])
    for sequence, token in zip(ready, chosen, strict=True):
        sequence.tokens.append(token)
        if on_token is not None:
            on_token(sequence.prompt, token)
    return ready


def _is_finished(sequence: Running, eos_token_ids: frozenset[int]) -> bool:
    return sequence.tokens[-1] in eos_token_ids or len(sequence.tokens) >= sequence.max_length


def _release(model: Served, sequence: Running) -> None:
    model.attention.pages.free(sequence.pages)
    sequence.pages = []


def _finish(model: Served, sequence: Running, eos_token_ids: frozenset[int]) -> Generation:
    tokens = sequence.tokens[sequence.prompt_length :]
    return Generation(
        prompt_length=sequence.prompt_length,
        tokens=tuple(tokens),
        finish_reason="eos" if tokens[-1] in eos_token_ids else "length",
        text=model.tokenizer.decode(tokens, skip_special_tokens=True) if model.tokenizer is not None else None,
    )
