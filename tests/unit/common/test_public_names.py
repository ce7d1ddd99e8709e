"""The names that the design fixes, with the parameters it gives them."""

from __future__ import annotations

import inspect

import pytest

import hal
from hal.common.contract import parallel
from hal.common.contract.backend import CALLS, Backend
from hal.common.running.attention import Attention

NAMES = """Attention Batch Compressor ConfigError Device DeviceBatch HalError IndexInputs KVCache Limits NoBackend BackendError
LayoutError MetadataBuilder PagedBatch Parallel Plan Reason Request Selection Software StepMetadata detect installed kernels
plan read_shape register_backend select supports_combination Kernels""".split()  # noqa: SIM905 - a list of names reads better so


@pytest.mark.parametrize("name", NAMES)
def test_hal_has_a_documented_name(name: str) -> None:
    assert getattr(hal, name).__doc__
    assert name in dir(hal) or name == "Kernels"


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="attend_everything"):
        _ = hal.attend_everything


@pytest.mark.parametrize(
    ("call", "parameters"),
    [
        (hal.Device.from_arch, "target torch_device"),
        (hal.Limits, "max_model_len max_num_seqs max_num_batched_tokens block_size max_logits_bytes"),
        (hal.Parallel, "tp tp_rank dcp dcp_rank interleave"),
        (
            hal.Request,
            "layer device dtype kv_layout block_size parallel software graphs num_spec_tokens need_lse deterministic",
        ),
        (hal.supports_combination, "request"),
        (hal.select, "request backend"),
        (hal.Reason, "code have want fix"),
        (
            hal.plan,
            "shape device limits parallel dtype kv_layout backend software graphs num_spec_tokens need_lse",
        ),
        (hal.Plan.open, "self num_blocks group"),
        (hal.Plan.bind, "self caches group"),
        (hal.Plan.max_tokens, "self memory_bytes"),
        (hal.kernels, "name device"),
        (hal.KVCache, "storage layout block_size rows_per_page scale"),
        (hal.PagedBatch, "query_start_loc seq_lens block_table max_query_len max_seq_len num_decodes memo key_starts key_stops"),
        (hal.Batch, "query_lens seq_lens block_tables num_tokens_padded num_reqs_padded is_prefilling"),
        (Attention.build, "self batch"),
        (Attention.build_for_capture, "self num_reqs num_tokens"),
        (Attention.bind_weights, "self layer_id w_uk w_uv"),
        (Attention.attend, "self layer_id q k v metadata sink out written"),
        (Attention.attend_compressed, "self layer_id q kv compressor metadata index sink out"),
        (hal.Compressor, "kv score position_bias norm_weight eps cos sin"),
        (Attention.attend_mla, "self layer_id q_nope q_rope latent k_rope metadata index topk sink out written"),
        (parallel.owner, "position parallel"),
        (parallel.local_position, "position parallel"),
        (parallel.local_length, "length parallel"),
    ],
    ids=lambda value: getattr(value, "__qualname__", None),
)
def test_a_call_takes_the_parameters_of_the_design(call, parameters: str) -> None:
    assert list(inspect.signature(call).parameters) == parameters.split()


@pytest.mark.parametrize(
    "name", ["groups", "bytes_per_token", "workspace_bytes", "cache_specs", "warmup_keys", "explain", "to_dict"]
)
def test_a_plan_has_the_names_of_the_design(name: str) -> None:
    assert hasattr(hal.Plan, name)


@pytest.mark.parametrize("name", ["backend", "providers", "kv_layout", "block_size", "rejected", "source"])
def test_a_selection_has_the_names_of_the_design(name: str) -> None:
    assert hasattr(hal.Selection, name)


@pytest.mark.parametrize("name", ["BackendError", "BatchError", "CapacityError", "ConfigError", "LayoutError", "NoBackend"])
def test_errors_are_hals_and_pythons(name: str) -> None:
    error = getattr(hal, name)
    assert issubclass(error, hal.HalError)
    assert issubclass(error, (ValueError, RuntimeError, LookupError))


@pytest.mark.parametrize("call", sorted(CALLS))
def test_a_call_of_the_contract_has_at_most_eight_parameters(call: str) -> None:
    _, *parameters = inspect.signature(getattr(Backend, call)).parameters
    assert len(parameters) <= 8
