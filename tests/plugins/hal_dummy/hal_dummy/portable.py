"""The platform's portable backend: grouped-query attention in a few lines of torch."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar

from hal.backend import CAUSAL, Backend, BatchError, Capabilities, LayoutError

if TYPE_CHECKING:
    import torch

    from hal.backend import KVCache, Masking, PagedBatch


class DummyPortable(Backend):
    """Causal attention over the `kv` layout, one query at a time."""

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
        if any(len(part) != len(slots) for part in parts):
            raise BatchError(f"{len(slots)} slots for {[len(part) for part in parts]} tokens; expected a slot for each token")
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
        masking: Masking = CAUSAL,
        need_lse: bool = False,
        out: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """out [tokens, heads, v_head_dim] and lse [tokens, heads]; selection keeps masks other than causal away."""
        import torch

        (*_, key_width), (*_, width) = cache.layout.parts
        if q.shape[-1] != key_width:
            raise LayoutError(f"queries are {q.shape[-1]} wide; expected {key_width}, as the keys are")
        if out is not None and out.numel() and not _stands_apart(out, q):
            raise LayoutError(f"out has strides {out.stride()}; expected a dense tensor, in other memory than the queries")
        result = torch.zeros(*q.shape[:2], width, dtype=q.dtype) if out is None else out.zero_()
        lse = torch.full(q.shape[:2], -math.inf)
        starts = batch.query_start_loc.tolist()
        for request, length in enumerate(batch.seq_lens.tolist()):
            for token in range(starts[request], starts[request + 1]):
                positions = torch.arange(length - (starts[request + 1] - token) + 1)
                if not len(positions):
                    continue
                pages = batch.block_table[request, positions // cache.block_size]
                k, v = self.gather_cache(cache, pages * cache.page_stride + positions % cache.block_size)
                group = q.shape[1] // k.shape[1]
                k, v = k.float().repeat_interleave(group, 1), v.float().repeat_interleave(group, 1)
                scores = torch.einsum("hd,khd->hk", q[token].float(), k) * softmax_scale
                lse[token] = scores.logsumexp(-1)
                result[token] = torch.einsum("hk,khd->hd", scores.softmax(-1), v)
        return result, lse if need_lse else None

    def merge_states(
        self, out_a: torch.Tensor, lse_a: torch.Tensor, out_b: torch.Tensor, lse_b: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The result over both key sets; a side whose lse is no number adds nothing."""
        import torch

        lse_a, lse_b = (torch.where(lse.isfinite(), lse, -math.inf) for lse in (lse_a, lse_b))
        lse = torch.logaddexp(lse_a, lse_b)
        sides = [
            torch.where(side[..., None] > -math.inf, (side - lse).exp()[..., None] * out.float(), 0.0)
            for out, side in ((out_a, lse_a), (out_b, lse_b))
        ]
        return (sides[0] + sides[1]).to(out_a.dtype), lse


def _stands_apart(out: torch.Tensor, q: torch.Tensor) -> bool:
    return out.is_contiguous() and out.untyped_storage().data_ptr() != q.untyped_storage().data_ptr()
