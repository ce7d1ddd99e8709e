"""What a conformance case is, and how large a suite of them gets."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import TypeVar

from hal.common.contract.backend import Backend
from hal.common.contract.capabilities import Capabilities

Check = Callable[[Backend], None]
Item = TypeVar("Item")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One check of one call: `check(backend)` returns nothing or raises ConformanceError. The id is readable and unique."""

    call: str
    id: str
    check: Check


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """How much of the suite is run, and at which sizes.

    crossed: every dtype with every page size and every batch; else each of them varies alone.
    block_sizes: page sizes, of which a backend gets the multiples of its own. heads: (query heads, KV heads), the first
    pair being the usual one. widths: (head_dim, v_head_dim), likewise. latents: (kv_lora_rank, qk_rope_head_dim), likewise.
    index: index heads and their width. has_far_rows: also address a cache of more than 2**31 elements.
    """

    name: str
    crossed: bool
    block_sizes: tuple[int, ...]
    heads: tuple[tuple[int, int], ...]
    widths: tuple[tuple[int, int], ...]
    latents: tuple[tuple[int, int], ...]
    latent_heads: tuple[int, ...]
    index: tuple[int, int]
    topk: int = 8
    has_far_rows: bool = False


FULL = Profile(
    name="full",
    crossed=True,
    block_sizes=(1, 16, 64),
    heads=((4, 2), (3, 3), (8, 1), (12, 4)),
    widths=((16, 16), (24, 16), (16, 40), (128, 128)),
    latents=((32, 16), (48, 0), (512, 64)),
    latent_heads=(4, 1, 16),
    index=(4, 32),
    has_far_rows=True,
)
SMALL = Profile(
    name="small",
    crossed=False,
    block_sizes=(1, 16),
    heads=((4, 2), (3, 1)),
    widths=((16, 16), (24, 32)),
    latents=((32, 16), (48, 0)),
    latent_heads=(4, 1),
    index=(4, 32),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """A profile cut to what a backend declares that it takes."""

    profile: Profile
    dtypes: tuple[str, ...]
    block_sizes: tuple[int, ...]
    heads: tuple[tuple[int, int], ...]
    widths: tuple[tuple[int, int], ...]
    latent_heads: tuple[int, ...]
    topk_widths: tuple[int, ...]

    @property
    def dtype(self) -> str:
        """The dtype in which what has nothing to do with dtypes is checked: the most exact one that is no float64."""
        return next((name for name in ("float32", "float16", "bfloat16") if name in self.dtypes), self.dtypes[0])

    @property
    def block_size(self) -> int:
        """The page size of checks that have nothing to do with page sizes."""
        return 16 if 16 in self.block_sizes else self.block_sizes[0]

    @property
    def option_block_sizes(self) -> tuple[int, ...]:
        """The page sizes with which options are tried out: all, or the usual one where nothing is crossed."""
        return self.block_sizes if self.profile.crossed else (self.block_size,)

    @property
    def uncrossed(self) -> Sizes:
        """The same sizes varied one at a time, in two dtypes: for what changes how rows are read and not what is computed."""
        half = [name for name in self.dtypes if name != self.dtype and name.endswith("float16")][-1:]
        return replace(self, dtypes=(self.dtype, *half), profile=replace(self.profile, crossed=False))

    def sweep(self, make_items: Callable[[int], Sequence[Item]]) -> Iterator[tuple[str, int, Item]]:
        """(dtype, block_size, item) for the items of every page size: all crossed, or one varied at a time.

        Where they are not crossed, another dtype gets the first item, another page size the first and the last.
        """
        for dtype, block_size in product(self.dtypes, self.block_sizes):
            items = make_items(block_size)
            if not self.profile.crossed and (dtype, block_size) != (self.dtype, self.block_size):
                items = (items[0], items[-1]) if dtype == self.dtype else items[: block_size == self.block_size]
            for item in items:
                yield dtype, block_size, item


def fit_sizes(capabilities: Capabilities, profile: Profile) -> Sizes:
    """The sizes at which a backend is checked; ValueError where its declaration leaves none."""
    multiple = capabilities.block_size_multiple
    block_sizes = tuple(size for size in profile.block_sizes if size % multiple == 0) or (multiple,)
    if not capabilities.dtypes:
        raise ValueError("the capabilities name no dtype; a conformance suite needs at least one")
    return Sizes(
        profile=profile,
        dtypes=capabilities.dtypes,
        block_sizes=block_sizes,
        heads=_fit_heads(profile.heads, capabilities.max_heads),
        widths=_fit_widths(profile.widths, capabilities),
        latent_heads=tuple(heads for heads, _ in _fit_heads([(n, 1) for n in profile.latent_heads], capabilities.max_heads)),
        topk_widths=tuple(_round_up(width, capabilities.topk_multiple) for width in (profile.topk, 3 * profile.topk)),
    )


def describe(*words: object) -> str:
    """An id from words: those that are empty or None are left out."""
    return "-".join(str(word) for word in words if word not in ("", None))


def _fit_heads(heads: Iterable[tuple[int, int]], limit: int | None) -> tuple[tuple[int, int], ...]:
    fitting = tuple(pair for pair in heads if limit is None or pair[0] <= limit)
    return fitting or ((1, 1),)


def _fit_widths(widths: Iterable[tuple[int, int]], capabilities: Capabilities) -> tuple[tuple[int, int], ...]:
    keys, values = capabilities.head_dims, capabilities.v_head_dims or capabilities.head_dims
    if not keys:
        return tuple(pair for pair in widths if not values or pair[1] in values) or ((16, min(values)),)
    fitting = [pair for pair in widths if pair[0] in keys and pair[1] in values]
    return tuple(fitting) or ((min(keys), min(values)),)


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
