"""Every real config.json gives the hand-derived values recorded for it, as a file and as the object transformers builds."""

from __future__ import annotations

import copy
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from hal.config import LayerShape, ModelShape, read_shape
from hal.config.harmless import is_harmless
from hal.config.known_types import NOTHING, known_type
from hal.config.names import FIELDS

TABLE = Path(__file__).with_name("real_configs.jsonl")
"""One public config a line: where it was found, its fields that may concern attention, and the values derived from it by hand.

`python tests/unit/config/test_real_configs.py FOLDER` writes it from whole files and their MANIFEST.json.
"""

ENTRIES: list[dict[str, Any]] = [json.loads(line) for line in TABLE.read_text(encoding="utf-8").splitlines()]
BY_FILE = {entry["file"].removesuffix(".json"): entry for entry in ENTRIES}


def parametrize(entries: list[dict[str, Any]]) -> Any:
    """A test for each of these entries."""
    return pytest.mark.parametrize("entry", entries, ids=[entry["file"].removesuffix(".json") for entry in entries])


def read(name: str) -> ModelShape:
    """The shape of one real config."""
    return read_shape(BY_FILE[name]["config"])


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


@parametrize(ENTRIES)
def test_a_real_config_gives_the_values_derived_by_hand(entry: dict[str, Any]) -> None:
    agree(read_shape(entry["config"]), entry)


@parametrize([entry for entry in ENTRIES if known_type(entry["config"].get("model_type", "")) is not NOTHING])
def test_the_object_that_transformers_builds_gives_the_same(entry: dict[str, Any]) -> None:
    """text_path may differ: transformers nests the fields of old flat files."""
    mapping = pytest.importorskip("transformers.models.auto.configuration_auto").CONFIG_MAPPING
    config = copy.deepcopy(entry["config"])
    assert read_shape(mapping[config["model_type"]].from_dict(config)) == read_shape(entry["config"])


@parametrize(ENTRIES)
def test_warnings_name_what_nobody_reads_and_nothing_else(entry: dict[str, Any]) -> None:
    """Each field listed was looked at: what it says is in no shape."""
    prefix = "not understood: "
    found = next((text for text in read_shape(entry["config"]).warnings if text.startswith(prefix)), prefix)
    assert found.removeprefix(prefix).partition(";")[0].split(", ") == (entry.get("not_understood") or [""])


@pytest.mark.parametrize(
    ("name", "kv_growth", "index_growth"), [("deepseek-v4-flash", 5536, 1344), ("deepseek-v4.1-flash", 2560, None)]
)
def test_compressed_layers_grow_by_the_known_bytes(name: str, kv_growth: int, index_growth: int | None) -> None:
    shape = read(name)
    start, step = 2**20, 12800
    bare = [layer for layer in shape.layers if layer.entry_source == layer.layer_id]
    entries = sum(layer.kv_bytes_per_token() / layer.compress_ratio for layer in bare if layer.compress_ratio)
    assert entries == kv_growth
    if index_growth is not None:
        assert (shape.kv_bytes(start + step) - shape.kv_bytes(start)) / step == kv_growth + index_growth


def test_sources_of_compressed_entries_and_choices() -> None:
    entry = BY_FILE["deepseek-v4.1-flash"]["expected"]
    shape = read("deepseek-v4.1-flash")
    assert [layer.layer_id for layer in shape.layers if layer.entry_source == layer.layer_id] == entry["kv_source_layers"]
    assert [layer.layer_id for layer in shape.layers if layer.indexer and layer.indexer.owns] == entry["index_source_layers"]
    assert [layer.compress_ratio for layer in shape.layers] == [0] * 2 + [2] * 18 + [1] * 20
    assert [layer.compress_span for layer in shape.layers] == [0] * 2 + [2] * 18 + [1] * 20
    older = read("deepseek-v4-flash")
    assert {(layer.compress_ratio, layer.compress_span) for layer in older.layers} == {(0, 0), (4, 8), (128, 128)}


def test_block_sparse_layers_have_the_known_blocks() -> None:
    layer = read("minimax-m3").layers[3]
    assert layer.block_sparse is not None
    assert (layer.block_sparse.topk_blocks, layer.block_sparse.block_size) == (16, 128)
    assert (layer.block_sparse.num_heads, layer.block_sparse.head_dim) == (4, 128)


def test_layers_of_some_types_alone_have_sinks() -> None:
    shape = read("mimo-v2-flash")
    assert all(layer.sink == (layer.window is not None) for layer in shape.layers)
    assert all(layer.sink for layer in read("gpt-oss-20b").layers)


def keep(config: dict[str, Any]) -> dict[str, Any]:
    """A config without the fields that are known not to matter, at every level that can hold text."""
    kept = {}
    for name, value in config.items():
        if name in ("text_config", "language_config"):
            kept[name] = keep(value)
        elif name in FIELDS or not is_harmless(name):
            kept[name] = value
    return kept


def write_table(folder: Path) -> None:
    """The table from whole files; the warnings are those of today, to be read before they are trusted."""
    prefix = "not understood: "
    lines = []
    for entry in json.loads((folder / "MANIFEST.json").read_text(encoding="utf-8")):
        config = keep(json.loads((folder / entry["file"]).read_text(encoding="utf-8")))
        named = [text for text in read_shape(config).warnings if text.startswith(prefix)]
        line = {"file": entry["file"], "model": entry["model"], "source": entry["source"], "config": config}
        line["expected"] = entry["expected"]
        line["not_understood"] = named[0].removeprefix(prefix).partition(";")[0].split(", ") if named else []
        lines.append(json.dumps(line) + "\n")
    TABLE.write_text("".join(lines), encoding="utf-8")


if __name__ == "__main__":
    write_table(Path(sys.argv[1]))
