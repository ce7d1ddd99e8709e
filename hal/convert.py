"""A cache's pages moved to another platform's form of the same layout."""

from hal.common.contract.extras import naming_extra

with naming_extra("hal.convert"):
    from hal.common.contract.convert import convert_cache, convert_records

__all__ = ["convert_cache", "convert_records"]
