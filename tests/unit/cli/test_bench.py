"""hal bench: which layers it measures, and what it adds up."""

from __future__ import annotations

from pathlib import Path

import pytest

from hal.cli.bench import pick_layers
from hal.cli.bench_timing import KindTimes, Timing, Trial
from hal.cli.bench_view import say_seconds, to_dict
from hal.config import ModelShape, read_shape

FOLDER = Path(__file__).parents[3].parent / "shared" / "configs"
CONFIGS = sorted(path for path in FOLDER.glob("*.json") if path.name not in ("CONVENTIONS.json", "MANIFEST.json"))
SMALL = {
    "model_type": "llama",
    "num_hidden_layers": 4,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "vocab_size": 10,
    "max_position_embeddings": 128,
}


@pytest.mark.skipif(not CONFIGS, reason="the folder of real configs is not beside the project")
@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_attending_layer_is_stood_for_once_by_one_that_can_run(path: Path) -> None:
    shape = read_shape(path)
    attending = [layer for layer in shape.layers if layer.kind not in ("none", "cross")]
    if not attending:
        with pytest.raises(ValueError, match="no layer of this"):
            pick_layers(shape)
        return
    picked, stands_for = pick_layers(shape)
    assert sorted(layer_id for ids in stands_for for layer_id in ids) == [layer.layer_id for layer in attending]
    assert [layer.layer_id for layer in picked.layers] == list(range(picked.num_layers))
    for layer, ids in zip(picked.layers, stands_for, strict=True):
        assert not ids or layer.num_heads == shape.layers[ids[0]].num_heads
        check_sources(picked, layer.layer_id)


def check_sources(picked: ModelShape, layer_id: int) -> None:
    """What a layer takes from another comes from one that has it."""
    layer = picked.layers[layer_id]
    assert picked.layers[layer.kv_source].owns_kv
    assert layer.entry_source is None or picked.layers[layer.entry_source].owns_entries
    if layer.indexer is not None and not layer.indexer.owns:
        assert any(each.indexer is not None and each.indexer.owns for each in picked.layers[:layer_id])


def test_layers_alike_count_as_often_as_the_model_has_them() -> None:
    shape = read_shape(SMALL)
    kind = KindTimes(layer=shape.layers[0], layer_ids=(0, 1, 2, 3), backend="cpu", seconds={"decode": 0.5, "prefill": 2.0})
    timing = Timing(
        trial=Trial(config=Path("config.json"), requests=3, prefill=90),
        shape=shape,
        target="cpu",
        dtype="float32",
        kinds=(kind,),
        build_seconds={"decode": 1.0, "prefill": 1.0},
    )
    assert to_dict(timing)["together"] == {
        "decode": {"seconds": 3.0, "tokens_per_second": 1.0},
        "prefill": {"seconds": 9.0, "tokens_per_second": 10.0},
    }


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(4.2e-6, "4.2 us"), (0.00123, "1.23 ms"), (0.9994, "999 ms"), (1.0, "1 s"), (1234.5, "1,234 s")],
    ids=["us", "ms", "nearly-a-second", "second", "minutes"],
)
def test_times_are_told_in_the_unit_that_fits(seconds: float, text: str) -> None:
    assert say_seconds(seconds) == text
