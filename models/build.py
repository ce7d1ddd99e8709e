"""A model folder's config -> an empty transformers module, and the shape that the rest of hal sees."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText, PreTrainedConfig, PreTrainedModel

from hal.config import ModelShape, read_shape

from .dequantising import prepare_dequantising
from .errors import CheckpointError, UnsupportedModelError, describe
from .folder import check_folder

TIED = "tie_word_embeddings"


def read_model(folder: Path) -> tuple[PreTrainedConfig, ModelShape, bool]:
    """transformers' config of a folder, its shape, and whether its flags disagree as its two classes do by themselves.

    CheckpointError: no folder, no config, one that transformers cannot read, a model that needs its own code.
    """
    check_folder(folder)
    try:
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
    except Exception as error:
        raise CheckpointError(f"{folder / 'config.json'} cannot be read by transformers: {describe(error)}") from error
    shape = read_shape(config)
    # An object no longer tells what its file states from what its class fills in, and transformers asks the wrapper alone.
    tied = read_shape(folder).tie_word_embeddings
    is_disputed = getattr(config, TIED, None) is True and not tied and has_classes_at_odds(config)
    return *flag_ties(config, shape, tied), is_disputed


def has_classes_at_odds(config: PreTrainedConfig) -> bool:
    """Whether the whole model's class ties the head and its text part's does not, where nothing is said.

    Flags of a file that say the same may be those defaults, written by save_pretrained(), and no one's decision.
    """
    text = config.get_text_config(decoder=True)
    return getattr(type(config), TIED, None) is True and getattr(type(text), TIED, None) is False


def flag_ties(config: PreTrainedConfig, shape: ModelShape, tied: bool) -> tuple[PreTrainedConfig, ModelShape]:
    """The config, changed in place on every level that states a tie, and a shape that says the same."""
    for part in (config, config.get_text_config(decoder=True)):
        setattr(part, TIED, tied)
    return config, replace(shape, tie_word_embeddings=tied)


def build_module(config: PreTrainedConfig, dtype: torch.dtype | None = None) -> PreTrainedModel:
    """The generating model of this config on the meta device, in eval mode; the caller's config is not shared.

    UnsupportedModelError: transformers maps the config to no text-generating class, or cannot build the one it maps it to.
    """
    own = copy.deepcopy(config)
    # A config with a text part inside belongs to the wrapper class; the causal class would build that part alone.
    is_composite = own.get_text_config(decoder=True) is not own
    families = (AutoModelForCausalLM, AutoModelForImageTextToText)
    for family in reversed(families) if is_composite else families:
        if type(own) in family._model_mapping:
            with torch.device("meta"), _Undrawn():
                module = _from_config(family, own, dtype)
            module.eval()
            prepare_dequantising(module)
            return module
    raise UnsupportedModelError(
        f"transformers maps {type(own).__name__} neither to a causal language model nor to an image-text model; "
        "encoders and encoder-decoders are not served"
    )


DRAWS = frozenset({torch.nn.init.kaiming_uniform_, torch.nn.init.uniform_, torch.nn.init.normal_})
"""What torch's own layers fill their parameters with when they are made."""


class _Undrawn(TorchFunctionMode):
    """Leaves out the random numbers of parameters without memory; torch takes half of a build to see that it need not."""

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        """The plain result of anything else."""
        keywords = kwargs or {}
        return (args[0] if args else keywords["tensor"]) if func in DRAWS else func(*args, **keywords)


def _from_config(family: Any, config: PreTrainedConfig, dtype: torch.dtype | None) -> PreTrainedModel:
    try:
        module: PreTrainedModel = family.from_config(config, dtype=dtype, trust_remote_code=False)
    except Exception as error:
        raise UnsupportedModelError(
            f"transformers cannot build the model of this {type(config).__name__}: {describe(error)}; a value of the config is "
            "wrong, or a package that the model needs is not installed"
        ) from error
    return module
