"""The calls of the contract as torch operators, for torch.compile and for engines that keep their memory and their graph.

Each function takes what the call of the same name in hal.Backend takes, and `backend`: a registered name, or None for the
portable backend of the device where the tensors live. It calls the operator torch.ops.hal.NAME, which has a kernel for
tensors without data, declares what it mutates and never returns a view of an input. Operators have no backward.
"""

from __future__ import annotations

from hal.common.contract.extras import naming_extra

with naming_extra("hal.ops"):
    from .caches import gather_cache, write_cache
    from .choosing import expand_pools, rows_from_topk, select_topk
    from .compressing import compress_states
    from .merging import apply_sink, merge_states
    from .paged import paged_attention
    from .scores import index_scores
    from .sparse import sparse_mla
    from .varlen import varlen_attention

__all__ = [
    "apply_sink",
    "compress_states",
    "expand_pools",
    "gather_cache",
    "index_scores",
    "merge_states",
    "paged_attention",
    "rows_from_topk",
    "select_topk",
    "sparse_mla",
    "varlen_attention",
    "write_cache",
]
