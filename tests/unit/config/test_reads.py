"""A config is read once per field and never written; transformers is loaded only by whoever hands one of its objects in."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from collections import ChainMap, Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from hal.config import read_shape

TEXT = {
    "model_type": "deepseek_v32",
    "num_hidden_layers": 3,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "kv_lora_rank": 32,
    "q_lora_rank": 48,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 16,
    "v_head_dim": 24,
    "index_topk": 8,
    "index_n_heads": 16,
    "index_head_dim": 32,
    "vocab_size": 128,
    "rope_parameters": {"rope_type": "yarn", "factor": 4.0, "mscale_all_dim": 1.0},
    "tie_word_embeddings": False,
}
FLAT = {"architectures": ["SomeForCausalLM"], "dtype": "bfloat16", **TEXT}
COMPOSITE = {"model_type": "some_vl", "dtype": "bfloat16", "text_config": TEXT, "vision_config": {"hidden_size": 32}}
BLOCKS = {
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "num_attention_heads": 8,
    "vocab_size": 100,
    "block_configs": [{"attention": {"n_heads_in_group": 4}}, {"attention": {"no_op": True}}],
    "per_layer_config": {"1": {"head_dim": 16}},
}
SOURCES = {"flat": FLAT, "composite": COMPOSITE, "blocks": BLOCKS}


class CountingMapping(Mapping[str, Any]):
    """A config that notes each field taken from it, at every level."""

    def __init__(self, values: Mapping[str, Any], reads: Counter[str], path: str = "") -> None:
        self._values = {name: wrap(value, reads, f"{path}{name}.") for name, value in values.items()}
        self._reads = reads
        self._path = path

    def __getitem__(self, name: str) -> Any:
        self._reads[self._path + name] += 1
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


class CountingObject:
    """The same with attributes."""

    def __init__(self, values: Mapping[str, Any], reads: Counter[str], path: str = "") -> None:
        object.__setattr__(self, "_state", (values, reads, path))

    def __getattr__(self, name: str) -> Any:
        values, reads, path = object.__getattribute__(self, "_state")
        reads[path + name] += 1
        if name not in values:
            raise AttributeError(name)
        value = values[name]
        return CountingObject(value, reads, f"{path}{name}.") if isinstance(value, Mapping) else value

    def __setattr__(self, name: str, value: Any) -> None:
        raise AssertionError(f"{name} was written to the source")


def wrap(value: Any, reads: Counter[str], path: str) -> Any:
    if isinstance(value, Mapping):
        return CountingMapping(value, reads, path)
    if isinstance(value, list):
        return [wrap(item, reads, f"{path}{index}.") for index, item in enumerate(value)]
    return value


@pytest.mark.parametrize("name", SOURCES)
@pytest.mark.parametrize("form", [CountingMapping, CountingObject])
def test_each_field_is_read_exactly_once(name: str, form: type) -> None:
    reads: Counter[str] = Counter()
    shape = read_shape(form(SOURCES[name], reads))
    assert shape == read_shape(SOURCES[name])
    assert {field: count for field, count in reads.items() if count != 1} == {}
    assert any(field.endswith("num_hidden_layers") for field in reads)


def test_each_field_of_a_transformers_object_is_read_at_most_once() -> None:
    transformers = pytest.importorskip("transformers")
    reads: Counter[str] = Counter()

    class Counting(transformers.DeepseekV32Config):  # type: ignore[name-defined,misc]
        def __getattribute__(self, name: str) -> Any:
            if not name.startswith("_"):
                reads[name] += 1
            return super().__getattribute__(name)

    config = Counting(**{name: value for name, value in TEXT.items() if name != "model_type"})
    before = config.to_json_string(use_diff=False)
    reads.clear()
    shape = read_shape(config)
    repeated = {name: count for name, count in reads.items() if count > 1}
    assert repeated.keys() <= {"attribute_map"}
    assert shape.index_topk == 8
    assert config.to_json_string(use_diff=False) == before


def test_a_file_is_opened_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(FLAT), encoding="utf-8")
    opened: list[str] = []
    real_open = open

    def counting_open(file: Any, *args: Any, **kwargs: Any) -> Any:
        opened.append(str(file))
        return real_open(file, *args, **kwargs)

    monkeypatch.setattr("builtins.open", counting_open)
    read_shape(tmp_path)
    assert opened.count(str(path)) == 1


def test_reading_a_file_loads_no_heavy_library(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(FLAT), encoding="utf-8")
    code = (
        "import sys; from hal.config import read_shape; str(read_shape(sys.argv[1])); "
        "print(sorted({'torch', 'numpy', 'transformers', 'triton'} & sys.modules.keys()))"
    )
    found = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


class Vivid(dict[str, Any]):
    """A mapping that makes up a value for any key that is asked for, and keeps it."""

    def __missing__(self, name: str) -> Any:
        self[name] = None
        return None


class CachingObject:
    """An object whose attributes leave traces in it: a cached property, a property that counts, a hook that keeps answers."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.__dict__.update(values)
        self.asked = 0

    @functools.cached_property
    def head_dim(self) -> int:
        return 16

    @property
    def sliding_window(self) -> None:
        self.asked += 1

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        setattr(self, name, None)
        return None


def vivid(value: Any) -> Any:
    return Vivid({name: vivid(item) for name, item in value.items()}) if isinstance(value, dict) else value


def defaulting(value: Any) -> Any:
    if isinstance(value, dict):
        return defaultdict(lambda: None, {name: defaulting(item) for name, item in value.items()})
    return value


def caching(value: Any) -> Any:
    return CachingObject({name: caching(item) for name, item in value.items()}) if isinstance(value, dict) else value


def traces(source: Any) -> Any:
    """Everything a source holds, at every level."""
    if isinstance(source, CachingObject):
        return {name: traces(value) for name, value in vars(source).items()}
    return {name: traces(value) for name, value in source.items()} if isinstance(source, dict) else source


@pytest.mark.parametrize("name", ["flat", "composite"])
@pytest.mark.parametrize("form", [defaulting, vivid, caching])
def test_reading_leaves_no_trace_in_a_source_that_makes_things_up(form: Callable[[Any], Any], name: str) -> None:
    source = form(SOURCES[name])
    before = repr(traces(source))
    shape = read_shape(source)
    assert repr(traces(source)) == before
    if form is not caching:
        assert shape == read_shape(SOURCES[name])


def test_a_mapping_gives_what_it_lists_and_nothing_else() -> None:
    """`__missing__` and a default factory answer for keys that the mapping does not have; these state nothing."""
    made_up = defaultdict(lambda: 7, {key: value for key, value in BLOCKS.items() if isinstance(value, int)})
    assert read_shape(made_up).layers[0].window is None
    assert read_shape(ChainMap({"hidden_size": 128}, dict(made_up))).hidden_size == 128
