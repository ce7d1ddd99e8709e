"""The platform's portable backend: grouped-query attention in a few lines of torch."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar

from hal.backend import Backend, Capabilities

if TYPE_CHECKING:
    import torch

    from hal import KVCache, PagedBatch


class DummyPortable(Backend):
    """Causal attention over the `kv` layout, one request at a time."""

    name: ClassVar[str] = "dummy:portable"
    platform: ClassVar[str] = "dummy"
    capabilities: ClassVar[Capabilities] = Capabilities(
        families=frozenset({"attention"}),
        dtypes=("float32", "bfloat16"),
        kv_layouts={"attention": ("kv",)},
        lse=True,
    )

    def write_cache(self, cache: KVCache, slots: torch.Tensor, *parts: torch.Tensor) -> None:
        """Parts at slots; slot -1 writes nothing."""
        kept = slots >= 0
        page, offset = slots[kept] // cache.block_size, slots[kept] % cache.block_size
        cache.storage[page, offset] = cache.layout.pack([part[kept] for part in parts])

    def gather_cache(self, cache: KVCache, rows: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The parts at rows; row -1 gives zeros."""
        found = cache.rows[rows.clamp(min=0).long()]
        found[rows < 0] = 0
        return cache.layout.unpack(found)

    def paged_attention(
        self,
        q: torch.Tensor,
        cache: KVCache,
        batch: PagedBatch,
        *,
        softmax_scale: float,
        window: int | None = None,
        chunk: int | None = None,
        softcap: float | None = None,
        causal: bool = True,
        need_lse: bool = False,
        out: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """out [tokens, heads, v_head_dim] and lse [tokens, heads]; selection keeps masks other than causal away."""
        import torch

        width = cache.layout.parts[1][1]
        result = torch.zeros(*q.shape[:2], width, dtype=q.dtype) if out is None else out.zero_()
        lse = torch.full(q.shape[:2], -math.inf)
        starts = batch.query_start_loc.tolist()
        for request, length in enumerate(batch.seq_lens.tolist()):
            start, stop = starts[request], starts[request + 1]
            if start == stop or not length:
                continue
            table = batch.block_table[request]
            positions = torch.arange(length)
            rows = table[positions // cache.block_size] * cache.page_stride + positions % cache.block_size
            k, v = (part.float() for part in self.gather_cache(cache, rows))
            group = q.shape[1] // k.shape[1]
            k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
            scores = torch.einsum("qhd,khd->qhk", q[start:stop].float(), k) * softmax_scale
            last = torch.arange(length - (stop - start), length)
            scores = scores.masked_fill(positions > last[:, None, None], -math.inf)
            lse[start:stop] = scores.logsumexp(-1)
            result[start:stop] = torch.einsum("qhk,khd->qhd", scores.softmax(-1), v).to(result.dtype)
        return result, lse if need_lse else None

    def merge_states(
        self, out_a: torch.Tensor, lse_a: torch.Tensor, out_b: torch.Tensor, lse_b: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The result over both key sets; a side with lse -inf adds nothing."""
        import torch

        lse = torch.logaddexp(lse_a, lse_b)
        parts = [
            torch.where(side > -math.inf, (side - lse).exp(), 0.0)[..., None] * torch.nan_to_num(out.float())
            for out, side in ((out_a, lse_a), (out_b, lse_b))
        ]
        return (parts[0] + parts[1]).to(out_a.dtype), lse
