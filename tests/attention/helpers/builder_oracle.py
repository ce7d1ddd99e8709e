"""What one step's metadata must hold, token by token from the definitions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

import hal


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """One new token: its request, its position there, and its slot per cache group."""

    request: int
    position: int
    slots: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """A batch in the words of an oracle."""

    query_lens: list[int]
    seq_lens: list[int]
    tables: list[list[list[int]]]
    block_size: int
    is_decode: list[bool]

    @property
    def tokens(self) -> list[Token]:
        """The new tokens in the engine's order."""
        return [
            Token(request=request, position=position, slots=tuple(self._slot(table[request], position) for table in self.tables))
            for request, (query, seq) in enumerate(zip(self.query_lens, self.seq_lens, strict=True))
            for position in range(seq - query, seq)
        ]

    def members(self, decode: bool) -> list[int]:
        """The requests of a phase in the engine's order."""
        return [request for request, flag in enumerate(self.is_decode) if flag == decode]

    def _slot(self, pages: list[int], position: int) -> int:
        return pages[position // self.block_size] * self.block_size + position % self.block_size


def facts_of(batch: hal.Batch, block_size: int, decode_len: int, num_groups: int, flags: list[bool] | None) -> Facts:
    """Plain lists out of a batch; one table serves every group."""
    queries, lengths = batch.query_lens.tolist(), batch.seq_lens.tolist()
    tables = [np.asarray(table).tolist() for table in batch.block_tables]
    prefilling = flags or [False] * len(queries)
    return Facts(
        query_lens=queries,
        seq_lens=lengths,
        tables=tables if len(tables) == num_groups else tables * num_groups,
        block_size=block_size,
        is_decode=[query <= decode_len and not flag for query, flag in zip(queries, prefilling, strict=True)],
    )


def check_engine_order(metadata: hal.StepMetadata, facts: Facts) -> None:
    """The parts that follow the engine's order of requests."""
    tokens, requests = facts.tokens, len(facts.query_lens)
    assert (metadata.num_reqs, metadata.num_tokens) == (requests, len(tokens))
    assert metadata.query_start_loc[: requests + 1].tolist() == np.cumsum([0, *facts.query_lens]).tolist()
    assert metadata.seq_lens[:requests].tolist() == facts.seq_lens
    assert metadata.positions[: len(tokens)].tolist() == [token.position for token in tokens]
    assert metadata.req_id_per_token[: len(tokens)].tolist() == [token.request for token in tokens]
    assert (metadata.max_query_len, metadata.max_seq_len) == (max(facts.query_lens, default=0), max(facts.seq_lens, default=0))
    for group, step in enumerate(metadata.groups):
        assert step.slot_mapping[: len(tokens)].tolist() == [token.slots[group] for token in tokens]
        for request, seq in enumerate(facts.seq_lens):
            pages = -(-seq // facts.block_size)
            assert step.batch.block_table[request, :pages].tolist() == facts.tables[group][request][:pages]


def check_execution_order(metadata: hal.StepMetadata, facts: Facts) -> None:
    """The phases: decodes, then prefills, each with the tokens, lengths and tables of its requests."""
    tokens = facts.tokens
    order = list(range(len(tokens))) if metadata.token_order is None else metadata.token_order.tolist()
    expected = [
        index
        for decode in (True, False)
        for request in facts.members(decode)
        for index, token in enumerate(tokens)
        if token.request == request
    ]
    assert order == expected
    executed = [tokens[index] for index in order]
    for phase, decode in ((metadata.decode, True), (metadata.prefill, False)):
        members = facts.members(decode)
        queries = [facts.query_lens[request] for request in members]
        if not sum(queries):
            assert phase is None
            continue
        mine = executed[phase.tokens]
        assert phase.name == ("decode" if decode else "prefill")
        assert [members[i] for i in phase.req_id.tolist()] == [token.request for token in mine]
        assert phase.key_bounds.tolist() == [token.position + 1 for token in mine]
        assert phase.max_seq_len == max(facts.seq_lens[request] for request in members)
        for group, batch in enumerate(phase.batches):
            assert batch.query_start_loc.tolist() == np.cumsum([0, *queries]).tolist()
            assert batch.seq_lens.tolist() == [facts.seq_lens[request] for request in members]
            assert (batch.max_query_len, batch.max_seq_len) == (max(queries), phase.max_seq_len)
            assert batch.num_decodes == (len(members) if decode else 0)
            for row, request in zip(batch.block_table.tolist(), members, strict=True):
                pages = -(-facts.seq_lens[request] // facts.block_size)
                assert row[:pages] == facts.tables[group][request][:pages]
