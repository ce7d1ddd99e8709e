"""Backends made of a declaration alone, and small layers to ask them about."""

from __future__ import annotations

from typing import Any

import hal
from hal.common.contract.backend import Backend, required_calls
from hal.config import IndexerShape, LayerShape, MLAShape, ModelShape

MLA = MLAShape(kv_lora_rank=512, qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128)
EVERY_FAMILY = frozenset({"attention", "mla", "sparse_mla"})
_ATTRIBUTES = frozenset(
    {
        *("former_names", "libraries", "provides", "explain_refusal", "explain_call_refusal"),
        *("preferred_block_size", "list_workspaces", "list_scratch"),
    }
)
LAYOUTS = {"attention": ("kv",), "mla": ("latent",), "sparse_mla": ("latent",)}


def gqa_layer(layer_id: int = 0, **changes: Any) -> LayerShape:
    """Eight query heads on two KV heads of 64."""
    values = {"num_heads": 8, "num_kv_heads": 2, "head_dim": 64, "v_head_dim": 64, "softmax_scale": 0.125}
    return LayerShape(layer_id=layer_id, kind="attention", **(values | changes))


def mla_layer(layer_id: int = 0, **changes: Any) -> LayerShape:
    """Sixteen heads over a latent of 512 + 64."""
    values = {"num_heads": 16, "num_kv_heads": 16, "head_dim": 192, "v_head_dim": 128, "mla": MLA}
    return LayerShape(layer_id=layer_id, kind="mla", **(values | changes))


def sparse_layer(layer_id: int = 0, *, topk: int = 2048, owns: bool = True, pool: int = 1, **changes: Any) -> LayerShape:
    """An MLA layer with an indexer."""
    indexer = IndexerShape(topk=topk, num_heads=64, head_dim=128, pool=pool, owns=owns)
    return mla_layer(layer_id, indexer=indexer, **changes)


def model(*layers: LayerShape, **changes: Any) -> ModelShape:
    """A model of these layers."""
    values: dict[str, Any] = {
        "model_type": "made_up",
        "architectures": (),
        "text_path": "",
        "hidden_size": 512,
        "vocab_size": 100,
        "num_layers": len(layers),
        "max_position_embeddings": 4096,
        "dtype": "bfloat16",
        "tie_word_embeddings": False,
        "layers": layers,
    }
    return ModelShape(**(values | changes))


def capabilities(**changes: Any) -> hal.Capabilities:
    """The plainest declaration: every family, bf16, causal and full attention."""
    values: dict[str, Any] = {
        "families": EVERY_FAMILY,
        "dtypes": ("bfloat16",),
        "kv_layouts": LAYOUTS,
        "index_layouts": ("indexer",),
    }
    return hal.Capabilities(**(values | changes))


def make_backend(
    name: str, platform: str = "cuda", *, base: type[Backend] = Backend, without: tuple[str, ...] = (), **changes: Any
) -> type[Backend]:
    """A backend class with the calls its declaration promises, except `without`. Class attributes may be among the changes."""
    attributes: dict[str, Any] = {"name": name, "platform": platform}
    for key in [name for name in changes if name in _ATTRIBUTES]:
        attributes[key] = changes.pop(key)
    declared = capabilities(**changes)
    attributes["capabilities"] = declared
    attributes |= {call: _call for call in required_calls(declared) if call not in without}
    return type(name.title().replace(":", ""), (base,), attributes)


def _call(self: Backend, *_args: Any, **_kwargs: Any) -> None:
    raise AssertionError("a declaration was called")


def ask(layer: LayerShape | None = None, target: str = "cuda:sm_90", **changes: Any) -> hal.Request:
    """A bf16 request for a layer on a target."""
    values: dict[str, Any] = {"layer": layer or gqa_layer(), "device": hal.Device.from_arch(target), "dtype": "bfloat16"}
    return hal.Request(**(values | changes))


def codes(reasons: tuple[hal.Reason, ...]) -> list[str]:
    """The codes of some reasons."""
    return [reason.code for reason in reasons]


def register(*classes: type[Backend]) -> None:
    """Register some backends."""
    for cls in classes:
        hal.register_backend(cls)
