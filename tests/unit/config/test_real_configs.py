"""Every real config.json gives the hand-derived values recorded for it, as a file and as the object transformers builds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hal.config import LayerShape, ModelShape, read_shape

FOLDER = Path(__file__).parents[3].parent / "shared" / "configs"
ABSENT = f"the real configs are not beside the checkout ({FOLDER.name}/MANIFEST.json)"


def manifest() -> list[dict[str, Any]]:
    """One entry per file, empty where the folder is absent."""
    path = FOLDER / "MANIFEST.json"
    return list(json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else []


def load(name: str) -> dict[str, Any]:
    """A config's JSON object."""
    return dict(json.loads((FOLDER / name).read_text(encoding="utf-8")))


ENTRIES = manifest()
pytestmark = pytest.mark.skipif(not ENTRIES, reason=ABSENT)
EACH = pytest.mark.parametrize("entry", ENTRIES, ids=[entry["file"].removesuffix(".json") for entry in ENTRIES])


def facts(shape: ModelShape) -> dict[str, Any]:
    """The shape in the manifest's terms."""
    attending = [layer for layer in shape.layers if layer.kind != "none"]
    bounded = [layer for layer in attending if layer.window or layer.chunk]
    first = attending[0] if attending else LayerShape(layer_id=0, kind="none")
    mla = first.mla
    picking = [layer for layer in attending if layer.indexer or layer.block_sparse]
    return {
        "text_path": shape.text_path,
        "num_layers": shape.num_layers,
        "hidden_size": shape.hidden_size,
        "num_heads": first.num_heads or None,
        "num_kv_heads": first.num_kv_heads or None,
        "head_dim": first.head_dim or None,
        "v_head_dim": first.v_head_dim or None,
        "is_mla": shape.is_mla,
        "kv_lora_rank": mla.kv_lora_rank if mla else None,
        "qk_rope_head_dim": mla.qk_rope_head_dim if mla else first.rope_head_dim,
        "latent_dim": mla.latent_dim if mla else None,
        "index_topk": shape.index_topk,
        "index_width": next((layer.indexer.width for layer in attending if layer.indexer), None),
        "n_windowed": len(bounded),
        "W": (bounded[0].window or bounded[0].chunk) if bounded else None,
        "kind": ("chunked" if bounded[0].chunk else "sliding") if bounded else None,
        "n_full": len(attending) - len(bounded),
        "n_no_kv": sum(1 for layer in shape.layers if not layer.owns_kv),
        "tie_word_embeddings": shape.tie_word_embeddings,
        "kv_bytes_per_token_bf16": shape.kv_bytes_per_token(),
        "index_key_bytes_per_token_bf16": shape.index_bytes_per_token(),
        "n_index_layers": sum(1 for layer in picking if layer.index_bytes_per_token()),
        "per_layer_heads": [layer.num_heads for layer in shape.layers],
        "per_layer_kv_heads": [layer.num_kv_heads for layer in shape.layers],
        "cross_kv_bytes_per_encoder_token_bf16": shape.cross_kv_bytes_per_token(),
    }


def expected(entry: dict[str, Any]) -> dict[str, Any]:
    """The manifest's values under the names of facts(); heads given per layer have no scalar there."""
    known = dict(entry["expected"]) | {
        key: value for key, value in entry["expected"]["windows"].items() if key not in ("note", "W_file")
    }
    known.setdefault("kind", None)
    if "per_layer_kv_heads" in known:
        known.pop("num_heads")
        known.pop("num_kv_heads")
    return known


def agree(shape: ModelShape, entry: dict[str, Any]) -> None:
    found, known = facts(shape), expected(entry)
    if known.get("qk_rope_head_dim") is None:
        known.pop("qk_rope_head_dim", None)
    compared = found.keys() & known.keys()
    assert {name: found[name] for name in compared} == {name: known[name] for name in compared}


@EACH
def test_file(entry: dict[str, Any]) -> None:
    agree(read_shape(FOLDER / entry["file"]), entry)


@EACH
def test_object(entry: dict[str, Any]) -> None:
    """text_path may differ: transformers nests the fields of old flat files."""
    mapping = pytest.importorskip("transformers.models.auto.configuration_auto").CONFIG_MAPPING
    config = load(entry["file"])
    if config.get("model_type") not in mapping:
        pytest.skip("the type is not in transformers")
    from_file, from_object = read_shape(config), read_shape(mapping[config["model_type"]].from_dict(config))
    assert from_object == from_file


@pytest.mark.parametrize(
    ("file", "kv_growth", "index_growth"), [("deepseek-v4-flash.json", 5536, 1344), ("deepseek-v4.1-flash.json", 2560, None)]
)
def test_growth_of_compressed_layers(file: str, kv_growth: int, index_growth: int | None) -> None:
    shape = read_shape(FOLDER / file)
    start, step = 2**20, 12800
    bare = [layer for layer in shape.layers if layer.entry_source == layer.layer_id]
    entries = sum(layer.kv_bytes_per_token() / layer.compress_ratio for layer in bare if layer.compress_ratio)
    assert entries == kv_growth
    if index_growth is not None:
        assert (shape.kv_bytes(start + step) - shape.kv_bytes(start)) / step == kv_growth + index_growth


def test_sources_of_compressed_entries_and_choices() -> None:
    entry = next(entry for entry in ENTRIES if entry["file"] == "deepseek-v4.1-flash.json")["expected"]
    shape = read_shape(FOLDER / "deepseek-v4.1-flash.json")
    assert [layer.layer_id for layer in shape.layers if layer.entry_source == layer.layer_id] == entry["kv_source_layers"]
    assert [layer.layer_id for layer in shape.layers if layer.indexer and layer.indexer.owns] == entry["index_source_layers"]
    assert [layer.compress_ratio for layer in shape.layers] == [0] * 2 + [2] * 18 + [1] * 20
    assert [layer.compress_span for layer in shape.layers] == [0] * 2 + [2] * 18 + [1] * 20
    older = read_shape(FOLDER / "deepseek-v4-flash.json")
    assert {(layer.compress_ratio, layer.compress_span) for layer in older.layers} == {(0, 0), (4, 8), (128, 128)}


def test_blocks_of_block_sparse_layers() -> None:
    layer = read_shape(FOLDER / "minimax-m3.json").layers[3]
    assert layer.block_sparse is not None
    assert (layer.block_sparse.topk_blocks, layer.block_sparse.block_size) == (16, 128)
    assert (layer.block_sparse.num_heads, layer.block_sparse.head_dim) == (4, 128)


def test_sinks_by_layer_type() -> None:
    shape = read_shape(FOLDER / "mimo-v2-flash.json")
    assert all(layer.sink == (layer.window is not None) for layer in shape.layers)
    assert all(layer.sink for layer in read_shape(FOLDER / "gpt-oss-20b.json").layers)
