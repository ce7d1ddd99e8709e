"""Keys, tiles and specialisations: pure functions, which need neither an accelerator nor a compiler."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import hal
from hal.common.contract.errors import BackendError, NoBackend
from hal.common.contract.reason import Reason
from hal.common.triton import launch, specialisations
from hal.common.triton import specialise as module
from hal.common.triton.launch import Launch, Launcher, integer_class, launch_key, load_kernel
from hal.common.triton.stand_in import stand_in
from hal.common.triton.tiles import MIN_SIDE, Tile, Widths, block_side, choose_tile, read_machine, shared_bytes, split_width
from hal.config import LayerShape, MLAShape

from .helpers.layers import ARCHS, dense_layer, sparse_layer

LATENT = Widths(main=512, rest=64, splits=True)


def make_launch(**changes: object) -> Launch:
    q = stand_in("bfloat16", 5, 4, 64)
    plain = Launch(
        kernel="merge:join_parts",
        grid=(1,),
        tensors={"parts": q},
        strides={"part_token": 256},
        numbers={"num_parts": 3},
        constants={"BLOCK": 64},
        num_warps=4,
    )
    return replace(plain, **changes)


@pytest.mark.parametrize(
    ("value", "kind"),
    [(1, "1"), (2, "i32"), (16, "i32/16"), (0, "i32/16"), (17, "i32"), (2**31, "i64/16"), (2**31 + 1, "i64"), (-3, "i32")],
)
def test_an_integer_is_1_a_multiple_of_16_or_other(value: int, kind: str) -> None:
    assert integer_class(value) == kind


@pytest.mark.parametrize(
    "changes",
    [
        {"kernel": "merge:merge_pair"},
        {"tensors": {"parts": stand_in("float16", 5, 4, 64)}},
        {"strides": {"part_token": 257}},
        {"strides": {"part_token": 1}},
        {"numbers": {"num_parts": 3.0}},
        {"constants": {"BLOCK": 128}},
        {"num_warps": 8},
        {"num_stages": 2},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_what_makes_another_binary_makes_another_key(changes: dict[str, object]) -> None:
    assert launch_key(make_launch(**changes), "sm_90") != launch_key(make_launch(), "sm_90")


@pytest.mark.parametrize(
    "changes", [{"grid": (7, 2)}, {"numbers": {"num_parts": 16}}, {"numbers": {"num_parts": 1}}, {"strides": {"part_token": 512}}]
)
def test_what_makes_no_other_binary_makes_no_other_key(changes: dict[str, object]) -> None:
    assert launch_key(make_launch(**changes), "sm_90") == launch_key(make_launch(), "sm_90")


def test_the_arch_is_in_the_key() -> None:
    assert launch_key(make_launch(), "sm_90") != launch_key(make_launch(), "sm_80")


@pytest.mark.parametrize(("platform", "arch"), ARCHS)
@pytest.mark.parametrize("layer", [sparse_layer(), sparse_layer(16), dense_layer()], ids=["sparse128", "sparse16", "dense"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_every_arch_has_tiles_within_its_limits(platform: str, arch: str, layer: LayerShape, dtype: str) -> None:
    request = hal.Request(layer, hal.Device.from_arch(arch), dtype)
    assert hal.supports_combination(request)[f"{platform}:triton"] == ()
    names = [found.name for found in specialisations(request)]
    expected = {"cache:write_rows", "cache:read_rows", "attend:attend_keys", "merge:join_parts", "merge:merge_pair"}
    if layer.indexer is not None:
        expected |= {"sparse:attend_rows", "rows:find_rows", "scores:score_keys", "topk:choose_columns", "choice:mark_keys"}
    assert set(names) == expected


@pytest.mark.parametrize("rows", [1, 16, 17, 4096])
@pytest.mark.parametrize(("platform", "arch"), ARCHS)
def test_a_chosen_tile_fits(platform: str, arch: str, rows: int) -> None:
    machine = read_machine(f"hal.{platform}", arch)
    for call, widths in (("sparse", LATENT), ("latent", LATENT), ("attend", Widths(main=128, rest=64, value=128))):
        tile = choose_tile(machine, call, widths, "bfloat16", rows)
        assert isinstance(tile, Tile)
        assert shared_bytes(tile, widths, "bfloat16") <= machine.arch.shared_memory_bytes
        assert tile.block_c * tile.num_c == widths.block_main
        assert tile.block_m <= block_side(rows)


def test_too_little_shared_memory_is_a_reason_with_both_figures() -> None:
    machine = read_machine("hal.cuda", "sm_90")
    small = replace(machine, arch=replace(machine.arch, shared_memory_bytes=4096))
    reason = choose_tile(small, "sparse", LATENT, "bfloat16", 16)
    assert isinstance(reason, Reason)
    assert reason.code == "memory"
    assert "4096 bytes" in str(reason)


def test_a_head_too_wide_is_refused_at_selection() -> None:
    request = hal.Request(dense_layer(8192), hal.Device.from_arch("sm_90"), "bfloat16")
    (reason,) = hal.supports_combination(request)["cuda:triton"]
    assert reason.code in ("memory", "head_dim")
    with pytest.raises(NoBackend, match="cuda:triton"):
        specialisations(request)


@given(st.integers(1, 1024))
def test_a_split_width_is_covered_by_powers_of_two(width: int) -> None:
    main, rest = split_width(width)
    assert main + rest == width
    covered = block_side(main) + (block_side(rest) if rest else 0)
    assert width <= covered <= block_side(width)
    assert main >= min(width, MIN_SIDE)


def test_planning_imports_neither_torch_nor_triton() -> None:
    code = (
        "import sys, hal; from hal.common.triton import specialisations; from hal.config import LayerShape\n"
        "widths = dict(num_heads=4, num_kv_heads=2, head_dim=64, v_head_dim=64, softmax_scale=1.0)\n"
        "layer = LayerShape(layer_id=0, kind='attention', **widths)\n"
        "found = specialisations(hal.Request(layer, hal.Device.from_arch('sm_90'), 'bfloat16'))\n"
        "assert found and not {'torch', 'triton', 'numpy'} & set(sys.modules), sorted(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_call_without_triton_says_what_is_missing() -> None:
    code = (
        "import sys; sys.modules['triton'] = None\n"
        "import torch, hal\n"
        "calls = hal.kernels('cuda:triton', hal.Device.from_arch('sm_90', torch_device='cpu'))\n"
        "one = torch.ones(1, 1, 16)\n"
        "try: calls.merge_states(one, one[..., 0], one, one[..., 0])\n"
        "except hal.BackendError as error: assert 'needs triton' in str(error), error\n"
        "else: raise SystemExit('nothing was raised')"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_an_empty_grid_launches_nothing() -> None:
    launcher, keys = Launcher("sm_90"), []
    launcher.watch(keys.append)
    launcher.run(make_launch(grid=(4, 0)))
    assert keys == []


def test_a_watcher_sees_the_key_before_the_launch_until_it_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_path: str) -> None:
        raise BackendError("no kernel here")

    monkeypatch.setattr(launch, "load_kernel", refuse)
    launcher, keys = Launcher("sm_90"), []
    stop = launcher.watch(keys.append)
    with pytest.raises(BackendError, match="no kernel here"):
        launcher.run(make_launch())
    stop()
    with pytest.raises(BackendError, match="no kernel here"):
        launcher.run(make_launch())
    assert keys == [launch_key(make_launch(), "sm_90")]


def test_compiled_kernels_refuse_tensors_on_the_cpu() -> None:
    pytest.importorskip("triton")
    code = (
        "import torch, hal\n"
        "calls = hal.kernels('rocm:triton', hal.Device.from_arch('gfx942', torch_device='cpu'))\n"
        "one = torch.ones(1, 1, 16)\n"
        "try: calls.merge_states(one, one[..., 0], one, one[..., 0])\n"
        "except hal.BackendError as error: assert 'TRITON_INTERPRET=1' in str(error), error\n"
        "else: raise SystemExit('nothing was raised')"
    )
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)


def test_an_element_type_without_kernels_is_refused_by_name() -> None:
    with pytest.raises(BackendError, match=r"float64; they take bfloat16"):
        launch_key(make_launch(tensors={"parts": stand_in("float64", 2, 2, 2, 2)}), "sm_90")


def test_an_unknown_kernel_is_an_error_of_its_own() -> None:
    with pytest.raises(BackendError, match="needs triton"):
        load_kernel("nowhere:nothing")


@pytest.mark.parametrize("target", ["sm_90", "gfx942", "pvc"])
def test_decorators_agree_with_launches(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A number that a kernel specialised on, or a stride that it did not, would make keys lie."""
    pytest.importorskip("triton")
    launches: list[Launch] = []
    specialise = module.specialise
    monkeypatch.setattr(module, "specialise", lambda made, arch: launches.append(made) or specialise(made, arch))
    for layer in (sparse_layer(), dense_layer()):
        specialisations(hal.Request(layer, hal.Device.from_arch(target), "bfloat16"))
    assert launches
    for made in launches:
        kernel = load_kernel(made.kernel)
        settings = kernel.kwargs if hasattr(kernel, "kwargs") else vars(kernel)
        given = (made.tensors, made.tables, made.strides, made.numbers, made.constants)
        assert sorted(name for part in given for name in part) == sorted(kernel.arg_names)
        assert set(settings["do_not_specialize"]) == set(made.numbers)
        assert set(settings["do_not_specialize_on_alignment"] or ()) == set(made.tables)


@pytest.mark.parametrize("fused_width", [2112, 2120, 2128, 56], ids=lambda width: f"rows{width}_apart")
def test_latents_that_are_views_of_a_fused_projection_are_written_by_a_planned_kernel(fused_width: int) -> None:
    """Rows a multiple of 16 apart and rows 8 more: the parts' own widths are 32 and 8, of which one is such a multiple."""
    import torch

    from hal.common.contract.call_values import KVCache
    from hal.common.contract.layouts import latent_layout
    from hal.common.triton.cache import write_rows

    mla = MLAShape(kv_lora_rank=32, qk_nope_head_dim=16, qk_rope_head_dim=8, v_head_dim=16)
    widths = {"num_heads": 4, "num_kv_heads": 4, "head_dim": 24, "v_head_dim": 16, "softmax_scale": 0.1}
    layer = LayerShape(layer_id=0, kind="mla", mla=mla, **widths)
    request = hal.Request(layer, hal.Device.from_arch("cuda:sm_90"), "bfloat16", block_size=64)
    planned = {found.key for found in specialisations(request)}
    fused = torch.zeros(7, fused_width, dtype=torch.bfloat16)
    cache = KVCache(torch.zeros(3, 64, 40, dtype=torch.bfloat16), latent_layout(32, 8, "bfloat16"), 64, 64)
    launched: list[Launch] = []
    write_rows(launched.append, cache, torch.arange(7), (fused[:, :32], fused[:, 32:40]))
    assert [launch_key(one, "sm_90") for one in launched]
    assert {launch_key(one, "sm_90") for one in launched} <= planned
