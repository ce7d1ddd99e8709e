"""The combination that selection answers: one layer's shape on one device, with how it is to run."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import lcm
from types import NoneType

from hal.config import LayerShape
from hal.config.dtypes import model_dtype_name

from .capabilities import GRAPH_LEVELS, Graphs
from .device import Device
from .errors import InputError
from .limits import check_kind, check_positive_int
from .parallel import Parallel
from .software import Software


@dataclass(frozen=True, slots=True)
class Request:
    """One layer on one device. dtype: a name or a torch.dtype; software None assumes every library present and loadable.

    kv_layout: a cache layout by name, "auto" for the backend's first, or "fp8", which becomes that of the layer's family.
    """

    layer: LayerShape
    device: Device
    dtype: str
    kv_layout: str = "auto"
    block_size: int | None = None
    parallel: Parallel = field(default_factory=Parallel)
    software: Software | None = None
    graphs: Graphs = "never"
    num_spec_tokens: int = 0
    need_lse: bool = False
    deterministic: bool = False

    def __post_init__(self) -> None:
        check_kind("layer", self.layer, LayerShape, "a layer of a shape, such as read_shape(config).layer(0)")
        check_kind("device", self.device, Device, 'a Device, such as Device.from_arch("cuda:sm_90")')
        object.__setattr__(self, "dtype", model_dtype_name(self.dtype))
        check_kind("kv_layout", self.kv_layout, str, "the name of a cache layout, auto or fp8")
        object.__setattr__(self, "kv_layout", self.layer.resolve_layout(self.kv_layout))
        check_kind("parallel", self.parallel, Parallel, "a Parallel, such as Parallel(tp=2)")
        check_kind("software", self.software, (Software, NoneType), "a Software, or None for every library")
        for name in ("need_lse", "deterministic"):
            check_kind(name, getattr(self, name), (bool, NoneType), "True or False")
            object.__setattr__(self, name, bool(getattr(self, name)))
        if self.graphs not in GRAPH_LEVELS:
            raise InputError(f"graphs is {self.graphs!r}; expected one of {', '.join(GRAPH_LEVELS)}")
        if isinstance(self.num_spec_tokens, bool) or not isinstance(self.num_spec_tokens, int) or self.num_spec_tokens < 0:
            raise InputError(f"num_spec_tokens is {self.num_spec_tokens!r}; expected a whole number of at least 0")
        if self.block_size is not None:
            check_positive_int("block_size", self.block_size)

    @property
    def family(self) -> str:
        """The layer's kind with sparse MLA told apart: attention, mla, sparse_mla, compressed, cross or none."""
        return self.layer.family

    @property
    def heads_on_rank(self) -> int:
        """Query heads of one tensor-parallel rank."""
        return self.layer.num_heads // self.parallel.tp

    @property
    def tokens_per_row(self) -> int:
        """Tokens that fill whole rows in every cache of the layer; its page size has to be a multiple."""
        return lcm(self.layer.compress_ratio or 1, self.layer.tokens_per_index_key)

    def describe(self) -> str:
        """The request in a line, for errors and logs."""
        layer = self.layer
        width = f"latent {layer.mla.latent_dim}" if layer.mla is not None else f"head_dim {layer.head_dim}"
        topk = f", top-k {layer.indexer.topk}" if layer.indexer is not None else ""
        return (
            f"layer {layer.layer_id} ({self.family.replace('_', ' ')}, {layer.num_heads} heads, {width}{topk}) "
            f"on {self.device.target} in {self.dtype}"
        )
