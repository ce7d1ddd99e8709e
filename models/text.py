"""Prompts as token ids, token ids as text."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

from transformers import AutoTokenizer

from .errors import CheckpointError, GenerationError, describe


class Tokenizer(Protocol):
    """The two calls of a transformers tokenizer that are used here."""

    def encode(self, text: str) -> list[int]:
        """Token ids, special tokens as the model expects them."""
        ...

    def decode(self, token_ids: list[int], skip_special_tokens: bool = False) -> str:
        """The text of token ids."""
        ...


def read_tokenizer(folder: Path) -> Any:
    """The folder's tokenizer, None where it holds none. CheckpointError for one that transformers cannot read."""
    if not any((folder / name).is_file() for name in ("tokenizer.json", "tokenizer_config.json", "tokenizer.model")):
        return None
    try:
        return AutoTokenizer.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
    except Exception as error:
        raise CheckpointError(
            f"the tokenizer of {folder} cannot be read: {describe(error)}; without tokenizer files the model takes token ids"
        ) from error


def encode_prompts(prompts: Sequence[str | Sequence[int]], tokenizer: Tokenizer | None) -> list[list[int]]:
    """Every prompt as token ids.

    GenerationError: one text instead of a list, no tokenizer for a text, an empty prompt, anything but whole numbers in one.
    """
    if isinstance(prompts, str) or not isinstance(prompts, Iterable):
        raise GenerationError(f"prompts is {prompts!r}; give a list of prompts, even for one")
    return [_encode(index, prompt, tokenizer) for index, prompt in enumerate(prompts)]


def read_stops(eos_token_ids: object) -> frozenset[int]:
    """The tokens that end a text, from one, several or None. GenerationError for anything else."""
    if eos_token_ids is None:
        return frozenset()
    several = eos_token_ids if isinstance(eos_token_ids, Iterable) else [eos_token_ids]
    return frozenset(_whole(token, "eos_token_ids") for token in several)


def _encode(index: int, prompt: str | Sequence[int], tokenizer: Tokenizer | None) -> list[int]:
    if isinstance(prompt, str):
        if tokenizer is None:
            raise GenerationError(f"prompt {index} is a text and the model has no tokenizer; give token ids")
        tokens = tokenizer.encode(prompt) if prompt else []
    else:
        if isinstance(prompt, bytes) or not isinstance(prompt, Iterable):
            raise GenerationError(f"prompt {index} is {prompt!r}; expected a text or a list of token ids")
        tokens = [_whole(token, f"prompt {index}") for token in prompt]
    if not tokens:
        raise GenerationError(f"prompt {index} is empty; it needs at least one token")
    return tokens


def _whole(token: Any, where: str) -> int:
    try:
        if isinstance(token, bool):
            raise TypeError
        return operator.index(token)
    except (TypeError, ValueError) as error:
        raise GenerationError(f"{where} holds {token!r}; expected token ids, which are whole numbers") from error
