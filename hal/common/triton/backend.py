"""The portable backend: every call as Triton kernels, with a platform's own launch parameters."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Sequence
from typing import TYPE_CHECKING, ClassVar

from hal.common.contract.backend import Backend
from hal.common.contract.capabilities import SINK_CALLS, Capabilities
from hal.common.contract.masking import CAUSAL

from .launch import Launcher
from .stored import LATENTS
from .tiles import read_machine

if TYPE_CHECKING:
    import torch

    from hal.common.contract.buffer import Buffer
    from hal.common.contract.call_values import CompressedBatch, IndexerChunk, KVCache, PagedBatch, Segment, VarlenBatch
    from hal.common.contract.compressor import Compressor
    from hal.common.contract.device import Device
    from hal.common.contract.limits import Limits
    from hal.common.contract.masking import Masking
    from hal.common.contract.parallel import Parallel
    from hal.common.contract.reason import Reason
    from hal.common.contract.request import Request

    from .specialisation import Specialisation

PORTABLE = Capabilities(
    families=frozenset({"attention", "mla", "sparse_mla", "compressed"}),
    dtypes=("bfloat16", "float16", "float32"),
    kv_layouts={
        "attention": ("kv", "kv_fp8"),
        "mla": LATENTS,
        "sparse_mla": LATENTS,
        "compressed": ("latent", "compressed"),
    },
    index_layouts=("indexer", "indexer_fp8"),
    rank={"*": 50},
    default_block_size=64,
    max_index_pool=64,
    window=True,
    sink=True,
    softcap=True,
    non_causal=True,
    chunk=True,
    dcp=True,
    key_ranges=True,
    lse=True,
    deterministic=True,
    # Nothing but a step's sizes decides what is launched, and nothing waits for the device.
    graphs="uniform_batch",
    max_spec_tokens=64,
    masked_varlen=True,
    inner_sinks=SINK_CALLS,
    compiled_launches=True,
)


class TritonBackend(Backend):
    """Every call as Triton kernels; a platform subclasses it with its name and the package that holds its launch.toml.

    Sums and softmax are fp32 whatever the element type; weights are rounded to it before they meet the values.
    """

    package: ClassVar[str] = ""

    def __init__(self, device: Device) -> None:
        super().__init__(device)
        self.machine = read_machine(self.package, device.arch)
        self.launcher = Launcher(device.arch)

    @classmethod
    def explain_refusal(cls, request: Request) -> tuple[Reason, ...]:
        from .fitting import explain_tiles

        return explain_tiles(cls.package, request)

    @classmethod
    def list_launches(cls, request: Request) -> tuple[Hashable, ...]:
        return tuple(found.key for found in cls._specialisations(request))

    @classmethod
    def list_scratch(cls, request: Request, limits: Limits, calls: Collection[str]) -> tuple[Buffer, ...]:
        from .scratch import list_scratch

        return list_scratch(cls.package, request, limits, calls)

    def compile_launches(self, request: Request) -> None:
        from .loading import load_for_current_device

        if self.device.torch_device == "cpu":
            # Tensors of an absent device: kernels are interpreted there, and nothing of them compiles.
            return
        for found in self._specialisations(request):
            load_for_current_device(found)

    @classmethod
    def _specialisations(cls, request: Request) -> tuple[Specialisation, ...]:
        """What the platform's own portable backend compiles, which a vendor's inherits the calls of."""
        from .listing import list_portable

        portable = next(base for base in cls.__mro__ if issubclass(base, TritonBackend) and base.provides is None)
        return list_portable(portable, portable.package, request)

    def watch_launches(self, watcher: Callable[[Hashable], None]) -> None:
        self.launcher.watch(watcher)

    def write_cache(self, cache: KVCache, slots: torch.Tensor, *parts: torch.Tensor) -> None:
        from .cache import write_rows

        write_rows(self.launcher.run, cache, slots, parts)

    def gather_cache(self, cache: KVCache, rows: torch.Tensor) -> tuple[torch.Tensor, ...]:
        from .cache import read_rows

        return read_rows(self.launcher.run, cache, rows)

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
        sink: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        from .attend import Rules, attend_pages

        rules = Rules(masking=masking, scale=softmax_scale, need_lse=need_lse)
        return attend_pages(self.machine, self.launcher.run, q, cache, batch, rules, out, sink)

    def varlen_attention(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        batch: VarlenBatch,
        *,
        softmax_scale: float,
        masking: Masking = CAUSAL,
        need_lse: bool = False,
        out: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        from .attend import Rules, attend_varlen

        rules = Rules(masking=masking, scale=softmax_scale, need_lse=need_lse)
        return attend_varlen(self.machine, self.launcher.run, q, k, v, batch, rules, out)

    def index_scores(
        self,
        iq: torch.Tensor,
        weights: torch.Tensor,
        cache: KVCache,
        batch: PagedBatch,
        chunk: IndexerChunk | None = None,
    ) -> torch.Tensor:
        from .scores import index_scores

        return index_scores(self.machine, self.launcher.run, iq, weights, cache, batch, chunk)

    def select_topk(
        self, scores: torch.Tensor, lengths: torch.Tensor, k: int, width: int, deterministic: bool = True
    ) -> torch.Tensor:
        from .topk import select_topk

        return select_topk(self.launcher.run, scores, lengths, k, width)

    def expand_pools(
        self, topk: torch.Tensor, lengths: torch.Tensor, pool: int, width: int, *, distinct: bool = False
    ) -> torch.Tensor:
        from hal.common.contract.repeats import forget_repeats

        from .topk import expand_pools

        return expand_pools(self.launcher.run, topk if distinct else forget_repeats(topk), lengths, pool, width)

    def rows_from_topk(
        self,
        topk: torch.Tensor,
        req_id: torch.Tensor,
        block_table: torch.Tensor,
        seq_lens: torch.Tensor,
        *,
        block_size: int,
        rows_per_page: int | None = None,
        parallel: Parallel,
        distinct: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        from hal.common.contract.repeats import forget_repeats

        from .rows import rows_from_topk

        stride = rows_per_page or block_size
        topk = topk if distinct else forget_repeats(topk)
        return rows_from_topk(self.launcher.run, topk, req_id, block_table, seq_lens, block_size, stride, parallel)

    def sparse_mla(
        self,
        q: torch.Tensor,
        segments: Sequence[Segment],
        *,
        kv_lora_rank: int,
        softmax_scale: float,
        need_lse: bool = False,
        out: torch.Tensor | None = None,
        sink: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        from .sparse import attend_rows

        return attend_rows(self.machine, self.launcher.run, q, segments, kv_lora_rank, softmax_scale, need_lse, out, sink)

    def merge_states(
        self, out_a: torch.Tensor, lse_a: torch.Tensor, out_b: torch.Tensor, lse_b: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        from .merge import merge_states

        return merge_states(self.launcher.run, out_a, lse_a, out_b, lse_b)

    def apply_sink(self, out: torch.Tensor, lse: torch.Tensor, sink: torch.Tensor) -> torch.Tensor:
        from .merge import apply_sink

        return apply_sink(self.launcher.run, out, lse, sink)

    def compress_states(
        self,
        compressor: Compressor,
        states: KVCache,
        entries: KVCache,
        batch: CompressedBatch,
        *,
        ratio: int,
    ) -> None:
        from .compress import compress_states

        compress_states(self.launcher.run, compressor, states, entries, batch, ratio)
