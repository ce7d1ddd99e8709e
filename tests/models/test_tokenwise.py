"""Nothing but attention may carry anything from one token to another; what does is refused and left as it was."""

from __future__ import annotations

import copy

import pytest
import torch
import transformers
from torch import nn
from transformers import PreTrainedModel

from hal.common.contract.limits import Limits
from hal.models import UnsupportedModelError, attach
from hal.models.continuous import enable_generate_batch

from .helpers import tiny
from .helpers.oracle import eager_logits, paged_logits, random_prompts, run_on_hal

DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])


class ShiftedProjection(nn.Module):
    """A projection that sees the token before, as short convolutions do."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.inner(hidden + 0.1 * nn.functional.pad(hidden, (0, 0, 1, -1)))


class CountingRotary(nn.Module):
    """A rotary embedding that counts rows instead of the positions it is given."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, hidden: torch.Tensor, position_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.inner(hidden, torch.arange(position_ids.shape[-1])[None])


def shift_queries(module: PreTrainedModel) -> None:
    module.model.layers[0].self_attn.q_proj = ShiftedProjection(module.model.layers[0].self_attn.q_proj)


def shift_a_later_layer(module: PreTrainedModel) -> None:
    module.model.layers[1].mlp = ShiftedProjection(module.model.layers[1].mlp)


def shift_logits(module: PreTrainedModel) -> None:
    module.lm_head = ShiftedProjection(module.lm_head)


def count_rows(module: PreTrainedModel) -> None:
    module.model.rotary_emb = CountingRotary(module.model.rotary_emb)


CHANGES = [
    (shift_queries, "queries of layer 0"),
    (shift_a_later_layer, "queries of layer 2"),
    (shift_logits, "LlamaForCausalLM: logits"),
    (count_rows, "queries of layer 0"),
]


@pytest.mark.parametrize(("change", "words"), CHANGES, ids=[change.__name__ for change, _ in CHANGES])
def test_what_carries_state_between_tokens_is_refused(change, words: str) -> None:
    module = tiny.build(tiny.llama())
    change(module)
    with pytest.raises(UnsupportedModelError, match=rf"{words}.* are others for the same tokens .*transformers' own attention"):
        attach(module)


@pytest.fixture(params=[None, 0], ids=["small", "large"], autouse=True)
def as_if_large(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every verdict is the same where matrices count as too large to be read."""
    if request.param is not None:
        monkeypatch.setattr("hal.models.weightless.LARGE", request.param)


def test_the_weights_of_large_layers_are_not_read_and_multiply_again_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hal.models.weightless.LARGE", 0)
    module = tiny.build(tiny.llama())
    multiplied: list[tuple[int, ...]] = []
    plain = torch.nn.Linear.forward

    def count(self: torch.nn.Linear, given: torch.Tensor) -> torch.Tensor:
        multiplied.append(tuple(self.weight.shape))
        return plain(self, given)

    monkeypatch.setattr(torch.nn.Linear, "forward", count)
    taken = attach(module).module
    assert multiplied == []
    assert not any("forward" in child.__dict__ for child in taken.modules())


@DTYPES
def test_a_small_leak_is_seen_in_every_type(dtype: torch.dtype) -> None:
    module = tiny.build(tiny.llama())
    shift_queries(module)
    with pytest.raises(UnsupportedModelError, match="queries of layer 0"):
        attach(module.to(dtype))


@DTYPES
@pytest.mark.parametrize("family", [tiny.qwen3_moe, tiny.gpt_oss, tiny.deepseek_v32, tiny.deepseek_v4])
def test_models_that_carry_nothing_are_served_in_every_type(family, dtype: torch.dtype) -> None:
    assert attach(tiny.build(family()).to(dtype)).generate([[5, 6, 7]], 2, eos_token_ids=[])[0].finish_reason == "length"


def small(name: str, **fields: object) -> transformers.PreTrainedConfig:
    return transformers.CONFIG_MAPPING[name](**(tiny.COMMON | fields))


@pytest.mark.parametrize(
    "config",
    [small("zaya", head_dim=16, num_key_value_heads=2), small("roberta", is_decoder=True, pad_token_id=1)],
    ids=["convolution-before-attention", "positions-from-padding"],
)
def test_models_of_transformers_that_do_so_are_refused(config: transformers.PreTrainedConfig) -> None:
    with pytest.raises(UnsupportedModelError, match="for the same tokens at the same positions"):
        attach(transformers.AutoModelForCausalLM.from_config(config))


def fails_inside(module: PreTrainedModel) -> None:
    def forward(*_args: object, **_kwargs: object) -> None:
        raise KeyError("pixel_values")

    module.model.layers[1].mlp.forward = forward


def test_a_model_that_fails_on_plain_text_is_refused_with_its_own_error() -> None:
    module = tiny.build(tiny.llama())
    fails_inside(module)
    with pytest.raises(UnsupportedModelError, match="cannot run 4 text tokens: KeyError: 'pixel_values'") as caught:
        attach(module)
    assert isinstance(caught.value.__cause__, KeyError)


@pytest.mark.parametrize("take_over", [attach, enable_generate_batch])
@pytest.mark.parametrize("family", [tiny.llama, tiny.qwen3])
def test_a_refused_module_computes_as_before(family, take_over) -> None:
    module = tiny.build(family()).train()
    shift_a_later_layer(module)
    tokens = torch.tensor(random_prompts([9]))
    module.eval()
    expected = module(tokens).logits
    module.train()
    with pytest.raises(UnsupportedModelError):
        take_over(module)
    assert module.training
    assert module.model.layers[0].training
    assert torch.equal(module.eval()(tokens).logits, expected)


@pytest.mark.parametrize("family", [tiny.deepseek_v3, tiny.deepseek_v32, tiny.deepseek_v4])
def test_a_refused_module_loses_its_taps(family) -> None:
    module = tiny.build(family())
    tokens = torch.tensor(random_prompts([40]))
    expected = module(tokens).logits
    fails_inside(module)
    with pytest.raises(UnsupportedModelError):
        attach(module)
    del module.model.layers[1].mlp.forward
    assert torch.equal(module(tokens).logits, expected)


def test_a_pool_that_cannot_be_opened_leaves_the_module_alone() -> None:
    module = tiny.build(tiny.deepseek_v3())
    tokens = torch.tensor(random_prompts([9]))
    expected = module(tokens).logits
    with pytest.raises(ValueError, match="num_blocks"):
        attach(module, num_blocks=-1)
    assert torch.equal(module(tokens).logits, expected)
    attach(module)


def test_choosing_rows_of_the_logits_never_reaches_attention() -> None:
    module = tiny.build(tiny.llama())
    expected = attach(tiny.build(tiny.llama())).generate([[1, 2, 3], [4]], 3)
    forward = module.model.forward

    def passing_on(*args: object, **kwargs: object):
        return forward(*args, **kwargs, logits_to_keep=torch.tensor([0]))

    module.model.forward = passing_on
    assert attach(module).generate([[1, 2, 3], [4]], 3) == expected


class CountingScale(nn.Module):
    """A query projection that grows with the number of tokens before, as its model's cache counts them."""

    def __init__(self, inner: nn.Module, floor: int) -> None:
        super().__init__()
        self.inner, self.floor, self.seen = inner, floor, 0

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        positions = torch.arange(hidden.shape[1]) + self.seen
        return self.inner(hidden) * (1 + torch.floor(positions / self.floor))[:, None]


def count_by_cache(module: PreTrainedModel, floor: int) -> None:
    attention = module.model.layers[1].self_attn
    attention.q_proj = CountingScale(attention.q_proj, floor)
    forward = type(attention).forward

    def with_length(*args: object, past_key_values=None, **kwargs: object):
        attention.q_proj.seen = 0 if past_key_values is None else past_key_values.get_seq_length(1)
        return forward(attention, *args, past_key_values=past_key_values, **kwargs)

    attention.forward = with_length


@pytest.mark.parametrize(("floor", "is_served"), [(8, False), (63, False), (64, True)])
def test_positions_that_only_a_cache_knows_are_refused_where_they_matter(floor: int, is_served: bool) -> None:
    module = tiny.build(tiny.llama())
    count_by_cache(module, floor)
    if is_served:
        attach(module, limits=Limits(64, 2, 32))
    else:
        with pytest.raises(UnsupportedModelError, match=r"queries of layer 1 .* depend on .* a cache holds .* position 63"):
            attach(module, limits=Limits(64, 2, 32))


def test_lengths_beyond_a_table_of_positions_are_refused_before_they_are_met() -> None:
    module = transformers.AutoModelForCausalLM.from_config(small("gpt2", n_positions=256))
    attach(copy.deepcopy(module), limits=Limits(256, 2, 32))
    with pytest.raises(UnsupportedModelError, match=r"at positions \[253, 254, 255, 256\]: IndexError"):
        attach(module, limits=Limits(257, 2, 32))


def test_a_projection_named_decoder_is_not_taken_for_the_model() -> None:
    config = small(
        "modernbert-decoder", pad_token_id=0, bos_token_id=1, eos_token_id=1, global_attn_every_n_layers=2, local_attention=12
    )
    module = tiny.build(config)
    tokens = random_prompts([30])[0]
    model = run_on_hal(module)
    torch.testing.assert_close(paged_logits(model, [tokens], [[17], [13]])[0], eager_logits(module, tokens), atol=2e-4, rtol=2e-4)


def test_a_mask_widened_to_the_keys_is_not_a_mask_of_its_own() -> None:
    config = tiny.deepseek_v4()
    config.layer_types = ["sliding_attention"] * config.num_hidden_layers
    module = tiny.build(config)
    tokens = random_prompts([40])[0]
    model = run_on_hal(module)
    torch.testing.assert_close(paged_logits(model, [tokens], [[17], [23]])[0], eager_logits(module, tokens), atol=2e-4, rtol=2e-4)
