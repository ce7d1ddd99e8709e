"""Parts that do not lie end to end in memory are packed like those that do, and parts that do not go together are not."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from hal import LayoutError
from hal.common.contract.layouts import (
    Layout,
    attention_fp8_layout,
    attention_layout,
    compressed_layout,
    fp8_ds_mla_layout,
    index_fp8_layout,
    latent_fp8_layout,
    latent_layout,
)

LAYOUTS = {
    "kv": attention_layout(2, 8, 4, "float32"),
    "kv_fp8": attention_fp8_layout(2, 8, 4),
    "latent": latent_layout(16, 0, "bfloat16"),
    "latent_fp8": latent_fp8_layout(16, 4),
    "latent_fp8_without_rope": latent_fp8_layout(16, 0),
    "fp8_ds_mla": fp8_ds_mla_layout(130, 6),
    "fp8_ds_mla_of_one_lane": fp8_ds_mla_layout(130, 1),
    "fp8_ds_mla_without_rope": fp8_ds_mla_layout(128, 0),
    "indexer_fp8": index_fp8_layout(128),
    "indexer_fp8_of_one_lane": index_fp8_layout(1),
    "compressed": compressed_layout(80, 8),
    "compressed_without_rope": compressed_layout(64, 0),
}
FORMS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "lanes_apart": lambda part: torch.stack([part, part], dim=-1)[..., 0],
    "tokens_apart": lambda part: torch.stack([part, part], dim=1)[:, 0],
    "tokens_last": lambda part: part.movedim(0, -1).contiguous().movedim(-1, 0),
    "one_token_for_all": lambda part: part[:1].expand_as(part),
    "one_lane_for_all": lambda part: part[..., :1].expand_as(part),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_parts_of_other_tokens_and_rows_of_another_width_are_refused(name: str) -> None:
    layout: Layout = LAYOUTS[name]
    scale = torch.ones(layout.scale_shapes[0]) if layout.scale_shapes else None
    parts = [torch.zeros(3, *part) for part in layout.parts]
    rows = layout.pack(parts, scale)
    with pytest.raises(LayoutError, match=f"{layout.width} wide"):
        layout.unpack(rows[:, 1:], scale)
    if len(parts) > 1:
        with pytest.raises(LayoutError, match=r"\[3, 2\] tokens"):
            layout.pack([parts[0], parts[1][1:]], scale)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("tokens", [0, 1, 5])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", LAYOUTS)
def test_packing_does_not_depend_on_strides(name: str, form: str, tokens: int, dtype: torch.dtype) -> None:
    layout: Layout = LAYOUTS[name]
    generator = torch.Generator().manual_seed(0)
    scale = torch.full(layout.scale_shapes[0], 0.01) if layout.scale_shapes else None
    parts = [FORMS[form](torch.randn(tokens, *part, generator=generator).to(dtype)) for part in layout.parts]
    dense = [part.clone(memory_format=torch.contiguous_format) for part in parts]
    rows, expected = layout.pack(parts, scale), layout.pack(dense, scale)
    assert torch.equal(rows.contiguous().view(torch.uint8), expected.contiguous().view(torch.uint8))
