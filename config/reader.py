"""The one reader: any Hugging Face config -> ModelShape."""

from __future__ import annotations

from collections.abc import Mapping

from .dtypes import dtype_name
from .errors import ConfigError
from .fields import Fields
from .layer_types import stated_layers
from .layers import read_layers, repeat_layers
from .overrides import check_overrides
from .shape import ModelShape
from .source import MISSING, Level, open_source
from .text_config import locate_text
from .unread import name_unread

MOST_LAYERS = 10_000
"""More layers than any model has; a config that states more is damaged, and would only exhaust memory."""


def read_shape(source: object, *, overrides: Mapping[str, object] | None = None) -> ModelShape:
    """The frozen shape of a model: its layers, widths, windows and sizes.

    source: a transformers config object, a mapping, any object with attributes, the path of a config.json, or a model folder.
    overrides: text-config fields by name; they beat everything in the source. The source is read once and never written.
    Raises ConfigError with the field, the places looked at and the value found.
    """
    given = check_overrides(overrides)
    chain = locate_text(open_source(source))
    fields = Fields(chain, given)
    num_layers = _read_num_layers(fields)
    hidden_size = fields.require_count("hidden_size")
    layers, draft_layers = read_layers(fields, num_layers, hidden_size)
    runs = _read_runs(fields, num_layers)
    if runs > 1:
        layers, draft_layers = repeat_layers(layers, draft_layers, runs)
    return ModelShape(
        model_type=_root_text(chain[-1], "model_type"),
        architectures=_architectures(chain[-1]),
        text_path=chain[0].path,
        hidden_size=hidden_size,
        vocab_size=fields.require_count("vocab_size"),
        num_layers=len(layers),
        max_position_embeddings=fields.count("max_position_embeddings"),
        dtype=_dtype(fields),
        tie_word_embeddings=fields.flag("tie_word_embeddings") or False,
        layers=layers,
        draft_layers=draft_layers,
        cross_attention=fields.encoder_decoder or any(level.read("is_encoder_decoder") is True for level in chain),
        # Last: what has not been read by here is read by no rule.
        warnings=(*fields.warnings, *name_unread(fields)),
    )


def _read_num_layers(fields: Fields) -> int:
    lists_first = not fields.states("num_hidden_layers")
    count = (lists_first and stated_layers(fields, stated=True)) or fields.count("num_hidden_layers") or stated_layers(fields)
    if count is None:
        raise ConfigError(fields.absent("num_hidden_layers"))
    if _has_doubled_attention(fields):
        count *= 2
    if count + (fields.count("num_nextn_predict_layers") or 0) > MOST_LAYERS:
        raise ConfigError(f"num_hidden_layers is {count} with draft layers behind, expected at most {MOST_LAYERS} in all")
    return count


def _read_runs(fields: Fields, num_layers: int) -> int:
    """How often the whole stack of layers runs over a token (Ouro's universal transformer), each run with keys of its own."""
    runs = fields.count("total_ut_steps") or 1
    if runs * num_layers > MOST_LAYERS:
        raise ConfigError(
            f"total_ut_steps is {runs} over {num_layers} layers, expected at most {MOST_LAYERS} runs of a layer in all"
        )
    if runs > 1:
        fields.warn(
            f"total_ut_steps is {runs}: the {num_layers} layers run {runs} times over every token, each time with keys and "
            f"values of their own, and count as {runs * num_layers} layers"
        )
    return runs


def _has_doubled_attention(fields: Fields) -> bool:
    """Whether each counted block holds two attention layers: a block with a dense and an expert feed-forward side by side.

    LongCat-Flash's shortcut blocks; they count blocks as `num_layers`. Models that alternate dense and expert layers also
    have both widths, but say which layers are which.
    """
    entry = fields.entry("num_hidden_layers")
    if entry is None or entry.where.rpartition(".")[2] != "num_layers":
        return False
    both = fields.count("ffn_hidden_size") is not None and fields.count("expert_ffn_hidden_size") is not None
    return both and fields.raw("first_k_dense_replace") is MISSING and fields.raw("moe_layer_freq") is MISSING


def _root_text(root: Level, name: str) -> str:
    value = root.read(name)
    return value if isinstance(value, str) else ""


def _architectures(root: Level) -> tuple[str, ...]:
    """The root's list: the class that the checkpoint was saved from."""
    listed = root.read("architectures")
    return tuple(str(name) for name in listed) if isinstance(listed, (list, tuple)) else ()


def _dtype(fields: Fields) -> str | None:
    """The dtype that the config states on the innermost level, as a plain name; None where it states none or leaves it open."""
    for _, found in fields.entries("dtype"):
        for entry in found:
            if entry.value in (None, "", "auto"):
                continue
            try:
                return dtype_name(entry.value)
            except ValueError as error:
                raise ConfigError(f"{entry.where}: {error}") from error
    return None
