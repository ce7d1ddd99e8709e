"""Who of a decode-context group stores which token, and how many; numbers and tensors alike."""

from hal.common.contract.parallel import Parallel, global_position, local_length, local_position, owner

__all__ = ["Parallel", "global_position", "local_length", "local_position", "owner"]
