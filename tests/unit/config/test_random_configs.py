"""Any config, however odd, gives a shape with positive widths or a ConfigError; its form does not matter."""

from __future__ import annotations

import copy
import json
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hal.config import ConfigError, ModelShape, read_shape
from hal.config.names import FIELDS, GROUP_FIELDS

ODD = st.sampled_from(
    [None, 0, -1, True, False, "", "abc", float("nan"), float("inf"), 2**31, 10**30, 1e300, 0.5, [], {}, [None], [[]]]
)
COUNT = st.sampled_from([1, 2, 3, 4, 8, 64, 128])
KINDS = st.sampled_from(
    ["full_attention", "sliding_attention", "linear_attention", "indexed_attention", "chunked_attention", "x", 3]
)
VALUE = st.one_of(
    ODD,
    COUNT,
    st.lists(st.one_of(COUNT, ODD, KINDS), max_size=6),
    st.dictionaries(st.sampled_from(sorted(GROUP_FIELDS)), st.one_of(COUNT, ODD), max_size=3),
    st.text("*ML-ES", max_size=6),
)
GROUP = st.dictionaries(st.sampled_from(sorted(FIELDS | GROUP_FIELDS)), VALUE, max_size=6)
TYPES = st.sampled_from(["", "llama", "gemma2", "deepseek_v4", "glm_moe_dsa", "whisper", "unheard_of"])


@st.composite
def configs(draw: st.DrawFn) -> dict[str, Any]:
    """A small sound config, damaged in a few places, nested or flat."""
    text: dict[str, Any] = {
        "num_hidden_layers": draw(st.integers(1, 4)),
        "hidden_size": 64,
        "num_attention_heads": 4,
        "vocab_size": 100,
    }
    if draw(st.booleans()):
        text |= {"kv_lora_rank": 32, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16}
    if draw(st.booleans()):
        text |= {"index_topk": 8, "index_n_heads": 2, "index_head_dim": 16}
    if draw(st.booleans()):
        text["model_type"] = draw(TYPES)
    text |= draw(GROUP)
    place = draw(st.sampled_from(["", "text_config", "language_config", "thinker_config", "decoder"]))
    return {place: text, **draw(GROUP)} if place else text


def as_object(value: Any) -> Any:
    """The same config as objects with attributes; per_layer_config stays a mapping, since its keys are numbers."""
    if isinstance(value, dict):
        return SimpleNamespace(**{name: item if name == "per_layer_config" else as_object(item) for name, item in value.items()})
    return value


def attempt(source: object) -> ModelShape | str:
    try:
        return read_shape(source)
    except ConfigError as error:
        return str(error)


def check_widths(shape: ModelShape) -> None:
    assert shape.hidden_size > 0
    assert shape.vocab_size > 0
    assert len(shape.layers) == shape.num_layers > 0
    for layer in shape.layers + shape.draft_layers:
        if layer.kind == "none":
            continue
        assert min(layer.num_heads, layer.num_kv_heads, layer.head_dim, layer.v_head_dim) > 0
        assert layer.softmax_scale > 0
        assert layer.window is None or layer.window > 0
        assert layer.chunk is None or layer.chunk > 0
        assert 0 <= layer.kv_source <= layer.layer_id
        if layer.mla:
            assert layer.mla.kv_lora_rank > 0
            assert layer.head_dim == layer.mla.qk_nope_head_dim + layer.mla.qk_rope_head_dim
        if layer.indexer:
            assert min(layer.indexer.topk, layer.indexer.num_heads, layer.indexer.head_dim, layer.indexer.width) > 0
        assert not layer.owns_kv or layer.kv_bytes_per_token() > 0


@settings(max_examples=400, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(configs())
def test_only_config_errors_and_positive_widths(config: dict[str, Any]) -> None:
    before = copy.deepcopy(config)
    shape = attempt(config)
    assert repr(config) == repr(before), "the source was written to"
    if isinstance(shape, ModelShape):
        check_widths(shape)
        assert str(shape)


@settings(max_examples=200, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(configs())
def test_mapping_and_object_agree(config: dict[str, Any]) -> None:
    from_mapping, from_object = attempt(config), attempt(as_object(config))
    if isinstance(from_mapping, ModelShape):
        assert from_object == from_mapping
    else:
        assert isinstance(from_object, str)


@settings(max_examples=100, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(GROUP, st.sampled_from(["text_config", "language_config", "llm_config", "thinker_config"]))
def test_flat_and_nested_agree(extra: dict[str, Any], name: str) -> None:
    text = {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "vocab_size": 100} | extra
    text = {field: value for field, value in text.items() if field not in ("model_type", "architectures")}
    flat, nested = attempt(text), attempt({name: text})
    if isinstance(flat, ModelShape):
        assert nested == flat
    else:
        assert isinstance(nested, str)


@settings(max_examples=100, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(configs())
def test_overrides_beat_every_field_of_any_config(config: dict[str, Any]) -> None:
    overrides = {"num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 24, "kv_lora_rank": None, "num_hidden_layers": 3}
    try:
        shape = read_shape(config, overrides=overrides)
    except ConfigError:
        return
    assert shape.num_layers in (3, 6)
    attending = [layer for layer in shape.layers if layer.kind in ("attention", "cross")]
    stated_apart = {"num_attention_heads_per_layer", "block_configs", "per_layer_config", "global_head_dim", "multi_query"}
    if not any(name in str(config) for name in stated_apart) and "swa" not in str(config) and "sliding" not in str(config):
        assert {(layer.num_heads, layer.head_dim) for layer in attending} <= {(8, 24)}


@pytest.mark.parametrize("source", [None, 3, "", "no/such/folder", [], b"\xff", float("nan")], ids=repr)
def test_sources_that_are_no_config_are_a_config_error(source: object) -> None:
    with pytest.raises(ConfigError):
        read_shape(source)


def test_json_round_trip_of_a_huge_count() -> None:
    config = json.loads('{"num_hidden_layers": 1e400, "hidden_size": 1, "num_attention_heads": 1, "vocab_size": 1}')
    with pytest.raises(ConfigError, match="num_hidden_layers"):
        read_shape(config)
