"""What hal knows of a model: frozen, complete, and independent of where it was read from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from .capacity import cross_kv_bytes_per_token, kv_bytes, max_tokens, model_layout
from .dtypes import model_dtype_name
from .errors import InputError, UnknownLayerError
from .layer_shape import LayerShape
from .layers_given import check_layers
from .notes import say_notes
from .runs import format_ids
from .table import SIZED_IN, format_table


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """One model, read once.

    text_path: where the text config was found, "" for the root; it and the warnings do not count in ==.
    cross_attention: every attending decoder layer also attends to an encoder's output, whose KV is not among the sizes.
    """

    model_type: str
    architectures: tuple[str, ...]
    text_path: str = field(compare=False)
    hidden_size: int
    vocab_size: int
    num_layers: int
    max_position_embeddings: int | None
    dtype: str | None
    tie_word_embeddings: bool
    layers: tuple[LayerShape, ...]
    draft_layers: tuple[LayerShape, ...] = ()
    cross_attention: bool = False
    warnings: tuple[str, ...] = field(default=(), compare=False)

    def layer(self, layer_id: int) -> LayerShape:
        """Layer by id; of a config's, those from num_layers on are the draft (MTP) layers. UnknownLayerError names all."""
        known = self.layers + self.draft_layers
        if hasattr(layer_id, "__index__"):
            # Those of a config are numbered from 0; an engine's may be any.
            if 0 <= layer_id < len(known) and known[layer_id].layer_id == layer_id:
                return known[layer_id]
            found = next((layer for layer in known if layer.layer_id == layer_id), None)
            if found is not None:
                return found
        ids = [layer.layer_id for layer in self.layers]
        is_run = ids == list(range(ids[0], ids[0] + len(ids))) if ids else True
        said = f"{ids[0]} to {ids[-1]}" if ids and is_run else format_ids(ids)
        raise UnknownLayerError(
            f"layer {layer_id!r} is not in this model: ids {said}, and {len(self.draft_layers)} draft layers after them"
        )

    @classmethod
    def from_layers(
        cls,
        layers: Iterable[LayerShape],
        dtype: object,
        *,
        model_type: str = "",
        max_position_embeddings: int | None = None,
    ) -> ModelShape:
        """The shape of an engine that knows layers, not configs: what attention needs, the ids as the engine has them.

        layers: in the order in which they run; ids may begin anywhere and have gaps, as those of a pipeline's stage have.
        InputError for no layer, ids that occur twice or are no whole numbers, sources that are no layer here, a length below 1.
        """
        if not isinstance(layers, Iterable):
            raise InputError(f"layers is a {type(layers).__name__}; expected the LayerShapes of a model")
        if max_position_embeddings is not None and (not isinstance(max_position_embeddings, int) or max_position_embeddings < 1):
            raise InputError(f"max_position_embeddings is {max_position_embeddings!r}; expected at least 1, or None")
        listed = tuple(layers)
        check_layers(listed)
        return cls(
            model_type=model_type,
            architectures=(),
            text_path="",
            hidden_size=0,
            vocab_size=0,
            num_layers=len(listed),
            max_position_embeddings=max_position_embeddings,
            dtype=None if dtype is None else model_dtype_name(dtype),
            tie_word_embeddings=False,
            layers=listed,
        )

    @property
    def is_mla(self) -> bool:
        """Whether any layer is MLA."""
        return any(layer.mla is not None for layer in self.layers)

    @property
    def is_sparse(self) -> bool:
        """Whether any layer attends to an indexer's choice."""
        return any(layer.indexer is not None for layer in self.layers)

    @property
    def index_topk(self) -> int | None:
        """Tokens an indexer picks per query, None without one."""
        return next((layer.indexer.topk for layer in self.layers if layer.indexer), None)

    def layout_of(self, layer: LayerShape, kv_layout: str) -> str:
        """What a layer takes where the model is asked for a layout: that, or "auto" where only other kinds of layers have it.

        "fp8" is the one of each layer's own family.
        """
        return model_layout(self.layers, layer, kv_layout)

    def kv_bytes_per_token(self, kv_layout: str = "auto", dtype: object = "bfloat16", tp: int = 1) -> int:
        """Bytes of one token over all layers that own KV, on one rank; windows count in full, index and cross KV do not.

        Layers whose kind cannot have the layout count as "auto" beside some that can; InputError where none can.
        """
        return sum(layer.kv_bytes_per_token(self.layout_of(layer, kv_layout), dtype, tp) for layer in self.layers)

    def index_bytes_per_token(self, kv_layout: str = "auto", dtype: object = "bfloat16") -> int:
        """Bytes of one token's index keys over the layers that own an indexer."""
        return sum(layer.index_bytes_per_token(self.layout_of(layer, kv_layout), dtype) for layer in self.layers)

    @property
    def is_block_sparse(self) -> bool:
        """Whether any layer attends to blocks of keys that a scorer picks."""
        return any(layer.block_sparse is not None for layer in self.layers)

    def cross_kv_bytes_per_token(self, dtype: object = "bfloat16", tp: int = 1) -> int:
        """Bytes of one encoder token's keys and values over the layers that attend to an encoder or an image."""
        return cross_kv_bytes_per_token(self.layers, dtype, tp, has_encoder=self.cross_attention)

    @property
    def notes(self) -> tuple[str, ...]:
        """What the sizes of this shape leave out, in words: the keys and values of cross attention."""
        return say_notes(self.cross_kv_bytes_per_token(SIZED_IN), SIZED_IN, has_encoder=self.cross_attention)

    def kv_bytes(self, length: int, kv_layout: str = "auto", dtype: object = "bfloat16", tp: int = 1) -> int:
        """Bytes that a sequence of this many tokens keeps on one rank, index keys included; windows keep only their own."""
        return kv_bytes(self.layers, length, kv_layout, dtype, tp)

    def max_tokens(
        self, memory_bytes: int, kv_layout: str = "auto", dtype: object = "bfloat16", tp: int = 1, num_seqs: int = 1
    ) -> int | None:
        """The longest length that num_seqs sequences can all have in this memory; None where no length is too long.

        The inverse of kv_bytes: a model with windows holds more tokens than memory / kv_bytes_per_token.
        """
        return max_tokens(self.layers, memory_bytes, kv_layout, dtype, tp, num_seqs)

    def __str__(self) -> str:
        """A table of the layers, equal ones together, 100 columns wide."""
        remarks = [*(f"note: {text}" for text in self.notes), *(f"warning: {text}" for text in self.warnings)]
        return format_table(self._list_facts(), self.layers, self.draft_layers, remarks)

    def _list_facts(self) -> Iterator[str]:
        yield self.model_type or "unnamed type"
        yield f"{self.num_layers} layers"
        # An engine that gives layers alone gives neither.
        if self.hidden_size:
            yield f"hidden {self.hidden_size}"
        if self.vocab_size:
            yield f"vocabulary {self.vocab_size}"
        yield self.dtype or "dtype open"
        if self.tie_word_embeddings:
            yield "tied embeddings"
        if self.max_position_embeddings:
            yield f"up to {self.max_position_embeddings} positions"
        if self.text_path:
            yield f"text part in {self.text_path}"
