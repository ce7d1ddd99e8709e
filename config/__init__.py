"""HF config -> ModelShape. The only code of hal that reads a Hugging Face config."""

from __future__ import annotations

if __name__ != "hal.config":
    raise ImportError("this folder is the package hal.config; import it by that name")

from .errors import ConfigError, HalError
from .layer_shape import BlockSparseShape, IndexerShape, LayerShape, MLAShape
from .shape import ModelShape

__all__ = ["BlockSparseShape", "ConfigError", "HalError", "IndexerShape", "LayerShape", "MLAShape", "ModelShape", "read_shape"]

from .reader import read_shape
