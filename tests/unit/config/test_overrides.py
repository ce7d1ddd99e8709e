"""Overrides beat everything, and are checked."""

from __future__ import annotations

from typing import Any

import pytest

from hal.config import ConfigError, read_shape

CONFIG = {
    "num_hidden_layers": 2,
    "vocab_size": 7,
    "text_config": {"num_hidden_layers": 4, "hidden_size": 64, "num_attention_heads": 4, "vocab_size": 100},
}


def test_overrides_beat_text_and_root_without_a_warning() -> None:
    shape = read_shape(CONFIG, overrides={"num_hidden_layers": 3, "vocab_size": 50})
    assert (shape.num_layers, shape.vocab_size) == (3, 50)
    assert shape.warnings == ()


def test_sparse_widths_can_be_overridden() -> None:
    """An explicit value beats the checkpoint's, whichever is larger."""
    sparse = {"index_topk": 1024, "index_n_heads": 2, "index_head_dim": 16}
    assert read_shape(CONFIG | sparse, overrides={"index_topk": 256}).index_topk == 256
    assert read_shape(CONFIG | sparse).index_topk == 1024


def test_no_overrides_change_nothing() -> None:
    assert read_shape(CONFIG, overrides={}) == read_shape(CONFIG)


@pytest.mark.parametrize(
    ("name", "suggestion"),
    [
        ("num_hiden_layers", "num_hidden_layers"),
        ("index_top_k", "index_topk"),
        ("slidng_window", "sliding_window"),
        ("qwertyuiop", ""),
    ],
)
def test_unknown_names_are_errors_with_a_suggestion(name: str, suggestion: str) -> None:
    with pytest.raises(ConfigError) as raised:
        read_shape(CONFIG, overrides={name: 1})
    assert repr(name) in str(raised.value)
    assert suggestion in str(raised.value)


@pytest.mark.parametrize(
    "overrides",
    [{"num_attention_heads": "many"}, {"head_dim": 1.5}, {"sliding_window": "wide"}, {"layer_types": ["full_attention"]}],
    ids=str,
)
def test_bad_values_are_errors_that_name_the_override(overrides: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(overrides))):
        read_shape(CONFIG, overrides=overrides)


@pytest.mark.parametrize("value", [0, -1, True], ids=repr)
def test_an_override_that_says_nothing_is_an_error(value: object) -> None:
    with pytest.raises(ConfigError, match=r"overrides\.num_attention_heads"):
        read_shape(CONFIG, overrides={"num_attention_heads": value})


def test_null_takes_a_field_away() -> None:
    config = dict(CONFIG["text_config"], sliding_window=8)  # type: ignore[call-overload]
    assert read_shape(config, overrides={"sliding_window": None}).layers[0].window is None
