"""A transformers model that runs on hal attention, and the text it generates."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from transformers import PreTrainedModel

from hal.common.contract.batch import Batch
from hal.common.contract.plan import Plan
from hal.config.media import read_media_tokens

from .binding import Step
from .errors import GenerationError
from .generate import Generation, OnToken, generate
from .sampling import Sampling
from .text import Tokenizer, encode_prompts, read_stops
from .verdict import CheckpointPlan

if TYPE_CHECKING:
    from hal.common.running.attention import Attention

TOKEN_TYPES = (torch.int64, torch.int32)


class Model:
    """A module bound to an open attention.

    plan: what hal decided for it. report: how its checkpoint was read, None for a module that was handed in. module: the
    transformers model; its attention works only through this object. tokenizer: the folder's, None where it has none.
    media_tokens: tokens that stand for an image, video or sound, and the config's fields that say so; prompts with one are
    refused, because only the text part of a composite model is served.
    """

    def __init__(
        self,
        module: PreTrainedModel,
        plan: Plan,
        attention: Attention,
        step: Step,
        *,
        report: CheckpointPlan | None = None,
        tokenizer: Tokenizer | None = None,
    ) -> None:
        self.module = module
        self.plan = plan
        self.attention = attention
        self.report = report
        self.tokenizer = tokenizer
        self.media_tokens = read_media_tokens(module.config)
        self._step = step
        self._takes_rows = "logits_to_keep" in inspect.signature(module.forward).parameters
        # Modules that append entries to their keys widen a narrower mask; one as wide as the keys is left alone.
        self._has_entries = any(layer.kind == "compressed" for layer in plan.shape.layers)
        self._device = module.device
        self._mask = torch.ones((1, 1, 1, 1), dtype=torch.bool, device=module.device)

    def forward(self, input_ids: torch.Tensor, batch: Batch, rows: Sequence[int] | None = None) -> torch.Tensor:
        """Logits [rows, vocabulary] of one step; its keys and values are in the cache afterwards.

        input_ids: int64 [tokens], the batch's new tokens end to end, no padding. rows: which of them to compute logits for,
        by index and in this order, all by default. GenerationError, before anything is written: tokens that the batch does
        not count, that the model does not know (seen where they lie on the host), or rows that there are none of.
        """
        metadata = self.attention.build(batch)
        tokens, vocabulary = metadata.num_tokens_padded, self.plan.shape.vocab_size
        _check_step(input_ids, rows, tokens, vocabulary)
        if not tokens:
            return torch.empty((0, vocabulary), dtype=self.module.dtype, device=self._device)
        step = self._step
        step.attention, step.metadata = self.attention, metadata
        keywords: dict[str, Any] = {}
        is_all = rows is None or list(rows) == list(range(tokens))
        keep = None if is_all else torch.tensor(rows, dtype=torch.long, device=self._device)
        if keep is not None and self._takes_rows:
            keywords["logits_to_keep"] = keep
        try:
            with torch.inference_mode():
                # A mask of four dimensions is passed through untouched; hal's lengths say what may be seen.
                output = self.module(
                    input_ids=input_ids.to(self._device).unsqueeze(0),
                    position_ids=metadata.positions[:tokens].unsqueeze(0),
                    attention_mask=self._mask.expand(1, 1, tokens, tokens if self._has_entries else 1),
                    use_cache=False,
                    **keywords,
                )
        finally:
            step.end()
        logits: torch.Tensor = output.logits[0]
        return logits if keep is None or self._takes_rows else logits[keep]

    def generate(
        self,
        prompts: Sequence[str | Sequence[int]],
        max_new_tokens: int = 128,
        *,
        temperature: float = 0.0,
        top_p: float = 1.0,
        seed: int | None = None,
        eos_token_ids: Sequence[int] | None = None,
        on_token: OnToken | None = None,
    ) -> list[Generation]:
        """One Generation per prompt, in the prompts' order; prompts of any lengths run together, without padding.

        prompts: texts, where the folder has a tokenizer, or token ids. eos_token_ids: where to stop, by default as the
        model's generation config says. on_token is called with (prompt index, token id) as tokens come.
        GenerationError: an empty prompt, one that is too long or holds media, a setting out of range. CapacityError: the
        page pool cannot hold one of the prompts; the text says how many pages would do.
        """
        sampling = Sampling(temperature=temperature, top_p=top_p, seed=seed)
        stops = self.eos_token_ids if eos_token_ids is None else read_stops(eos_token_ids)
        encoded = encode_prompts(prompts, self.tokenizer)
        return generate(self, encoded, max_new_tokens, sampling, stops, on_token)

    @property
    def eos_token_ids(self) -> frozenset[int]:
        """The tokens that end a text, from the model's generation config."""
        config = getattr(self.module, "generation_config", None)
        return read_stops(getattr(config, "eos_token_id", None))


def _check_step(input_ids: torch.Tensor, rows: Sequence[int] | None, tokens: int, vocabulary: int) -> None:
    if not isinstance(input_ids, torch.Tensor) or input_ids.shape != (tokens,) or input_ids.dtype not in TOKEN_TYPES:
        found = f"{input_ids.dtype} {list(input_ids.shape)}" if isinstance(input_ids, torch.Tensor) else repr(input_ids)
        raise GenerationError(f"input_ids is {found}; expected int64 [{tokens}], as many tokens as the batch counts")
    if input_ids.device.type == "cpu" and tokens:
        lowest, highest = (int(edge) for edge in input_ids.aminmax())
        if lowest < 0 or highest >= vocabulary:
            raise GenerationError(f"input_ids holds tokens {lowest} to {highest}; the model knows 0 to {vocabulary - 1}")
    wrong = [row for row in rows or () if not isinstance(row, int) or not 0 <= row < tokens]
    if wrong:
        raise GenerationError(f"rows asks for {wrong[0]!r}; expected whole numbers from 0 to {tokens - 1}")
