"""Checkpoint -> a transformers model running on hal attention."""

from __future__ import annotations

if __name__ != "hal.models":
    raise ImportError("this folder is the package hal.models; import it by that name")

from hal.common.contract.extras import naming_extra

with naming_extra("hal.models"):
    from .checkpoint_plan import plan_checkpoint
    from .continuous import enable_generate_batch
    from .errors import CheckpointError, GenerationError, UnsupportedModelError
    from .generate import Generation
    from .load import attach, load
    from .model import Model
    from .verdict import CheckpointPlan

__all__ = [
    "CheckpointError",
    "CheckpointPlan",
    "Generation",
    "GenerationError",
    "Model",
    "UnsupportedModelError",
    "attach",
    "enable_generate_batch",
    "load",
    "plan_checkpoint",
]
