"""Item 10: which tokens close an entry and where it lies, and what an entry is made of, state by state."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import accumulate

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import hal
from hal import Compressor
from hal.common.contract.call_values import CompressedBatch, KVCache
from hal.common.contract.layouts import latent_layout, state_layout
from hal.config import read_shape
from hal.testing.suite.placement import place_of

from .helpers.targets import BOUNDED, ON_KERNELS, ints, open_target

WIDTH, ROPE, EPS = 8, 4, 1e-6
Row = list[float]


@dataclass(slots=True)
class Token:
    """What a compressor makes of one token: two rows of as many groups as overlap, end to end."""

    kv: Row
    score: Row


def entry_of(tokens: list[Token], position: int, ratio: int, groups: int, bias: list[Row], norm: Row, angle: Row) -> Row:
    """The entry that closes at a position, from the definition; tokens: everything its request was ever given."""
    mixed = []
    for channel in range(WIDTH):
        values, scores = [], []
        for source in range(position - groups * ratio + 1, position + 1):
            if source < 0:
                continue
            # Of two groups the older one gives the first half of its rows, the newer one the second.
            lane = channel + (WIDTH if groups == 2 and source > position - ratio else 0)
            values.append(tokens[source].kv[lane])
            scores.append(math.exp(tokens[source].score[lane] + bias[source % ratio][lane]))
        mixed.append(sum(v * s for v, s in zip(values, scores, strict=True)) / sum(scores))
    size = math.sqrt(sum(value * value for value in mixed) / WIDTH + EPS)
    entry = [value / size * weight for value, weight in zip(mixed, norm, strict=True)]
    for pair, turn in enumerate(angle):
        i = WIDTH - ROPE + 2 * pair
        x, y = entry[i], entry[i + 1]
        entry[i], entry[i + 1] = x * math.cos(turn) - y * math.sin(turn), y * math.cos(turn) + x * math.sin(turn)
    return entry


def angles(position: int, ratio: int) -> Row:
    """The rotation at the start of a position's group."""
    start = position // ratio * ratio
    return [start * 10.0**-pair for pair in range(ROPE // 2)]


@ON_KERNELS
@given(
    lengths=st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=3), min_size=1, max_size=3),
    ratio=st.sampled_from([2, 3, 4]),
    groups=st.sampled_from([1, 2]),
    spare=st.integers(0, 9),
    seed=st.integers(0, 2**31),
)
def test_entries_of_requests_that_grow_step_by_step(
    target, lengths: list[list[int]], ratio: int, groups: int, spare: int, seed: int
) -> None:
    """lengths: new tokens of each request in each step. Every entry is written once, by the token that closes its group.

    A page of three groups keeps the states of as many of its last tokens as an entry is made of, and some to spare.
    """
    backend = open_target(target, "compress_states")
    where, generator = place_of(backend), torch.Generator().manual_seed(seed)
    requests, size, page = len(lengths), 3, 3 * ratio
    kept = min(page, groups * ratio + spare)
    pages = torch.randperm(requests * 8, generator=generator).reshape(requests, 8)
    table = pages.tolist()
    wide = groups * WIDTH
    states = make_cache(state_layout(wide, "float32"), requests * 8, kept, where)
    entries = make_cache(latent_layout(WIDTH, 0, "float32"), requests * 8, size, where)
    bias = torch.randn(ratio, wide, generator=generator)
    norm = torch.rand(WIDTH, generator=generator) + 0.5
    history: list[list[Token]] = [[] for _ in range(requests)]
    expected: dict[int, Row] = {}
    for step in range(3):
        where_of = [(request, len(history[request])) for request in range(requests)]
        new = [(request, first + i) for request, first in where_of for i in range((*lengths[request], 0, 0, 0)[step])]
        kv, score = torch.randn(len(new), wide, generator=generator), torch.randn(len(new), wide, generator=generator)
        state_slots, entry_slots, turns = [], [], []
        last_of = dict(new)
        for token, (request, position) in enumerate(new):
            history[request].append(Token(kv[token].tolist(), score[token].tolist()))
            block, offset = table[request][position // page], position % page
            is_overwritten = position + kept <= min(last_of[request], position - offset + page - 1)
            state_slots.append(-1 if is_overwritten else block * kept + offset % kept)
            closes = (position + 1) % ratio == 0
            slot = block * size + offset // ratio if closes else -1
            entry_slots.append(slot)
            turns.append(angles(position, ratio))
            if closes:
                values = history[request], position, ratio, groups, bias.tolist(), norm.tolist(), turns[-1]
                expected[slot] = entry_of(*values)
        turn = torch.tensor(turns).reshape(len(new), ROPE // 2)
        backend.compress_states(
            Compressor(
                kv=kv.to(where),
                score=score.to(where),
                position_bias=bias.to(where),
                norm_weight=norm.to(where),
                eps=EPS,
                cos=turn.cos().to(where),
                sin=turn.sin().to(where),
            ),
            states,
            entries,
            CompressedBatch(
                state_slots=torch.tensor(state_slots, dtype=torch.int64, device=where),
                entry_slots=torch.tensor(entry_slots, dtype=torch.int64, device=where),
                query_start_loc=ints(
                    [0, *accumulate([request for request, _ in new].count(one) for one in range(requests))], where
                ),
                req_id=ints([request for request, _ in new], where),
                positions=torch.tensor([position for _, position in new], dtype=torch.int64, device=where),
                block_table=pages.to(torch.int32).to(where),
            ),
            ratio=ratio,
        )
    for slot, row in enumerate(entries.rows.cpu().tolist()):
        if slot not in expected:
            assert all(math.isnan(value) for value in row)
        else:
            assert all(abs(a - b) < 1e-4 * (1 + abs(b)) for a, b in zip(row, expected[slot], strict=True)), (slot, row)


def make_cache(layout, pages: int, size: int, where: str) -> KVCache:
    """A cache of NaN: what is read before it was written spoils an entry."""
    storage = torch.full((pages, size, layout.width), math.nan, device=where)
    return KVCache(storage, layout, size, size)


V4 = {
    "model_type": "made_up",
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "qk_rope_head_dim": 4,
    "vocab_size": 100,
    "max_position_embeddings": 256,
    "sliding_window": 8,
    "compress_ratios": [0, 4, 8],
    "index_topk": 4,
    "index_n_heads": 2,
    "index_head_dim": 8,
    "q_lora_rank": 16,
}
PAGE = 16


@pytest.fixture(scope="module")
def attention() -> hal.Attention:
    limits = hal.Limits(256, 6, 96, block_size=PAGE)
    return hal.plan(read_shape(V4), "cpu", limits=limits, dtype="float32").open(128)


@BOUNDED
@given(
    lengths=st.lists(st.tuples(st.integers(0, 12), st.integers(0, 200)), min_size=1, max_size=6),
    is_device=st.booleans(),
    seed=st.integers(0, 2**31),
)
def test_only_tokens_that_close_a_group_have_a_slot_of_an_entry(
    attention: hal.Attention, lengths: list[tuple[int, int]], is_device: bool, seed: int
) -> None:
    """A token whose position closes a group of ratio tokens has a slot, in the page where the group's number says; others -1.

    Of a page's compressor states the last of the step have slots.
    """
    lengths = sorted(lengths, key=lambda pair: pair[0] != 1)
    table = torch.randperm(128, generator=torch.Generator().manual_seed(seed))[: len(lengths) * 14].reshape(len(lengths), 14)
    queries, seqs = [query for query, _ in lengths], [query + past for query, past in lengths]
    if is_device:
        batch = hal.Batch.from_device(
            ints([0, *accumulate(queries)]),
            ints(seqs),
            table.to(torch.int32),
            num_tokens=sum(queries),
            max_query_len=max(queries),
            max_seq_len=max(seqs),
            num_decodes=queries.count(1),
        )
    else:
        batch = hal.Batch(queries, seqs, table.numpy())
    metadata = attention.build(batch)
    positions = [(r, p) for r, (query, seq) in enumerate(zip(queries, seqs, strict=True)) for p in range(seq - query, seq)]
    for group, step in zip(attention.plan.groups, metadata.groups, strict=True):
        ratio = group.tokens_per_row
        per_page = PAGE // ratio
        expected = []
        for request, position in positions:
            if group.last_rows is not None and group.last_rows < PAGE:
                page, offset = divmod(position, PAGE)
                last, kept = min(seqs[request], (page + 1) * PAGE) - 1, group.last_rows
                expected.append(int(table[request, page]) * kept + offset % kept if position + kept > last else -1)
                continue
            number, rest = divmod(position + 1, ratio)
            page, offset = divmod(number - 1, per_page)
            expected.append(int(table[request, page]) * per_page + offset if rest == 0 else -1)
        assert step.slot_mapping[: len(positions)].tolist() == expected
    assert {group.tokens_per_row for group in attention.plan.groups} == {1, 4, 8}
