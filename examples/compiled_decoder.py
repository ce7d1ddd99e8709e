"""An engine with its own memory and its own graph: a whole decoder compiled as one, its attention by hal.ops.

Nothing of hal is planned or opened here; the engine lays out the caches, keeps the pages and says in each step where tokens
go. The model is a tiny random one. Run it: python examples/compiled_decoder.py
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate

import torch

import hal
from hal.layouts import attention_layout

HIDDEN, HEADS, KV_HEADS, WIDTH, LAYERS, VOCABULARY = 64, 4, 2, 16, 3, 96
PAGE, PAGES_EACH, MAX_LENGTH = 8, 8, 64
Forward = Callable[..., torch.Tensor]


class Decoder(torch.nn.Module):
    """Token and position embeddings, attention layers, and the logits of some rows."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = torch.nn.Embedding(VOCABULARY, HIDDEN)
        self.positions = torch.nn.Embedding(MAX_LENGTH, HIDDEN)
        self.logits = torch.nn.Linear(HIDDEN, VOCABULARY)
        self.qkv = torch.nn.ModuleList(torch.nn.Linear(HIDDEN, (HEADS + 2 * KV_HEADS) * WIDTH) for _ in range(LAYERS))
        self.out = torch.nn.ModuleList(torch.nn.Linear(HEADS * WIDTH, HIDDEN) for _ in range(LAYERS))

    def forward(
        self,
        tokens: torch.Tensor,
        positions: torch.Tensor,
        slots: torch.Tensor,
        rows: torch.Tensor,
        batch: hal.PagedBatch,
        caches: list[hal.KVCache],
    ) -> torch.Tensor:
        """Logits [rows, vocabulary] of a step's tokens, whose keys and values are in the caches afterwards."""
        hidden = self.tokens(tokens) + self.positions(positions)
        for qkv, out, cache in zip(self.qkv, self.out, caches, strict=True):
            q, k, v = qkv(hidden).unflatten(1, (-1, WIDTH)).split([HEADS, KV_HEADS, KV_HEADS], dim=1)
            hal.ops.write_cache(cache, slots, k, v)
            attended, _ = hal.ops.paged_attention(q, cache, batch, softmax_scale=WIDTH**-0.5)
            hidden = hidden + torch.tanh(out(4 * attended.flatten(1)))
        logits: torch.Tensor = self.logits(hidden[rows])
        return logits


class Engine:
    """Runs requests together. Each keeps the same pages from beginning to end; they lie in any order."""

    def __init__(self, forward: Forward, num_requests: int) -> None:
        self.forward = forward
        layout = attention_layout(KV_HEADS, WIDTH, WIDTH, "float32")
        shape = (num_requests * PAGES_EACH, PAGE, layout.width)
        self.caches = [hal.KVCache(torch.zeros(shape), layout, PAGE, PAGE) for _ in range(LAYERS)]
        order = torch.randperm(num_requests * PAGES_EACH, generator=torch.Generator().manual_seed(1))
        self.table = order.reshape(num_requests, PAGES_EACH).int()

    @torch.inference_mode()
    def step(self, new: Sequence[Sequence[int]], lengths: Sequence[int]) -> list[int]:
        """The next token of every request, from its new tokens and its length with them."""
        counts = [len(tokens) for tokens in new]
        ends = list(accumulate(counts))
        request = torch.repeat_interleave(torch.arange(len(new)), torch.tensor(counts))
        starts = torch.tensor(lengths) - torch.tensor(ends)
        positions = torch.arange(ends[-1]) + starts[request]
        batch = hal.PagedBatch(
            query_start_loc=torch.tensor([0, *ends], dtype=torch.int32),
            seq_lens=torch.tensor(lengths, dtype=torch.int32),
            block_table=self.table[: len(new)],
            max_query_len=max(counts),
            max_seq_len=max(lengths),
        )
        slots = self.table[request, positions // PAGE].long() * PAGE + positions % PAGE
        tokens = torch.tensor([token for each in new for token in each])
        logits = self.forward(tokens, positions, slots, torch.tensor(ends) - 1, batch, self.caches)
        chosen: list[int] = logits.argmax(dim=1).tolist()
        return chosen

    def generate(self, prompts: Sequence[Sequence[int]], num_tokens: int) -> list[list[int]]:
        """Greedy continuations of all prompts, run together."""
        texts = [list(prompt) for prompt in prompts]
        new = texts
        for _ in range(num_tokens):
            chosen = self.step(new, [len(text) for text in texts])
            texts = [[*text, token] for text, token in zip(texts, chosen, strict=True)]
            new = [[token] for token in chosen]
        return [text[-num_tokens:] for text in texts]


def main() -> None:
    """Generate with the compiled decoder and with the plain one."""
    torch.manual_seed(0)
    decoder = Decoder()
    prompts = [[5, 17, 3, 80, 41], [9, 9, 30, 2, 77, 12, 64, 51, 8, 1, 33], [20]]
    compiled = torch.compile(decoder, fullgraph=True, dynamic=True)
    for name, forward in (("eager", decoder), ("compiled", compiled)):
        print(name, Engine(forward, len(prompts)).generate(prompts, 12))


if __name__ == "__main__":
    main()
