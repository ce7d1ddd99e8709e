"""What hal takes over, what it refuses, and what it never ignores."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import transformers
from transformers import AttentionInterface, PreTrainedModel
from transformers.masking_utils import (
    ALL_MASK_ATTENTION_FUNCTIONS,
    bidirectional_mask_function,
    chunked_causal_mask_function,
    sliding_window_causal_mask_function,
)

from hal.common.contract.limits import Limits
from hal.config import HalError, LayerShape
from hal.models import UnsupportedModelError, attach
from hal.models.checks import check_call, check_first_call
from hal.models.interface import MASK_RULE, AttentionCall

from .helpers import tiny

LAYER = LayerShape(layer_id=3, kind="attention", num_heads=4, num_kv_heads=2, head_dim=16, v_head_dim=16, softmax_scale=0.25)


def call(scaling: float | None = 0.25, dropout: float = 0.0, mask: torch.Tensor | None = None, **keywords) -> AttentionCall:
    return AttentionCall(mask, scaling, dropout, keywords)


class Attention(torch.nn.Module):
    """A module that says nothing of itself."""


@pytest.mark.parametrize("value", [None, False, 0.0])
def test_an_unknown_keyword_without_a_value_is_let_through(value: object) -> None:
    assert check_call(LAYER, Attention(), call(novel_bias=value)) is None


@pytest.mark.parametrize("value", [True, 1.0, "x", torch.zeros(2)], ids=["true", "number", "text", "tensor"])
def test_an_unknown_keyword_with_a_value_is_an_error(value: object) -> None:
    with pytest.raises(UnsupportedModelError, match=r"layer 3 \(Attention\) passes novel_bias=") as caught:
        check_call(LAYER, Attention(), call(novel_bias=value))
    assert isinstance(caught.value, HalError)


@pytest.mark.parametrize(
    "keywords",
    [
        {"position_ids": torch.zeros(1, 2), "use_cache": True, "output_attentions": True, "output_router_logits": True},
        {"sliding_window": None, "softcap": None, "s_aux": None, "indices": None, "position_bias": None},
    ],
    ids=["known", "unset"],
)
def test_keywords_that_change_nothing_are_known(keywords: dict[str, object]) -> None:
    assert check_call(LAYER, Attention(), call(**keywords)) is None


def test_a_sink_is_handed_on() -> None:
    sink = torch.randn(4)
    assert check_call(replace(LAYER, sink=True), Attention(), call(s_aux=sink)) is sink
    assert check_call(replace(LAYER, sink=True), Attention(), call(sinks=sink)) is sink


@pytest.mark.parametrize(
    ("layer", "keywords", "words"),
    [
        (LAYER, {"scaling": 0.5}, r"scaling=0\.5, but its config describes a softmax scale of 0\.25"),
        (LAYER, {"dropout": 0.1}, r"dropout=0\.1"),
        (LAYER, {"sliding_window": 8}, "sliding_window=8, but its config describes sliding_window=None"),
        (replace(LAYER, window=9), {"sliding_window": 8}, "sliding_window=9"),
        (LAYER, {"softcap": 30.0}, "softcap=None"),
        (replace(LAYER, softcap=50.0), {"softcap": 30.0}, r"softcap=50\.0"),
        (LAYER, {"is_causal": True} | {"softcap": 1.0}, "softcap"),
        (replace(LAYER, causal=False), {"is_causal": True}, "is_causal=False"),
        (LAYER, {"indices": torch.zeros(1, 1, 2)}, r"indices=a tensor \[1, 1, 2\]"),
    ],
)
def test_a_value_that_the_shape_does_not_hold_is_an_error(layer: LayerShape, keywords, words: str) -> None:
    with pytest.raises(UnsupportedModelError, match=words):
        check_call(layer, Attention(), call(**keywords))


@pytest.mark.parametrize(
    ("layer", "keywords", "words"),
    [
        (replace(LAYER, sink=True), {}, "a sink per head"),
        (LAYER, {"s_aux": torch.zeros(4)}, "no sink"),
        (replace(LAYER, softcap=50.0), {}, r"softcap=50\.0"),
    ],
)
def test_what_the_shape_holds_must_be_passed(layer: LayerShape, keywords, words: str) -> None:
    with pytest.raises(UnsupportedModelError, match=words):
        check_first_call(layer, Attention(), call(**keywords))


def ruled_mask(rule) -> torch.Tensor:
    mask = torch.ones(1, 1, 1, 1, dtype=torch.bool)
    setattr(mask, MASK_RULE, rule)
    return mask


@pytest.mark.parametrize(("window", "is_right"), [(7, False), (8, True), (9, False), (None, False)])
def test_the_masks_own_rule_must_show_the_window(window: int | None, is_right: bool) -> None:
    mask = ruled_mask(sliding_window_causal_mask_function(8))
    if is_right:
        check_first_call(replace(LAYER, window=window), Attention(), call(mask=mask))
    else:
        with pytest.raises(UnsupportedModelError, match=f"does not match its config: window {window}"):
            check_first_call(replace(LAYER, window=window), Attention(), call(mask=mask))


def test_a_mask_that_shows_later_tokens_is_refused() -> None:
    mask = ruled_mask(bidirectional_mask_function)
    with pytest.raises(UnsupportedModelError, match="-1 tokens back: seen"):
        check_first_call(LAYER, Attention(), call(mask=mask))


def test_a_chunk_is_checked_against_the_mask() -> None:
    mask = ruled_mask(chunked_causal_mask_function(8, torch.zeros(1, dtype=torch.long)))
    check_first_call(replace(LAYER, chunk=8), Attention(), call(mask=mask))
    with pytest.raises(UnsupportedModelError, match="chunk 16"):
        check_first_call(replace(LAYER, chunk=16), Attention(), call(mask=mask))


def test_both_interfaces_of_transformers_know_hal_after_attaching() -> None:
    attach(tiny.build(tiny.llama()))
    assert "hal" in AttentionInterface._global_mapping
    assert "hal" in ALL_MASK_ATTENTION_FUNCTIONS._global_mapping


def test_classes_stay_as_they_were() -> None:
    attached, plain = tiny.build(tiny.deepseek_v32()), tiny.build(tiny.deepseek_v32())
    attach(attached)
    tokens = torch.arange(9)[None]
    assert torch.equal(plain(tokens).logits, tiny.build(tiny.deepseek_v32())(tokens).logits)
    assert type(attached.model.layers[0].self_attn) is type(plain.model.layers[0].self_attn)


def test_an_attached_module_used_on_its_own_says_what_to_call() -> None:
    module = tiny.build(tiny.llama())
    attach(module)
    with pytest.raises(UnsupportedModelError, match=r"call Model\.generate\(\)"):
        module(torch.arange(4)[None])


def test_two_models_of_one_class_do_not_share_state() -> None:
    one, other = tiny.build(tiny.llama(), seed=0), tiny.build(tiny.llama(), seed=1)
    expected = [attach(tiny.build(tiny.llama(), seed=seed)).generate([[1, 2, 3]], 6) for seed in (0, 1)]
    first, second = attach(one), attach(other)
    assert [first.generate([[1, 2, 3]], 6), second.generate([[1, 2, 3]], 6)] == expected


def test_attaching_twice_is_refused() -> None:
    module = tiny.build(tiny.llama())
    attach(module)
    with pytest.raises(UnsupportedModelError, match="already runs on hal"):
        attach(module)


def test_a_module_that_holds_another_window_than_its_config_is_refused() -> None:
    module = tiny.build(tiny.gemma2())
    module.model.layers[2].self_attn.sliding_window = 11
    with pytest.raises(UnsupportedModelError, match=r"layer 2 .* passes sliding_window=11"):
        attach(module)


def test_an_indexer_that_holds_another_topk_than_its_config_is_refused() -> None:
    module = tiny.build(tiny.deepseek_v32())
    module.model.layers[1].self_attn.indexer.index_topk = 9
    with pytest.raises(UnsupportedModelError, match=r"layer 1 .* holds index_topk=9, its config says 8"):
        attach(module)


def test_an_up_projection_of_another_width_is_refused() -> None:
    module = tiny.build(tiny.deepseek_v3())
    module.model.layers[1].self_attn.kv_b_proj = torch.nn.Linear(32, 4 * 55, bias=False)
    with pytest.raises(UnsupportedModelError, match=r"layer 1 .* 0 unbiased linear layers of shape \[224, 32\]"):
        attach(module)


class SquaredScores(torch.nn.Module):
    """An indexer of a kind nobody has written yet."""

    def __init__(self, inner: torch.nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, hidden_states, q_resid, *_args, past_key_values=None):
        keys = past_key_values.update_indexer(self.inner.wk(hidden_states), 0)
        queries = self.inner.wq_b(q_resid).view(1, -1, 16, 32)
        return torch.matmul(queries, keys.transpose(-1, -2).unsqueeze(1)).square()


def test_an_indexer_that_scores_otherwise_is_refused() -> None:
    module = tiny.build(tiny.deepseek_v32())
    attention = module.model.layers[0].self_attn
    attention.indexer = SquaredScores(attention.indexer)
    with pytest.raises(UnsupportedModelError, match="the indexer applies square to its scores"):
        attach(module)


def small(**fields: object) -> dict[str, object]:
    return tiny.COMMON | fields


def build_plain(config: transformers.PreTrainedConfig) -> PreTrainedModel:
    return transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (
            transformers.OpenAIGPTConfig(vocab_size=64, n_embd=32, n_layer=1, n_head=2),
            "OpenAIGPTLMHeadModel declares _supports_attention_backend = False",
        ),
        (
            transformers.BloomConfig(vocab_size=64, hidden_size=32, n_layer=1, n_head=2),
            r"BloomForCausalLM, layer 0: it adds a position bias \(alibi\).* transformers' own attention",
        ),
        (
            transformers.MambaConfig(vocab_size=64, hidden_size=32, num_hidden_layers=1, state_size=4),
            r"MambaForCausalLM, layer 0: .*state space.* transformers' own attention",
        ),
        (
            transformers.BertConfig(vocab_size=64, hidden_size=32, num_hidden_layers=1, num_attention_heads=2),
            "BertLMHeadModel, layer 0: .*not causal",
        ),
        (
            transformers.DogeConfig(vocab_size=64, hidden_size=32, num_hidden_layers=1, num_attention_heads=2),
            r"layer 0 \(DogeAttention\) puts a mask of its own",
        ),
    ],
    ids=["own-attention", "alibi", "state-space", "not-causal", "own-mask"],
)
def test_a_model_that_cannot_plug_in_is_named_with_the_reason(config, words: str) -> None:
    with pytest.raises((UnsupportedModelError, HalError), match=words):
        attach(build_plain(config))


def test_an_encoder_decoder_is_refused() -> None:
    config = transformers.T5Config(vocab_size=64, d_model=32, d_kv=8, d_ff=32, num_layers=1, num_heads=2)
    with pytest.raises(HalError, match="T5ForConditionalGeneration"):
        attach(transformers.T5ForConditionalGeneration(config))


def test_a_layer_that_never_calls_the_function_is_refused() -> None:
    module = tiny.build(tiny.llama())

    def silent(hidden_states: torch.Tensor, **_kwargs: object) -> tuple[torch.Tensor, None]:
        return hidden_states, None

    module.model.layers[1].self_attn.forward = silent
    with pytest.raises(UnsupportedModelError, match=r"layers \[1\] never called the attention function .*LlamaAttention"):
        attach(module)


@pytest.mark.parametrize(
    ("kind", "extra"), [("dynamic", {}), ("longrope", {"short_factor": [1.0] * 8, "long_factor": [4.0] * 8})]
)
def test_positions_that_depend_on_the_longest_neighbour_are_refused(kind: str, extra: dict[str, object]) -> None:
    config = transformers.LlamaConfig(
        **(tiny.COMMON | {"max_position_embeddings": 64}),
        num_key_value_heads=2,
        rope_parameters={
            "rope_type": kind,
            "rope_theta": 10000.0,
            "factor": 4.0,
            "original_max_position_embeddings": 64,
        }
        | extra,
    )
    attach(tiny.build(config), limits=Limits(64, 2, 32)).generate([[1, 2, 3]], 4)
    with pytest.raises(UnsupportedModelError, match=rf"LlamaRotaryEmbedding \({kind}\) .* max_model_len 65"):
        attach(tiny.build(config), limits=Limits(65, 2, 32))
