"""The models that two ranks run together, and what each rank does with one of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import transformers
from transformers import PreTrainedConfig, PreTrainedModel

import hal
from hal.config import read_shape
from hal.models import CheckpointError, Model, load, plan_checkpoint
from hal.models.build import build_module
from hal.models.sharding import Sharding, plan_sharding

from . import oracle, quantised, tiny

TWO = {"num_hidden_layers": 2}
COMMON = tiny.COMMON | TWO
PLAIN = {name: COMMON[name] for name in ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads")}
OLD = {"vocab_size": 128, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 64, "bos_token_id": None, "eos_token_id": None}
NO_TOKENS = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None, "max_position_embeddings": 64}
LIMITS = hal.Limits(64, 2, 48, block_size=16)
TOLERANCE = 1e-5


def llama(num_heads: int, num_kv_heads: int, vocab_size: int = 128) -> PreTrainedConfig:
    shape = {"num_attention_heads": num_heads, "num_key_value_heads": num_kv_heads, "vocab_size": vocab_size, "head_dim": 16}
    return transformers.LlamaConfig(**(COMMON | shape))


def falcon(**fields: Any) -> PreTrainedConfig:
    return transformers.FalconConfig(**PLAIN, **NO_TOKENS, **fields)


def gpt_neo() -> PreTrainedConfig:
    kinds = [[["global", "local"], 1]]
    widths = {"vocab_size": 128, "hidden_size": 64, "num_layers": 2, "num_heads": 4, "window_size": 6}
    return transformers.GPTNeoConfig(**widths, attention_types=kinds, **(NO_TOKENS | {"pad_token_id": 0}))


FAMILIES: dict[str, Callable[[], PreTrainedConfig]] = {
    "llama-1-kv-head": lambda: llama(4, 1),
    "llama-2-kv-heads": lambda: llama(4, 2),
    "llama-8-kv-heads": lambda: llama(8, 8),
    "llama-odd-vocabulary": lambda: llama(4, 2, vocab_size=127),
    "gpt-neox": tiny.gpt_neox,
    "gpt2": lambda: transformers.GPT2Config(**OLD),
    "qwen3-moe": tiny.qwen3_moe,
    "falcon-multi-query": lambda: falcon(multi_query=True),
    "falcon-per-head": lambda: falcon(multi_query=False, parallel_attn=False, bias=True),
    "falcon-grouped": lambda: falcon(new_decoder_architecture=True, num_kv_heads=2),
    "falcon-one-group": lambda: falcon(new_decoder_architecture=True, num_kv_heads=1),
    "phi3": tiny.phi3,
    "deepseek-v3": tiny.deepseek_v3,
    "deepseek-v32": tiny.deepseek_v32,
    "glm-dsa": tiny.glm_moe_dsa,
    "gpt-oss": tiny.gpt_oss,
    "gemma2": tiny.gemma2,
    "bigcode": lambda: transformers.GPTBigCodeConfig(**OLD),
    "gptj": lambda: transformers.GPTJConfig(**OLD, rotary_dim=8),
    "codegen": lambda: transformers.CodeGenConfig(**OLD, rotary_dim=8),
    "gpt-neo": gpt_neo,
    "persimmon": lambda: transformers.PersimmonConfig(**COMMON),
    "olmo2-norm-over-heads": lambda: transformers.Olmo2Config(**COMMON, num_key_value_heads=2),
    "bitnet-norm-behind-attention": lambda: transformers.BitNetConfig(**COMMON, num_key_value_heads=2),
    "deepseek-v4": tiny.deepseek_v4,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A family over some ranks. together: whether the same two ranks also divide the tokens, and the heads or not."""

    family: str
    parallel: dict[str, int] = field(default_factory=lambda: {"tp": 2})

    def place(self, rank: int) -> hal.Parallel:
        """The rank's own place."""
        tp, dcp = self.parallel.get("tp", 1), self.parallel.get("dcp", 1)
        return hal.Parallel(tp=tp, tp_rank=rank % tp, dcp=dcp, dcp_rank=rank % dcp)


CASES = {family: Case(family=family) for family in FAMILIES}
CASES["deepseek-v32-tensor-and-context"] = Case(family="deepseek-v32", parallel={"tp": 2, "dcp": 2})
CASES["deepseek-v32-context"] = Case(family="deepseek-v32", parallel={"dcp": 2})
CASES["llama-1-kv-head-tensor-and-context"] = Case(family="llama-1-kv-head", parallel={"tp": 2, "dcp": 2})


def list_checks(folder: Path) -> dict[str, Callable[[], None]]:
    """Everything that two ranks do, by name, in order; folder is the same for both."""
    checks: dict[str, Callable[[], None]] = {}
    for name, case in CASES.items():
        checks[name] = lambda case=case, name=name: check_case(case, folder / name)
    checks["fp8-deepseek-v32"] = lambda: check_quantised(quantised.write_fp8, fp8_config(), folder / "fp8")
    checks["mxfp4-gpt-oss"] = lambda: check_quantised(quantised.write_mxfp4, tiny.gpt_oss(), folder / "mxfp4")
    checks["a-file-that-one-rank-cannot-read"] = lambda: check_failing(folder)
    checks["places-that-do-not-fit-the-group"] = lambda: check_places(folder)
    checks["a-plan-for-a-group"] = lambda: check_planned(folder / "planned")
    checks["a-group-of-one-beside-another"] = lambda: check_alone(folder / "planned")
    return checks


def check_case(case: Case, folder: Path) -> None:
    """Logits and greedy tokens of both ranks are those of transformers' own model, from a pool of each rank's own."""
    rank, module = dist.get_rank(), tiny.build(FAMILIES[case.family]())
    if rank == 0:
        module.save_pretrained(folder)
    dist.barrier()
    model = load(folder, device="cpu", parallel=case.place(rank), group=dist.group.WORLD, limits=LIMITS, progress=False)
    check_share(model, module, case)
    (tokens,) = oracle.random_prompts([23], vocabulary=module.config.get_text_config().vocab_size)
    pages = model.attention.pages.allocate(-(-len(tokens) // model.plan.tokens_per_page))
    found = []
    for start, stop in ((0, 17), (17, 18), (18, 23)):
        batch = hal.Batch([stop - start], [stop], [pages])
        found.append(model.forward(torch.tensor(tokens[start:stop]), batch))
    model.attention.pages.free(pages)
    torch.testing.assert_close(torch.cat(found), oracle.eager_logits(module, tokens), atol=TOLERANCE, rtol=TOLERANCE)
    prompts = [tokens[:9], tokens[9:14]]
    for prompt, generation in zip(prompts, model.generate(prompts, 6), strict=True):
        logits = oracle.eager_logits(module, [*prompt, *generation.tokens])
        assert list(generation.tokens) == logits[len(prompt) - 1 : -1].argmax(dim=-1).tolist()


def fp8_config() -> PreTrainedConfig:
    """Widths that blocks of 128 do not fill."""
    return transformers.DeepseekV32Config(**(tiny.LATENT | tiny.SPARSE | TWO | {"hidden_size": 192}))


def check_quantised(write: Callable[..., PreTrainedModel], config: PreTrainedConfig, folder: Path) -> None:
    """Quantised files are expanded before they are divided, so that no block is cut."""
    if dist.get_rank() == 0:
        module = write(config, folder)
    dist.barrier()
    model = load(folder, device="cpu", group=dist.group.WORLD, limits=LIMITS, progress=False)
    (tokens,) = oracle.random_prompts([23])
    found = model.forward(torch.tensor(tokens), hal.Batch([23], [23], [model.attention.pages.allocate(2)]))
    if dist.get_rank() == 0:
        torch.testing.assert_close(found, oracle.eager_logits(module, tokens), atol=TOLERANCE, rtol=TOLERANCE)


def check_share(model: Model, module: PreTrainedModel, case: Case) -> None:
    """The rank holds exactly its part of the parameters, and a cache of its own heads."""
    shape = read_shape(module.config)
    sharding = plan_sharding(module, shape, case.place(dist.get_rank()))
    expected = {name: sharding.slices.shape(name, tensor.shape) for name, tensor in module.named_parameters()}
    assert {name: tuple(tensor.shape) for name, tensor in model.module.named_parameters()} == expected
    assert all(tensor.is_contiguous() for tensor in model.module.parameters())
    if case.parallel.get("tp", 1) > 1:
        assert sharding.slices.parts
    assert (
        model.plan.bytes_per_token == shape.kv_bytes_per_token(dtype="float32", tp=case.parallel.get("tp", 1))
        or model.plan.shape.is_sparse
        or model.plan.shape.layers[0].kind == "compressed"
    )


def check_failing(folder: Path) -> None:
    """What one rank cannot read ends every rank with its words, and none waits for another."""
    own = folder / f"copy-{dist.get_rank()}"
    if dist.get_rank() == 0:
        for copy in ("copy-0", "copy-1"):
            tiny.build(FAMILIES["llama-2-kv-heads"]()).save_pretrained(folder / copy)
        config = folder / "copy-1" / "config.json"
        config.write_text(config.read_text().replace('"vocab_size": 128', '"vocab_size": 126'))
    dist.barrier()
    with pytest.raises(CheckpointError) as raised:
        load(own, device="cpu", group=dist.group.WORLD, limits=LIMITS, progress=False)
    assert ("rank 1" in str(raised.value)) == (dist.get_rank() == 0)


def check_places(folder: Path) -> None:
    """Every rank refuses a place that its group does not have."""
    for parallel in (hal.Parallel(tp=4, tp_rank=dist.get_rank()), hal.Parallel(tp=2, tp_rank=1 - dist.get_rank())):
        with pytest.raises(hal.InputError, match="group"):
            load(folder, parallel=parallel, group=dist.group.WORLD, limits=LIMITS, progress=False)


def check_planned(folder: Path) -> None:
    """Every rank has the plan of all ranks of its group, and refuses a place that the group does not have."""
    rank = dist.get_rank()
    if rank == 0:
        tiny.build(FAMILIES["llama-odd-vocabulary"]()).save_pretrained(folder)
    dist.barrier()
    plan = plan_checkpoint(folder, group=dist.group.WORLD)
    assert plan == plan_checkpoint(folder, parallel=hal.Parallel(tp=2))
    assert plan == plan_checkpoint(folder, parallel=hal.Parallel(tp=2, tp_rank=rank), group=dist.group.WORLD)
    assert len(set(plan.bytes_per_rank)) == 2
    divided = plan_checkpoint(folder, parallel=hal.Parallel(dcp=2, dcp_rank=rank), group=dist.group.WORLD)
    assert divided == plan_checkpoint(folder)
    for parallel in (hal.Parallel(tp=3, tp_rank=rank), hal.Parallel(tp=2, tp_rank=1 - rank)):
        with pytest.raises(hal.InputError, match="group"):
            plan_checkpoint(folder, parallel=parallel, group=dist.group.WORLD)
    model = load(folder, device="cpu", group=dist.group.WORLD, limits=LIMITS, progress=False)
    assert model.report is not None
    assert model.report.bytes_per_rank == (plan.bytes_per_rank[rank],)
    assert sum(tensor.nbytes for tensor in model.module.parameters()) == plan.bytes_per_rank[rank]


def check_alone(folder: Path) -> None:
    """Two groups of one rank each run two whole models, and neither waits for the other."""
    groups = [dist.new_group([rank]) for rank in range(2)]
    rank = dist.get_rank()
    assert plan_checkpoint(folder, group=groups[rank]) == plan_checkpoint(folder)
    with pytest.raises(hal.InputError, match="not in the group"):
        plan_checkpoint(folder, group=groups[1 - rank])
    if rank == 0:
        model = load(folder, device="cpu", group=groups[0], limits=LIMITS, progress=False)
        assert all(each.shape[0] in (127, 64, 32, 128) for each in model.module.parameters())
    dist.barrier()


def shard(config: PreTrainedConfig, tp: int, rank: int) -> tuple[PreTrainedModel, Sharding]:
    """A family's empty module and one rank's sharding of it."""
    module = build_module(config)
    return module, plan_sharding(module, read_shape(config), hal.Parallel(tp=tp, tp_rank=rank))
