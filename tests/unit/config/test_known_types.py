"""Every config type of the installed transformers: its file gives its object's shape, and the generated data is up to date."""

from __future__ import annotations

import dataclasses
import json
import logging
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from hal.config import ConfigError, ModelShape, read_shape
from hal.config.known_types import known_type

transformers = pytest.importorskip("transformers")
from transformers.models.auto.configuration_auto import CONFIG_MAPPING  # noqa: E402

GOLDEN = Path(__file__).with_name("golden_shapes.jsonl")
TYPES = sorted(CONFIG_MAPPING)
REFUSED_BY_TRANSFORMERS = ("gemma4_assistant", "nougat")
OTHER_THAN_ITS_FILE = {
    "rag": "its defaults name no generator; one exists only in an object built around two models",
    "longcat_flash": "its setter halves a layer count and rounds it down",
    "hrm_text": "its layer count is a product of two fields that no other type has",
    "nemotron_h": "it ignores a stated layer count",
    "qwen2_moe": "with windows on it slides every second of the first layers, against its own max_window_layers",
    "jetmoe": "its query heads are a product with the number of experts",
    "minicpm3": "its value width follows hidden_size",
    "zamba2": "its head width follows hidden_size",
    "moonshine": "its KV heads do not follow its decoder's query heads",
    "deepseek_ocr2_text": "it ignores a stated head_dim",
    "unlimited_ocr_text": "it ignores a stated head_dim",
    "dots3_note": "it reads two text fields at its own level",
    "glm5_next": "it reads a text field at its own level",
    "dots3_note_text": "it replaces a null window by its default",
    **dict.fromkeys(
        ("fuyu", "hunyuan_vl", "paddleocr_vl", "qwen2_vl", "qwen2_5_vl"),
        "it drops what an old flat file states beyond the fields of its text class",
    ),
    "neomme": "every second of its windows is fixed",
}
"""Types whose class does something with a changed field that no rule of the reader could know."""

CHANGES: tuple[dict[str, Any], ...] = (
    {"num_hidden_layers": 7},
    {"num_hidden_layers": 18},
    {"hidden_size": 3072, "num_attention_heads": 24},
    {"num_key_value_heads": 2},
    {"num_key_value_heads": None},
    {"head_dim": 96},
    {"sliding_window": None},
    {"sliding_window": 33},
    {"use_sliding_window": True},
    {"num_nextn_predict_layers": 2},
)


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logging.disable(logging.ERROR)
    yield
    logging.disable(logging.NOTSET)


def attempt(source: object) -> ModelShape | None:
    """The shape; None for a ConfigError; anything else is a failure.

    Without its name, which some classes change, and without its warnings: an object does not tell what was stated.
    """
    try:
        return dataclasses.replace(read_shape(source), model_type="", warnings=())
    except ConfigError:
        return None


def build(name: str, **kwargs: Any) -> Any:
    """The object, or None where its class refuses the arguments."""
    try:
        return CONFIG_MAPPING[name](**kwargs)
    except Exception:  # noqa: BLE001 - validators of 800 foreign classes raise anything
        return None


@cache
def default(name: str) -> Any:
    """The object with nothing stated, built once; nobody writes to it."""
    return build(name)


def concerns(name: str, change: dict[str, Any]) -> bool:
    """Whether a type has a field that changes, or holds a config that has: an old flat file states that one's beside its own."""
    types = [known_type(name), *(known_type(str(held.get("type"))) for held in known_type(name).nested.values())]
    return any(known.renamed.get(field, field) in known.fields for known in types for field in change)


def forms(name: str, config: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """The files that mean this object: its type alone, everything written out, and what differs from the defaults."""
    yield "type alone", {"model_type": name}
    yield "all fields", json.loads(config.to_json_string(use_diff=False))
    yield "differences", json.loads(config.to_json_string(use_diff=True))


@pytest.mark.parametrize("name", TYPES)
def test_file_gives_the_shape_of_the_object(name: str) -> None:
    config = default(name)
    if config is None:
        assert name in REFUSED_BY_TRANSFORMERS
        return
    expected = attempt(config)
    found = {form: attempt(source) for form, source in forms(name, config) if not (form == "type alone" and name == "rag")}
    assert found == dict.fromkeys(found, expected)


@pytest.mark.parametrize("name", [name for name in TYPES if name not in OTHER_THAN_ITS_FILE])
def test_changed_fields_give_the_shape_of_the_object(name: str) -> None:
    if attempt(default(name)) is None:
        return
    for change in (change for change in CHANGES if concerns(name, change)):
        given = {CONFIG_MAPPING[name].attribute_map.get(field, field): value for field, value in change.items()}
        config = build(name, **given)
        # A class that keeps a field at its root and builds its text config without it has dropped it: a file may still mean it.
        if config is not None and attempt(config) != attempt(default(name)):
            assert attempt({"model_type": name, **given}) == attempt(config), given


def summary(shape: ModelShape | None, error: str) -> dict[str, Any]:
    """One golden line: kinds and their counts, distinct widths, sizes; or the error."""
    if shape is None:
        return {"error": error}
    kinds: dict[str, int] = {}
    widths: dict[str, int] = {}
    for layer in shape.layers:
        kinds[layer.kind] = kinds.get(layer.kind, 0) + 1
        parts = [f"{layer.num_heads}/{layer.num_kv_heads}x{layer.head_dim}/{layer.v_head_dim}"] if layer.num_heads else []
        parts += [f"lora {layer.mla.kv_lora_rank}+{layer.mla.qk_rope_head_dim}"] if layer.mla else []
        parts += [f"window {layer.window}"] if layer.window else []
        parts += [f"chunk {layer.chunk}"] if layer.chunk else []
        parts += [f"ratio {layer.compress_ratio}"] if layer.compress_ratio else []
        parts += [f"top {layer.indexer.topk}{'' if layer.indexer.owns else ' reused'}"] if layer.indexer else []
        parts += [f"blocks {layer.block_sparse.topk_blocks}x{layer.block_sparse.block_size}"] if layer.block_sparse else []
        parts += ["shared KV"] if layer.kv_source != layer.layer_id else []
        parts += ["sink"] if layer.sink else []
        parts += [f"cap {layer.softcap:g}"] if layer.softcap else []
        parts += [] if layer.causal else ["both ways"]
        parts += [layer.position_bias] if layer.position_bias else []
        parts += [f"scale {layer.softmax_scale:.5g}"] if layer.num_heads else []
        widths[" ".join(parts)] = widths.get(" ".join(parts), 0) + 1
    return {
        "text": shape.text_path,
        "hidden": shape.hidden_size,
        "vocab": shape.vocab_size,
        "tied": shape.tie_word_embeddings,
        "kinds": kinds,
        "layers": {text: count for text, count in widths.items() if text},
        "drafts": len(shape.draft_layers),
        "kv": shape.kv_bytes_per_token(),
        "index": shape.index_bytes_per_token(),
    }


def golden_line(name: str) -> dict[str, Any]:
    config = default(name)
    if config is None:
        return {"type": name, "refused": True}
    try:
        return {"type": name, **summary(read_shape(config), "")}
    except ConfigError as error:
        return {"type": name, **summary(None, str(error).split(":")[0][:90])}


@pytest.fixture(scope="module")
def golden() -> dict[str, dict[str, Any]]:
    lines = [json.loads(line) for line in GOLDEN.read_text(encoding="utf-8").splitlines()]
    return {line["type"]: line for line in lines}


@pytest.mark.parametrize("name", TYPES)
def test_defaults_match_the_reviewed_table(name: str, golden: dict[str, dict[str, Any]]) -> None:
    """Rewrite the table with `python tests/unit/config/test_known_types.py` and read the difference."""
    assert golden_line(name) == golden[name]


@pytest.mark.parametrize("name", TYPES)
def test_generated_data_is_up_to_date(name: str) -> None:
    """Fields, names and nested types as `python -m hal.config.generate` would write them for the installed version."""
    from hal.config.generate import described_fields

    config = default(name)
    known = known_type(name)
    now = described_fields(CONFIG_MAPPING[name], config)
    assert {"fields": dict(known.fields), "renamed": dict(known.renamed), "nested": dict(known.nested)} == now


@pytest.mark.parametrize(
    "name", ["gpt_oss", "mimo_v2_flash", "gemma4_text", "t5", "inkling_text", "hy_v4", "llama", "deepseek_v4", "gpt_neox", "bert"]
)
def test_generated_facts_are_up_to_date(name: str) -> None:
    pytest.importorskip("torch")
    from hal.config.generate import describe

    assert describe(CONFIG_MAPPING[name]).get("facts", {}) == dict(known_type(name).facts)


if __name__ == "__main__":
    logging.disable(logging.ERROR)
    GOLDEN.write_text("".join(json.dumps(golden_line(name)) + "\n" for name in TYPES), encoding="utf-8")
