"""Old names, switches and periods as each class of transformers translates them: a file gives the shape of its object."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from hal.config import ConfigError, ModelShape, read_shape
from hal.config.fields import OUTER
from hal.config.harmless import is_off
from hal.config.known_types import known_type
from hal.config.names import FIELDS

transformers = pytest.importorskip("transformers")
from transformers.models.auto.configuration_auto import CONFIG_MAPPING  # noqa: E402

LAID_OUT_OTHERWISE = {
    "qwen2_moe": "with windows on it slides every second of the first layers, against its own max_window_layers",
    "pix2struct": "its decoder stays one that is told to be none",
    "dots3_note": "it hands fields stated at its own level down to its text config",
    "glm5_next": "it hands fields stated at its own level down to its text config",
    **dict.fromkeys(
        ("fuyu", "hunyuan_vl", "paddleocr_vl", "qwen2_vl", "qwen2_5_vl"),
        "it drops what an old flat file states beyond the fields of its text class",
    ),
    **dict.fromkeys(("longt5", "mt5", "pop2piano", "t5", "umt5", "udop"), "tied embeddings say something else there"),
    **dict.fromkeys(
        ("blt_local_decoder", "blt_patcher", "lfm2_vl", "vilt"), "it ties its embeddings, or does not, whatever is stated"
    ),
    "rag": "it is made of two configs, which its type alone does not name",
    "falcon": "it rounds a width of heads that do not divide the model's, where the reader refuses it",
}
"""Types whose class does something with a switch that no rule of the reader could know."""

TRANSLATED = sorted(
    name
    for name in CONFIG_MAPPING
    if name not in ("falcon", "lfm2_vl") and (known_type(name).computed or known_type(name).periods)
)


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logging.disable(logging.ERROR)
    yield
    logging.disable(logging.NOTSET)


def build(name: str, **kwargs: Any) -> Any:
    """The object, or None where its class refuses the arguments."""
    try:
        return CONFIG_MAPPING[name](**kwargs)
    except Exception:  # noqa: BLE001 - validators of 800 foreign classes raise anything
        return None


def attempt(source: object) -> ModelShape | None:
    """The shape without its name, which some classes change, and its warnings: an object does not tell what was stated."""
    try:
        return dataclasses.replace(read_shape(source), model_type="", warnings=())
    except ConfigError:
        return None


def switches(name: str) -> Iterator[tuple[str, object]]:
    """The fields of a type that hal reads and that are switches, with every value that differs from the default."""
    for item in dataclasses.fields(CONFIG_MAPPING[name]):
        default = item.default if item.default is not dataclasses.MISSING else None
        is_switch = isinstance(default, bool) or "bidirectional" in item.name or item.name.startswith(("use_", "is_"))
        # Of a composite object the text config states its own of these, where a file leaves the root's to hold for both.
        is_outer = item.name in OUTER and known_type(name).nested
        values = (True, False, "all") if "bidirectional" in item.name else (True, False)
        # No config of one kind of model is told to be of the other.
        if item.name in FIELDS and is_switch and not is_outer and item.name != "is_encoder_decoder":
            yield from ((item.name, value) for value in values if value != default)


@pytest.mark.parametrize("name", sorted(name for name in CONFIG_MAPPING if name not in LAID_OUT_OTHERWISE and [*switches(name)]))
def test_every_switch_gives_the_shape_of_the_object(name: str) -> None:
    for field, value in switches(name):
        for extra in ({}, {"sliding_window": 512}) if "sliding_window" in known_type(name).fields else ({},):
            given = {field: value, **extra}
            config = build(name, **given)
            if config is not None and (expected := attempt(config)) is not None:
                assert attempt({"model_type": name, **given}) == expected, given


@pytest.mark.parametrize("name", TRANSLATED)
def test_every_translated_field_gives_the_shape_of_the_object(name: str) -> None:
    known = known_type(name)
    sources = {rule.source for rules in known.computed.values() for rule in rules if not rule.switch}
    for field in sources | {rule.source for rule in known.periods.values()}:
        for value in (True, False) if "tie" in field else (2, 4, 96, 256):
            config = build(name, **{field: value})
            if config is not None and (expected := attempt(config)) is not None:
                assert attempt({"model_type": name, field: value}) == expected, (field, value)


def test_the_old_name_of_a_size_wins_as_in_the_class() -> None:
    for given in ({"n_embed": 4096, "n_head": 32}, {"n_embed": 4096, "hidden_size": 64, "n_head": 32}):
        shape = read_shape({"model_type": "bloom", **given})
        assert shape.hidden_size == 4096
        assert shape == read_shape(CONFIG_MAPPING["bloom"](**given))
    with pytest.raises(ConfigError, match="n_embed=-1"):
        read_shape({"model_type": "bloom", "n_embed": -1})


@pytest.mark.parametrize(
    ("kind", "switch", "window"),
    [("gemma3_text", True, 257), ("gemma4_text", "all", 257), ("gemma4_unified_text", "all", 257), ("gemma3_text", False, 512)],
)
def test_a_window_that_looks_both_ways_is_halved_by_its_class(kind: str, switch: object, window: int) -> None:
    shape = read_shape({"model_type": kind, "sliding_window": 512, "use_bidirectional_attention": switch})
    assert {layer.window for layer in shape.layers} == {window, None}
    assert all(layer.causal == (switch is False) for layer in shape.layers)


@pytest.mark.parametrize("types", [None, ["sliding_attention"] * 22, ["sliding_attention", "full_attention"] * 11])
@pytest.mark.parametrize(("stated", "window"), [(128, 65), (64, 33), (256, 129)])
def test_a_local_attention_of_both_sides_keeps_half_and_the_token_itself(stated: int, window: int, types: object) -> None:
    given = {"local_attention": stated, **({"layer_types": types} if types else {})}
    shape = read_shape({"model_type": "modernbert", **given})
    assert {layer.window for layer in shape.layers} - {None} == {window}
    assert shape == read_shape(CONFIG_MAPPING["modernbert"](**given))


ORDERS = {
    "usual": {},
    "one_in_three": {"layer_types": (["sliding_attention"] * 2 + ["full_attention"]) * 3},
    "full_first": {"layer_types": ["full_attention"] * 4 + ["sliding_attention"] * 5},
    "last_full": {"layer_types": ["sliding_attention"] * 8 + ["full_attention"]},
}


@pytest.mark.parametrize("name", sorted(name for name in CONFIG_MAPPING if known_type(name).windows))
@pytest.mark.parametrize("window", [{}, {"sliding_window": 96}, {"sliding_window": 1024}, {"sliding_window": 4096}])
@pytest.mark.parametrize("order", ORDERS)
def test_layers_of_one_type_take_their_windows_in_turn(name: str, window: dict[str, int], order: str) -> None:
    given = {"num_hidden_layers": 9, **window, **ORDERS[order]}
    config = CONFIG_MAPPING[name](**given)
    expected = attempt(config)
    assert expected is not None
    assert len({layer.window for layer in expected.layers}) > 2 or window == {"sliding_window": 1024}
    assert attempt({"model_type": name, **given}) == expected
    assert attempt(config.to_dict()) == expected
    assert attempt({"model_type": name, **given, "per_layer_config": {"1": {"sliding_window": 7}}}) == attempt(
        CONFIG_MAPPING[name](**given, per_layer_config={1: {"sliding_window": 7}})
    )


@pytest.mark.parametrize("name", ["modernbert", "embedding_gemma2_text", "ultrabert", "gemma3_text"])
def test_windows_are_those_that_the_modules_pass_on(name: str) -> None:
    torch = pytest.importorskip("torch")
    config = CONFIG_MAPPING[name]()
    with torch.device("meta"):
        model = transformers.AutoModel.from_config(config)
    passed = {
        module.layer_idx: module.sliding_window
        for _, module in model.named_modules()
        if hasattr(module, "sliding_window") and isinstance(getattr(module, "layer_idx", None), int)
    }
    layers = read_shape(config).layers
    assert passed
    assert passed == {layer_id: layers[layer_id].window for layer_id in passed}


@pytest.mark.parametrize(
    ("kind", "causal"),
    [("gpt_neox_japanese", True), ("trocr", True), ("musicgen_decoder", True), ("evolla", True), ("bert", False), ("esm", False)],
)
def test_a_switch_that_the_code_never_asks_does_not_make_an_encoder(kind: str, causal: bool) -> None:
    assert {layer.causal for layer in read_shape({"model_type": kind, "vocab_size": 100}).layers} == {causal}


@pytest.mark.parametrize(
    "name", ["bloom", "gemma3_text", "modernbert", "afmoe", "mimo_v2_flash", "lfm2", "reformer", "falcon", "neomme"]
)
def test_generated_translations_are_up_to_date(name: str) -> None:
    """What `python -m hal.config.generate` would write for the installed version."""
    from hal.config.generate import accounted_fields
    from hal.config.translations import find_window_turns

    known = known_type(name)
    found = accounted_fields(CONFIG_MAPPING[name], CONFIG_MAPPING[name]())
    defaults = {"divide": 1, "add": 0, "switch": "", "value": None}
    rules = {target: tuple({**defaults, **rule} for rule in rules) for target, rules in found["computed"].items()}
    assert {target: tuple(map(dataclasses.asdict, rules)) for target, rules in known.computed.items()} == rules
    assert find_window_turns(lambda **kwargs: build(name, **kwargs), "num_hidden_layers") == dict(known.windows)
    assert set(found["periods"]) == set(known.periods)
    assert found["unread"] == dict(known.unread)
    assert set(found["silent"]) == known.silent


def test_what_the_table_calls_harmless_no_attention_code_reads() -> None:
    from hal.config.code_reads import attention_fields
    from hal.config.harmless import DATA

    harmless = set(DATA.read_text(encoding="utf-8").split())
    families = ("llama", "gpt_oss", "gemma3_text", "deepseek_v32", "reformer", "inkling2_text", "minimax_m3_vl_text")
    read = set().union(*(attention_fields(CONFIG_MAPPING[name]) for name in families))
    assert harmless & read == set()
    assert not is_off("use_causal_mask", False)
