"""Running attend_compressed over an engine's steps beside an oracle written from the definitions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

import hal
from hal.config import IndexerShape, LayerShape

from . import oracle
from .engine import Engine, Step

HEADS, WIDTH, ROPE = 3, 8, 4
INDEX_HEADS, INDEX_WIDTH = 2, 6


def compressed(layer_id: int, ratio: int, *, topk: int | None = None, owns: bool = True, **changes: Any) -> LayerShape:
    """Three heads on one shared row of 8 with 4 rotary lanes, a window of 5, sinks."""
    indexer = None if topk is None else IndexerShape(topk=topk, num_heads=INDEX_HEADS, head_dim=INDEX_WIDTH, owns=owns)
    values = {
        "num_heads": HEADS,
        "num_kv_heads": 1,
        "head_dim": WIDTH,
        "v_head_dim": WIDTH,
        "softmax_scale": 0.5,
        "window": 5,
        "sink": True,
        "rope_head_dim": ROPE,
        "compress_ratio": ratio,
        "entry_source": layer_id if ratio else None,
        "indexer": indexer,
    }
    return LayerShape(layer_id=layer_id, kind="compressed", **(values | changes))


def layers() -> tuple[LayerShape, ...]:
    """A window alone, entries that an indexer picks, all entries, entries and choice of an earlier layer, groups apart."""
    return (
        compressed(0, 0),
        compressed(1, 4, topk=2),
        compressed(2, 8),
        compressed(3, 4, topk=2, owns=False, entry_source=1, window=3),
        compressed(4, 4, topk=3, sink=False),
        compressed(5, 2, topk=4),
    )


def groups_of(layer: LayerShape) -> int:
    """How many groups of tokens an entry is made of."""
    return 2 if layer.indexer is not None and layer.compress_ratio == 4 else 1


def rotation(position: int) -> torch.Tensor:
    """The angles [rope / 2] of a position, float64."""
    return position * torch.tensor([0.3, 0.07], dtype=torch.float64)


def make_compressor(
    engine: Engine, key: Any, step: Step, *, ratio: int, groups: int, width: int, is_rotated: bool = True
) -> hal.Compressor:
    """Random products of a step and weights that are the same in every step; all of it is remembered under a key."""
    tokens = engine.tokens(step)
    weights = torch.Generator().manual_seed(hash(key) % 1000)
    starts = torch.stack([rotation(p // ratio * ratio) for _, p in tokens]) if tokens else torch.zeros(0, ROPE // 2).double()
    made = hal.Compressor(
        kv=engine.random(len(tokens), groups * width),
        score=engine.random(len(tokens), groups * width, scale=2.0),
        position_bias=torch.randn(ratio, groups * width, generator=weights),
        norm_weight=torch.rand(width, generator=weights) + 0.5,
        eps=1e-3,
        cos=starts.cos() if is_rotated else None,
        sin=starts.sin() if is_rotated else None,
    )
    engine.record((*key, "values"), step, made.kv)
    engine.record((*key, "scores"), step, made.score)
    return made


def entries(engine: Engine, name: int, key: Any, compressor: hal.Compressor, count: int, groups: int) -> torch.Tensor:
    """The first `count` entries [count, width] of a request, float64, each from the tokens of its group and the one before."""
    values, scores = engine.requests[name].history((*key, "values")), engine.requests[name].history((*key, "scores"))
    ratio = compressor.position_bias.shape[0]
    width = values.shape[1] // groups
    found = []
    for entry in range(count):
        mixed, gates = [], []
        for token in range(max(0, (entry + 1 - groups) * ratio), (entry + 1) * ratio):
            # The newer of two groups gives the last lanes, a lone one all of them.
            lanes = slice((groups - 1) * width, groups * width) if token >= entry * ratio else slice(0, width)
            mixed.append(values[token, lanes])
            gates.append(scores[token, lanes] + compressor.position_bias[token % ratio, lanes].double())
        weights = torch.softmax(torch.stack(gates), dim=0)
        found.append(finish((weights * torch.stack(mixed)).sum(0), compressor, entry * ratio))
    return torch.stack(found) if found else torch.zeros(0, width).double()


def finish(entry: torch.Tensor, compressor: hal.Compressor, position: int) -> torch.Tensor:
    """Normalised, and its last lanes turned pair by pair."""
    if compressor.norm_weight is not None:
        entry = entry / (entry.square().mean() + compressor.eps).sqrt() * compressor.norm_weight.double()
    if compressor.cos is None:
        return entry
    angles = rotation(position)
    turned = torch.view_as_complex(entry[-ROPE:].reshape(-1, 2).contiguous()) * torch.polar(torch.ones_like(angles), angles)
    return torch.cat([entry[:-ROPE], torch.view_as_real(turned).reshape(-1)])


def run_step(engine: Engine, step: Step, to_batch: Callable[[hal.Batch], Any] | None = None, **batch: Any) -> None:
    """Attend in every layer and hold each output against the definition; to_batch makes the batch to build of the host's."""
    made_batch = engine.schedule(step, **batch)
    metadata = engine.attention.build(made_batch if to_batch is None else to_batch(made_batch))
    found: dict[int, dict[int, torch.Tensor]] = {}
    choices: dict[Any, list[list[int]]] = {}
    for layer in engine.shape.layers:
        inputs = layer_inputs(engine, layer, step)
        if inputs["index"] is not None:
            choices[layer.compress_ratio, layer.indexer.topk] = choose(engine, layer, inputs["index"], step)
        out = engine.attention.attend_compressed(layer.layer_id, metadata=metadata, **inputs)
        assert out.shape == inputs["q"].shape
        if inputs["compressor"] is not None:
            found[layer.layer_id] = stored_entries(engine, layer, "entries", inputs["compressor"], step)
        windows = {
            name: stored(engine, layer.layer_id, engine.requests[name].history((layer.layer_id, "kv")))
            for name, new in step
            if new
        }
        for token, (name, position) in enumerate(engine.tokens(step)):
            keys = windows[name][max(0, position + 1 - layer.window) : position + 1]
            if layer.compress_ratio:
                rows = found[layer.entry_source][name][: (position + 1) // layer.compress_ratio]
                chosen = None if layer.indexer is None else choices[layer.compress_ratio, layer.indexer.topk][token]
                keys = torch.cat([keys, rows if chosen is None else rows[chosen]])
            expected = oracle.attend(layer, inputs["q"][token], keys[:, None], keys[:, None], inputs["sink"])
            oracle.expect_close(out[token], expected, str(engine.dtype).removeprefix("torch."))


def layer_inputs(engine: Engine, layer: LayerShape, step: Step) -> dict[str, Any]:
    """Random arguments of one layer's call, remembered for the oracle."""
    tokens, groups = sum(new for _, new in step), groups_of(layer)
    kv = engine.random(tokens, WIDTH)
    engine.record((layer.layer_id, "kv"), step, kv)
    compressor = index = None
    ratio = layer.compress_ratio or 1
    if layer.owns_entries:
        compressor = make_compressor(engine, (layer.layer_id, 1), step, ratio=ratio, groups=groups, width=WIDTH)
    if layer.indexer is not None and layer.indexer.owns:
        keys = make_compressor(engine, (layer.layer_id, 2), step, ratio=ratio, groups=groups, width=INDEX_WIDTH)
        index = hal.IndexInputs(engine.random(tokens, INDEX_HEADS, INDEX_WIDTH), keys, engine.random(tokens, INDEX_HEADS))
    return {
        "q": engine.random(tokens, HEADS, WIDTH),
        "kv": kv,
        "compressor": compressor,
        "index": index,
        "sink": torch.randn(HEADS, generator=engine.generator) if layer.sink else None,
    }


def stored(engine: Engine, key: Any, rows: torch.Tensor) -> torch.Tensor:
    """What a cache gives back of rows [n, width], float64."""
    layout = engine.attention.caches[key].layout
    wide = rows if layout.dtype == "float64" else rows.float()
    return layout.unpack(layout.pack(wide.split(layout.widths, dim=1)))[0].double()


def stored_entries(
    engine: Engine, layer: LayerShape, part: str, compressor: hal.Compressor, step: Step
) -> dict[int, torch.Tensor]:
    """By request, what a cache of the layer gives back of every closed entry; a token sees the first of them."""
    key = (layer.layer_id, 1 if part == "entries" else 2)
    counts = {name: engine.requests[name].length // layer.compress_ratio for name, new in step if new}
    return {
        name: stored(engine, (layer.layer_id, part), entries(engine, name, key, compressor, count, groups_of(layer)))
        for name, count in counts.items()
    }


def choose(engine: Engine, layer: LayerShape, index: hal.IndexInputs, step: Step) -> list[list[int]]:
    """The entries that each token's indexer picks."""
    assert isinstance(index.k, hal.Compressor)
    keys = stored_entries(engine, layer, "index", index.k, step)
    return [
        oracle.best_keys(
            index.q[token], index.weights[token], keys[name][: (position + 1) // layer.compress_ratio], layer.indexer.topk
        )
        for token, (name, position) in enumerate(engine.tokens(step))
    ]
