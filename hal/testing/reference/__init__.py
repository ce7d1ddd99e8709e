"""Every kernel call in float64, one token at a time, straight from its definition; slow, and meant to be read."""

from .caches import gather_rows, locate_row, read_parts, read_request, write_rows, write_token
from .compressing import compress_states
from .encoding import decode_fp8, decode_token, encode_fp8, encode_token
from .merging import apply_sink, merge_states
from .paged import paged_attention
from .pools import expand_pools
from .rows import rows_from_topk
from .scores import index_scores
from .sparse import sparse_mla
from .topk import select_topk
from .varlen import varlen_attention

__all__ = [
    "apply_sink",
    "compress_states",
    "decode_fp8",
    "decode_token",
    "encode_fp8",
    "encode_token",
    "expand_pools",
    "gather_rows",
    "index_scores",
    "locate_row",
    "merge_states",
    "paged_attention",
    "read_parts",
    "read_request",
    "rows_from_topk",
    "select_topk",
    "sparse_mla",
    "varlen_attention",
    "write_rows",
    "write_token",
]
