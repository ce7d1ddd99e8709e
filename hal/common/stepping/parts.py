"""What a metadata builder's two ways, from the host and from a device, have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from hal.common.planning.row_rules import RowRule, row_rules
from hal.common.planning.step_arrays import list_regions

from .assemble import Assembler
from .block_ids import make_rules
from .pages import PagePool
from .phase_work import WorkPlanner
from .shards import ShardBounds
from .staging import Staging

if TYPE_CHECKING:
    from hal.common.contract.plan import Plan
    from hal.common.contract.step import StepMetadata


class StepParts:
    """The rules, arrays and views of a builder's steps. step_id counts them; row_rules: () where rows are tokens everywhere."""

    def __init__(self, plan: Plan, pools: tuple[PagePool, ...], torch_device: str, can_mask: bool) -> None:
        every_rule, num_groups = row_rules(plan.groups), max(1, len(plan.groups))
        self.plan = plan
        self.rules = make_rules(plan, pools)
        self.row_rules = every_rule if any(rule != RowRule() for rule in every_rule) else ()
        self.shards = ShardBounds(plan, torch_device) if plan.parallel.dcp > 1 else None
        self.staging = Staging(list_regions(plan.shape, plan.limits, plan.parallel, plan.block_size, plan.groups), torch_device)
        self.assembler = Assembler(self.staging, every_rule, num_groups, self.shards)
        self.planner = WorkPlanner(plan, self.staging, can_mask)
        self.device_type = torch.device(torch_device).type
        self.step_id = 0

    @property
    def decode_len(self) -> int:
        """The most new tokens of a decode."""
        return 1 + self.plan.num_spec_tokens

    def begin(self) -> None:
        """Go on to the next step, of which nothing is wrong."""
        self.step_id += 1
        self.staging.turn()
        self.planner.restart()
        self.assembler.given_tables = None

    def finish(self, metadata: StepMetadata) -> StepMetadata:
        """The metadata, with this rank's share of it where ranks share tokens."""
        if self.shards is not None:
            self.shards.fill(metadata)
        return metadata
