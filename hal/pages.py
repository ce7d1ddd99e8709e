"""Pages of paged caches: which are in use, which a request has in every cache group, and the tables of a step."""

from hal.common.extras import naming_extra

with naming_extra("hal.pages"):
    from hal.common.page_tables import RequestPages, stack_tables
    from hal.common.pages import PagePool

__all__ = ["PagePool", "RequestPages", "stack_tables"]
