"""Entries that several tokens share: made of a step's states and of those that the cache remembers."""

from __future__ import annotations

from hal.common.contract.call_values import CompressedBatch
from hal.common.contract.compressor import Compressor
from hal.common.contract.step import StepMetadata

from .layer_kernels import LayerKernels
from .places import Place


def compress(
    kernels: LayerKernels, compressor: Compressor, states: Place, entries: Place, metadata: StepMetadata, ratio: int
) -> None:
    """Write the step's states and the entries that its tokens close."""
    batch = CompressedBatch(
        state_slots=states.slots(metadata),
        entry_slots=entries.slots(metadata),
        query_start_loc=metadata.query_start_loc,
        req_id=metadata.req_id_per_token,
        positions=metadata.positions,
        block_table=metadata.groups[states.group].batch.block_table,
    )
    kernels.calls.compress_states(compressor, states.cache, entries.cache, batch, ratio=ratio)
