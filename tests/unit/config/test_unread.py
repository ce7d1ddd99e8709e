"""Every field of a config is read, known not to matter to attention, or named in a warning."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from hal.config import ConfigError, ModelShape, read_shape

PLAIN: dict[str, Any] = {"num_hidden_layers": 24, "hidden_size": 2048, "num_attention_heads": 16, "vocab_size": 100}
UNKNOWN: dict[str, Any] = {
    "num_loops": 4,
    "recurrent_depth": 8,
    "attn_repeats": [1, 2],
    "kv_sharing_factor": 2,
    "share_kv_every": 3,
    "attention_scale": 1.0,
    "score_temperature": 0.5,
    "use_learnable_temperature": True,
    "qk_clip_threshold": 100.0,
    "scale_scores": False,
    "use_causal_mask": False,
    "blocksparse_block_size": 64,
    "dense_attention_every_n_layers": 2,
    "candidate_topk_blocks": 2048,
    "attention": {"window": 4},
    "unheard_of": "yes",
    "draft_model": {"num_hidden_layers": 2, "hidden_size": 64, "model_type": "llama"},
}
"""Fields that no rule reads: what any of them does to attention is not known."""

HARMLESS: dict[str, Any] = {
    "rms_norm_eps": 1e-6,
    "attention_dropout": 0.0,
    "attention_bias": True,
    "rope_theta": 10000,
    "intermediate_size": 64,
    "n_routed_experts": 8,
    "routed_scaling_factor": 2.5,
    "moe_topk": 2,
    "image_token_id": 3,
    "initializer_range": 0.02,
    "temperature": 1.0,
    "quantization_config": {"quant_method": "fp8"},
    "vision_config": {"num_hidden_layers": 2, "hidden_size": 3},
    "auto_map": {"AutoConfig": "x"},
    "transformers_version": "5.0",
    "_name_or_path": "x",
    "unheard_of": None,
    "use_sparse_something": False,
    "aligner": {"model_type": "projector", "depth": 2},
}
"""Fields that files carry and that say nothing of attention, or nothing at all."""


def named(source: object) -> set[str]:
    """The fields that the warning names."""
    prefix = "not understood: "
    texts = [text for text in read_shape(source).warnings if text.startswith(prefix)]
    assert len(texts) <= 1
    return {name for text in texts for name in text.removeprefix(prefix).partition(";")[0].split(", ")}


def as_object(value: Any) -> Any:
    if isinstance(value, dict):
        return SimpleNamespace(**{name: as_object(item) for name, item in value.items()})
    return value


FORMS = {
    "mapping": dict,
    "object": as_object,
    "class attributes": lambda config: type("Config", (), config)(),
    "slots": lambda config: slotted(config),
}


def slotted(config: dict[str, Any]) -> Any:
    made = type("Config", (), {"__slots__": tuple(config)})()
    for name, value in config.items():
        setattr(made, name, value)
    return made


@pytest.mark.parametrize("kind", ["", "llama", "gpt2", "deepseek_v3", "unheard_of"])
@pytest.mark.parametrize("form", FORMS)
def test_a_field_that_no_rule_reads_is_named(form: str, kind: str) -> None:
    config = {"model_type": kind, **PLAIN, "num_key_value_heads": 16, **UNKNOWN}
    assert named(FORMS[form](config)) == set(UNKNOWN)


@pytest.mark.parametrize("name", UNKNOWN)
def test_an_unknown_field_is_named_wherever_it_stands(name: str) -> None:
    extra = {name: UNKNOWN[name]}
    assert named({"model_type": "some_vl", "text_config": {**PLAIN, **extra}}) == {f"text_config.{name}"}
    assert named({"model_type": "some_vl", "text_config": PLAIN, **extra}) == {name}
    assert named({"model_type": "llava", "text_config": {"model_type": "llama", **PLAIN}, **extra}) == {name}


@pytest.mark.parametrize("name", HARMLESS)
def test_fields_that_say_nothing_of_attention_are_not_named(name: str) -> None:
    assert named({**PLAIN, name: HARMLESS[name]}) == set()
    assert named({"model_type": "some_vl", "text_config": PLAIN, name: HARMLESS[name]}) == set()


@pytest.mark.parametrize(
    ("extra", "name"),
    [
        ({"attn_config": {"alibi": True, "sliding_window_size": 64}}, "attn_config.sliding_window_size"),
        ({"attn_config": {"alibi": True, "alibi_bias_max": 16}}, "attn_config.alibi_bias_max"),
        ({"per_layer_config": {"3": {"head_dim": 64, "repeats": 2}}}, "per_layer_config[3].repeats"),
        (
            {"block_configs": [{"attention": {"n_heads_in_group": 4, "window_length": 64}}] * 24},
            "block_configs[0].attention.window_length",
        ),
        ({"index_topk_blocks": 4}, "index_topk_blocks"),
        ({"mup_attn_multiplier": 2.0}, "mup_attn_multiplier"),
    ],
)
def test_fields_of_groups_and_of_rules_that_do_not_apply_are_named(extra: dict[str, Any], name: str) -> None:
    assert name in named({**PLAIN, **extra})


def test_groups_that_are_read_whole_are_not_named() -> None:
    group = {"alibi": True, "alibi_bias_max": 8, "attn_impl": "torch", "attn_pdrop": 0.1, "clip_qkv": None, "qk_ln": False}
    assert named({**PLAIN, "attn_config": group}) == set()


@pytest.mark.parametrize(
    ("kind", "field"),
    [
        ("reformer", "lsh_attn_chunk_length"),
        ("led", "attention_window"),
        ("big_bird", "block_size"),
        ("doge", "keep_window_size"),
    ],
)
def test_what_a_known_type_does_of_its_own_is_named_though_its_file_is_silent(kind: str, field: str) -> None:
    mapping = pytest.importorskip("transformers.models.auto.configuration_auto").CONFIG_MAPPING
    assert field in named({"model_type": kind})
    assert named({"model_type": kind}) == named(mapping[kind]())


def test_a_second_spelling_that_disagrees_is_a_warning() -> None:
    (text,) = read_shape({**PLAIN, "n_head": 32}).warnings
    assert "n_head is 32" in text
    assert "num_attention_heads is 16" in text
    assert read_shape({**PLAIN, "n_head": 16}).warnings == ()


def test_layers_that_run_several_times_count_each_time() -> None:
    shape = read_shape({"model_type": "ouro", **PLAIN, "total_ut_steps": 4})
    assert shape.num_layers == len(shape.layers) == 96
    assert shape.kv_bytes_per_token() == 4 * read_shape(PLAIN).kv_bytes_per_token() == 786_432
    assert [layer.layer_id for layer in shape.layers] == [layer.kv_source for layer in shape.layers] == list(range(96))
    assert any("total_ut_steps is 4" in text for text in shape.warnings)
    assert read_shape({**PLAIN, "total_ut_steps": 1}) == read_shape(PLAIN)


def test_what_a_layer_shares_it_shares_within_its_own_run() -> None:
    extra = {"kv_source_layers": [0, 0, 2, 2], "num_hidden_layers": 4, "num_nextn_predict_layers": 1, "total_ut_steps": 3}
    shape = read_shape({**PLAIN, **extra})
    assert [layer.kv_source for layer in shape.layers] == [0, 0, 2, 2, 4, 4, 6, 6, 8, 8, 10, 10]
    assert [layer.layer_id for layer in shape.draft_layers] == [12]


def test_more_runs_than_any_model_has_are_refused() -> None:
    with pytest.raises(ConfigError, match="total_ut_steps is 1000"):
        read_shape({**PLAIN, "total_ut_steps": 1000})


@pytest.mark.parametrize(("multiplier", "scale"), [(None, 1 / 128), (2.0, 2 / 128)])
def test_mup_scales_over_the_width_and_not_its_root(multiplier: float | None, scale: float) -> None:
    shape = read_shape({**PLAIN, "mup_use_scaling": True, "mup_attn_multiplier": multiplier})
    assert {layer.softmax_scale for layer in shape.layers} == {scale}
    assert shape.warnings == ()


def test_scorers_of_keys_with_several_key_heads_are_refused() -> None:
    scorer = {"indexer_budget": 64, "indexer_compress_ratio": 4, "indexer_n_heads": 4, "indexer_head_dim": 32}
    assert read_shape({**PLAIN, **scorer, "indexer_kv_heads": 1}).is_block_sparse
    with pytest.raises(ConfigError, match="indexer_kv_heads is 2"):
        read_shape({**PLAIN, **scorer, "indexer_kv_heads": 2})


def test_the_keys_of_cross_attention_are_a_note() -> None:
    shape: ModelShape = read_shape({"model_type": "t5"})
    assert shape.cross_kv_bytes_per_token() > 0
    (note,) = shape.notes
    assert f"{shape.cross_kv_bytes_per_token():,} bytes" in note
    assert f"note: {note}" in str(shape)
    assert read_shape(PLAIN).notes == ()
