"""A continuous-batching engine: a waiting queue, paged admission, shared prefixes, preemption, and windows that give pages back.

The engine owns the memory and the schedule; hal plans the caches, builds each step's metadata and attends. The model is a
tiny random one, so that nothing but torch and hal is needed. Run it: python examples/engine.py
"""

from __future__ import annotations

import random
import time
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch

import hal
from hal.pages import PagePool, RequestPages, stack_tables

CONFIG = {
    "model_type": "tiny",
    "hidden_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "num_hidden_layers": 3,
    "layer_types": ["full_attention", "sliding_attention", "sliding_attention"],
    "sliding_window": 24,
    "vocab_size": 96,
    "max_position_embeddings": 256,
}
LIMITS = hal.Limits(max_model_len=128, max_num_seqs=6, max_num_batched_tokens=32, block_size=4)
NUM_PREFIXES, PREFIX_TOKENS = 4, 16


class TinyModel:
    """Embeddings, hal attention with random projections, and a greedy choice of the next token."""

    def __init__(self, plan: hal.Plan, seed: int = 0) -> None:
        self.shape, generator = plan.shape, torch.Generator().manual_seed(seed)
        device, dtype = plan.device.torch_device, getattr(torch, plan.dtype)

        def draw(*shape: int) -> torch.Tensor:
            values: torch.Tensor = torch.randn(shape, generator=generator, dtype=torch.float64) / shape[0] ** 0.5
            return values.to(device, dtype)

        width = self.shape.hidden_size
        self.embedding = draw(self.shape.vocab_size, width) * width**0.5
        self.positions = draw(LIMITS.max_model_len, width) * width**0.5
        self.projections = []
        for layer in self.shape.layers:
            queries, keys = layer.num_heads * layer.head_dim, layer.num_kv_heads * layer.head_dim
            self.projections.append((draw(width, queries) * 3, draw(width, keys), draw(width, keys), draw(queries, width)))

    def choose(self, tokens: torch.Tensor, rows: list[int], attention: hal.Attention, metadata: hal.StepMetadata) -> list[int]:
        """The next token after each of some rows of a step's tokens."""
        hidden = self.embedding[tokens] + self.positions[metadata.positions]
        for layer, (w_q, w_k, w_v, w_out) in zip(self.shape.layers, self.projections, strict=True):
            q = (hidden @ w_q).unflatten(1, (layer.num_heads, layer.head_dim))
            k = (hidden @ w_k).unflatten(1, (layer.num_kv_heads, layer.head_dim))
            v = (hidden @ w_v).unflatten(1, (layer.num_kv_heads, layer.head_dim))
            attended = attention.attend(layer.layer_id, q, k, v, metadata)
            hidden = hidden + torch.tanh(attended.flatten(1) @ w_out)
        chosen: list[int] = (hidden[rows] @ self.embedding.T).argmax(dim=1).tolist()
        return chosen


@dataclass(slots=True, kw_only=True, eq=False)
class Request:
    """A prompt and what has been made of it. num_computed: tokens whose keys and values are in the cache."""

    tokens: list[int]
    max_length: int
    pages: RequestPages
    num_computed: int = 0

    @property
    def num_left(self) -> int:
        """Tokens to compute before its next one can be chosen."""
        return len(self.tokens) - self.num_computed


class Engine:
    """Requests in, tokens out. num_tokens: how many tokens the full-attention layers' pages hold over all requests."""

    def __init__(self, num_tokens: int, dtype: str = "float32") -> None:
        self.plan = hal.plan(hal.read_shape(CONFIG), limits=LIMITS, dtype=dtype)
        self.device = self.plan.device.torch_device
        # The engine's own tensors. A window group needs only its windows and one step's new tokens.
        kept = NUM_PREFIXES * LIMITS.max_num_batched_tokens // self.plan.block_size
        blocks = [count + kept for count in self.plan.blocks_per_group(num_tokens)]
        caches = {
            spec.key: torch.zeros(spec.shape(blocks[spec.group]), dtype=getattr(torch, spec.layout.dtype), device=self.device)
            for spec in self.plan.cache_specs()
        }
        self.attention = self.plan.bind(caches)
        self.pools = tuple(PagePool(count) for count in blocks)
        self.num_tokens = num_tokens
        self.model = TinyModel(self.plan)
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []  # the oldest first
        self.prefixes: deque[Request] = deque()  # beginnings of prompts, computed and kept for others while there is room
        self.counts: Counter[str] = Counter()

    def submit(self, prompt: Sequence[int], max_new_tokens: int) -> Request:
        """Queue a prompt; ValueError for one that could not run even alone."""
        longest = min(self.num_tokens, LIMITS.max_model_len)
        if not prompt or max_new_tokens < 1 or len(prompt) + max_new_tokens > longest:
            raise ValueError(f"{len(prompt)} tokens and {max_new_tokens} new ones; expected 1 of each and at most {longest}")
        if not 0 <= min(prompt) <= max(prompt) < self.plan.shape.vocab_size:
            raise ValueError(f"tokens {min(prompt)} to {max(prompt)}; expected 0 to {self.plan.shape.vocab_size - 1}")
        pages = RequestPages(self.plan, self.pools)
        request = Request(tokens=list(prompt), max_length=len(prompt) + max_new_tokens, pages=pages)
        self.waiting.append(request)
        return request

    def step(self) -> list[Request]:
        """Compute one batch; the requests that it finished."""
        self._admit()
        scheduled = self._schedule()
        if not scheduled:
            return []
        # Decodes first: then hal moves no tokens, and the device's lengths need no copy.
        scheduled.sort(key=lambda item: item[1] > 1)
        tokens = [token for request, new in scheduled for token in request.tokens[request.num_computed :][:new]]
        ends = list(accumulate(new for _, new in scheduled))
        metadata = self.attention.build(self._make_batch(scheduled, ends))
        for request, new in scheduled:
            request.num_computed += new
            if request.num_computed - new < PREFIX_TOKENS <= request.num_computed:
                self._keep_prefix(request)
        ready = [(request, end - 1) for (request, _), end in zip(scheduled, ends, strict=True) if not request.num_left]
        rows = [row for _, row in ready]
        chosen = self.model.choose(torch.tensor(tokens, device=self.device), rows, self.attention, metadata)
        self.counts.update({"steps": 1, "tokens computed": len(tokens), "tokens generated": len(ready)})
        for (request, _), token in zip(ready, chosen, strict=True):
            request.tokens.append(token)
        done = [request for request in self.running if len(request.tokens) == request.max_length]
        for request in done:
            self.running.remove(request)
            request.pages.free()
        return done

    def close(self) -> None:
        """Give back what is kept for prompts to come."""
        while self._drop_prefix():
            pass

    def _admit(self) -> None:
        """Let waiting requests in, each with what it shares of another's computed pages."""
        while self.waiting and len(self.running) < LIMITS.max_num_seqs:
            request = self.waiting[0]
            source = max(self.prefixes, key=lambda prefix: common_length(request, prefix), default=request)
            if source is not request:
                request.num_computed = request.pages.share_prefix(source.pages, common_length(request, source))
            while not request.pages.can_grow(len(request.tokens)):
                # It waits for what is running; where nothing is, kept beginnings make room.
                if self.running or not self._drop_prefix():
                    self._reset(request)
                    return
            self.counts["shared tokens"] += request.num_computed
            self.running.append(self.waiting.popleft())

    def _schedule(self) -> list[tuple[Request, int]]:
        """Requests and how many tokens of each to compute, the oldest first; the youngest give way where pages run out."""
        scheduled: list[tuple[Request, int]] = []
        room = LIMITS.max_num_batched_tokens
        for request in list(self.running):
            if request not in self.running or not room:
                continue
            new = min(room, request.num_left)
            self.counts["pages behind windows"] += request.pages.release_behind_window(request.num_computed)
            if self._make_room(request, request.num_computed + new):
                scheduled.append((request, new))
                room -= new
        return scheduled

    def _make_room(self, request: Request, length: int) -> bool:
        """Give a request its pages, if need be those of younger ones, which start anew; False where it is itself put aside."""
        while True:
            try:
                request.pages.grow(length)
                return True
            except hal.CapacityError:
                if self._drop_prefix():
                    continue
                victim = self.running.pop()
                self._reset(victim)
                self.waiting.appendleft(victim)
                self.counts["preemptions"] += 1
                if victim is request:
                    return False

    def _make_batch(self, scheduled: list[tuple[Request, int]], ends: list[int]) -> hal.DeviceBatch:
        """The step in device tensors, as an engine on an accelerator would keep them."""
        query_lens = [new for _, new in scheduled]
        seq_lens = [request.num_computed + new for request, new in scheduled]
        tables = stack_tables([request.pages for request, _ in scheduled])
        return hal.Batch.from_device(
            torch.tensor([0, *ends], dtype=torch.int32, device=self.device),
            torch.tensor(seq_lens, dtype=torch.int32, device=self.device),
            [torch.from_numpy(table).to(self.device) for table in tables],
            num_tokens=ends[-1],
            max_query_len=max(query_lens),
            max_seq_len=max(seq_lens),
            query_lens=query_lens,
            seq_lens_upper=seq_lens,
        )

    def _keep_prefix(self, request: Request) -> None:
        """Hold the first full pages of a request, before a window leaves them behind, so that others may share them."""
        prefix = Request(tokens=request.tokens[:], max_length=0, pages=RequestPages(self.plan, self.pools))
        length = min(request.num_computed, LIMITS.max_num_batched_tokens)
        prefix.num_computed = prefix.pages.share_prefix(request.pages, length)
        self.prefixes.append(prefix)
        if len(self.prefixes) > NUM_PREFIXES:
            self._drop_prefix()

    def _drop_prefix(self) -> bool:
        """Let go of the beginning that was kept first; whether there was one."""
        if self.prefixes:
            self.prefixes.popleft().pages.free()
            return True
        return False

    def _reset(self, request: Request) -> None:
        request.pages.free()
        request.num_computed = 0


def common_length(request: Request, prefix: Request) -> int:
    """How many computed tokens of a prefix a request begins with; its own last token is always left to compute."""
    longest = min(len(request.tokens) - 1, prefix.num_computed)
    pairs = zip(request.tokens[:longest], prefix.tokens, strict=False)
    return next((index for index, (mine, theirs) in enumerate(pairs) if mine != theirs), longest)


def main() -> None:
    """Serve forty prompts, each of which begins with one of two preambles."""
    generator, start = random.Random(0), time.perf_counter()
    preambles = [[generator.randrange(96) for _ in range(20)] for _ in range(2)]
    engine = Engine(num_tokens=240)
    for _ in range(40):
        prompt = generator.choice(preambles) + [generator.randrange(96) for _ in range(generator.randint(3, 40))]
        engine.submit(prompt, generator.randint(5, 60))
        for _ in range(generator.randint(0, 3)):
            engine.step()
    while engine.waiting or engine.running:
        engine.step()
    engine.close()
    print(f"40 requests served in {time.perf_counter() - start:.1f} s on {engine.plan.device.target}")
    print(", ".join(f"{count} {name}" for name, count in sorted(engine.counts.items())))
    held = [pool.num_pages - pool.num_free for pool in engine.pools]
    print(f"pages still held: {held} of {[pool.num_pages for pool in engine.pools]}")


if __name__ == "__main__":
    main()
