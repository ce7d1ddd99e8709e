"""Pages of paged caches: which are in use, which a request has in every cache group, and the tables of a step."""

from hal.common.contract.extras import naming_extra

with naming_extra("hal.pages"):
    from hal.common.stepping.page_tables import RequestPages, stack_tables
    from hal.common.stepping.pages import PagePool

__all__ = ["PagePool", "RequestPages", "stack_tables"]
