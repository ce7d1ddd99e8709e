"""Where the text part is found, what beats what, and what is ambiguous."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hal.config import ConfigError, read_shape

TEXT = {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "vocab_size": 100}
OTHER = TEXT | {"hidden_size": 32}


@pytest.mark.parametrize(
    ("config", "path"),
    [
        pytest.param(TEXT, "", id="flat"),
        pytest.param({"text_config": TEXT, "vision_config": OTHER}, "text_config", id="text_config"),
        pytest.param({"language_config": TEXT}, "language_config", id="language_config"),
        pytest.param({"llm_config": TEXT}, "llm_config", id="llm_config"),
        pytest.param({"thinker_config": TEXT}, "thinker_config", id="thinker_config"),
        pytest.param(
            {"thinker_config": {"text_config": TEXT}, "talker_config": {"text_config": OTHER}},
            "thinker_config.text_config",
            id="thinker beats talker",
        ),
        pytest.param(
            {"thinker_config": {"text_config": TEXT}, "text_config": OTHER}, "thinker_config.text_config", id="thinker first"
        ),
        pytest.param({"encoder": OTHER, "decoder": TEXT}, "decoder", id="decoder of a pair"),
        pytest.param({"vlm_config": {"text_config": TEXT}}, "vlm_config.text_config", id="two levels"),
        pytest.param(
            {"backbone": TEXT, "vision_config": {"hidden_size": 3}}, "backbone", id="single nested model of its own name"
        ),
        pytest.param(
            TEXT | {"attn_config": {"attn_type": "multihead_attention"}, "init_config": {"name": "x"}},
            "",
            id="groups are no text",
        ),
        pytest.param(TEXT | {"vision_config": OTHER}, "", id="flat beside a vision config"),
        pytest.param(TEXT | {"decoder": OTHER}, "", id="flat beats a decoder"),
    ],
)
def test_the_text_part_is_found_in_order(config: dict[str, Any], path: str) -> None:
    shape = read_shape(config)
    assert (shape.text_path, shape.hidden_size) == (path, 64)


@pytest.mark.parametrize(
    ("config", "names"),
    [
        ({"text_config": TEXT, "llm_config": OTHER}, ("text_config", "llm_config")),
        ({"language_config": TEXT, "text_config": OTHER}, ("text_config", "language_config")),
        ({"first": TEXT, "second": OTHER}, ("first", "second")),
        (
            {"thinker_config": {"text_config": TEXT, "llm_config": OTHER}},
            ("thinker_config.text_config", "thinker_config.llm_config"),
        ),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, tuple) else "",
)
def test_an_ambiguous_text_part_names_both(config: dict[str, Any], names: tuple[str, str]) -> None:
    with pytest.raises(ConfigError) as raised:
        read_shape(config)
    assert all(name in str(raised.value) for name in names)


def test_text_beats_root_with_a_warning() -> None:
    shape = read_shape({"vocab_size": 32000, "num_attention_heads": 2, "text_config": TEXT})
    assert (shape.vocab_size, shape.layers[0].num_heads) == (100, 4)
    assert [text for text in shape.warnings if "vocab_size" in text] == [
        "vocab_size is 32000 but text_config.vocab_size is 100; the inner value is used"
    ]
    assert any("num_attention_heads" in text for text in shape.warnings)


def test_root_speaks_where_the_text_is_silent() -> None:
    text = {name: value for name, value in TEXT.items() if name != "vocab_size"}
    shape = read_shape({"vocab_size": 500, "dtype": "float16", "text_config": text})
    assert (shape.vocab_size, shape.dtype) == (500, "float16")
    assert shape.warnings == ()


@pytest.mark.parametrize(
    ("inner", "outer", "tied"), [(True, False, True), (False, True, False), (None, True, True), (None, None, False)]
)
def test_inner_tie_flag_beats_the_outer(inner: bool | None, outer: bool | None, tied: bool) -> None:
    assert (
        read_shape({"tie_word_embeddings": outer, "text_config": TEXT | {"tie_word_embeddings": inner}}).tie_word_embeddings
        is tied
    )


def test_sparse_fields_in_the_text_config_alone_equal_the_flat_twin() -> None:
    mla = {"kv_lora_rank": 32, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16}
    sparse = TEXT | mla | {"index_topk": 8, "index_n_heads": 2, "index_head_dim": 16}
    flat, nested = read_shape(sparse), read_shape({"text_config": sparse, "vision_config": {}})
    assert nested == flat
    assert nested.index_topk == 8


def forms(config: dict[str, Any], folder: Path) -> dict[str, Any]:
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")

    def as_object(value: Any) -> Any:
        return SimpleNamespace(**{name: as_object(item) for name, item in value.items()}) if isinstance(value, dict) else value

    mixed = SimpleNamespace(**config)
    return {
        "object": as_object(config),
        "object around mappings": mixed,
        "file": folder / "config.json",
        "folder": folder,
        "path as text": str(folder),
    }


def test_every_form_of_source_gives_the_same_shape(tmp_path: Path) -> None:
    config = {"architectures": ["XForCausalLM"], "model_type": "x", "text_config": TEXT | {"sliding_window": [8, None]}}
    expected = read_shape(config)
    assert {name: read_shape(source) for name, source in forms(config, tmp_path).items()} == dict.fromkeys(
        forms(config, tmp_path), expected
    )
    assert expected.architectures == ("XForCausalLM",)


@pytest.mark.parametrize(
    ("content", "words"),
    [(None, "No such file"), ("{", "is not JSON"), ("[1]", "a JSON list"), ("\x00", "is not JSON"), ("", "is not JSON")],
    ids=["absent", "broken", "list", "binary", "empty"],
)
def test_a_file_that_is_no_config_is_named(content: str | None, words: str, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    if content is not None:
        path.write_text(content, encoding="utf-8")
    with pytest.raises(ConfigError) as raised:
        read_shape(tmp_path)
    assert str(path) in str(raised.value)
    assert words in str(raised.value)


def test_absent_field_says_where_it_was_looked_for() -> None:
    with pytest.raises(ConfigError) as raised:
        read_shape({"text_config": TEXT | {"num_attention_heads": -1}, "num_attention_heads": 0})
    text = str(raised.value)
    assert "num_attention_heads is unset: looked in text_config and the root" in text
    assert "text_config.num_attention_heads=-1" in text
    assert "n_head" in text
    assert "expected a positive whole number" in text


def test_configs_without_an_end_are_refused() -> None:
    endless = SimpleNamespace()
    endless.text_config = endless
    deep: dict[str, Any] = {"vocab_size": 1}
    for _ in range(600):
        deep = {"text_config": deep}
    for source in (endless, deep):
        with pytest.raises(ConfigError, match="nested too deep"):
            read_shape(source)


def test_a_nested_type_of_its_own_gets_no_other_types_defaults() -> None:
    """llava fills in llama where the text config names no type; a type it does not know stays what it says."""
    assert read_shape({"model_type": "llava", "text_config": {"vocab_size": 9}}).num_layers == 32
    with pytest.raises(ConfigError, match="num_hidden_layers is unset"):
        read_shape({"model_type": "llava", "text_config": {"model_type": "never_heard_of", "vocab_size": 9}})
