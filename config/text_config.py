"""Where the text part of a composite config lives.

The order: a generator's `thinker_config`, then its text config; `text_config`; `language_config`; `llm_config`; then the
decoder of an encoder-decoder pair. At each step the search goes on inside what was found. A mapping and an object are equal.
"""

from __future__ import annotations

from .errors import ConfigError
from .names import spellings
from .source import Level
from .values import as_count

NESTED = ("thinker_config", "text_config", "language_config", "llm_config", "vlm_config")
DECODERS = ("decoder", "decoder_config", "generator")


def locate_text(root: Level) -> list[Level]:
    """The text config and the levels around it, innermost first. ConfigError: two places could equally be it."""
    chain = [root]
    while (inner := _step(chain[0])) is not None:
        chain.insert(0, inner)
    return chain


def _step(level: Level) -> Level | None:
    candidates = [child for name in NESTED if (child := level.child(name)) is not None and _is_text(child)]
    if not candidates and not _describes_layers(level):
        candidates = [child for name in DECODERS if (child := level.child(name)) is not None and _is_text(child)]
    if not candidates:
        return None
    if candidates[0].path.endswith("thinker_config"):
        return candidates[0]
    if len(candidates) > 1:
        raise ConfigError(
            f"the text config is ambiguous: {candidates[0].path} and {candidates[1].path} both describe a language model; pass the one to serve as the source"
        )
    return candidates[0]


def _is_text(level: Level) -> bool:
    """Whether a nested config is, or leads to, a language model's; one with a type alone gets all it needs from its defaults."""
    return _describes_layers(level) or _step(level) is not None or bool(level.read("model_type"))


def _describes_layers(level: Level) -> bool:
    return any(
        as_count(value, level.describe(name)) is not None if not isinstance(value, (list, tuple)) else bool(value)
        for field in ("num_hidden_layers", "num_attention_heads", "hidden_size")
        for name in spellings(field)
        if (value := level.read(name))
    )
