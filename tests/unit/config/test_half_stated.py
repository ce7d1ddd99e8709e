"""Half a statement is no statement of absence: half an indexer, bare class defaults beside a config that nobody reads."""

from __future__ import annotations

from collections import OrderedDict
from types import SimpleNamespace
from typing import Any

import pytest

from hal.config import ConfigError, read_shape

PLAIN: dict[str, Any] = {"num_hidden_layers": 4, "hidden_size": 64, "num_attention_heads": 4, "vocab_size": 100}
WIDTHS = {"index_n_heads": 4, "index_head_dim": 32}
SCORER = {"indexer_n_heads": 4, "indexer_head_dim": 32, "indexer_compress_ratio": 4}
COMPOSITES = ("qwen2_5_vl", "llava", "gemma3", "mistral3", "internvl", "idefics3", "qwen3_vl", "qwen2_vl", "unheard_of")


def placed(fields: dict[str, Any], place: str) -> dict[str, Any]:
    """A config whose extra fields stand in the text config, at the root around it, or in a flat file."""
    if place == "text":
        return {"text_config": {**PLAIN, **fields}}
    return {**fields, "text_config": PLAIN} if place == "root" else {**PLAIN, **fields}


@pytest.mark.parametrize("place", ["flat", "text", "root"])
@pytest.mark.parametrize("parts", [WIDTHS, {"index_n_heads": 4}, {"index_head_dim": 32}, {"index_kpool": 4}], ids=str)
def test_widths_without_a_topk_are_refused(parts: dict[str, Any], place: str) -> None:
    with pytest.raises(ConfigError, match=r"index_topk is nowhere in the config beside .*half an indexer"):
        read_shape(placed(parts, place))


@pytest.mark.parametrize(
    "parts",
    [
        {"indexer_types": ["full", "shared", "full", "shared"]},
        {"index_topk_freq": 2},
        {"index_topk_pattern": "FSFS"},
        {"index_source_layer_ids": [0, 2]},
    ],
    ids=str,
)
def test_owners_without_a_topk_are_refused(parts: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="half an indexer"):
        read_shape({**PLAIN, **parts})


@pytest.mark.parametrize("place", ["flat", "text", "root"])
@pytest.mark.parametrize("topk", [0, -5, True, False, "", 0.0])
def test_a_topk_that_says_nothing_beside_widths_is_refused(topk: object, place: str) -> None:
    with pytest.raises(ConfigError, match="index_topk is"):
        read_shape(placed({**WIDTHS, "index_topk": topk}, place))


@pytest.mark.parametrize("topk", [0, -5, True, ""])
def test_a_topk_that_says_nothing_in_a_type_that_has_an_indexer_is_refused(topk: object) -> None:
    with pytest.raises(ConfigError, match=r"index_topk is .* beside 2048 by default"):
        read_shape({"model_type": "deepseek_v32", "index_topk": topk})


@pytest.mark.parametrize("source", [{**PLAIN, **WIDTHS}, {"model_type": "deepseek_v32"}], ids=["unknown", "deepseek_v32"])
def test_an_explicit_null_switches_the_indexer_off_with_a_warning(source: dict[str, Any]) -> None:
    shape = read_shape({**source, "index_topk": None})
    assert shape.index_topk is None
    assert any("index_topk is null" in text for text in shape.warnings)


@pytest.mark.parametrize("missing", ["index_n_heads", "index_head_dim"])
def test_a_topk_without_widths_is_refused(missing: str) -> None:
    fields = {name: value for name, value in {**WIDTHS, "index_topk": 8}.items() if name != missing}
    with pytest.raises(ConfigError, match=missing):
        read_shape({**PLAIN, **fields})


@pytest.mark.parametrize("budget", [{}, {"indexer_budget": 0}], ids=str)
def test_half_a_scorer_of_blocks_is_refused(budget: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="indexer_budget"):
        read_shape({**PLAIN, **SCORER, **budget})


def test_two_kinds_of_indexer_at_once_are_refused() -> None:
    with pytest.raises(ConfigError, match="index_topk and indexer_budget 64"):
        read_shape({**PLAIN, **WIDTHS, **SCORER, "index_topk": 8, "indexer_budget": 64})


@pytest.mark.parametrize(
    ("field", "value", "read"),
    [
        ("index_topk", 512, lambda shape: shape.index_topk),
        ("index_n_heads", 16, lambda shape: shape.layers[0].indexer.num_heads),
        ("num_hidden_layers", 7, lambda shape: shape.num_layers),
        ("kv_lora_rank", 256, lambda shape: shape.layers[0].mla.kv_lora_rank),
    ],
)
def test_what_the_root_states_beats_a_class_default_with_a_warning(field: str, value: int, read: Any) -> None:
    shape = read_shape({"model_type": "some_vl", field: value, "text_config": {"model_type": "deepseek_v32"}})
    assert read(shape) == value
    (text,) = shape.warnings
    assert text.startswith(f"text_config.{field} is not stated; {value} is used, which {field} states")


def test_a_tie_stated_at_the_root_alone_counts_and_no_warning_makes_the_text_config_say_something() -> None:
    source = {"model_type": "qwen3_vl_moe", "tie_word_embeddings": False, "text_config": {"model_type": "qwen3_vl_moe_text"}}
    shape = read_shape(source)
    assert shape.tie_word_embeddings is False
    assert not any("text_config.tie_word_embeddings is" in text for text in shape.warnings)


@pytest.mark.parametrize("form", [dict, OrderedDict, lambda given: SimpleNamespace(**given)], ids=["dict", "ordered", "object"])
@pytest.mark.parametrize("kind", COMPOSITES)
def test_class_defaults_beside_an_unread_config_with_layers_are_refused(kind: str, form: Any) -> None:
    unread = {"num_hidden_layers": 4, "hidden_size": 64, "num_attention_heads": 4}
    with pytest.raises(ConfigError, match=r"(text_config|the root) states no number of layers.*my_language_model states a model"):
        read_shape(form({"model_type": kind, "my_language_model": form(unread)}))


@pytest.mark.parametrize("inner", ["text_config", "backbone"])
@pytest.mark.parametrize("kind", COMPOSITES)
def test_class_defaults_beside_one_that_stands_deeper_are_refused_too(kind: str, inner: str) -> None:
    parts = {"activation": "silu", "core": {inner: {"n_layer": 4, "n_embd": 64, "n_head": 4}}}
    with pytest.raises(ConfigError, match=rf"states no number of layers.*my_parts\.core\.{inner} states a model"):
        read_shape({"model_type": kind, "my_parts": parts})


@pytest.mark.parametrize("kind", ["llava", "gemma3", "qwen3_vl"])
def test_an_empty_text_config_beside_it_is_refused_too(kind: str) -> None:
    with pytest.raises(ConfigError, match="text_config states no number of layers"):
        read_shape({"model_type": kind, "text_config": {}, "llm": {"n_layer": 4, "n_embd": 64, "n_head": 4}})


def test_an_unread_config_with_layers_beside_stated_sizes_is_named() -> None:
    (text,) = read_shape({**PLAIN, "my_language_model": {"num_hidden_layers": 4}}).warnings
    assert "not understood: my_language_model" in text
