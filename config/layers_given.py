"""Whether layers that come from no config go together."""

from __future__ import annotations

from collections.abc import Sequence

from .errors import InputError
from .layer_shape import LayerShape


def check_layers(layers: Sequence[LayerShape]) -> None:
    """Raise InputError for no layer, for one that is none, for ids twice or below 0, and for sources that are not among them."""
    if not layers:
        raise InputError("no layer was given; expected at least one LayerShape")
    strange = [layer for layer in layers if not isinstance(layer, LayerShape)]
    if strange:
        raise InputError(f"a layer is a {type(strange[0]).__name__}; expected a LayerShape")
    ids = [layer.layer_id for layer in layers]
    for layer_id in ids:
        if not isinstance(layer_id, int) or isinstance(layer_id, bool) or layer_id < 0:
            raise InputError(f"a layer has the id {layer_id!r}; expected a whole number of at least 0")
    twice = sorted({layer_id for layer_id in ids if ids.count(layer_id) > 1})
    if twice:
        raise InputError(f"layers have the ids {', '.join(map(str, twice))} more than once; each needs one of its own")
    for place, layer in enumerate(layers):
        sources = {"kv_source": layer.kv_source, "entry_source": layer.entry_source}
        for name, source in sources.items():
            if source is not None and source not in ids[: place + 1]:
                known = ", ".join(map(str, ids))
                raise InputError(f"layer {layer.layer_id} has {name} {source}, which is not among the layers up to it: {known}")
    owners = [layer.indexer is not None and layer.indexer.owns for layer in layers]
    for place, layer in enumerate(layers):
        if layer.indexer is not None and not layer.indexer.owns and not any(owners[:place]):
            raise InputError(f"layer {layer.layer_id} shares an indexer, and no layer before it owns one")
