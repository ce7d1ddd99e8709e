"""Names find their parameters: by transformers' own conversions, then by what the module tree explains, and by nothing else."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedConfig
from transformers.core_model_loading import convert_and_load_state_dict_in_model, revert_weight_conversion
from transformers.modeling_utils import LoadStateDictConfig

from hal.common.contract.limits import Limits
from hal.config import read_shape
from hal.models import CheckpointError, CheckpointPlan, load
from hal.models.build import build_module
from hal.models.checkpoint_index import CheckpointIndex
from hal.models.checkpoint_plan import plan_tensors
from hal.models.dry_run import quiet_transformers
from hal.models.keys import KeyResolver, conversions

from .helpers import composites, folders, tiny
from .helpers.headers import NAMES, stored
from .helpers.shrinking import small_configs

LIMITS = Limits(max_model_len=64, max_num_seqs=2, max_num_batched_tokens=32)
EVERY = tiny.FAMILIES | composites.COMPOSITES
Shapes = dict[str, tuple[str, tuple[int, ...]]]


def gpt2() -> PreTrainedConfig:
    return transformers.GPT2Config(vocab_size=128, n_embd=32, n_layer=2, n_head=2, n_positions=64)


def saved(config: PreTrainedConfig) -> Shapes:
    """What save_pretrained writes of a model: its tensors under the names of its files."""
    module = build_module(config, torch.float32)
    tied = {name for name, source in module.all_tied_weights_keys.items() if name != source}
    kept = {name: tensor for name, tensor in module.state_dict().items() if name not in tied}
    written = revert_weight_conversion(module, kept)
    return {name: (NAMES[tensor.dtype], tuple(tensor.shape)) for name, tensor in written.items()}


def plan_of(config: PreTrainedConfig, shapes: Shapes) -> CheckpointPlan:
    tensors = {name: stored(name, dtype, shape) for name, (dtype, shape) in shapes.items()}
    module = build_module(config, torch.float32)
    return plan_tensors(CheckpointIndex(folder=Path("folder"), tensors=tensors), module, read_shape(config))


def moved(shapes: Shapes, strip: str, add: str) -> Shapes:
    return {add + name.removeprefix(strip) if name.startswith(strip) else name: value for name, value in shapes.items()}


TOWER: Shapes = {
    f"vision_tower.vision_model.encoder.layers.{n}.self_attn.{part}_proj.weight": ("F32", (32, 32))
    for n in (0, 1)
    for part in "qkv"
} | {
    "vision_tower.vision_model.post_layernorm.weight": ("F32", (32,)),
    "multi_modal_projector.linear_1.weight": ("F32", (64, 32)),
}

WRAPPERS: dict[str, tuple[Callable[[], PreTrainedConfig], str, str]] = {
    "neox-bare": (tiny.gpt_neox, "gpt_neox.", ""),
    "neox-model": (tiny.gpt_neox, "gpt_neox.", "model."),
    "neox-transformer": (tiny.gpt_neox, "gpt_neox.", "transformer."),
    "neox-model-twice": (tiny.gpt_neox, "gpt_neox.", "model.model."),
    "gpt2-bare": (gpt2, "transformer.", ""),
    "gpt2-backbone": (gpt2, "transformer.", "backbone."),
    "gpt2-model": (gpt2, "transformer.", "model."),
    "llama-bare": (tiny.llama, "model.", ""),
    "llama-transformer": (tiny.llama, "model.", "transformer."),
    "llama-model-twice": (tiny.llama, "model.", "model.model."),
    "llama-nested": (tiny.llama, "model.", "language_model.model."),
    "llama-nested-deeper": (tiny.llama, "model.", "model.language_model."),
    "experts-nested": (tiny.qwen3_moe, "model.", "language_model.model."),
    "experts-backbone": (tiny.deepseek_v3, "model.", "backbone."),
    "gemma3-old-nest": (composites.gemma3, "model.language_model.", "language_model.model."),
    "llava-old-nest": (composites.llava_v32, "model.language_model.", "language_model.model."),
    "qwen3-vl-bare-text": (composites.qwen3_vl, "model.language_model.", "model."),
    "qwen3-vl-foreign-text": (composites.qwen3_vl, "model.language_model.", "llm.model."),
}


@pytest.mark.parametrize("case", WRAPPERS.values(), ids=list(WRAPPERS))
def test_a_wrapper_of_another_name_is_found_in_the_module_tree(case: tuple[Callable[[], PreTrainedConfig], str, str]) -> None:
    make, strip, add = case
    shapes = saved(make())
    changed = moved(shapes, strip, add)
    plan = plan_of(make(), changed)
    assert (plan.missing, plan.unexpected, plan.collisions, dict(plan.mismatched)) == ((), (), {}, {})
    back = dict(zip(changed, shapes, strict=True))
    expected = plan_of(make(), shapes).assigned
    assert {target: {back[key] for key in keys} for target, keys in plan.assigned.items()} == {
        target: set(keys) for target, keys in expected.items()
    }


@pytest.mark.parametrize("nest", ["language_model.", "model.language_model.", "thinker."])
@pytest.mark.parametrize("make", [tiny.llama, tiny.gemma3_text, tiny.qwen3_moe])
def test_a_text_model_is_read_out_of_a_multimodal_file_and_its_towers_are_listed(make, nest: str) -> None:
    shapes = {f"{nest}{name}": value for name, value in saved(make()).items()} | TOWER
    plan = plan_of(make(), shapes)
    assert plan.is_complete
    assert set(plan.unused) == set(TOWER)
    assert plan.unused["multi_modal_projector.linear_1.weight"] == (
        f"multi_modal_projector is not built; the model was read from {nest.removesuffix('.')}, beside it"
    )


def test_towers_are_told_where_transformers_itself_takes_the_wrapper_off() -> None:
    config = next(small_configs("llama4_text"))
    plan = plan_of(config, {f"language_model.{name}": value for name, value in saved(config).items()} | TOWER)
    assert plan.is_complete
    assert set(plan.unused) == set(TOWER)


@pytest.mark.parametrize("wrapper", ["module.", "_orig_mod.", "language_model."])
def test_a_parameter_in_the_wrapper_itself_follows_the_others(wrapper: str) -> None:
    config = next(small_configs("llava_next"))
    names = saved(config)
    assert "model.image_newline" in names or "image_newline" in names
    plan = plan_of(config, {f"{wrapper}{name}": value for name, value in names.items()})
    assert plan.is_complete


def test_a_tower_beside_a_model_that_is_not_nested_is_unexpected() -> None:
    assert set(plan_of(tiny.llama(), saved(tiny.llama()) | TOWER).unexpected) == set(TOWER)


@pytest.mark.parametrize("family", ["gemma3", "qwen25-vl-window", "llava-v32", "kimi-k25"])
def test_a_multimodal_model_finds_its_text_in_a_text_file_and_misses_its_tower(family: str) -> None:
    text = saved(composites.TWINS[family]())
    plan = plan_of(composites.COMPOSITES[family](), text)
    assert {key for keys in plan.assigned.values() for key in keys} == set(text)
    assert plan.unexpected == ()
    assert plan.missing
    assert not any("language_model" in name for name in plan.missing)


def test_a_parameter_that_two_wrappers_would_fill_equally_is_refused() -> None:
    shapes = saved(tiny.llama())
    both = moved(shapes, "model.", "policy.") | {
        name: value for name, value in moved(shapes, "model.", "reference.").items() if name.startswith("reference.")
    }
    with pytest.raises(
        CheckpointError, match=r"could be 'policy\.embed.*' \(by policy.*\) or 'reference\.embed.*keep the one set"
    ):
        plan_of(tiny.llama(), both)


def test_the_larger_of_two_readings_wins_and_the_rest_is_unexpected() -> None:
    shapes = saved(tiny.llama())
    partial = {f"draft.{name.removeprefix('model.')}": value for name, value in shapes.items() if "layers.0." in name}
    plan = plan_of(tiny.llama(), moved(shapes, "model.", "policy.") | partial)
    assert plan.missing == ()
    assert set(plan.unexpected) == set(partial)


def test_a_second_set_of_weights_fills_nothing_that_the_first_has_filled() -> None:
    """Whole or in part, also where the first set lacks some: only what lies free is read under the other wrapper."""
    shapes = saved(tiny.llama())
    draft = {f"draft.{name.removeprefix('model.')}": value for name, value in shapes.items() if "layers." in name}
    for second in (draft, {name: value for name, value in draft.items() if "layers.0." in name}):
        plan = plan_of(tiny.llama(), shapes | second)
        assert (plan.missing, plan.collisions) == ((), {})
        assert set(plan.unexpected) == set(second)
    lacking = {name: value for name, value in shapes.items() if "layers.0." in name or ".layers." not in name}
    plan = plan_of(tiny.llama(), lacking | draft)
    assert plan.collisions == {}
    assert {name for keys in plan.assigned.values() for name in keys} >= set(lacking)


def test_a_spare_name_under_the_wrapper_fills_nothing_that_its_plain_name_has_filled() -> None:
    shapes = saved(tiny.llama())
    spare = {"policy.lm_head.weight": shapes["lm_head.weight"]}
    plan = plan_of(tiny.llama(), moved(shapes, "model.", "policy.") | spare)
    assert (plan.missing, plan.collisions) == ((), {})
    assert set(plan.unexpected) == set(spare)


@pytest.mark.parametrize(
    "name", ["model.layers.0.self_attn.q_proj.weigth", "model.layer.1.mlp.up_proj.weight", "model.embedtokens.weight"]
)
def test_an_unexpected_name_is_told_with_its_nearest_match(name: str) -> None:
    plan = plan_of(tiny.llama(), saved(tiny.llama()) | {name: ("F32", (4,))})
    right = {"weigth": "weight", "layer.1": "layers.1", "embedtokens": "embed_tokens"}
    expected = name
    for wrong, meant in right.items():
        expected = expected.replace(wrong, meant)
    assert plan.nearest[name] == expected


@pytest.mark.parametrize("family", EVERY)
def test_names_that_differ_in_numbers_alone_are_renamed_as_one_by_one(family: str) -> None:
    config = EVERY[family]()
    resolver, exact = (KeyResolver(module=build_module(config)) for _ in range(2))
    exact._templates = None
    names = [*saved(config), *resolver.state]
    assert [resolver.resolve(name) for name in names] == [exact.resolve(name) for name in names]


def theirs(config: PreTrainedConfig, shapes: Shapes) -> tuple[set[str], set[str], set[str]]:
    """transformers' own verdict on all tensors at once: missing, unexpected, mismatched or not convertible."""
    module = build_module(config, torch.float32)
    empty = {name: torch.empty(shape, device="meta") for name, (_, shape) in shapes.items()}
    load_config = LoadStateDictConfig(device_map={"": "meta"}, weight_mapping=conversions(module))
    with quiet_transformers():
        report = convert_and_load_state_dict_in_model(module, empty, load_config)[0]
    wrong = {name for name, *_ in report.mismatched_keys} | set(report.conversion_errors)
    return set(report.missing_keys) - wrong, set(report.unexpected_keys), wrong


CHANGES = st.lists(st.tuples(st.sampled_from(["drop", "reshape", "rename", "double"]), st.integers(0, 10**6)), max_size=4)


@settings(max_examples=25, deadline=None)
@given(
    family=st.sampled_from(["llama", "qwen3-moe", "deepseek-v3", "gpt-neox", "phi3-window"]),
    changes=CHANGES,
    seed=st.integers(0, 99),
)
def test_the_verdict_on_any_set_of_names_is_the_slow_one(family: str, changes: list[tuple[str, int]], seed: int) -> None:
    config = tiny.FAMILIES[family]()
    shapes = saved(config)
    renamed: set[str] = set()
    doubled: dict[str, str] = {}
    for what, number in changes:
        name = sorted(shapes)[number % len(shapes)]
        dtype, shape = shapes[name]
        if what == "drop":
            del shapes[name]
        elif what == "reshape":
            shapes[name] = (dtype, (*shape[:-1], shape[-1] + 1))
        elif what == "rename":
            del shapes[name]
            shapes[f"{name}_renamed"] = (dtype, shape)
            renamed.add(f"{name}_renamed")
        elif name.startswith("model.") and name not in {*doubled.values(), *renamed}:
            # A copy of a name that no parameter has collides with nothing: both are unexpected.
            doubled[name.removeprefix("model.")] = name
    shapes |= {copy: shapes[name] for copy, name in doubled.items() if name in shapes}
    names = list(shapes)
    random.Random(seed).shuffle(names)
    plan = plan_of(config, {name: shapes[name] for name in names})
    single = {name: value for name, value in shapes.items() if name not in doubled}
    missing, unexpected, wrong = theirs(config, single)
    assert set(plan.missing) == missing
    # transformers tells what it made of a name, hal the name that the file has.
    rename = KeyResolver(module=build_module(config)).rename
    assert set(plan.unexpected) <= shapes.keys()
    assert {name if name in unexpected else rename(name) for name in plan.unexpected} == unexpected
    assert set(plan.mismatched) == wrong or plan.collisions
    assert {copy for keys in plan.collisions.values() for copy in keys} >= doubled.keys() & shapes.keys()


@settings(max_examples=15, deadline=None)
@given(
    prefix=st.sampled_from(["", "policy.", "language_model.", "model."]),
    changes=st.lists(st.tuples(st.sampled_from(["drop", "swap", "double", "prefix"]), st.integers(0, 10**6)), max_size=3),
)
def test_whatever_is_done_to_its_names_a_model_is_whole_or_refused(
    prefix: str, changes: list[tuple[str, int]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    module = tiny.build(tiny.llama())
    folder = tmp_path_factory.mktemp("names")
    tensors = {f"{prefix}{name}": tensor for name, tensor in folders.save(module, folder).items()}
    for what, number in changes:
        first, second = (sorted(tensors)[place % len(tensors)] for place in (number, number + 1))
        if what == "drop":
            del tensors[first]
        elif what == "swap":
            tensors[first], tensors[second] = tensors[second], tensors[first]
        elif what == "double":
            tensors[f"copy.{first}"] = tensors[first] + 1.0
        else:
            tensors[f"other.{first}"] = tensors.pop(first)
    folders.rewrite(folder, lambda _old: tensors)
    swapped = any(what == "swap" for what, _ in changes)
    try:
        loaded = load(folder, device="cpu", limits=LIMITS, progress=False).module
    except CheckpointError:
        assert changes
        return
    stored = folders.load_file(folder / "model.safetensors")
    for name, parameter in module.named_parameters():
        found = loaded.get_parameter(name)
        # Two tensors of one shape may trade places unnoticed; nothing else may come from elsewhere.
        assert torch.equal(found, parameter) or (swapped and any(torch.equal(found, each) for each in stored.values())), name
