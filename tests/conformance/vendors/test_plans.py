"""The calls for every layer of the collected configs, made of tensors without memory, fit the recorded signatures."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest
import torch

from hal.common.backends.registry import find_backend
from hal.common.contract.call_values import KVCache, PagedBatch, Segment, VarlenBatch
from hal.common.contract.device import Device
from hal.common.contract.layouts import Layout, layer_layout
from hal.common.contract.masking import masking_of
from hal.common.contract.parallel import Parallel
from hal.common.contract.request import Request
from hal.common.contract.software import Software
from hal.common.vendor import Resolver, VendorBackend, VendorCall
from hal.common.vendor.call import fit_arguments
from hal.config import ConfigError, LayerShape, read_shape

from .helpers.cells import CELLS, SIGNATURES, Cell

CONFIGS = Path(__file__).parents[4] / "shared" / "configs"
TOKENS, REQUESTS, PAGES = 6, 3, 8
ALIGNED = {"gather_kv_indices": 128}


class CallMade(Exception):  # noqa: N818 - it ends a call, it is no error
    """Instead of running a vendor's function."""


@pytest.fixture(scope="module")
def layers() -> list[LayerShape]:
    """Every layer of every collected config that caches KV, each form once."""
    if not CONFIGS.is_dir():
        pytest.skip("the collected configs are not beside this checkout")
    found = {}
    for path in sorted(CONFIGS.glob("*.json")):
        try:
            shape = read_shape(path)
        except (ConfigError, ValueError):
            continue
        for layer in shape.layers:
            form = replace(layer, layer_id=0, kv_source=0)
            found[form] = None
    return [layer for layer in found if layer.kind in ("attention", "mla")]


def tensor(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def make_batch() -> PagedBatch:
    starts, lengths = tensor(REQUESTS + 1, dtype=torch.int32), tensor(REQUESTS, dtype=torch.int32)
    return PagedBatch(starts, lengths, tensor(REQUESTS, 4, dtype=torch.int32), 4, 40)


def make_cache(layout: Layout, block_size: int) -> KVCache:
    storage = tensor(PAGES, block_size, layout.width, dtype=getattr(torch, layout.dtype))
    return KVCache(storage, layout, block_size, block_size)


def attend(backend: VendorBackend, call: str, request: Request, block_size: int) -> None:
    layer, heads, dtype = request.layer, request.heads_on_rank, getattr(torch, request.dtype)
    cache = make_cache(layer_layout(layer, "auto", request.dtype, request.parallel.tp), block_size)
    lse = request.layer.sink
    if call == "paged_attention":
        width = cache.layout.width if layer.mla is not None else layer.head_dim
        q = tensor(TOKENS, heads, width, dtype=dtype)
        backend.paged_attention(q, cache, make_batch(), softmax_scale=0.1, masking=masking_of(layer), need_lse=lse)
    elif call == "sparse_mla":
        q = tensor(TOKENS, heads, cache.layout.width, dtype=dtype)
        rows = tensor(TOKENS, layer.indexer.width, dtype=torch.int32)
        segment = Segment(cache, rows, tensor(TOKENS, dtype=torch.int32))
        backend.sparse_mla(q, [segment], kv_lora_rank=layer.mla.kv_lora_rank, softmax_scale=0.1, need_lse=lse)
    else:
        starts = tensor(REQUESTS + 1, dtype=torch.int32)
        q, k = (tensor(TOKENS, heads, layer.head_dim, dtype=dtype) for _ in range(2))
        v = tensor(TOKENS, heads, layer.v_head_dim, dtype=dtype)
        batch = VarlenBatch(q_start_loc=starts, k_start_loc=starts, max_query_len=4, max_seq_len=4)
        backend.varlen_attention(q, k, v, batch, softmax_scale=0.1, need_lse=True)


def calls_of(cell: Cell, layers: list[LayerShape]) -> Iterator[tuple[LayerShape, VendorCall]]:
    cls = find_backend(cell.backend)
    device = Device.from_arch(cell.arch, torch_device="meta")
    backend = cls(device)
    software = Software({cell.library: cell.release})
    for layer in layers:
        for tp in (1, 8):
            block_size = 256
            request = Request(layer, device, "bfloat16", parallel=Parallel(tp=tp), block_size=block_size, software=software)
            if layer.num_heads % tp or (layer.num_kv_heads % tp and tp % layer.num_kv_heads):
                continue
            for call in sorted(cls.provides or ()):
                if cls.explain_call_refusal(call, "prefill", request):
                    continue
                with mock.patch.object(Resolver, "call", side_effect=CallMade) as made, pytest.raises(CallMade):
                    attend(backend, call, request, block_size)
                yield layer, made.call_args.args[0]


@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: cell.id)
def test_calls_for_real_models_bind(cell: Cell, layers: list[LayerShape]) -> None:
    with cell.installed():
        made = list(calls_of(cell, layers))
    assert made
    for layer, call in made:
        rows = [r for r in SIGNATURES if r.library == cell.library and r.target in (call.target, *call.other_targets)]
        assert rows
        for row in rows:
            if row.release == cell.release or "return_lse" not in call.kwargs:
                row.signature.bind(**fit_arguments(call, row.signature))
        for name, value in call.kwargs.items():
            if isinstance(value, torch.Tensor) and not value.is_floating_point():
                assert value.dtype == torch.int32, (layer, name)
            if name in ALIGNED:
                assert value.shape[-1] % ALIGNED[name] == 0, (layer, name)
