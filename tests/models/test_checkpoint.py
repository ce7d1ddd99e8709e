"""Every tensor of a folder and every parameter of a model is accounted for before anything is loaded."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel

from hal.common.contract.limits import Limits
from hal.config import HalError
from hal.models import CheckpointError, CheckpointPlan, UnsupportedModelError, load, plan_checkpoint
from hal.models.build import build_module

from .helpers import composites, folders, oracle, tiny

EVERY = tiny.FAMILIES | composites.COMPOSITES
LIMITS = Limits(max_model_len=64, max_num_seqs=2, max_num_batched_tokens=32)
TOKENS = list(range(3, 25))


@pytest.fixture(scope="module")
def neox() -> PreTrainedModel:
    return tiny.build(tiny.gpt_neox())


@pytest.fixture(scope="module")
def llama() -> PreTrainedModel:
    return tiny.build(tiny.llama())


def loaded_logits(folder: Path) -> torch.Tensor:
    model = load(folder, device="cpu", limits=LIMITS, progress=False)
    return oracle.paged_logits(model, [TOKENS], [[len(TOKENS)]])[0]


def assert_loads_as(folder: Path, module: PreTrainedModel) -> CheckpointPlan:
    plan = plan_checkpoint(folder)
    plan.raise_if_bad()
    torch.testing.assert_close(loaded_logits(folder), oracle.eager_logits(module, TOKENS), atol=2e-5, rtol=2e-5)
    return plan


@pytest.mark.parametrize("family", EVERY)
def test_a_saved_model_is_planned_complete_and_loaded_the_same(family: str, tmp_path: Path) -> None:
    module = tiny.build(EVERY[family]())
    keys = folders.save(module, tmp_path)
    plan = assert_loads_as(tmp_path, module)
    assert plan.is_complete
    assert {key for sources in plan.assigned.values() for key in sources} == set(keys)
    assert set(plan.assigned) | set(plan.tied) == set(module.state_dict())


def test_loading_gives_back_every_bit(tmp_path: Path) -> None:
    module = tiny.build(tiny.glm_moe_dsa())
    folders.save(module, tmp_path)
    other = load(tmp_path, device="cpu", limits=LIMITS, progress=False).module
    for name, tensor in module.state_dict().items():
        assert torch.equal(other.state_dict()[name], tensor), name


@pytest.mark.parametrize(("strip", "add"), [("gpt_neox.", ""), ("gpt_neox.", "model."), ("gpt_neox.", "backbone.inner.")])
def test_a_renamed_wrapper_is_found_in_the_module_tree(neox: PreTrainedModel, tmp_path: Path, strip: str, add: str) -> None:
    folders.save(neox, tmp_path)
    folders.rewrite(tmp_path, folders.prefixed(strip, add))
    plan = assert_loads_as(tmp_path, neox)
    # A bare body is understood by transformers itself; only the foreign wrappers need a rule.
    assert {name for name in plan.renamed if name.startswith(add)} == set(plan.renamed)
    assert bool(plan.renamed) == bool(add)


def test_prefix_inference_changes_nothing_where_all_keys_fit(neox: PreTrainedModel, tmp_path: Path) -> None:
    folders.save(neox, tmp_path)
    assert plan_checkpoint(tmp_path).renamed == {}


def test_a_text_model_reads_itself_out_of_a_wrapper(llama: PreTrainedModel, tmp_path: Path) -> None:
    folders.save(llama, tmp_path)
    folders.rewrite(tmp_path, lambda tensors: {f"language_model.{name}": tensor for name, tensor in tensors.items()})
    assert_loads_as(tmp_path, llama)


def test_an_extra_tower_stays_unexpected(llama: PreTrainedModel, tmp_path: Path) -> None:
    folders.save(llama, tmp_path)
    folders.rewrite(
        tmp_path,
        lambda tensors: (
            folders.prefixed("model.", "language_model.model.")(tensors)
            | {"vision.patch.weight": torch.ones(3, 3), "vision.norm.weight": torch.ones(64)}
        ),
    )
    plan = plan_checkpoint(tmp_path)
    assert plan.unexpected == ("vision.norm.weight", "vision.patch.weight")
    assert plan.missing == ()


def test_a_key_that_could_be_two_parameters_is_refused(tmp_path: Path) -> None:
    module = tiny.build(tiny.llama())
    folders.save(module, tmp_path)

    def confuse(tensors: folders.Tensors) -> folders.Tensors:
        places = ("model.layers.1", "model.layers.2")
        kept = {name: tensor for name, tensor in tensors.items() if not name.startswith(places)}
        return kept | {"side.input_layernorm.weight": torch.ones(64)}

    folders.rewrite(tmp_path, confuse)
    plan = plan_checkpoint(tmp_path)
    assert "side.input_layernorm.weight" in plan.unexpected
    with pytest.raises(CheckpointError, match="missing"):
        load(tmp_path, device="cpu", progress=False)


def test_old_neox_buffers_are_skipped_by_exact_name_and_shape(neox: PreTrainedModel, tmp_path: Path) -> None:
    folders.save(neox, tmp_path)
    extras = {
        "gpt_neox.layers.0.attention.bias": torch.ones(1, 1, 32, 32, dtype=torch.bool),
        "gpt_neox.layers.0.attention.masked_bias": torch.tensor(-1e9),
        "gpt_neox.layers.0.attention.rotary_emb.inv_freq": torch.ones(2),
    }
    folders.rewrite(tmp_path, lambda tensors: tensors | extras)
    assert set(assert_loads_as(tmp_path, neox).skipped) == set(extras)


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("gpt_neox.layers.0.attention.bias_proj.weight", (32, 32)),
        ("gpt_neox.layers.0.attention.bias_k", (1, 1, 32, 32)),
        ("gpt_neox.layers.0.attention.bias", (64,)),
        ("gpt_neox.layers.0.attention.bias", (32, 16)),
        ("gpt_neox.layers.0.attention.masked_bias", (2,)),
        ("gpt_neox.layers.0.attention.rotary_emb.inv_freq", (3,)),
    ],
    ids=["longer-name", "other-name", "a-real-bias", "not-square", "not-a-scalar", "other-length"],
)
def test_what_only_looks_like_a_buffer_is_unexpected(
    neox: PreTrainedModel, tmp_path: Path, name: str, shape: tuple[int, ...]
) -> None:
    folders.save(neox, tmp_path)
    folders.rewrite(tmp_path, lambda tensors: tensors | {name: torch.zeros(shape)})
    plan = plan_checkpoint(tmp_path)
    assert plan.unexpected == (name,)
    assert plan.skipped == {}


def test_a_real_parameter_named_bias_is_never_skipped(tmp_path: Path) -> None:
    module = tiny.build(tiny.gpt_neox())
    folders.save(module, tmp_path)
    plan = plan_checkpoint(tmp_path)
    assert plan.assigned["gpt_neox.layers.0.attention.dense.bias"] == ("gpt_neox.layers.0.attention.dense.bias",)


def test_two_keys_for_one_parameter_are_a_collision(neox: PreTrainedModel, tmp_path: Path) -> None:
    folders.save(neox, tmp_path)
    folders.rewrite(tmp_path, lambda tensors: tensors | {"lm_head.weight": tensors["embed_out.weight"] + 1.0})
    plan = plan_checkpoint(tmp_path)
    assert plan.collisions == {"lm_head.weight": ("embed_out.weight", "lm_head.weight")}
    with pytest.raises(CheckpointError, match=r"filled twice: lm_head.weight by embed_out.weight and lm_head.weight"):
        load(tmp_path, device="cpu", progress=False, strict=False)


def test_the_same_expert_under_two_prefixes_is_a_collision(tmp_path: Path) -> None:
    folders.save(tiny.build(tiny.deepseek_v3()), tmp_path)
    name = "model.layers.1.mlp.experts.0.gate_proj.weight"
    folders.rewrite(tmp_path, lambda tensors: tensors | {name.removeprefix("model."): tensors[name].clone()})
    assert list(plan_checkpoint(tmp_path).collisions.values()) == [(name.removeprefix("model."), name)]


@pytest.mark.parametrize(
    ("change", "field", "name"),
    [
        (lambda t: {n: x for n, x in t.items() if n != "model.norm.weight"}, "missing", "model.norm.weight"),
        (lambda t: t | {"model.extra.weight": torch.ones(2)}, "unexpected", "model.extra.weight"),
        (lambda t: t | {"model.norm.weight": torch.ones(63)}, "mismatched", "model.norm.weight"),
        (
            lambda t: t | {"model.norm.weight": torch.ones(64).to(torch.float8_e4m3fn)},
            "mismatched",
            "model.norm.weight",
        ),
        (lambda t: t | {"model.norm.weight": torch.ones(64, dtype=torch.int8)}, "mismatched", "model.norm.weight"),
        (lambda t: t | {"lm_head.weight": t["lm_head.weight"].to(torch.int32)}, "mismatched", "lm_head.weight"),
        (lambda t: t | {"lm_head.weight": t["lm_head.weight"] > 0}, "mismatched", "lm_head.weight"),
        (lambda t: t | {f"model.layers.{'9' * 5000}.weight": torch.ones(2)}, "unexpected", f"model.layers.{'9' * 5000}.weight"),
        (
            lambda t: {n: x for n, x in t.items() if n != "model.layers.1.mlp.experts.3.down_proj.weight"},
            "mismatched",
            "model.layers.1.mlp.experts.down_proj",
        ),
        (
            lambda t: {n: x for n, x in t.items() if n != "model.layers.1.mlp.experts.3.up_proj.weight"},
            "mismatched",
            "model.layers.1.mlp.experts.gate_up_proj",
        ),
    ],
    ids=[
        "missing",
        "unexpected",
        "shape",
        "scaled-float8",
        "scaled-int8",
        "whole-numbers",
        "flags",
        "a-layer-beyond-all-numbers",
        "one-down-projection",
        "one-up-projection",
    ],
)
def test_what_does_not_fit_is_named_before_loading(change, field: str, name: str, tmp_path: Path) -> None:
    folders.save(tiny.build(tiny.deepseek_v3()), tmp_path)
    folders.rewrite(tmp_path, change)
    plan = plan_checkpoint(tmp_path)
    assert name in getattr(plan, field)
    assert not plan.is_complete
    # A message shows no more of a name than fits on a line.
    with pytest.raises(CheckpointError, match=name[:60]) as caught:
        load(tmp_path, device="cpu", progress=False)
    assert isinstance(caught.value, HalError)


def test_a_misspelt_key_is_reported_with_its_neighbour(llama: PreTrainedModel, tmp_path: Path) -> None:
    folders.save(llama, tmp_path)
    folders.rewrite(tmp_path, folders.prefixed("model.layers.1.", "model.layer.1."))
    with pytest.raises(CheckpointError, match=r"near model\.layer"):
        plan_checkpoint(tmp_path).raise_if_bad()


def test_without_strict_unexpected_names_are_left_out(llama: PreTrainedModel, tmp_path: Path) -> None:
    folders.save(llama, tmp_path)
    folders.rewrite(tmp_path, lambda tensors: tensors | {"model.extra.weight": torch.ones(2)})
    model = load(tmp_path, device="cpu", limits=LIMITS, progress=False, strict=False)
    assert model.report is not None
    assert model.report.unexpected == ("model.extra.weight",)
    found = oracle.paged_logits(model, [TOKENS], [[len(TOKENS)]])[0]
    torch.testing.assert_close(found, oracle.eager_logits(llama, TOKENS), atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize("part", ["draft", "shared-indexer"])
def test_parts_that_the_config_leaves_out_are_listed_not_loaded(part: str, tmp_path: Path) -> None:
    config = tiny.glm_moe_dsa()
    config.num_nextn_predict_layers = 1
    module = tiny.build(config)
    folders.save(module, tmp_path)
    name = {
        "draft": "model.layers.5.eh_proj.weight",
        "shared-indexer": "model.layers.2.self_attn.indexer.wk.weight",
    }[part]
    folders.rewrite(tmp_path, lambda tensors: tensors | {name: torch.ones(4, 4)})
    plan = assert_loads_as(tmp_path, module)
    assert set(plan.unused) == {name}


def tie(config):
    config.tie_word_embeddings = True
    return config


def test_a_tied_pair_needs_only_one_tensor(tmp_path: Path) -> None:
    module = tiny.build(tie(tiny.llama()))
    assert "lm_head.weight" not in folders.save(module, tmp_path)
    assert assert_loads_as(tmp_path, module).tied == {"lm_head.weight": "model.embed_tokens.weight"}
    folders.rewrite(tmp_path, folders.prefixed("model.embed_tokens.", "lm_head."))
    assert_loads_as(tmp_path, module)


def test_equal_tied_tensors_share_storage(tmp_path: Path) -> None:
    module = tiny.build(tie(tiny.llama()))
    folders.save(module, tmp_path)
    folders.rewrite(tmp_path, lambda t: t | {"lm_head.weight": t["model.embed_tokens.weight"].clone()})
    model = load(tmp_path, device="cpu", limits=LIMITS, progress=False)
    assert model.module.lm_head.weight is model.module.model.embed_tokens.weight


def test_different_tied_tensors_are_both_kept_with_a_warning(tmp_path: Path) -> None:
    folders.save(tiny.build(tie(tiny.llama())), tmp_path)
    folders.rewrite(tmp_path, lambda t: t | {"lm_head.weight": t["model.embed_tokens.weight"] * 2.0})
    model = load(tmp_path, device="cpu", limits=LIMITS, progress=False)
    assert torch.equal(model.module.lm_head.weight, model.module.model.embed_tokens.weight * 2.0)
    assert model.report is not None
    assert any("two different tensors" in warning for warning in model.report.warnings)


def test_rotary_frequencies_are_recomputed(llama: PreTrainedModel, tmp_path: Path) -> None:
    folders.save(llama, tmp_path)
    model = load(tmp_path, device="cpu", limits=LIMITS, progress=False)
    assert torch.equal(model.module.model.rotary_emb.inv_freq, llama.model.rotary_emb.inv_freq)
    assert model.module.model.rotary_emb.inv_freq[0] == 1.0


@pytest.mark.parametrize("dtype", ["bfloat16", torch.bfloat16, "float32"])
def test_weights_arrive_in_the_asked_dtype(llama: PreTrainedModel, tmp_path: Path, dtype: object) -> None:
    folders.save(llama, tmp_path)
    model = load(tmp_path, device="cpu", dtype=dtype, limits=LIMITS, progress=False)
    assert str(model.module.dtype).endswith(str(dtype).removeprefix("torch."))
    assert str(model.module.dtype) == f"torch.{model.plan.dtype}"


def test_shards_are_read_by_the_index(llama: PreTrainedModel, tmp_path: Path) -> None:
    folders.save(llama, tmp_path)
    folders.shard(tmp_path, folders.halves(tmp_path))
    folders.save_file({"model.norm.weight": torch.zeros(64)}, tmp_path / "stray.safetensors")
    assert_loads_as(tmp_path, llama)


def test_an_absent_shard_is_named(llama: PreTrainedModel, tmp_path: Path) -> None:
    folders.save(llama, tmp_path)
    folders.shard(tmp_path, folders.halves(tmp_path))
    (tmp_path / "b.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"1 of them are not there: b\.safetensors"):
        plan_checkpoint(tmp_path)


@pytest.mark.parametrize("shard", ["../outside.safetensors", "/etc/passwd", "x/../../outside.safetensors", "..\\x"])
def test_a_shard_outside_the_folder_is_refused(llama: PreTrainedModel, tmp_path: Path, shard: str) -> None:
    folder = tmp_path / "model"
    folders.save(llama, folder)
    folders.save_file({"model.norm.weight": torch.ones(64)}, tmp_path / "outside.safetensors")
    files = folders.halves(folder)
    index = {name: file for file, names in files.items() for name in names} | {"model.norm.weight": shard}
    folders.shard(folder, files, index)
    with pytest.raises(CheckpointError, match="outside the folder"):
        plan_checkpoint(folder)


def test_names_only_in_the_index_are_an_error_and_names_only_in_files_are_told(llama: PreTrainedModel, tmp_path: Path) -> None:
    folders.save(llama, tmp_path)
    folders.rewrite(tmp_path, lambda tensors: tensors | {"left.over": torch.ones(1)})
    files = folders.halves(tmp_path)
    index = {name: file for file, names in files.items() for name in names if name != "left.over"}
    folders.shard(tmp_path, files, index | {"mtp.fc.weight": "a.safetensors"})
    plan = plan_checkpoint(tmp_path)
    assert plan.index_only == ("mtp.fc.weight",)
    assert plan.header_only == ("left.over",)
    with pytest.raises(CheckpointError, match=r"in no file: mtp\.fc\.weight"):
        plan.raise_if_bad(strict=False)


def test_an_overlay_named_by_the_index_wins(llama: PreTrainedModel, tmp_path: Path) -> None:
    folders.save(llama, tmp_path)
    files = folders.halves(tmp_path)
    right = next(file for file, names in files.items() if "model.norm.weight" in names)
    index = {name: file for file, names in files.items() for name in names}
    folders.shard(tmp_path, files, index)
    other = next(file for file in files if file != right)
    folders.save_file(folders.load_file(tmp_path / other) | {"model.norm.weight": torch.zeros(64)}, tmp_path / other)
    assert_loads_as(tmp_path, llama)


def test_without_an_index_a_name_in_two_files_is_an_error(llama: PreTrainedModel, tmp_path: Path) -> None:
    folders.save(llama, tmp_path)
    files = folders.halves(tmp_path)
    files["b.safetensors"].append(files["a.safetensors"][0])
    folders.shard(tmp_path, files, index={})
    with pytest.raises(CheckpointError, match=r"is in both a\.safetensors and b\.safetensors"):
        plan_checkpoint(tmp_path)


def break_config(folder: Path) -> None:
    (folder / "config.json").write_text("{")


def unknown_type(folder: Path) -> None:
    content = {"model_type": "no_such_type", "auto_map": {"AutoConfig": "evil.Config"}}
    (folder / "config.json").write_text(json.dumps(content))
    (folder / "evil.py").write_text("raise SystemExit('remote code ran')")


def only_pickles(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(b"\x80\x04N.")


def configure(**fields: object) -> Callable[[Path], object]:
    def change(folder: Path) -> None:
        content = json.loads((folder / "config.json").read_text()) | fields
        (folder / "config.json").write_text(json.dumps(content))

    return change


def write(name: str, text: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_text(text)


def cut_short(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-10])


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (break_config, "config.json"),
        (lambda folder: (folder / "config.json").unlink(), "no config.json"),
        (unknown_type, "cannot be read by transformers"),
        (only_pickles, r"only pytorch_model\.bin; convert it"),
        (lambda folder: (folder / "model.safetensors").unlink(), r"no \.safetensors file"),
        (cut_short, "not a readable safetensors file"),
        (write("model.safetensors.index.json", "[]"), "not a safetensors index"),
        (write("model.safetensors.index.json", "[" * 100_000), "not a safetensors index: RecursionError"),
        (write("model.safetensors.index.json", json.dumps({"weight_map": {"x": "a" * 5000}})), "1 of them are not there"),
        (write("config.json", "null"), "config.json cannot be read by transformers: TypeError"),
        (configure(model_type=["llama"]), "config.json cannot be read by transformers: TypeError"),
        (configure(num_attention_heads=0), "config.json cannot be read by transformers: ZeroDivisionError"),
        (configure(rope_parameters="x"), "config.json cannot be read by transformers: Strict"),
        (configure(dtype="float7"), "config.json cannot be read by transformers: AttributeError"),
        (write("generation_config.json", "[1]"), "generation_config.json cannot be read: TypeError"),
        (write("generation_config.json", '{"eos_token_id": "x"}'), "generation_config.json cannot be read: .* holds 'x'"),
        (write("tokenizer.json", "{"), "the tokenizer of .* cannot be read: JSONDecodeError.* takes token ids"),
        (write("tokenizer_config.json", "{}"), "the tokenizer of .* cannot be read"),
    ],
    ids=[
        "broken-config",
        "no-config",
        "remote-code",
        "pickles",
        "no-weights",
        "cut-short",
        "broken-index",
        "bottomless-index",
        "long-shard-name",
        "empty-config",
        "several-types",
        "no-heads",
        "rope-in-words",
        "unknown-dtype",
        "generation-list",
        "end-token-in-words",
        "broken-tokenizer",
        "no-tokenizer-in-its-config",
    ],
)
def test_a_broken_folder_is_refused_in_one_sentence(llama: PreTrainedModel, tmp_path: Path, spoil, words: str) -> None:
    folders.save(llama, tmp_path)
    spoil(tmp_path)
    with pytest.raises(CheckpointError, match=words):
        load(tmp_path, device="cpu", progress=False)


@pytest.mark.parametrize(
    "spoil",
    [configure(hidden_act="no_such"), configure(rope_parameters={"rope_type": "no_such"}), configure(pad_token_id=9999)],
    ids=["activation", "rope", "padding"],
)
def test_a_config_that_transformers_cannot_build_is_refused(llama: PreTrainedModel, tmp_path: Path, spoil) -> None:
    folders.save(llama, tmp_path)
    spoil(tmp_path)
    with pytest.raises(UnsupportedModelError, match=r"cannot build the model of this LlamaConfig: .*Error"):
        plan_checkpoint(tmp_path)


def test_a_broken_tokenizer_is_seen_before_the_weights_are_read(
    llama: PreTrainedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders.save(llama, tmp_path)
    (tmp_path / "tokenizer.json").write_text("{")
    module = sys.modules["hal.models.load"]
    monkeypatch.setattr(module, "load_weights", lambda *_args, **_kwargs: pytest.fail("weights were read"))
    with pytest.raises(CheckpointError, match="tokenizer"):
        load(tmp_path, device="cpu", progress=False)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"device": 3}, "device is 3; expected a hal.Device, a torch.device or a name"),
        ({"device": ""}, "unknown target ''"),
        ({"device": "cuda:sm_90"}, "cuda:sm_90 is not in this machine"),
        ({"dtype": ""}, "unknown dtype ''"),
        ({"dtype": "int8"}, "unknown dtype 'int8'"),
    ],
)
def test_settings_out_of_range_are_refused(llama: PreTrainedModel, tmp_path: Path, settings, words: str) -> None:
    folders.save(llama, tmp_path)
    with pytest.raises(HalError, match=words):
        load(tmp_path, progress=False, **settings)


def test_no_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="is not a folder"):
        plan_checkpoint(tmp_path / "absent")


def test_a_config_without_a_generating_class_is_refused(tmp_path: Path) -> None:
    import transformers

    transformers.CLIPVisionConfig(hidden_size=32, num_attention_heads=2).save_pretrained(tmp_path)
    with pytest.raises((UnsupportedModelError, HalError)):
        plan_checkpoint(tmp_path)


def test_packed_weights_are_refused_even_where_missing_ones_are_let_through(tmp_path: Path) -> None:
    folders.save(tiny.build(composites.kimi_k25()), tmp_path)

    def pack(tensors: folders.Tensors) -> folders.Tensors:
        experts = {name: tensors.pop(name) for name in list(tensors) if ".mlp.experts." in name}
        for name, weight in experts.items():
            tensors[f"{name}_packed"] = torch.zeros(weight.shape[0], weight.shape[1] // 8, dtype=torch.int32)
            tensors[f"{name}_scale"] = torch.ones(weight.shape[0], 1)
        return tensors

    folders.rewrite(tmp_path, pack)
    for strict in (True, False):
        with pytest.raises(CheckpointError, match=r"weight_packed: stored packed as I32; only unquantised"):
            load(tmp_path, device="cpu", limits=LIMITS, strict=strict, progress=False)


def test_a_composite_is_found_under_the_names_of_its_first_files(tmp_path: Path) -> None:
    module = tiny.build(composites.kimi_k25())
    folders.save(module, tmp_path)
    folders.rewrite(tmp_path, folders.prefixed("language_model.model.blocks.", "language_model.model.layers."))
    assert assert_loads_as(tmp_path, module).is_complete


def test_a_module_without_memory_draws_no_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_args: object, **_keywords: object) -> None:
        raise AssertionError("drawn")

    plain = dict(tiny.build(tiny.deepseek_v3()).named_parameters())
    for name in ("uniform_", "normal_"):
        monkeypatch.setattr(torch.Tensor, name, fail)
    empty = dict(build_module(tiny.deepseek_v3(), torch.float32).named_parameters())
    assert {name: tensor.shape for name, tensor in empty.items()} == {name: tensor.shape for name, tensor in plain.items()}
    assert all(tensor.is_meta for tensor in empty.values())
