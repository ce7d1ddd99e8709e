"""Where the text part of a composite config lives.

The order, at each step going on inside what was found: `thinker_config`; `text_config`; `language_config`; `llm_config`;
`vlm_config`; then the decoder of a pair (`decoder`, `decoder_config`, `generator`); then any single nested config that
describes a language model. A mapping and an object are equal. Text fields stated at the root (the old flat form) win over a
nested config that only a default would fill in.
"""

from __future__ import annotations

from collections.abc import Iterator

from .errors import ConfigError
from .known_types import NOTHING
from .names import SPELLINGS
from .source import MISSING, Level

THINKER = "thinker_config"
NESTED = ("text_config", "language_config", "llm_config", "vlm_config")
DECODERS = ("decoder", "decoder_config", "generator")
SUBCONFIGS = frozenset({THINKER, *NESTED, *DECODERS})
_NOT_FLAT = frozenset({"model_type", "architectures", "dtype", "torch_dtype", "tie_word_embeddings", "transformers_version"})
DEEPEST = 8
"""Levels of nesting; no config has half as many, and an object that contains itself would have no end."""

_TRAITS = ("num_hidden_layers", "num_attention_heads", "hidden_size")


def locate_text(root: Level) -> list[Level]:
    """The text config and the levels around it, innermost first.

    ConfigError: two places could equally be it, or one is bare class defaults while a config with layers stands unread.
    """
    chain = [root]
    while (inner := _step(chain[0])) is not None:
        if _is_flat(chain[0], inner):
            chain = [chain[0].retyped(inner), *chain[1:]]
            break
        chain.insert(0, inner)
    _refuse_bare_defaults(chain)
    return chain


def _refuse_bare_defaults(chain: list[Level]) -> None:
    """ConfigError where no level states a size and another config does, under a name that means nothing here."""
    if any(_states_layers(level) for level in chain):
        return
    for level in chain:
        unread = next((child for _, child in _nested_configs(level) for child in _within(child) if _peeks_layers(child)), None)
        if unread is not None:
            place = chain[0].path or "the root"
            raise ConfigError(
                f"{place} states no number of layers, heads or channels (type {_type_of(chain)!r} would fill in its own), while "
                f"{unread.path} states a model with layers and is no known place of a text config; "
                f"put that under {NESTED[0]}, or pass it as the source"
            )


def _type_of(chain: list[Level]) -> object:
    return next((kind for level in chain if (kind := level.stated("model_type")) is not MISSING), "")


def _nested_configs(level: Level) -> list[tuple[str, Level]]:
    """Nested configs that the source states under names that neither the search nor the type knows."""
    known = (*NESTED, *DECODERS, THINKER, *level.known.nested)
    found = ((name, level.peek_child(name)) for name in level.names() if name not in known and level.peek(name) is not None)
    return [(name, child) for name, child in found if child is not None]


def _within(level: Level) -> Iterator[Level]:
    """A config that is not read, and those in it at any depth."""
    yield level
    if level.path.count(".") <= DEEPEST:
        for name in level.names():
            child = level.peek_child(name)
            if child is not None:
                yield from _within(child)


def _peeks_layers(level: Level) -> bool:
    return any(level.peek(name) not in (MISSING, None) for name in SPELLINGS["num_hidden_layers"])


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
    found = [child for _, child in _nested_configs(level)]
    return [child for child in found if _states_layers(child) and child.stated("vocab_size") is not MISSING]


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
