"""The calls that an adapter makes, kept as values."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

from hal.common.vendor import Resolver, VendorCall


@contextmanager
def recorded_calls() -> Iterator[list[VendorCall]]:
    """Every vendor call made while the context lasts."""
    calls: list[VendorCall] = []
    original = Resolver.call

    def call(self: Resolver, call: VendorCall) -> object:
        calls.append(call)
        return original(self, call)

    with mock.patch.object(Resolver, "call", call):
        yield calls
