"""Which embedding a head shares: what the config says, inside out, and never against two different tensors in the file."""

from __future__ import annotations

import inspect
import itertools
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForImageTextToText, PreTrainedConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES

from hal.common.contract.limits import Limits
from hal.models import CheckpointError, load, plan_checkpoint

from .helpers import composites, folders, oracle, tiny
from .helpers.shrinking import small_configs

LIMITS = Limits(max_model_len=64, max_num_seqs=2, max_num_batched_tokens=32)
HEAD = "lm_head.weight"
FLAGS = [None, True, False]
LEFT_OUT = {"janus": "73 million parameters at the smallest", "minicpm_ocr": "linear attention, which hal does not serve"}
"""Types whose classes disagree and which cannot be run here, with the reason."""

MODELS: dict[str, tuple[Callable[[], PreTrainedConfig], str]] = {
    "llama": (tiny.llama, "model.embed_tokens.weight"),
    "qwen3-vl": (composites.qwen3_vl, "model.language_model.embed_tokens.weight"),
    "qwen25-vl": (composites.qwen25_vl, "model.language_model.embed_tokens.weight"),
    "gemma3": (composites.gemma3, "model.language_model.embed_tokens.weight"),
    "llava": (composites.llava_v32, "model.language_model.embed_tokens.weight"),
}
NESTED_KEYS = {
    "model.language_model.embed_tokens.weight": "language_model.model.embed_tokens.weight",
    HEAD: "language_model.lm_head.weight",
}
OLD_KEYS = {
    "qwen25-vl": {"model.language_model.embed_tokens.weight": "model.embed_tokens.weight"},
    "gemma3": NESTED_KEYS,
    "llava": NESTED_KEYS,
}
"""What a family's files call the embedding and the head, where that is not the parameter's name."""


@dataclass(frozen=True, slots=True)
class Saved:
    """A folder with a model of an embedding and a head of its own: its parameter's name, and the keys of both in the file."""

    folder: Path
    embedding: str
    key: str
    head: str


def flagged(folder: Path, outer: bool | None, inner: bool | None) -> None:
    """Write the two flags into a folder's config; None takes one out."""
    content = json.loads((folder / "config.json").read_text())
    for part, flag in ((content, outer), (content.get("text_config"), inner)):
        if part is not None:
            part.pop("tie_word_embeddings", None)
            part |= {} if flag is None else {"tie_word_embeddings": flag}
    (folder / "config.json").write_text(json.dumps(content))


def list_disputed() -> list[str]:
    """Image-text types whose class ties, by its defaults, what the class of its text part does not."""
    found = []
    for name in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES:
        fields = inspect.signature(CONFIG_MAPPING[name]).parameters
        if "tie_word_embeddings" in fields and fields["tie_word_embeddings"].default is True:
            config = next(small_configs(name), None)
            text = None if config is None else config.get_text_config(decoder=True)
            if text not in (None, config) and not text.tie_word_embeddings and name not in LEFT_OUT:
                found.append(name)
    return found


@pytest.fixture(scope="module", params=MODELS)
def saved(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Saved:
    make, embedding = MODELS[request.param]
    folder, keys = tmp_path_factory.mktemp(request.param), OLD_KEYS.get(request.param, {})
    config = make()
    for part in (config, config.get_text_config()):
        part.tie_word_embeddings = False
    folders.save(tiny.build(config), folder)
    return Saved(folder, embedding, keys.get(embedding, embedding), keys.get(HEAD, HEAD))


@pytest.mark.parametrize("head", ["absent", "present", "alone"])
@pytest.mark.parametrize(("outer", "inner"), [pair for pair in itertools.product(FLAGS, FLAGS) if pair[0] != pair[1]])
def test_the_inner_flag_decides_then_the_outer_then_the_class(
    saved: Saved, outer: bool | None, inner: bool | None, head: str, tmp_path: Path
) -> None:
    folder, embedding, key = saved.folder, saved.embedding, saved.key
    if "text_config" not in json.loads((folder / "config.json").read_text()):
        inner = None
    is_tied = bool(inner if inner is not None else outer)
    tensors = folders.load_file(folder / "model.safetensors")
    if head == "absent":
        del tensors[saved.head]
    elif head == "alone":
        del tensors[key]
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    flagged(tmp_path, outer, inner)
    folders.save_file(tensors, tmp_path / "model.safetensors")
    plan = plan_checkpoint(tmp_path)
    assert plan.tied == ({HEAD: embedding} if is_tied else {})
    assert set(plan.tied_because) == set(plan.tied)
    lost = {"absent": (HEAD,), "present": (), "alone": (embedding,)}[head]
    assert plan.missing == (() if is_tied else lost)
    assert plan.is_complete == (is_tied or head == "present")
    if lost and not is_tied:
        words = "tie_word_embeddings is True but text_config.tie_word_embeddings is False" if outer and inner is False else ""
        with pytest.raises(CheckpointError, match=f"1 missing: {lost[0]}.*{words}"):
            load(tmp_path, device="cpu", limits=LIMITS, progress=False)


@pytest.mark.parametrize("family", list_disputed())
def test_a_head_that_only_the_outer_class_ties_is_the_one_of_transformers(family: str, tmp_path: Path) -> None:
    config = next(small_configs(family))
    torch.manual_seed(0)
    AutoModelForImageTextToText.from_config(config, dtype=torch.float32).save_pretrained(tmp_path)
    expected = AutoModelForImageTextToText.from_pretrained(tmp_path, dtype=torch.float32).eval()
    model = load(tmp_path, device="cpu", dtype=torch.float32, limits=LIMITS, progress=False)
    assert model.report is not None
    assert len([words for words in model.report.warnings if "tie_word_embeddings" in words]) == 1
    assert model.plan.shape.tie_word_embeddings
    assert model.module.get_output_embeddings().weight is model.module.get_input_embeddings().weight
    tokens = [5, 6, 7, 8, 20, 21, 22]
    with torch.inference_mode():
        logits = expected(input_ids=torch.tensor([tokens]), use_cache=False).logits
    (found,) = oracle.paged_logits(model, [torch.tensor(tokens)], [[len(tokens)]])
    torch.testing.assert_close(found, logits[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("lost", ["both", "another"])
def test_a_tie_of_the_outer_class_stands_in_for_nothing_else(lost: str, tmp_path: Path) -> None:
    AutoModelForImageTextToText.from_config(next(small_configs("internvl"))).save_pretrained(tmp_path)
    tensors = folders.load_file(tmp_path / "model.safetensors")
    gone = next(key for key in tensors if key.endswith("embed_tokens.weight" if lost == "both" else "down_proj.weight"))
    folders.save_file({key: tensor for key, tensor in tensors.items() if key != gone}, tmp_path / "model.safetensors")
    plan = plan_checkpoint(tmp_path)
    assert len(plan.missing) == (2 if lost == "both" else 1)
    assert not plan.is_complete


@pytest.mark.parametrize(("outer", "inner"), [(False, None), (False, True), (None, True), (True, True)])
def test_classes_at_odds_change_nothing_where_a_file_decides(outer: bool | None, inner: bool | None, tmp_path: Path) -> None:
    AutoModelForImageTextToText.from_config(next(small_configs("internvl"))).save_pretrained(tmp_path)
    flagged(tmp_path, outer, inner)
    assert bool(plan_checkpoint(tmp_path).tied) == bool(inner)


@pytest.mark.parametrize("is_tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("is_equal", [True, False], ids=["equal", "different"])
def test_two_tensors_share_storage_only_if_tied_and_equal(saved: Saved, is_tied: bool, is_equal: bool, tmp_path: Path) -> None:
    folder, embedding, key = saved.folder, saved.embedding, saved.key
    tensors = folders.load_file(folder / "model.safetensors")
    tensors[saved.head] = tensors[key].clone() if is_equal else tensors[key] * 2.0
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    flagged(tmp_path, is_tied, is_tied)
    folders.save_file(tensors, tmp_path / "model.safetensors")
    model = load(tmp_path, device="cpu", limits=LIMITS, progress=False)
    found = {name: model.module.get_parameter(name) for name in (HEAD, embedding)}
    assert torch.equal(found[HEAD], tensors[saved.head])
    assert torch.equal(found[embedding], tensors[key])
    assert (found[HEAD] is found[embedding]) == (is_tied and is_equal)
    assert model.report is not None
    told = [warning for warning in model.report.warnings if "two different tensors; both are kept" in warning]
    assert len(told) == (is_tied and not is_equal)


@pytest.mark.parametrize("alias", ["embed_out.weight", "gpt_neox.lm_head.weight"])
def test_a_tied_head_under_an_old_name_is_the_head(alias: str, tmp_path: Path) -> None:
    config = tiny.gpt_neox()
    config.tie_word_embeddings = True
    module = tiny.build(config)
    folders.save(module, tmp_path)
    embedding = "gpt_neox.embed_in.weight"
    folders.rewrite(tmp_path, lambda tensors: {alias if name == embedding else name: tensor for name, tensor in tensors.items()})
    plan = plan_checkpoint(tmp_path)
    assert (plan.missing, plan.unexpected) == ((), ())
    model = load(tmp_path, device="cpu", limits=LIMITS, progress=False)
    assert torch.equal(model.module.get_parameter(embedding), module.get_parameter(embedding))
