"""Where the text part of a composite config lives.

The order, at each step going on inside what was found: `thinker_config`; `text_config`; `language_config`; `llm_config`;
`vlm_config`; then the decoder of a pair (`decoder`, `decoder_config`, `generator`); then any single nested config that
describes a language model. A mapping and an object are equal. Text fields stated at the root (the old flat form) win over a
nested config that only a default would fill in.
"""

from __future__ import annotations

from .errors import ConfigError
from .known_types import NOTHING
from .names import SPELLINGS
from .source import MISSING, Level

THINKER = "thinker_config"
NESTED = ("text_config", "language_config", "llm_config", "vlm_config")
DECODERS = ("decoder", "decoder_config", "generator")
_NOT_FLAT = frozenset({"model_type", "architectures", "dtype", "torch_dtype", "tie_word_embeddings", "transformers_version"})
DEEPEST = 8
"""Levels of nesting; no config has half as many, and an object that contains itself would have no end."""

_TRAITS = ("num_hidden_layers", "num_attention_heads", "hidden_size")


def locate_text(root: Level) -> list[Level]:
    """The text config and the levels around it, innermost first. ConfigError: two places could equally be it."""
    chain = [root]
    while (inner := _step(chain[0])) is not None:
        if _is_flat(chain[0], inner):
            return [chain[0].retyped(inner), *chain[1:]]
        chain.insert(0, inner)
    return chain


def _is_flat(level: Level, inner: Level) -> bool:
    """The old flat form: text fields beside the vision config, in a type that hands them down to its text config."""
    stated = level.states(inner.path.rpartition(".")[2])
    return "flat" in level.known.facts and not stated and not _NOT_FLAT.issuperset(level.names())


def _step(level: Level) -> Level | None:
    if level.path.count(".") > DEEPEST:
        raise ConfigError(f"configs are nested too deep to search: {level.path}; expected at most {DEEPEST} levels")
    thinker = _text_child(level, THINKER)
    if thinker is not None:
        return thinker
    found = _candidates(level, NESTED)
    if not found and not _states_layers(level):
        found = _candidates(level, DECODERS)[:1] or _any_other(level)
    if len(found) > 1:
        raise ConfigError(
            f"the text config is ambiguous: {found[0].path} and {found[1].path} both describe a language model; "
            "pass the one to serve as the source"
        )
    return found[0] if found else None


def _candidates(level: Level, names: tuple[str, ...]) -> list[Level]:
    """The nested configs of these names that hold text; what is stated goes before what a default fills in."""
    found = [child for name in names if (child := _text_child(level, name)) is not None]
    stated = [child for child in found if level.states(child.path.rpartition(".")[2])]
    return stated or found


def _any_other(level: Level) -> list[Level]:
    """Nested configs under names of their own that describe a language model, in types that transformers does not have."""
    if level.known is not NOTHING:
        return []
    names = [name for name in level.names() if name not in (*NESTED, *DECODERS, THINKER)]
    children = [child for name in names if level.states(name) and (child := level.child(name)) is not None]
    return [child for child in children if _states_layers(child) and child.stated("vocab_size") is not MISSING]


def _text_child(level: Level, name: str) -> Level | None:
    child = level.child(name)
    if child is None:
        return None
    leads_on = (
        _states_layers(child) or bool(child.known.fields or child.known.nested) or child.stated("model_type") is not MISSING
    )
    return child if leads_on or _step(child) is not None else None


def _states_layers(level: Level) -> bool:
    """Whether the level itself says how many layers, heads or channels the model has."""
    return any(level.states(name) for field in _TRAITS for name in SPELLINGS[field])
