"""Cache layouts: what one cached token holds, how parts become rows and rows become parts."""

from .choose import QUANTISED, UNQUANTISED, layer_index_layout, layer_layout
from .fp8 import SCALING_MAX
from .layout import Layout
from .make import (
    attention_fp8_layout,
    attention_layout,
    change_variant,
    compressed_layout,
    fp8_ds_mla_layout,
    index_fp8_layout,
    index_layout,
    latent_fp8_layout,
    latent_layout,
    state_layout,
)
from .row_layout import BlockScaling
from .tables import block_table_width

__all__ = [
    "QUANTISED",
    "SCALING_MAX",
    "UNQUANTISED",
    "BlockScaling",
    "Layout",
    "attention_fp8_layout",
    "attention_layout",
    "block_table_width",
    "change_variant",
    "compressed_layout",
    "fp8_ds_mla_layout",
    "index_fp8_layout",
    "index_layout",
    "latent_fp8_layout",
    "latent_layout",
    "layer_index_layout",
    "layer_layout",
    "state_layout",
]
