"""A model without its weights, run once: which rows of a projection feed which head, told by the model's own forward.

Every linear layer of a copy is replaced by one that notes what it is given and answers with fresh numbers, so that a copy of
any size runs in milliseconds and gradients reach from one layer to the next and no further.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from hal.config import ModelShape

from .decoders import find_decoder
from .interface import BINDING, NAME, AttentionCall, register
from .rerouting import layer_index, reroute
from .tokenwise import draw_samples

SMALL = 1 << 20
"""Parameters of more elements are left as the allocator gives them: nothing depends on their values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearSizes:
    """A layer that multiplies by one matrix and adds a bias: its widths, and which dimensions of the weight they are."""

    inputs: int
    outputs: int
    input_dim: int
    output_dim: int


def read_linear(module: nn.Module) -> LinearSizes | None:
    """The sizes of a plain linear layer of either kind; None for anything else, subclasses that compute otherwise included."""
    weight = getattr(module, "weight", None)
    if not isinstance(module, nn.Linear | Conv1D) or not isinstance(weight, torch.Tensor) or weight.ndim != 2:
        return None
    input_dim, output_dim = (0, 1) if isinstance(module, Conv1D) else (1, 0)
    if type(module) not in (nn.Linear, Conv1D) and not _multiplies(module):
        return None
    return LinearSizes(
        inputs=weight.shape[input_dim], outputs=weight.shape[output_dim], input_dim=input_dim, output_dim=output_dim
    )


def _multiplies(linear: nn.Module) -> bool:
    """Whether a subclass of nn.Linear computes what nn.Linear does, on a small example."""
    small = copy.copy(linear)
    weight, bias, given = (torch.arange(1.0, 1.0 + count) for count in (6, 3, 2))
    parameters = {"weight": nn.Parameter(weight.view(3, 2)), "bias": nn.Parameter(bias) if linear.bias is not None else None}
    object.__setattr__(small, "_parameters", parameters)
    expected = nn.functional.linear(given.view(1, 1, 2), parameters["weight"], parameters["bias"])
    try:
        # Not by a call: hooks may speak to other ranks.
        return bool(torch.equal(small.forward(given.view(1, 1, 2)), expected))
    except Exception:  # noqa: BLE001 - a layer that cannot run on plain numbers is not a plain one
        return False


class Emitter(nn.Module):
    """Stands where a linear layer was: notes what it is given, and answers with numbers that nothing else depends on."""

    def __init__(self, sizes: LinearSizes, dtype: torch.dtype) -> None:
        super().__init__()
        self.sizes, self.width = sizes, sizes.outputs
        self.in_features, self.out_features, self.nf = sizes.inputs, sizes.outputs, sizes.outputs
        self.weight, self.bias = torch.empty(0, dtype=dtype), None
        self.received: torch.Tensor | None = None
        self.leaf: torch.Tensor | None = None
        self.calls = 0

    def resize(self, width: int) -> None:
        """Answer with this many numbers a token."""
        self.width = self.out_features = self.nf = width

    def forward(self, given: torch.Tensor, *_args: Any, **_keywords: Any) -> torch.Tensor:
        """Fresh numbers [..., width], the first token's all positive: no rectifier hides what depends on them."""
        self.calls += 1
        self.received = given
        self.leaf = draw((*given.shape[:-1], self.width), given.dtype)
        return self.leaf.clone()


class SilentExperts(nn.Module):
    """Stands where experts with stacked weights were; answers with zeros for every token."""

    def forward(self, given: torch.Tensor, *_args: Any, **_keywords: Any) -> torch.Tensor:
        """Zeros like the tokens."""
        return torch.zeros_like(given)


def draw(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """A leaf of numbers between 0.5 and 1.5, of either sign in all rows but the first."""
    numbers = torch.rand(*shape, dtype=dtype) + 0.5
    rows = numbers.view(-1, shape[-1])
    rows[1:] *= torch.sign(torch.rand_like(rows[1:]) - 0.5)
    return numbers.requires_grad_()


@dataclass(slots=True)
class Capture:
    """Stands for attention: keeps what one module attends with and answers with numbers that nothing else depends on."""

    num_heads: int
    v_head_dim: int
    query: torch.Tensor | None = None
    key: torch.Tensor | None = None
    value: torch.Tensor | None = None
    answer: torch.Tensor | None = None
    calls: int = 0

    def attend(
        self, module: nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, call: AttentionCall
    ) -> torch.Tensor:
        """See interface.Binding."""
        self.calls += 1
        self.query, self.key, self.value = query, key, value
        self.answer = draw((1, query.shape[2], self.num_heads, self.v_head_dim), query.dtype)
        return self.answer.clone()


@dataclass(slots=True)
class Called:
    """How a module was called last, and what it answered."""

    args: tuple[Any, ...] = ()
    keywords: dict[str, Any] = field(default_factory=dict)
    output: Any = None


@dataclass(slots=True, kw_only=True)
class HollowRun:
    """One run of a hollow copy: its stand-ins and its attention modules by the names that the model has for them."""

    module: PreTrainedModel
    emitters: dict[str, Emitter]
    captures: dict[str, Capture]
    called: dict[str, Called]

    def under(self, name: str) -> dict[str, Emitter]:
        """The linear layers within a module, by their names in it."""
        start = f"{name}." if name else ""
        return {key.removeprefix(start): emitter for key, emitter in self.emitters.items() if key.startswith(start)}


def attention_modules(module: PreTrainedModel, shape: ModelShape) -> dict[str, Any]:
    """The modules of the text decoder that may attend, by name: those with the number of a layer."""
    decoder = find_decoder(module)
    inside = {id(child) for child in decoder.modules()}
    return {
        name: child
        for name, child in module.named_modules()
        if id(child) in inside and (index := layer_index(child)) is not None and 0 <= index < shape.num_layers
    }


def run_hollow(module: PreTrainedModel, shape: ModelShape) -> HollowRun:
    """Run a hollow copy of a module on a few tokens; the module itself, which may be on meta, is left alone."""
    register()
    hollow = copy.deepcopy(module)
    emitters = dict(_hollow_out(hollow))
    _fill(hollow)
    reroute(hollow, shape)
    captures = {}
    for name, child in attention_modules(hollow, shape).items():
        layer = shape.layer(layer_index(child) or 0)
        captures[name] = Capture(layer.num_heads, layer.v_head_dim)
        setattr(child, BINDING, captures[name])
        if layer.mla is not None and hasattr(child, "expand_kv"):
            child.expand_kv = _keep_latent
    parents = {name.rpartition(".")[0] for name in emitters} | set(captures)
    called = {name: _watch(hollow.get_submodule(name)) for name in sorted(parents)}
    find_decoder(hollow).set_attn_implementation(NAME)
    sample, _ = draw_samples(hollow, shape)
    with torch.enable_grad():
        hollow(input_ids=sample.tokens, use_cache=False)
    captures = {name: capture for name, capture in captures.items() if capture.calls}
    return HollowRun(module=hollow, emitters=emitters, captures=captures, called=called)


def _keep_latent(kv_nope: torch.Tensor, k_rot: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return kv_nope, k_rot


def _hollow_out(hollow: nn.Module) -> Iterator[tuple[str, Emitter]]:
    for name, child in list(hollow.named_modules()):
        parent, _, own = name.rpartition(".")
        sizes = read_linear(child)
        if sizes is not None:
            emitter = Emitter(sizes, torch.float32)
            setattr(hollow.get_submodule(parent), own, emitter)
            yield name, emitter
        elif any(parameter.ndim == 3 for parameter in child.parameters(recurse=False)):
            setattr(hollow.get_submodule(parent), own, SilentExperts())


def _fill(hollow: PreTrainedModel) -> None:
    torch.nn.Module.to(hollow, torch.float32)
    hollow.to_empty(device="cpu")
    hollow.requires_grad_(False)
    hollow.eval()
    for child in hollow.modules():
        if list(child.buffers(recurse=False)):
            hollow._init_weights(child)
        for parameter in child.parameters(recurse=False):
            if parameter.numel() <= SMALL:
                parameter.uniform_(0.5, 1.5)


def _watch(module: nn.Module) -> Called:
    called = Called()

    def before(_module: nn.Module, args: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        called.args, called.keywords = args, keywords

    def after(_module: nn.Module, _args: Any, output: Any) -> None:
        called.output = output

    module.register_forward_pre_hook(before, with_kwargs=True)
    module.register_forward_hook(after)
    return called
