"""What is planned for where nobody says how much: by hal.plan() for a run, by `hal explain` for a fleet that serves."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal, NamedTuple

from hal.common.contract.limits import Limits
from hal.config import ModelShape


class Terms(NamedTuple):
    """Requests and tokens of a step, and the longest request: of a model that states no length, and of any other."""

    num_seqs: int
    batched_tokens: int
    unstated_len: int
    most_len: int | None


# A run takes the pool for all of it when it is opened, so that whole contexts are for whoever serves them to ask for; a fleet
# asks what would fit, and nothing is taken.
TERMS: Mapping[str, Terms] = MappingProxyType({"run": Terms(8, 2048, 4096, 8192), "fleet": Terms(64, 8192, 8192, None)})


def default_limits(
    shape: ModelShape,
    purpose: Literal["run", "fleet"] = "run",
    *,
    max_model_len: int | None = None,
    max_num_seqs: int | None = None,
    max_num_batched_tokens: int | None = None,
    block_size: int | None = None,
) -> Limits:
    """The limits given, and for the others those of a purpose: as many requests, of the model's length or what is most of it."""
    terms = TERMS[purpose]
    longest = shape.max_position_embeddings or terms.unstated_len
    return Limits(
        max_model_len=min(longest, terms.most_len or longest) if max_model_len is None else max_model_len,
        max_num_seqs=terms.num_seqs if max_num_seqs is None else max_num_seqs,
        max_num_batched_tokens=terms.batched_tokens if max_num_batched_tokens is None else max_num_batched_tokens,
        block_size=block_size,
    )


def default_dtype(shape: ModelShape) -> str:
    """The model's own type, or bfloat16 where its config states none."""
    return shape.dtype or "bfloat16"
