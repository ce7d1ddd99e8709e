"""Which keys each query of a call over contiguous keys was given, as bits."""

import triton
import triton.language as tl


@triton.jit(
    do_not_specialize=["width", "bits_row"],
    do_not_specialize_on_alignment=["q_start_loc", "k_start_loc", "first_key", "bits"],
)
def mark_keys(selected, q_start_loc, k_start_loc, first_key, bits, selected_token, bits_row, width, BLOCK: tl.constexpr):
    """A program: the bits of one query, of which key `id - first_key` of its request has one. Grid: (longest query, requests).

    selected: ids [tokens, width], any number of them -1 or of keys that are not here. bits: zeros, int32 [tokens, bits_row].
    """
    request = tl.program_id(1)
    token = (tl.load(q_start_loc + request) + tl.program_id(0)).to(tl.int64)
    if token >= tl.load(q_start_loc + request + 1):
        return
    first = tl.load(first_key + request)
    count = tl.minimum(tl.load(k_start_loc + request + 1) - tl.load(k_start_loc + request), bits_row * 32)
    for begin in range(0, width, BLOCK):
        column = begin + tl.arange(0, BLOCK)
        chosen = tl.load(selected + token * selected_token + column, mask=column < width, other=-1)
        key = chosen - first
        is_here = (chosen >= 0) & (key >= 0) & (key < count)
        key = tl.where(is_here, key, 0)
        bit = tl.full([BLOCK], 1, tl.int32) << (key % 32)
        # An id may stand in a row twice.
        tl.atomic_or(bits + token * bits_row + key // 32, bit, mask=is_here)
