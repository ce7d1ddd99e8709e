"""Who serves which kind of attention on which arch, asked of the registry and never written down."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from hal.common.backends.registry import platforms
from hal.common.backends.select import select
from hal.common.contract.device import Device
from hal.common.contract.errors import NoBackend
from hal.common.contract.request import Request
from hal.config import IndexerShape, LayerShape, MLAShape

_WIDTHS = MLAShape(kv_lora_rank=512, qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128, q_lora_rank=1536)
_GQA = LayerShape(layer_id=0, kind="attention", num_heads=32, num_kv_heads=8, head_dim=128, v_head_dim=128)
_MLA = LayerShape(layer_id=0, kind="mla", num_heads=128, num_kv_heads=128, head_dim=192, v_head_dim=128, mla=_WIDTHS)

SAMPLES: Mapping[str, LayerShape] = MappingProxyType(
    {
        "GQA": _GQA,
        "window": replace(_GQA, window=4096),
        "sinks": replace(_GQA, window=128, sink=True),
        "softcap": replace(_GQA, softcap=50.0),
        "MLA": _MLA,
        "sparse MLA": replace(_MLA, indexer=IndexerShape(topk=2048, num_heads=64, head_dim=128)),
        "pooled keys": replace(_MLA, indexer=IndexerShape(topk=2048, num_heads=64, head_dim=128, pool=4)),
        "compressed": replace(_GQA, kind="compressed", num_kv_heads=1, head_dim=512, v_head_dim=512, compress_ratio=4),
    }
)
"""One typical layer of each kind that models ask for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SupportRow:
    """One arch. backends maps each kind of SAMPLES to the backend that serves it, None where none does yet."""

    target: str
    part: str
    backends: Mapping[str, str | None]


def support_table(dtype: str = "bfloat16") -> tuple[SupportRow, ...]:
    """One row per arch of every registered platform, all vendor libraries assumed installed."""
    rows = []
    for platform in platforms().values():
        for arch in platform.archs():
            device = Device.from_arch(f"{platform.name}:{arch.name}")
            served = {kind: _serve(layer, device, dtype) for kind, layer in SAMPLES.items()}
            rows.append(SupportRow(target=device.target, part=arch.sample_part, backends=served))
    return tuple(rows)


def _serve(layer: LayerShape, device: Device, dtype: str) -> str | None:
    try:
        return select(Request(layer, device, dtype)).backend
    except NoBackend:
        return None
