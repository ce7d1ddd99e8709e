"""Cache layouts for engines that keep their own memory: what one cached token holds, and each layout by its widths."""

from hal.common.contract.layouts import (
    BlockScaling,
    Layout,
    attention_fp8_layout,
    attention_layout,
    block_table_width,
    compressed_layout,
    fp8_ds_mla_layout,
    index_fp8_layout,
    index_layout,
    latent_fp8_layout,
    latent_layout,
)

__all__ = [
    "BlockScaling",
    "Layout",
    "attention_fp8_layout",
    "attention_layout",
    "block_table_width",
    "compressed_layout",
    "fp8_ds_mla_layout",
    "index_fp8_layout",
    "index_layout",
    "latent_fp8_layout",
    "latent_layout",
]
