"""Calls of an Attention as functions of their tensors alone: every run opens the plan anew, over the same context."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate
from typing import Any

import torch

import hal
from hal.config import LayerShape
from hal.testing.arguments import Arguments, find_tensors
from hal.testing.suite.strides import Call

from .compressed_run import ROPE, compressed
from .engine import snapshot, unchanged
from .shapes import INDEX_HEADS, INDEX_WIDTH, MLA, gqa, mla, model, sparse

LIMITS = hal.Limits(64, 4, 48, block_size=8)
TABLES = torch.tensor([[3, 9, 1], [7, 2, 11], [4, 8, 6]], dtype=torch.int32)
BLOCKS = 12
CONTEXT = ([9, 6, 0], [9, 6, 0])
STEPS = {"decodes": ([1, 1, 0], [10, 7, 0]), "mixed": ([1, 3, 5], [10, 9, 5]), "reordered": ([3, 1, 5], [12, 7, 5])}


def random(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """One layer, the method that attends in it, and its tensors for so many tokens."""

    layer: LayerShape
    method: str
    inputs: Callable[[int], dict[str, Any]]
    beside: str = "q"
    plan: Mapping[str, Any] = field(default_factory=dict)

    def open(self, device: hal.Device, bound: Mapping[str, torch.Tensor]) -> hal.Attention:
        """The plan, its weights and scales handed over, a first step's tokens in its caches."""
        attention = hal.plan(model(self.layer), device, limits=LIMITS, **({"dtype": "float32"} | self.plan)).open(BLOCKS)
        if self.layer.mla is not None:
            attention.bind_weights(0, bound["w_uk"], bound["w_uv"])
        if "scale" in bound:
            attention.set_scale(0, bound["scale"])
        metadata = attention.build(hal.Batch(*CONTEXT, TABLES.numpy()))
        self.attend(attention, metadata, self.inputs(sum(CONTEXT[0])))
        return attention

    def attend(self, attention: hal.Attention, metadata: hal.StepMetadata, given: Arguments) -> torch.Tensor:
        """The layer's call with the tensors that are its own."""
        tensors = {name: value for name, value in given.items() if name not in ("w_uk", "w_uv", "scale")}
        out: torch.Tensor = getattr(attention, self.method)(0, metadata=metadata, **tensors)
        return out

    def bound(self) -> dict[str, torch.Tensor]:
        """What is handed over once."""
        if self.layer.mla is not None:
            heads, lora = self.layer.num_heads, MLA.kv_lora_rank
            return {"w_uk": random(1, heads, MLA.qk_nope_head_dim, lora), "w_uv": random(2, heads, MLA.v_head_dim, lora)}
        return {"scale": random(3, 2, 2).abs() + 0.5} if self.plan else {}


def paged(layer: LayerShape, tokens: int) -> dict[str, Any]:
    """The tensors of attend."""
    kinds = {"q": (layer.num_heads, layer.head_dim), "k": (layer.num_kv_heads, layer.head_dim)}
    shapes = {**kinds, "v": (layer.num_kv_heads, layer.v_head_dim)}
    made = {name: random(10 + seed, tokens, *shape) for seed, (name, shape) in enumerate(shapes.items())}
    return made | ({"sink": random(20, layer.num_heads)} if layer.sink else {})


def latent(layer: LayerShape, absorbs: bool, chooses: bool, tokens: int) -> dict[str, Any]:
    """The tensors of attend_mla; absorbs: queries come through w_uk already; chooses: the keys are handed over."""
    nope = MLA.kv_lora_rank if absorbs else MLA.qk_nope_head_dim
    shapes = {
        "q_nope": (layer.num_heads, nope),
        "q_rope": (layer.num_heads, MLA.qk_rope_head_dim),
        "latent": (MLA.kv_lora_rank,),
        "k_rope": (MLA.qk_rope_head_dim,),
    }
    made: dict[str, Any] = {name: random(10 + seed, tokens, *shape) for seed, (name, shape) in enumerate(shapes.items())}
    if layer.sink:
        made["sink"] = random(20, layer.num_heads)
    if chooses:
        made["topk"] = torch.stack([torch.randperm(5, generator=torch.Generator().manual_seed(i)) for i in range(tokens)]).int()
    elif layer.indexer is not None:
        made["index"] = hal.IndexInputs(
            random(21, tokens, INDEX_HEADS, INDEX_WIDTH), random(22, tokens, INDEX_WIDTH), random(23, tokens, INDEX_HEADS)
        )
    return made


def pooled(layer: LayerShape, tokens: int) -> dict[str, Any]:
    """The tensors of attend_compressed, with a compressor of the layer's entries and one of its index keys."""
    made: dict[str, Any] = {
        "q": random(10, tokens, layer.num_heads, layer.head_dim),
        "kv": random(11, tokens, layer.head_dim),
        "compressor": _compressor(30, tokens, layer.head_dim),
        "sink": random(20, layer.num_heads),
    }
    if layer.indexer is not None:
        heads, width = layer.indexer.num_heads, layer.indexer.head_dim
        keys = _compressor(40, tokens, width)
        made["index"] = hal.IndexInputs(random(21, tokens, heads, width), keys, random(22, tokens, heads))
    return made


def _compressor(seed: int, tokens: int, width: int) -> hal.Compressor:
    angles = random(seed, tokens, ROPE // 2)
    return hal.Compressor(
        kv=random(seed + 1, tokens, 2 * width),
        score=random(seed + 2, tokens, 2 * width),
        position_bias=random(seed + 3, 4, 2 * width),
        norm_weight=random(seed + 4, width).abs() + 0.5,
        eps=1e-3,
        cos=angles.cos(),
        sin=angles.sin(),
    )


def _paged(method: str = "attend", layer: LayerShape | None = None, **plan: Any) -> Scene:
    shape = layer or gqa()
    return Scene(layer=shape, method=method, inputs=partial(paged, shape), plan=plan)


def _latent(layer: LayerShape, absorbs: bool = False, chooses: bool = False) -> Scene:
    inputs = partial(latent, layer, absorbs, chooses)
    return Scene(layer=layer, method="attend_mla", inputs=inputs, beside="q_nope")


def _pooled(layer: LayerShape) -> Scene:
    return Scene(layer=layer, method="attend_compressed", inputs=partial(pooled, layer))


SCENES = {
    "attend": _paged(),
    "attend-sink": _paged(layer=gqa(sink=True)),
    "attend-fp8": _paged(layer=gqa(v_head_dim=8), kv_layout="kv_fp8"),
    "attend_mla": _latent(mla()),
    "attend_mla-absorbed": _latent(mla(), absorbs=True),
    "attend_mla-sink": _latent(mla(sink=True)),
    "attend_mla-index": _latent(sparse(topk=5)),
    "attend_mla-topk": _latent(sparse(topk=5), chooses=True),
    "attend_compressed": _pooled(compressed(0, 4, topk=2)),
}


def step_call(scene: Scene, step: str, device: hal.Device) -> Call:
    """The scene's call in one step, and what its tensors leave in the caches."""
    query_lens, seq_lens = STEPS[step]
    given = scene.inputs(sum(query_lens))
    q = given[scene.beside]
    width = q.shape[2] if scene.method == "attend_mla" and q.shape[2] == MLA.kv_lora_rank else scene.layer.v_head_dim
    given |= scene.bound() | {"out": torch.full((*q.shape[:2], width), torch.nan)}

    def run(arguments: Arguments) -> object:
        attention = scene.open(device, arguments)
        metadata = attention.build(hal.Batch(query_lens, seq_lens, TABLES.numpy()))
        before = snapshot(attention)
        try:
            scene.attend(attention, metadata, arguments)
        except hal.LayoutError:
            assert unchanged(attention, before), "a refused call wrote to a cache"
            raise
        return list(snapshot(attention).values())

    return Call(run=run, arguments=given, written={("out",)}, beside=scene.beside)


def batch_call(scene: Scene, step: str, known: str, device: hal.Device) -> Call:
    """Batch.from_device and a layer's call of the step, as a function of the batch's tensors; a BatchError is a refusal."""
    query_lens, seq_lens = STEPS[step]
    given = scene.inputs(sum(query_lens))
    ends = zip(query_lens, seq_lens, strict=True)
    places = [(request, position) for request, (new, end) in enumerate(ends) for position in range(end - new, end)]
    slots = [int(TABLES[request, position // 8]) * 8 + position % 8 for request, position in places]
    tensors: dict[str, Any] = {
        "query_start_loc": torch.tensor([0, *accumulate(query_lens)], dtype=torch.int32),
        "seq_lens": torch.tensor(seq_lens, dtype=torch.int32),
        "block_tables": TABLES.clone(),
    }
    if known != "no_slots":
        tensors["slot_mapping"] = torch.tensor(slots, dtype=torch.int64)
    sizes = {"num_tokens": sum(query_lens), "max_query_len": max(query_lens), "max_seq_len": 24}
    hints = {"query_lens": query_lens, "seq_lens_upper": [24, 24, 24]} if known == "lengths" else {}

    def run(arguments: Arguments) -> object:
        attention = scene.open(device, scene.bound())
        try:
            metadata = attention.build(hal.Batch.from_device(**arguments, **sizes, **hints))
        except hal.BatchError as error:
            raise hal.LayoutError(str(error)) from error
        out = scene.attend(attention, metadata, given)
        arrays = [metadata.slot_mapping, metadata.positions, metadata.req_id_per_token, metadata.seq_lens]
        counts = torch.tensor([attention.lost_tokens, attention.lost_pages])
        return [out, counts, *(array.clone() for array in arrays), *snapshot(attention).values()]

    return Call(run=run, arguments=tensors)


def count_tensors(call: Call) -> int:
    """How many tensors a call is given."""
    return len(list(find_tensors(call.arguments)))
