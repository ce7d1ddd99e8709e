"""What stands between a vendor's kernels and a request, with the values."""

from __future__ import annotations

from dataclasses import replace

import pytest

import hal
from hal.common.contract.reason import Reason
from hal.config import IndexerShape, LayerShape, MLAShape, read_shape

WIDTHS = MLAShape(kv_lora_rank=512, qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128, q_lora_rank=1536)
GQA = LayerShape(layer_id=0, kind="attention", num_heads=32, num_kv_heads=8, head_dim=128, v_head_dim=128)
MLA = LayerShape(layer_id=0, kind="mla", num_heads=128, num_kv_heads=128, head_dim=192, v_head_dim=128, mla=WIDTHS)
SPARSE = replace(MLA, indexer=IndexerShape(topk=2048, num_heads=64, head_dim=128))
FA, AITER, XPU, IPEX = "cuda:flash_attention", "rocm:aiter", "xpu:vllm_kernels", "xpu:ipex"


def refuse(backend: str, layer: LayerShape, arch: str, dtype: str = "bfloat16", **options: object) -> tuple[Reason, ...]:
    request = hal.Request(layer, hal.Device.from_arch(arch), dtype, **options)
    return hal.supports_combination(request)[backend]


@pytest.mark.parametrize(
    ("backend", "layer", "arch", "options"),
    [
        (FA, SPARSE, "sm_90", {}),
        (FA, SPARSE, "sm_90", {"dtype": "float16"}),
        (FA, SPARSE, "sm_100", {}),
        (FA, SPARSE, "sm_103", {"need_lse": True}),
        (FA, MLA, "sm_90", {}),
        (FA, GQA, "sm_80", {"block_size": 256}),
        (FA, GQA, "sm_120", {"block_size": 16}),
        (FA, replace(GQA, window=4096), "sm_90", {}),
        (FA, replace(GQA, window=128, sink=True), "sm_100", {}),
        (FA, replace(GQA, softcap=50.0), "sm_90", {}),
        (AITER, SPARSE, "gfx942", {}),
        (AITER, replace(SPARSE, num_heads=64), "gfx950", {"parallel": hal.Parallel(tp=8)}),
        (AITER, GQA, "gfx942", {}),
        (XPU, GQA, "pvc", {}),
        (XPU, replace(MLA, num_heads=8), "pvc", {}),
        (XPU, replace(MLA, num_heads=128), "bmg", {"parallel": hal.Parallel(tp=16)}),
        (IPEX, GQA, "pvc", {}),
    ],
)
def test_a_vendors_kernels_serve_what_they_can(backend: str, layer: LayerShape, arch: str, options: dict) -> None:
    assert refuse(backend, layer, arch, **options) == ()


@pytest.mark.parametrize(
    ("backend", "layer", "arch", "options", "words"),
    [
        (FA, SPARSE, "sm_80", {}, "arch sm_80 is not among sm_90, sm_100 or sm_103"),
        (FA, SPARSE, "sm_120", {}, "arch sm_120"),
        (FA, GQA, "sm_110", {}, "arch sm_110"),
        (FA, MLA, "sm_100", {}, ", not mla"),
        (FA, SPARSE, "sm_100", {"dtype": "float16"}, "dtype float16 is not one of bfloat16"),
        (FA, replace(SPARSE, num_heads=256), "sm_100", {}, "256 query heads per rank, it takes at most 128"),
        (FA, SPARSE, "sm_90", {"parallel": hal.Parallel(dcp=2)}, "its calls honour no key ranges"),
        (FA, SPARSE, "sm_100", {"parallel": hal.Parallel(dcp=2)}, "128 query heads gathered from 2 ranks, it takes at most 64"),
        (FA, replace(SPARSE, mla=replace(WIDTHS, kv_lora_rank=256)), "sm_100", {}, "a latent of 256 is not 512"),
        (FA, replace(SPARSE, mla=replace(WIDTHS, qk_rope_head_dim=0)), "sm_100", {}, "a rotary part of 0 is not 64"),
        (FA, replace(SPARSE, mla=replace(WIDTHS, kv_lora_rank=128)), "sm_90", {}, "a latent of 128 is not 256 to 512"),
        (FA, replace(GQA, head_dim=512, v_head_dim=512), "sm_90", {}, "head_dim 512 is not a multiple of 8 up to 256"),
        (FA, replace(GQA, v_head_dim=64), "sm_90", {}, "v_head_dim 64 is not the keys' 128"),
        (FA, replace(GQA, chunk=8192), "sm_90", {}, "chunked attention of 8192 keys"),
        (FA, replace(GQA, window=64, causal=False), "sm_90", {}, "64 on both sides"),
        (AITER, GQA, "gfx1100", {}, "arch gfx1100 is not among gfx942 or gfx950"),
        (AITER, MLA, "gfx942", {}, ", not mla"),
        (AITER, replace(GQA, sink=True), "gfx942", {}, "an LSE is asked for, it returns none (the sink is applied to it)"),
        (AITER, GQA, "gfx942", {"block_size": 8}, "block size 8 does not fit multiples of 128"),
        (AITER, GQA, "gfx942", {"block_size": 64}, "block size 64 does not fit multiples of 128"),
        (AITER, replace(GQA, window=64), "gfx942", {}, "window"),
        (AITER, GQA, "gfx942", {"num_spec_tokens": 1}, "at most 0"),
        (AITER, GQA, "gfx942", {"software": hal.Software({"aiter": "0.1.7"})}, "from 0.1.21"),
        (AITER, replace(GQA, causal=False), "gfx942", {}, "causal=False"),
        (AITER, SPARSE, "gfx942", {"deterministic": True}, "deterministic"),
        (XPU, SPARSE, "pvc", {}, "it serves attention or mla, not sparse_mla"),
        (XPU, replace(MLA, num_heads=16), "pvc", {}, "16 query heads per rank, it takes at most 8"),
        (XPU, GQA, "dg2", {}, "arch dg2"),
        (XPU, GQA, "pvc", {"block_size": 48}, "block size 48 does not fit 16, 32, multiples of 64"),
        (XPU, replace(GQA, softcap=30.0), "pvc", {}, "a softcap of 30.0"),
        (XPU, replace(GQA, head_dim=80, v_head_dim=80), "pvc", {}, "head_dim 80 is not 64, 96, 128, 192 or 256"),
        (IPEX, replace(GQA, window=16), "pvc", {}, "a window of 16 keys"),
        (IPEX, MLA, "pvc", {}, ", not mla"),
    ],
)
def test_a_vendors_kernels_refuse_with_the_values(backend: str, layer: LayerShape, arch: str, options: dict, words: str) -> None:
    reasons = [str(reason) for reason in refuse(backend, layer, arch, **options)]
    assert any(words in reason for reason in reasons), reasons


def software(**versions: str) -> hal.Software:
    return hal.Software(versions)


@pytest.mark.parametrize(
    ("backend", "layer", "arch", "given", "words"),
    [
        (FA, SPARSE, "sm_90", software(), "it needs flash_attn_3 or vllm_flash_attn, which is not installed"),
        (FA, SPARSE, "sm_90", software(flash_attn="2.8.3"), "it needs flash_attn_3 or vllm_flash_attn"),
        (FA, SPARSE, "sm_90", software(flash_attn_3="9.1"), "it needs flash_attn_3 from 3.0 below 4, found 9.1"),
        (FA, GQA, "sm_80", software(flash_attn="banana"), "found banana"),
        (AITER, SPARSE, "gfx942", software(), "it needs aiter, which is not installed"),
        (XPU, GQA, "pvc", software(vllm_xpu_kernels="0.0.9"), "it needs vllm_xpu_kernels from 0.1.16 below 0.2, found 0.0.9"),
    ],
)
def test_library_is_the_reason(backend: str, layer: LayerShape, arch: str, given: hal.Software, words: str) -> None:
    reasons = [str(reason) for reason in refuse(backend, layer, arch, software=given)]
    assert any(words in reason for reason in reasons), reasons


def test_broken_library_is_a_reason_with_what_was_raised() -> None:
    broken = hal.Software({"flash_attn_4": "4.0.0b36"}, {"flash_attn_4": "OSError: libcuda.so.1"})
    (reason,) = refuse(FA, SPARSE, "sm_100", software=broken)
    assert str(reason) == "flash_attn_4 is installed but does not load: OSError: libcuda.so.1"


def test_one_library_of_several_suffices() -> None:
    assert refuse(FA, SPARSE, "sm_90", software=software(vllm_flash_attn="0.33")) == ()
    assert refuse(FA, GQA, "sm_80", software=software(vllm_flash_attn="0.33", flash_attn="banana")) == ()


def test_release_without_an_lse_names_the_one_that_has_it() -> None:
    (reason,) = refuse(AITER, SPARSE, "gfx942", need_lse=True, software=software(aiter="0.1.7"))
    assert (reason.code, reason.fix) == ("lse", "aiter from 0.1.21 below 0.2 returns one")
    assert refuse(AITER, SPARSE, "gfx942", need_lse=True, software=software(aiter="0.1.21.post2")) == ()


def test_every_reason_of_a_vendors_kernels_is_collected() -> None:
    layer = replace(GQA, head_dim=320, v_head_dim=64, chunk=16, causal=False, position_bias="alibi")
    codes = {reason.code for reason in refuse(FA, layer, "sm_90", "float32")}
    assert {"dtype", "head_dim", "v_head_dim", "chunk", "position_bias"} <= codes


def test_decode_and_prefill_are_resolved_apart() -> None:
    request = hal.Request(replace(GQA, sink=True), hal.Device.from_arch("pvc"), "bfloat16")
    selection = hal.select(request)
    assert selection.backend == XPU
    assert selection.providers["paged_attention.decode"] == "xpu:triton"
    assert selection.providers["paged_attention.prefill"] == XPU


def test_context_is_merged_by_an_lse_that_the_kernel_must_have() -> None:
    request = hal.Request(replace(MLA, num_heads=8), hal.Device.from_arch("pvc"), "bfloat16")
    providers = hal.select(request).providers
    assert providers["varlen_attention.prefill"] == XPU
    assert providers["varlen_attention.decode"] == "xpu:triton"


def test_equal_requests_get_equal_answers_and_nothing_is_imported() -> None:
    import sys

    request = hal.Request(SPARSE, hal.Device.from_arch("sm_90"), "bfloat16")
    before = set(sys.modules)
    assert hal.supports_combination(request) == hal.supports_combination(request)
    vendors = ("flash_attn", "vllm", "aiter", "intel_extension", "pynvml", "amdsmi")
    assert not {name for name in set(sys.modules) - before if name.startswith(vendors)}


def test_a_page_that_is_left_open_becomes_one_that_the_library_reads() -> None:
    given = software(flash_attn="2.8.3")
    assert not refuse(FA, GQA, "sm_80", software=given)
    words = [str(reason) for reason in refuse(FA, GQA, "sm_80", software=given, block_size=64)]
    assert words == ["block size 64 does not fit multiples of 256"]


@pytest.mark.parametrize(("target", "decode"), [("cuda:sm_90", "cuda:flash_mla"), ("cuda:sm_100", "cuda:triton")])
def test_records_are_decoded_by_the_library_where_it_keeps_their_scales_and_prefilled_by_the_portable(target, decode) -> None:
    text = {"num_hidden_layers": 1, "hidden_size": 256, "num_attention_heads": 4, "vocab_size": 16}
    latent = {"kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "q_lora_rank": 64}
    shape = read_shape(text | latent | {"index_topk": 128, "index_n_heads": 16, "index_head_dim": 128})
    request = hal.Request(shape.layer(0), hal.Device.from_arch(target), "bfloat16", kv_layout="fp8_ds_mla")
    selection = hal.select(request)
    assert selection.backend == decode
    assert selection.providers["sparse_mla.decode"] == decode
    assert selection.providers["sparse_mla.prefill"] == "cuda:triton"
    assert selection.index_layout == "indexer_fp8"
