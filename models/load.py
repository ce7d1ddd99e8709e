"""The two ways to a running model: from a checkpoint folder, or from a transformers module in memory."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from transformers import GenerationConfig, PreTrainedModel

from hal.common.backends.detection import detect, find_device
from hal.common.contract.device import Device
from hal.common.contract.limits import Limits
from hal.common.contract.parallel import Parallel
from hal.common.contract.plan import Plan
from hal.common.planning.plan import plan
from hal.config import ModelShape
from hal.config.dtypes import model_dtype_name

from .binding import Step
from .build import build_module
from .checkpoint_index import read_index
from .checkpoint_plan import plan_tensors, read_tied_model
from .decoders import find_decoder
from .dry_run import quiet_transformers
from .errors import CheckpointError, UnsupportedModelError, describe
from .interface import BINDING, NAME, register
from .loader import load_weights
from .model import Model
from .placing import device_of
from .probe import bind_modules, up_projections
from .ranks import Ranks, connect, failing_together, join_ranks, rank_shape, shrink
from .rerouting import reroute
from .sharding import plan_sharding
from .support import check_rope, check_supported, read_module
from .text import read_stops, read_tokenizer
from .undo import undone_on_error
from .verdict import CheckpointPlan

SHARE_OF_MEMORY = 4
"""Without a number of pages the pool takes at most this fraction of the device's memory."""


def load(
    path: str | Path,
    *,
    device: Device | str | torch.device | None = None,
    dtype: object = None,
    backend: str | None = None,
    parallel: Parallel | None = None,
    group: Any = None,
    limits: Limits | None = None,
    strict: bool = True,
    progress: bool = True,
) -> Model:
    """A model folder, ready to generate; .plan says how it is served, .report how every tensor was accounted for.

    device: this machine's best by default. dtype: the checkpoint's by default. strict=False lets missing weights be drawn
    at random and unexpected ones be left out; anything ambiguous, colliding or of a wrong shape is refused all the same.
    CheckpointError, UnsupportedModelError, ConfigError or NoBackend say what is wrong before a weight is read; only what the
    model's own code shows when it runs comes after.

    group: the torch.distributed group that runs the model together (torchrun's: dist.group.WORLD after init_process_group()),
    each rank with its part of the weights and a pool of its own; all ranks make the same calls. parallel: this rank's place in
    it, by default one of as many tensor-parallel ranks as the group has. Logits come out whole on every rank. InputError where
    sizes do not divide, with the numbers that would.
    """
    ranks = join_ranks(parallel, group)
    folder = Path(path)
    with failing_together(ranks.everyone):
        config, shape = read_tied_model(folder)
        empty = build_module(config)
        check_supported(empty, shape)
        sharding = plan_sharding(empty, shape, ranks.parallel)
        serving = _plan(shape, _find_device(device), dtype, backend, ranks.parallel, limits)
        check_rope(empty, serving.limits)
        index = read_index(folder)
        report = plan_tensors(index, empty, shape, (sharding.slices,))
        report.raise_if_bad(strict)
        tokenizer, generation_config = read_tokenizer(folder), _read_generation_config(folder)
        torch_dtype = getattr(torch, serving.dtype)
        module = build_module(config, torch_dtype)
        shrink(module, sharding)
        where = torch.device(serving.device.torch_device or "cpu")
        is_shown = progress and ranks.is_first
        notes = load_weights(
            module,
            index,
            report,
            device=where,
            dtype=torch_dtype,
            slices=sharding.slices,
            num_ranks=ranks.count,
            progress=is_shown,
        )
    report = replace(report, warnings=report.warnings + notes + sharding.notes)
    module.generation_config = generation_config or module.generation_config
    connect(module, sharding, ranks.tensor)
    return _start(module, serving, None, ranks=ranks, report=report, tokenizer=tokenizer)


def attach(
    module: PreTrainedModel,
    *,
    limits: Limits | None = None,
    backend: str | None = None,
    num_blocks: int | None = None,
    tokenizer: Any = None,
) -> Model:
    """A module already in memory, ready to generate on the device and in the dtype it has.

    The module itself is changed (deepcopy it to keep a plain one): its attention then works only through the Model. A
    module that is refused is left as it was.
    """
    shape = read_module(module)
    check_supported(module, shape)
    serving = _plan(shape, device_of(module), module.dtype, backend, None, limits)
    check_rope(module, serving.limits)
    return _start(module, serving, num_blocks, tokenizer=tokenizer)


def _plan(
    shape: ModelShape,
    device: Device,
    dtype: object,
    backend: str | None,
    parallel: Parallel | None,
    limits: Limits | None,
) -> Plan:
    chosen = model_dtype_name(dtype if dtype is not None else shape.dtype or "float32")
    return plan(shape, device, limits=limits, parallel=parallel, dtype=chosen, backend=backend)


def _find_device(device: Device | str | torch.device | None) -> Device:
    wanted = find_device(device)
    if wanted.torch_device is not None:
        return wanted
    raise UnsupportedModelError(
        f"{wanted.target} is not in this machine (there is {', '.join(one.target for one in detect())}); "
        "hal explain plans for it without running"
    )


def _start(
    module: PreTrainedModel,
    serving: Plan,
    num_blocks: int | None,
    *,
    ranks: Ranks | None = None,
    report: CheckpointPlan | None = None,
    tokenizer: Any = None,
) -> Model:
    ranks = Ranks(parallel=Parallel()) if ranks is None else ranks
    shape = rank_shape(serving.shape, ranks.parallel)
    if any(BINDING in child.__dict__ for child in module.modules()):
        raise UnsupportedModelError(f"this {type(module).__name__} already runs on hal attention")
    register()
    step = Step()
    with undone_on_error(module):
        module.eval()
        reroute(module, serving.shape)
        with quiet_transformers():
            find_decoder(module).set_attn_implementation(NAME)
        modules = bind_modules(module, shape, step, serving.limits.max_model_len)
        blocks = ranks.smallest(_pool_size(serving), module.device) if num_blocks is None else num_blocks
        attention = serving.open(blocks, ranks.context)
        for layer_id, (w_uk, w_uv) in up_projections(modules, shape).items():
            attention.bind_weights(layer_id, w_uk, w_uv)
    return Model(module, serving, attention, step, report=report, tokenizer=tokenizer)


def _pool_size(serving: Plan) -> int:
    wanted = serving.default_num_blocks()
    memory = serving.device.memory_bytes
    if memory is None or not serving.page_bytes:
        return wanted
    one_request = -(-serving.limits.max_model_len // serving.tokens_per_page)
    return min(wanted, max(one_request, memory // SHARE_OF_MEMORY // serving.page_bytes))


def _read_generation_config(folder: Path) -> GenerationConfig | None:
    if not (folder / "generation_config.json").is_file():
        return None
    try:
        config = GenerationConfig.from_pretrained(folder, local_files_only=True)
        read_stops(config.eos_token_id)
    except Exception as error:
        raise CheckpointError(f"{folder / 'generation_config.json'} cannot be read: {describe(error)}") from error
    return config
