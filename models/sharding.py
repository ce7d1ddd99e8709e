"""What one rank of a tensor-parallel group keeps of a model, decided on the meta device before anything is read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from torch import nn
from transformers import PreTrainedModel

from hal.common.contract.errors import InputError
from hal.common.contract.parallel import Parallel
from hal.config import LayerShape, ModelShape

from .errors import describe
from .experts import divide_experts, is_stacked
from .heads import AttentionDivision, HeadShare, divide_attention, share_heads
from .hollow import HollowRun, LinearSizes, attention_modules, read_linear, run_hollow
from .latent import find_up_projection
from .pairs import Pair, alike_modules, divide_pair, find_last, liken
from .rerouting import layer_index
from .slices import Part, Slices, block


@dataclass(frozen=True, slots=True, kw_only=True)
class Join:
    """What the forward of a divided layer does besides multiplying.

    spread: the places of this rank's outputs among all, zeros elsewhere, for a module that expects them all.
    select: the inputs that this rank multiplies, for a module that hands over all of them. sums: outputs add up over ranks.
    """

    spread: Part | None = None
    select: Part | None = None
    sums: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionShare:
    """The heads that attention is called with on this rank, and whether its answers are gathered or filled up with zeros."""

    heads: HeadShare
    is_local: bool
    gathers: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Vocabulary:
    """The rows of the embedding, and the outputs of the head, that lie on this rank. size: of all ranks together."""

    size: int
    own: range


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharding:
    """How one rank runs a model: what it keeps of every parameter, and what its modules do with each other over ranks.

    kept_whole: modules that every rank keeps and computes whole, and why.
    """

    parallel: Parallel
    slices: Slices = field(default_factory=Slices)
    joins: Mapping[str, Join] = field(default_factory=dict)
    attention: Mapping[str, AttentionShare] = field(default_factory=dict)
    embedding: tuple[str, Vocabulary] | None = None
    head: tuple[str, Vocabulary] | None = None
    kept_whole: Mapping[str, str] = field(default_factory=dict)

    @property
    def notes(self) -> tuple[str, ...]:
        """What every rank keeps and computes whole, one line for each reason."""
        names: dict[str, list[str]] = {}
        for name, why in self.kept_whole.items():
            names.setdefault(why, []).append(name or "the model")
        return tuple(
            f"every rank keeps {each[0]}{f' and {len(each) - 1} more' if len(each) > 1 else ''} whole: {why}"
            for why, each in names.items()
        )


def plan_sharding(module: PreTrainedModel, shape: ModelShape, parallel: Parallel) -> Sharding:
    """The sharding of a whole module, which may be on meta and is left alone; one that divides nothing for one rank.

    InputError, with the numbers of ranks that would do: heads or inner widths that the ranks do not divide.
    """
    if parallel.tp == 1:
        return Sharding(parallel=parallel)
    draft = _Draft(module=module, shape=shape, parallel=parallel)
    try:
        run = run_hollow(module, shape)
    except Exception as error:  # noqa: BLE001 - a model's own code may raise anything; undivided weights are right all the same
        draft.keep_whole("", f"its forward does not run without weights ({describe(error)})")
        run = None
    draft.divide_attention(run)
    if run is not None:
        draft.divide_pairs(run)
    draft.divide_experts()
    _check_divides(shape, draft.widths, parallel.tp)
    draft.divide_vocabulary()
    return draft.finish()


@dataclass(slots=True, kw_only=True)
class _Draft:
    module: PreTrainedModel
    shape: ModelShape
    parallel: Parallel
    parts: dict[str, Part] = field(default_factory=dict)
    once: set[str] = field(default_factory=set)
    joins: dict[str, Join] = field(default_factory=dict)
    attention: dict[str, AttentionShare] = field(default_factory=dict)
    widths: dict[str, int] = field(default_factory=dict)
    kept_whole: dict[str, str] = field(default_factory=dict)
    embedding: tuple[str, Vocabulary] | None = None
    head: tuple[str, Vocabulary] | None = None

    def keep_whole(self, name: str, why: str) -> None:
        self.kept_whole[name] = why

    def divide_attention(self, run: HollowRun | None) -> None:
        known: dict[tuple[object, ...], AttentionDivision] = {}
        _check_heads(self.shape, self.parallel.tp)
        for name, child in attention_modules(self.module, self.shape).items():
            layer = self.shape.layer(layer_index(child) or 0)
            share = share_heads(layer, self.parallel)
            if run is not None and name not in run.captures:
                continue
            likeness = (type(child), *_all_sizes(child), share, layer.kind, layer.owns_kv)
            if run is not None and likeness not in known:
                known[likeness] = divide_attention(run, name, layer, share)
            division = known.get(likeness) or AttentionDivision(rows={}, columns={}, is_local=False, gathers=True)
            self._take_attention(name, child, layer, share, division)

    def _take_attention(
        self, name: str, child: nn.Module, layer: LayerShape, share: HeadShare, division: AttentionDivision
    ) -> None:
        for key, kept in division.rows.items():
            self._divide_rows(f"{name}.{key}", kept, spreads=not division.is_local)
        for key, kept in division.columns.items():
            self._divide_columns(f"{name}.{key}", kept, selects=not division.is_local)
        if layer.mla is not None:
            up = find_up_projection(child, layer, layer.mla)
            width = layer.mla.qk_nope_head_dim + layer.mla.v_head_dim
            self._divide_rows(f"{name}.{up}", range(share.queries.start * width, share.queries.stop * width), spreads=False)
        if division.gathers:
            self.keep_whole(name, "it mixes heads after attention, or its forward does not show how its projections divide")
        self.attention[name] = AttentionShare(heads=share, is_local=division.is_local, gathers=division.gathers)

    def divide_pairs(self, run: HollowRun) -> None:
        done: set[object] = set()
        inside = tuple(f"{name}." for name in run.captures)
        for name in run.called:
            if name in run.captures or name.startswith(inside):
                continue
            likeness = liken(self.module.get_submodule(name))
            found = None if likeness in done else find_last(run, name)
            if found is None:
                continue
            done.add(likeness)
            pair = divide_pair(run, name, *found, self.parallel)
            for other in alike_modules(self.module, likeness):
                self._take_pair(other, run, name, found[0], pair)

    def _take_pair(self, name: str, run: HollowRun, example: str, last: str, pair: Pair | None) -> None:
        start = f"{name}." if name else ""
        self.widths[name] = run.under(example)[last].sizes.inputs
        if pair is None:
            self.keep_whole(name, f"what {last} reads mixes what the layers before it give")
            return
        for key, kept in pair.rows.items():
            self._divide_rows(f"{start}{key}", kept, spreads=False)
        self._divide_columns(f"{start}{last}", pair.columns, selects=False)

    def divide_experts(self) -> None:
        for name, child in self.module.named_modules():
            if not is_stacked(child):
                continue
            division = divide_experts(child, self.parallel)
            if division is None:
                self.keep_whole(name, f"{type(child).__name__} does not say how its weights are laid out")
                continue
            self.widths[name] = division.width
            self.parts |= {f"{name}.{key}": part for key, part in division.parts.items()}
            self.once |= {f"{name}.{key}" for key in division.once}
            self.joins[name] = Join(sums=True)

    def divide_vocabulary(self) -> None:
        """Rows of the embedding and the head, in shares that need not be even: vocabularies seldom divide."""
        names = {id(child): name for name, child in self.module.named_modules()}
        embedding, head = self.module.get_input_embeddings(), self.module.get_output_embeddings()
        tied = head is not None and embedding is not None and getattr(head, "weight", None) is embedding.weight
        sizes = None if head is None else read_linear(head)
        has_rows = sizes is not None and sizes.output_dim == 0 and id(head) in names
        if tied and not (isinstance(embedding, nn.Embedding) and has_rows):
            return
        if isinstance(embedding, nn.Embedding) and id(embedding) in names:
            name = names[id(embedding)]
            self.embedding = (name, self._take_vocabulary(name, embedding, embedding.weight.shape[0]))
        if head is not None and sizes is not None and has_rows:
            self.head = (names[id(head)], self._take_vocabulary(names[id(head)], head, sizes.outputs))

    def _take_vocabulary(self, name: str, child: nn.Module, size: int) -> Vocabulary:
        own = block(size, self.parallel.tp_rank, self.parallel.tp)
        for key, parameter in child.named_parameters(recurse=False):
            if parameter.shape[0] == size:
                self.parts[f"{name}.{key}"] = Part(dim=0, size=size, runs=((own.start, own.stop),))
        return Vocabulary(size=size, own=own)

    def _divide_rows(self, name: str, kept: range | tuple[int, ...], *, spreads: bool) -> None:
        child, sizes = self._linear(name)
        self.parts[f"{name}.weight"] = Part.of(sizes.output_dim, sizes.outputs, kept)
        if getattr(child, "bias", None) is not None:
            self.parts[f"{name}.bias"] = Part.of(0, sizes.outputs, kept)
        if spreads:
            self.joins[name] = Join(spread=Part.of(-1, sizes.outputs, kept))

    def _divide_columns(self, name: str, kept: range | tuple[int, ...], *, selects: bool) -> None:
        child, sizes = self._linear(name)
        self.parts[f"{name}.weight"] = Part.of(sizes.input_dim, sizes.inputs, kept)
        if getattr(child, "bias", None) is not None:
            self.once.add(f"{name}.bias")
        self.joins[name] = Join(select=Part.of(-1, sizes.inputs, kept) if selects else None, sums=True)

    def _linear(self, name: str) -> tuple[nn.Module, LinearSizes]:
        child = self.module.get_submodule(name)
        sizes = read_linear(child)
        if sizes is None:
            raise InputError(f"{name} is a {type(child).__name__}; expected a plain linear layer")
        return child, sizes

    def finish(self) -> Sharding:
        zeroed = frozenset(self.once if self.parallel.tp_rank else ())
        return Sharding(
            parallel=self.parallel,
            slices=Slices(parts=self.parts, zeroed=zeroed),
            joins=self.joins,
            attention=self.attention,
            embedding=self.embedding,
            head=self.head,
            kept_whole=self.kept_whole,
        )


def _all_sizes(module: nn.Module) -> Iterator[tuple[str, LinearSizes]]:
    for name, child in module.named_modules():
        sizes = read_linear(child)
        if sizes is not None:
            yield name, sizes


def _heads_divide(layer: LayerShape, ranks: int) -> bool:
    num_kv = layer.num_kv_heads if layer.kind == "attention" else ranks
    return layer.num_heads % ranks == 0 and (num_kv % ranks == 0 or ranks % num_kv == 0)


def _check_heads(shape: ModelShape, ranks: int) -> None:
    layers = [layer for layer in shape.layers if layer.num_heads]
    wrong = next((layer for layer in layers if not _heads_divide(layer, ranks)), None)
    if wrong is not None:
        most = max(layer.num_heads for layer in layers)
        would = [other for other in range(2, most + 1) if all(_heads_divide(layer, other) for layer in layers)]
        raise InputError(
            f"layer {wrong.layer_id} has {wrong.num_heads} query heads and {wrong.num_kv_heads} KV heads, which {ranks} ranks do "
            f"not divide; {_name_numbers(would)}"
        )


def _check_divides(shape: ModelShape, widths: Mapping[str, int], ranks: int) -> None:
    wrong = next((name for name, width in widths.items() if width % ranks), None)
    if wrong is None:
        return
    layers = [layer for layer in shape.layers if layer.num_heads]
    would = [
        other
        for other in range(2, max([1, *(layer.num_heads for layer in layers)]) + 1)
        if all(width % other == 0 for width in widths.values()) and all(_heads_divide(layer, other) for layer in layers)
    ]
    raise InputError(f"{wrong} is {widths[wrong]} wide inside, which {ranks} ranks do not divide; {_name_numbers(would)}")


def _name_numbers(would: list[int]) -> str:
    return f"tp of {', '.join(map(str, would))} would do" if would else "no number of ranks above one would do"
