"""What a vendor's kernel takes, as data: one row per kernel, release line and arch family, from a TOML file.

A row may say like = "name": it then starts from the columns of [shared.name].
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from importlib.resources import files
from typing import Any

from hal.common.contract.backend import PHASES


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelFacts:
    """One kernel. Empty tuples mean "any"; the first row that fits is the one that is called.

    library: its name in hal.Software; minimum and below: the releases whose interface is known, the second exclusive.
    api: which spelling of the call it takes. options: arguments that never vary. families and phases: what it serves.
    head_counts: query heads it is compiled for, others are padded up to the next. Values are as wide as keys but for
    width_pairs, (key, value); pads_values: narrower ones are padded. ropes, min_lora, max_lora: latent caches. block_sizes:
    page sizes, of which the last stands for its multiples too. max_gathered_heads: the most heads of a whole DCP group.
    max_query_len: the most queries of one request. flag: an attribute of the module that is true where the kernels are really
    there. foreign_arguments: arguments that only releases of another interface take, whatever version they name;
    interface: the function of the same module that shows it, the target where empty. kv_layouts: the caches that it reads.
    """

    name: str
    library: str
    api: str
    call: str
    target: str
    archs: tuple[str, ...]
    dtypes: tuple[str, ...]
    families: tuple[str, ...]
    other_targets: tuple[str, ...] = ()
    phases: tuple[str, ...] = PHASES
    minimum: str = ""
    below: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    head_counts: tuple[int, ...] = ()
    max_heads: int | None = None
    max_gathered_heads: int | None = None
    max_query_len: int | None = None
    head_dims: tuple[int, ...] = ()
    max_head_dim: int | None = None
    width_pairs: tuple[tuple[int, int], ...] = ()
    pads_values: bool = False
    ropes: tuple[int, ...] = ()
    min_lora: int = 1
    max_lora: int | None = None
    block_sizes: tuple[int, ...] = (1,)
    window: bool = False
    softcap: bool = False
    non_causal: bool = False
    lse: bool = False
    foreign_arguments: tuple[str, ...] = ()
    interface: str = ""
    kv_layouts: tuple[str, ...] = ("kv", "latent")
    flag: str = ""
    flag_reason: str = ""

    @property
    def most_heads(self) -> int | None:
        """The most query heads that one call takes, None where there is no limit."""
        return self.max_heads if self.max_heads is not None else max(self.head_counts, default=None)

    def beside(self, function: str) -> str:
        """The target that another function of the same module is."""
        return f"{self.target.partition(':')[0]}:{function}"

    def padded_heads(self, heads: int) -> int:
        """The number of query heads to call with."""
        return next((count for count in self.head_counts if count >= heads), heads)

    def takes_block_size(self, size: int) -> bool:
        """Whether a page may hold this many tokens."""
        return size in self.block_sizes or size % self.block_sizes[-1] == 0


def read_kernels(package: str, name: str) -> tuple[KernelFacts, ...]:
    """The rows of a platform package's file, in its order; ValueError names an unknown or missing column."""
    data = tomllib.loads(files(package).joinpath(name).read_text(encoding="utf-8"))
    shared = data.get("shared", {})
    return tuple(_read_kernel(f"{package}/{name}: kernel {key}", key, row, shared) for key, row in data["kernel"].items())


def _read_kernel(where: str, name: str, row: dict[str, Any], shared: Mapping[str, Any]) -> KernelFacts:
    like = row.pop("like", None)
    if like is not None and like not in shared:
        raise ValueError(f"{where} is like {like!r}, which [shared] does not have; it has {sorted(shared)}")
    columns = {"name": name, **shared.get(like, {}), **row}
    known = {column.name for column in fields(KernelFacts)}
    needed = {column.name for column in fields(KernelFacts) if column.default is MISSING and column.default_factory is MISSING}
    unknown, missing = sorted(columns.keys() - known), sorted(needed - columns.keys())
    if unknown or missing:
        faults = [f"has unknown columns {unknown}"] * bool(unknown) + [f"lacks {missing}"] * bool(missing)
        raise ValueError(f"{where} {' and '.join(faults)}; known: {sorted(known)}")
    return KernelFacts(**{key: _freeze(value) for key, value in columns.items()})


def _freeze(value: Any) -> Any:
    return tuple(_freeze(item) for item in value) if isinstance(value, list) else value
