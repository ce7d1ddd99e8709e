"""The metadata builder: one class, for every platform."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

import numpy as np

from hal.common.contract.batch import Batch
from hal.common.contract.device_batch import DeviceBatch
from hal.common.contract.errors import BatchError, InputError
from hal.common.contract.step import StepMetadata

from .checks import check_counts
from .from_device import DeviceFiller
from .from_host import build_from_host
from .pages import PagePool
from .parts import StepParts

if TYPE_CHECKING:
    from hal.common.contract.plan import Plan


class MetadataBuilder:
    """Turns batches into StepMetadata in persistent buffers; everything it knows of the model comes from the plan.

    pools: one for each cache group. can_mask: the varlen kernel takes an explicit choice of keys, so that a pruned prefill may
    be decompressed.
    """

    def __init__(self, plan: Plan, pools: tuple[PagePool, ...], torch_device: str, can_mask: bool = False) -> None:
        self.plan = plan
        self._parts = StepParts(plan, pools, torch_device, can_mask)
        self._device_filler = DeviceFiller(self._parts, torch_device)

    @property
    def topk_tokens(self) -> int | None:
        """The keys that the model's indexers keep for a token, None where it has none."""
        return self.plan.shape.index_topk

    @property
    def step_id(self) -> int:
        """The number of the step that was built last, whose metadata the buffers hold."""
        return self._parts.step_id

    @property
    def lost_tokens(self) -> int:
        """Tokens of device batches, so far, that could be written nowhere; reading it waits for the device."""
        return int(self._device_filler.lost_tokens)

    @property
    def lost_pages(self) -> int:
        """Ids in live columns of device tables, so far, that were none of the pool's; reading it waits for the device.

        The step's metadata has no key for a request with such an id, so that no kernel has to know of it.
        """
        return int(self._device_filler.lost_pages)

    @final
    def build(self, batch: Batch | DeviceBatch) -> StepMetadata:
        """The metadata of a step; BatchError, with nothing written, for a batch that the plan or the caches do not allow."""
        if isinstance(batch, DeviceBatch):
            return self._device_filler.build(batch, self)
        if not isinstance(batch, Batch):
            raise BatchError(f"a step is built of a Batch or of Batch.from_device's answer, not of a {type(batch).__name__}")
        return build_from_host(self._parts, batch, self)

    @final
    def build_for_capture(self, num_reqs: int, num_tokens: int) -> StepMetadata:
        """The metadata of a made-up step of this size, lengths spread evenly, for capturing a graph or warming up."""
        parts, limits = self._parts, self.plan.limits
        for name, count in (("num_reqs", num_reqs), ("num_tokens", num_tokens)):
            if isinstance(count, bool) or not isinstance(count, (int, np.integer)):
                raise InputError(f"{name} is {count!r}; expected a whole number")
        if num_reqs < 1 or num_tokens < num_reqs:
            raise InputError(f"cannot spread {num_tokens} tokens over {num_reqs} requests; each needs at least one")
        check_counts(num_reqs, num_tokens, limits)
        query_lens = np.full(num_reqs, num_tokens // num_reqs)
        query_lens[: num_tokens % num_reqs] += 1
        pages = -(-int(query_lens.max()) // self.plan.tokens_per_page)
        num_tables = 1 if parts.rules.shared is not None else len(parts.rules.groups)
        made_up = Batch(query_lens, query_lens, [np.zeros((num_reqs, pages), np.int32)] * num_tables)
        # A captured graph is replayed with longer requests: what is chosen by the longest must hold for any.
        metadata = build_from_host(parts, made_up, self, limits.max_model_len, is_written=False)
        # Its pages belong to running requests: the made-up tokens must not be written to them.
        parts.staging.host["slots"][:, :num_tokens] = -1
        parts.staging.upload()
        return metadata
