"""The class a platform writes: kernel calls and a declaration of what they can do. Everything else is hal's."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from functools import cache, wraps
from typing import TYPE_CHECKING, Any, ClassVar

from .capabilities import find_faults
from .errors import BackendError
from .masking import CAUSAL
from .software import Library

if TYPE_CHECKING:
    import torch

    from .buffer import Buffer
    from .call_values import CompressedBatch, IndexerChunk, KVCache, PagedBatch, Segment, VarlenBatch
    from .capabilities import Capabilities
    from .compressor import Compressor
    from .device import Device
    from .limits import Limits
    from .masking import Masking
    from .parallel import Parallel
    from .reason import Reason
    from .request import Request
    from .step import StepMetadata

_CACHE = ("write_cache", "gather_cache")
_MERGE = ("merge_states",)

CALLS_BY_FAMILY: dict[str, tuple[str, ...]] = {
    "attention": (*_CACHE, "paged_attention", *_MERGE),
    "mla": (*_CACHE, "paged_attention", "varlen_attention", *_MERGE),
    "sparse_mla": (
        *_CACHE,
        "index_scores",
        "select_topk",
        "rows_from_topk",
        "sparse_mla",
        "varlen_attention",
        *_MERGE,
    ),
    "compressed": (*_CACHE, "index_scores", "select_topk", "rows_from_topk", "sparse_mla", "compress_states", *_MERGE),
}
CALLS = frozenset({call for calls in CALLS_BY_FAMILY.values() for call in calls} | {"apply_sink", "expand_pools"})
ID_CALLS = frozenset({"select_topk", "expand_pools", "rows_from_topk"})
"""Calls whose results are whole numbers, through which no gradient would flow."""
PHASES = ("decode", "prefill")
PHASED_CALLS = frozenset({"paged_attention", "varlen_attention", "sparse_mla"})
RESERVED = frozenset(
    {
        *("plan", "select", "supports", "supports_combination", "open", "bind", "allocate", "build", "build_for_capture"),
        *("attend", "attend_mla", "attend_compressed", "merge", "warm_up"),
    }
)


class Backend:
    """Base of every backend; an instance holds the calls bound to one device.

    capabilities None says that the calls are not written yet. provides None says that every call the class defines is its
    own; a vendor backend that inherits its platform's portable one lists the calls its library provides. libraries are all
    needed; of alternatives any will do, and the backend itself says which. former_names still find it, with a warning.
    Overriding one of hal's own jobs (build, plan, select, supports, open, allocate, attend) raises TypeError.
    """

    name: ClassVar[str] = ""
    former_names: ClassVar[tuple[str, ...]] = ()
    platform: ClassVar[str] = ""
    capabilities: ClassVar[Capabilities | None] = None
    libraries: ClassVar[tuple[Library, ...]] = ()
    alternatives: ClassVar[tuple[Library, ...]] = ()
    provides: ClassVar[frozenset[str] | None] = None

    def __init__(self, device: Device) -> None:
        self.device = device

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if taken := _find_taken(cls):
            raise TypeError(f"{cls.__qualname__} overrides {', '.join(taken)}: hal does that for every backend alike")
        for call in (CALLS - ID_CALLS) & vars(cls).keys():
            setattr(cls, call, _without_backward(vars(cls)[call]))

    @classmethod
    def explain_refusal(cls, request: Request) -> tuple[Reason, ...]:
        """Reasons beyond the declared capabilities; a pure function of the request that imports no vendor library."""
        return ()

    @classmethod
    def preferred_block_size(cls, request: Request) -> int:
        """The page size where a request leaves it open; a pure function of the request."""
        return cls.capabilities.default_block_size if cls.capabilities is not None else 16

    @classmethod
    def explain_call_refusal(cls, call: str, phase: str, request: Request) -> tuple[Reason, ...]:
        """Reasons against one call in one phase ("decode", "prefill", or "" for a call without phases); as pure as the above.

        Where there are any, selection takes the call from the next backend that serves the request.
        """
        return ()

    @classmethod
    def list_launches(cls, request: Request) -> tuple[Hashable, ...]:
        """The key of every launch that compiles for a request, as watch_launches() will name it; empty where none does."""
        return ()

    def compile_launches(self, request: Request) -> None:
        """Compile what list_launches names, before the first request comes."""

    def watch_launches(self, watcher: Callable[[Hashable], None]) -> None:
        """Tell the watcher the key of every compiled launch from now on, before it runs."""

    @classmethod
    def list_workspaces(cls, limits: Limits) -> tuple[Buffer, ...]:
        """The fixed-address buffers that prepare_step() fills; counted in the plan, zero-filled when it is opened."""
        return ()

    @classmethod
    def list_scratch(cls, request: Request, limits: Limits, calls: Collection[str]) -> tuple[Buffer, ...]:
        """What its calls for a request make and give back beside their results, at most; counted in the plan.

        calls: the names of those that it serves for the request.
        """
        return ()

    def prepare_step(self, step: StepMetadata, buffers: Mapping[str, torch.Tensor]) -> None:
        """Plan a step as the library wants it, into the buffers of list_workspaces() by name; called by every build()."""

    def write_cache(self, cache: KVCache, slots: torch.Tensor, *parts: torch.Tensor) -> None:
        """Write parts [tokens, *part] at slots int64 [tokens], a slot is page * block_size + offset; -1 writes nothing."""
        raise NotImplementedError

    def gather_cache(self, cache: KVCache, rows: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The parts at rows int32 [n], dequantised; row -1 gives zeros."""
        raise NotImplementedError

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
        """out [tokens, heads, v_head_dim] and lse fp32 [tokens, heads] or None, over a paged cache.

        On a `latent` cache there is one KV head: the key is the whole row, the value its first part. sink [heads]: joins each
        denominator, as apply_sink does it, while lse leaves it out; only with inner_sinks.
        """
        raise NotImplementedError

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
        """out [tokens, heads, v_head_dim] and lse, over contiguous keys k [keys, kv_heads, head_dim].

        A request's last query is aligned to its last key; positions, and with them chunks, count from its first key here.
        """
        raise NotImplementedError

    def index_scores(
        self,
        iq: torch.Tensor,
        weights: torch.Tensor,
        cache: KVCache,
        batch: PagedBatch,
        chunk: IndexerChunk | None = None,
    ) -> torch.Tensor:
        """Scores fp32 [chunk tokens, chunk.max_seq_len]; columns are request-local, -inf outside a row's bound.

        iq [tokens, index_heads, index_dim] and weights fp32 [tokens, index_heads] are the whole batch's. Without a chunk,
        every token is scored and the columns are batch.max_seq_len, so that no length has to be read from the device.
        """
        raise NotImplementedError

    def select_topk(
        self, scores: torch.Tensor, lengths: torch.Tensor, k: int, width: int, deterministic: bool = True
    ) -> torch.Tensor:
        """int32 [tokens, width]: the k best columns below lengths int32 [tokens], then -1; NaN counts as -inf.

        deterministic: equal scores go to the lower id. A row is a set: its order is not promised. LayoutError for k > width.
        """
        raise NotImplementedError

    def expand_pools(
        self, topk: torch.Tensor, lengths: torch.Tensor, pool: int, width: int, *, distinct: bool = False
    ) -> torch.Tensor:
        """int32 [tokens, width]: the tokens of each chosen pool and of the open tail, then -1.

        A pool that a row names twice counts once. distinct: no row does, so that none has to be looked for.
        """
        raise NotImplementedError

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
        """Rows int32 [tokens, width], valid ones first and -1 after, and their count int32 [tokens].

        An id below 0 or at or past its request's length, a column outside the table, a negative block and a token that
        another DCP rank owns all give no row, and an id that stands further left already gives no second one. distinct: no id
        occurs twice, so that none has to be looked for.
        """
        raise NotImplementedError

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
        """out [tokens, heads, kv_lora_rank] and lse; q [tokens, heads, lora + rope]; all segments under one softmax.

        sink: as in paged_attention.
        """
        raise NotImplementedError

    def merge_states(
        self, out_a: torch.Tensor, lse_a: torch.Tensor, out_b: torch.Tensor, lse_b: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The result over both key sets; a side with lse -inf (or +inf, or NaN) adds nothing, whatever its out holds."""
        raise NotImplementedError

    def apply_sink(self, out: torch.Tensor, lse: torch.Tensor, sink: torch.Tensor) -> torch.Tensor:
        """out * sigmoid(lse - sink), sink [heads]: the sink joins the denominator once, after the last merge."""
        raise NotImplementedError

    def compress_states(
        self,
        compressor: Compressor,
        states: KVCache,
        entries: KVCache,
        batch: CompressedBatch,
        *,
        ratio: int,
    ) -> None:
        """Write an entry at batch.entry_slots for each token that closes one, and tokens' states at batch.state_slots.

        A state is the token's kv and its score + position_bias[position % ratio]. An entry mixes the groups * ratio states
        that end at the closing token: a softmax of the scores over those tokens for each channel, positions before the
        request's first left out; of two groups the older gives the first half of its rows, the newer the second. Then RMS
        norm and rotation, and the row is written as the entries' layout has it. Slot -1 writes nothing.

        States of the step's own tokens are its inputs. Earlier ones are read from the cache, before any is written: that of
        position p lies on page block_table[request, p // page] in row p % page % states.block_size, a page being
        entries.block_size * ratio tokens, of which the states' cache keeps the last.
        """
        raise NotImplementedError


def _without_backward(call: Callable[..., Any]) -> Callable[..., Any]:
    """The call, which refuses inputs that require gradients where those are on: it would return a detached result in silence."""

    @wraps(call)
    def run(*args: Any, **kwargs: Any) -> Any:
        is_recording, refuse = _find_check()
        if is_recording():
            refuse(args, tuple(kwargs.values()))
        return call(*args, **kwargs)

    return run


@cache
def _find_check() -> tuple[Callable[[], bool], Callable[..., None]]:
    # Found with the first call: a class is made where torch need not be.
    from torch import is_grad_enabled

    from .gradients import refuse_gradients

    return is_grad_enabled, refuse_gradients


def _find_taken(cls: type) -> list[str]:
    """hal's own jobs that a class would take over."""
    return sorted(name for name in RESERVED if hasattr(cls, name))


def required_calls(capabilities: Capabilities) -> tuple[str, ...]:
    """Every call that a declaration promises, in the contract's order."""
    needed = {call for family in capabilities.families for call in CALLS_BY_FAMILY.get(family, ())}
    if capabilities.sink:
        needed.add("apply_sink")
    if capabilities.max_index_pool > 1:
        needed.add("expand_pools")
    return tuple(call for call in Backend.__dict__ if call in needed)


def check_backend(cls: type[Backend]) -> None:
    """Raise BackendError, naming it, where the class lacks something."""
    if not (isinstance(cls, type) and issubclass(cls, Backend)):
        raise BackendError(f"{cls!r} is not a subclass of hal.common.contract.backend.Backend")
    for value in (cls.name, cls.platform):
        if not isinstance(value, str) or not value:
            raise BackendError(f"{cls.__qualname__} declares no name or no platform; both are needed to register it")
    if not isinstance(cls.former_names, tuple) or not all(isinstance(name, str) and name for name in cls.former_names):
        raise BackendError(f"{cls.name} has the former names {cls.former_names!r}; expected a tuple of texts that are not empty")
    if taken := _find_taken(cls):
        raise BackendError(f"{cls.name} overrides {', '.join(taken)}: hal does that for every backend alike")
    strange = [library for library in (*cls.libraries, *cls.alternatives) if not isinstance(library, Library)]
    if strange:
        raise BackendError(f"{cls.name} lists libraries that are no Library: {', '.join(map(repr, strange))}")
    misspelt = sorted((cls.provides or frozenset()) - CALLS)
    if misspelt:
        raise BackendError(f"{cls.name} provides {', '.join(misspelt)}, which are no calls; calls: {', '.join(sorted(CALLS))}")
    if cls.capabilities is None:
        return
    if faults := find_faults(cls.capabilities):
        raise BackendError(f"{cls.name} declares what cannot be: {'; '.join(faults)}")
    unknown = cls.capabilities.families - CALLS_BY_FAMILY.keys()
    if unknown:
        raise BackendError(f"{cls.name}: unknown families {sorted(unknown)}; known: {', '.join(CALLS_BY_FAMILY)}")
    for family in sorted(cls.capabilities.families):
        if not cls.capabilities.kv_layouts.get(family):
            raise BackendError(f"{cls.name} serves {family} layers and declares no KV layout for them")
    if "sparse_mla" in cls.capabilities.families and not cls.capabilities.index_layouts:
        raise BackendError(f"{cls.name} serves sparse_mla layers and declares no layout for index keys")
    missing = [call for call in required_calls(cls.capabilities) if getattr(cls, call) is getattr(Backend, call)]
    if missing:
        raise BackendError(f"{cls.name} ({cls.__qualname__}) promises calls that it lacks: {', '.join(missing)}")
