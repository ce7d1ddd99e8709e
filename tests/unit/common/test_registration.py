"""What may register: a class that has every call it promises, under a name of its own, and leaves hal's jobs alone."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

import hal
from hal.common.backends.registry import backends, find_backend, platforms
from hal.common.contract.backend import CALLS_BY_FAMILY, RESERVED, Backend
from hal.common.contract.platform import Platform

from .helpers.fakes import EVERY_FAMILY, ask, make_backend, mla_layer, sparse_layer

pytestmark = pytest.mark.usefixtures("registry")
PROMISES = [(family, call) for family in sorted(EVERY_FAMILY) for call in CALLS_BY_FAMILY[family]]


@pytest.mark.parametrize(("family", "call"), PROMISES, ids=[f"{family}-{call}" for family, call in PROMISES])
def test_a_promised_call_that_is_missing_is_named(family: str, call: str) -> None:
    incomplete = make_backend("cuda:new", families=frozenset({family}), without=(call,))
    with pytest.raises(hal.BackendError, match=rf"cuda:new.*lacks: {call}$"):
        hal.register_backend(incomplete)
    assert "cuda:new" not in backends()


@pytest.mark.parametrize(
    ("changes", "call"), [({"sink": True}, "apply_sink"), ({"max_index_pool": 4}, "expand_pools")], ids=["sink", "pool"]
)
def test_a_capability_promises_its_call(changes: dict, call: str) -> None:
    with pytest.raises(hal.BackendError, match=call):
        hal.register_backend(make_backend("cuda:new", without=(call,), **changes))


def test_all_missing_calls_are_named() -> None:
    incomplete = make_backend("cuda:new", families=frozenset({"attention"}), without=("write_cache", "merge_states"))
    with pytest.raises(hal.BackendError, match="write_cache, merge_states"):
        hal.register_backend(incomplete)


def test_inherited_calls_count_as_the_backends_own() -> None:
    portable = make_backend("cuda:base")
    heir = type("Heir", (portable,), {"name": "cuda:heir"})
    assert hal.register_backend(heir) is heir
    assert find_backend("cuda:heir") is heir


@pytest.mark.parametrize("job", sorted(RESERVED))
def test_hals_own_jobs_cannot_be_overridden(job: str) -> None:
    with pytest.raises(TypeError, match=job):
        type("Greedy", (Backend,), {job: lambda *_: None})


def test_hals_own_jobs_cannot_come_from_a_mixin() -> None:
    mixin = type("Mixin", (), {"build": lambda *_: None})
    with pytest.raises(TypeError, match="build"):
        type("Greedy", (mixin, Backend), {})


def test_hals_own_jobs_cannot_be_set_on_a_class_later() -> None:
    backend = make_backend("cuda:new")
    backend.attend = lambda *_: None
    with pytest.raises(hal.BackendError, match="cuda:new overrides attend"):
        hal.register_backend(backend)


IMPOSSIBLE = {
    "families": None,
    "archs": ("sm_90",),
    "rank": {"sm_90": "first"},
    "dtypes": "bfloat16",
    "kv_layouts": {"attention": ("paper",), "mla": ("latent",), "sparse_mla": ("latent",)},
    "index_layouts": ("paper",),
    "graphs": "sometimes",
    "default_block_size": 0,
    "block_size_multiple": 0,
    "topk_multiple": 0,
    "max_index_pool": None,
    "max_spec_tokens": -1,
    "inner_sinks": frozenset({"varlen_attention"}),
}


@pytest.mark.parametrize(("field", "value"), IMPOSSIBLE.items(), ids=IMPOSSIBLE)
def test_a_declaration_that_selection_cannot_read_is_refused(field: str, value: object) -> None:
    backend = make_backend("cuda:new")
    backend.capabilities = replace(backend.capabilities, **{field: value})
    with pytest.raises(hal.BackendError, match=r"cuda:new declares what cannot be: ") as error:
        hal.register_backend(backend)
    assert field in str(error.value) or "paper" in str(error.value) or "varlen_attention takes no sink" in str(error.value)
    assert "cuda:new" not in backends()


@pytest.mark.parametrize(
    ("attribute", "value"),
    [("name", 5), ("platform", 5), ("capabilities", {"families": ()}), ("libraries", ("flash_attn",))],
    ids=lambda value: str(value),
)
def test_an_attribute_of_another_type_is_refused(attribute: str, value: object) -> None:
    backend = make_backend("cuda:new")
    setattr(backend, attribute, value)
    with pytest.raises(hal.BackendError):
        hal.register_backend(backend)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"name": ""}, "the name of platform ''"),
        ({"torch_type": None}, "torch_type"),
        ({"backends": "hal.cpu.backend:CPUBackend"}, "expected a tuple"),
        ({"backends": ("hal.cpu.backend:CPUBackend",)}, "'cpu' of platform 'new' says that it runs on 'cpu'"),
        ({"backends": ("no_such_module:Thing",)}, "ModuleNotFoundError"),
        ({"package": "no_such_package"}, "no_such_package/archs.toml: ModuleNotFoundError"),
        ({"package": "hal"}, "hal/archs.toml: FileNotFoundError"),
    ],
    ids=lambda value: str(value),
)
def test_a_platform_that_nobody_could_use_is_refused_and_leaves_the_others_alone(changes: dict, words: str) -> None:
    values = {"name": "new", "package": "hal.cpu", "backends": (), "probe_path": "hal.cpu.probe:probe", "torch_type": "cpu"}
    with pytest.raises(hal.BackendError, match=re.escape(words)):
        hal.register_platform(Platform(**(values | changes)))
    assert hal.Device.from_arch("cpu").target == "cpu"
    assert "new" not in platforms()


def test_what_is_no_platform_is_refused() -> None:
    with pytest.raises(hal.BackendError, match=r"not a hal\.Platform"):
        hal.register_platform("cuda")


@pytest.mark.parametrize(
    ("thing", "words"),
    [
        (object(), "not a subclass"),
        (type("Foreign", (), {}), "not a subclass"),
        (type("Nameless", (Backend,), {"platform": "cuda"}), "no name"),
        (type("Homeless", (Backend,), {"name": "x"}), "no platform"),
        (make_backend("cuda:new", families=frozenset({"attention", "linear"})), "linear"),
    ],
    ids=["object", "class", "nameless", "homeless", "family"],
)
def test_what_is_no_backend_is_refused(thing: object, words: str) -> None:
    with pytest.raises(hal.BackendError, match=words):
        hal.register_backend(thing)


def test_a_taken_name_is_refused_and_kept() -> None:
    first = hal.register_backend(make_backend("cuda:new"))
    with pytest.raises(hal.BackendError, match="'cuda:new' is already registered"):
        hal.register_backend(make_backend("cuda:new"))
    assert find_backend("cuda:new") is first
    assert hal.register_backend(first) is first


def test_a_class_without_calls_may_take_its_name() -> None:
    unwritten = type("Unwritten", (Backend,), {"name": "cuda:unwritten", "platform": "cuda"})
    hal.register_backend(unwritten)
    assert [reason.code for reason in hal.supports_combination(ask())["cuda:unwritten"]] == ["not_built"]


@pytest.mark.parametrize(
    ("changes", "layer"),
    [({"kv_layouts": {"attention": ("kv",)}}, mla_layer()), ({"index_layouts": ()}, sparse_layer())],
    ids=["kv", "index"],
)
def test_a_missing_layout_is_never_a_bare_lookup_error(changes: dict, layer: hal.config.LayerShape, no_backends: object) -> None:
    try:
        hal.register_backend(make_backend("cuda:new", **changes))
    except hal.BackendError:
        return
    with pytest.raises(hal.NoBackend):
        hal.select(ask(layer))


def test_finding_an_unknown_backend_lists_the_known() -> None:
    with pytest.raises(ValueError, match=r"'cpuu'.*cpu"):
        find_backend("cpuu")


def test_a_refused_platform_leaves_nothing_behind() -> None:
    """The second backend is none; the platform and its first backend must not stay half registered."""
    before = (platforms(), backends())
    path = "hal.common.contract.platform:load_object"
    clashing = Platform(
        name="new", package="hal.cpu", backends=("hal.cpu.backend:CPUBackend", path), probe_path=path, torch_type="cpu"
    )
    with pytest.raises(hal.BackendError):
        hal.register_platform(clashing)
    assert (platforms(), backends()) == before


def test_a_platform_with_a_taken_backend_name_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    import hal.cpu.platform as home

    monkeypatch.setattr(home, "Clash", make_backend("cpu", platform="new"), raising=False)
    before = (platforms(), backends())
    clashing = Platform(
        name="new", package="hal.cpu", backends=("hal.cpu.platform:Clash",), probe_path="hal.cpu.probe:probe", torch_type="cpu"
    )
    with pytest.raises(hal.BackendError, match="'cpu' is already registered"):
        hal.register_platform(clashing)
    assert (platforms(), backends()) == before


@pytest.mark.parametrize("path", ["hal.nowhere:Thing", "hal.cpu.backend:Nothing"])
def test_a_platform_whose_backend_cannot_be_imported_is_refused_with_the_path(path: str) -> None:
    broken = Platform(name="new", package="hal.cpu", backends=(path,), probe_path="hal.cpu.probe:probe", torch_type="cpu")
    with pytest.raises(hal.BackendError, match=path):
        hal.register_platform(broken)
    assert "new" not in platforms()


def test_a_second_platform_of_a_name_is_refused() -> None:
    other = Platform(name="cpu", package="elsewhere", backends=(), probe_path="x:y", torch_type="cpu")
    with pytest.raises(hal.BackendError, match=r"'cpu' is already registered by hal.cpu"):
        hal.register_platform(other)
    assert platforms()["cpu"].package == "hal.cpu"
