"""The one reader: any Hugging Face config -> ModelShape."""

from __future__ import annotations

from collections.abc import Mapping

from .dtypes import dtype_name
from .errors import ConfigError
from .fields import Fields
from .layers import read_draft_layers, read_layers
from .shape import ModelShape
from .source import MISSING, open_source
from .text_config import locate_text


MOST_LAYERS = 10_000
"""More layers than any model has; a config that states more is damaged, and would only exhaust memory."""


def read_shape(source: object, *, overrides: Mapping[str, object] | None = None) -> ModelShape:
    """The frozen shape of a model: its layers, widths, windows and sizes.

    source: a transformers config object, a mapping, any object with attributes, the path of a config.json, or a model folder.
    overrides: text-config fields by name; they beat everything in the source. The source is read once and never written.
    Raises ConfigError with the field, the places looked at and the value found.
    """
    chain = locate_text(open_source(source))
    fields = Fields(chain, dict(overrides or {}))
    num_layers = fields.require_count("num_hidden_layers")
    if num_layers > MOST_LAYERS:
        raise ConfigError(f"num_hidden_layers is {num_layers}, expected at most {MOST_LAYERS}")
    hidden_size = fields.require_count("hidden_size")
    layers = read_layers(fields, num_layers, hidden_size)
    return ModelShape(
        model_type=fields.text("model_type") or "",
        architectures=_architectures(fields),
        text_path=chain[0].path,
        hidden_size=hidden_size,
        vocab_size=fields.require_count("vocab_size"),
        num_layers=num_layers,
        max_position_embeddings=fields.count("max_position_embeddings"),
        dtype=_dtype(fields),
        tie_word_embeddings=fields.flag("tie_word_embeddings") or False,
        layers=layers,
        draft_layers=read_draft_layers(fields, layers),
        warnings=tuple(fields.warnings),
    )


def _architectures(fields: Fields) -> tuple[str, ...]:
    """The outermost level's list: the class that the checkpoint was saved from."""
    listed = [value for _, value in fields.stated("architectures") if isinstance(value, (list, tuple))]
    return tuple(str(name) for name in listed[-1]) if listed else ()


def _dtype(fields: Fields) -> str | None:
    for where, value in fields.stated("dtype"):
        if value is None or value is MISSING or value == "auto":
            continue
        try:
            return dtype_name(value)
        except ValueError as error:
            raise ConfigError(f"{where}: {error}") from error
    return None


