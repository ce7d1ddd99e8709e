"""Prompts as token ids, token ids as text."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from transformers import AutoTokenizer

from .errors import GenerationError


class Tokenizer(Protocol):
    """The two calls of a transformers tokenizer that are used here."""

    def encode(self, text: str) -> list[int]:
        """Token ids, special tokens as the model expects them."""
        ...

    def decode(self, token_ids: list[int], skip_special_tokens: bool = False) -> str:
        """The text of token ids."""
        ...


def read_tokenizer(folder: Path) -> Any:
    """The folder's tokenizer, None where it holds none."""
    if not any((folder / name).is_file() for name in ("tokenizer.json", "tokenizer_config.json", "tokenizer.model")):
        return None
    return AutoTokenizer.from_pretrained(folder, trust_remote_code=False, local_files_only=True)


def encode_prompts(prompts: Sequence[str | Sequence[int]], tokenizer: Tokenizer | None) -> list[list[int]]:
    """Every prompt as token ids. GenerationError: one text instead of a list, no tokenizer for a text, an empty prompt."""
    if isinstance(prompts, str):
        raise GenerationError("prompts is one text; give a list of prompts, even for one")
    return [_encode(index, prompt, tokenizer) for index, prompt in enumerate(prompts)]


def _encode(index: int, prompt: str | Sequence[int], tokenizer: Tokenizer | None) -> list[int]:
    if isinstance(prompt, str):
        if tokenizer is None:
            raise GenerationError(f"prompt {index} is a text and the model has no tokenizer; give token ids")
        tokens = tokenizer.encode(prompt) if prompt else []
    else:
        tokens = [int(token) for token in prompt]
    if not tokens:
        raise GenerationError(f"prompt {index} is empty; it needs at least one token")
    return tokens
