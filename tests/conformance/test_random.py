"""Random batches: every backend that can run here agrees with the reference. Other calls: tests/differential."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hal.common.contract.backend import required_calls
from hal.common.contract.masking import Masking
from hal.testing import FULL
from hal.testing.case import fit_sizes
from hal.testing.cases import BatchCase
from hal.testing.suite.paged import PagedCase, check_paged
from hal.testing.targets import Target, find_targets

BOUNDED = settings(max_examples=30, deadline=None, derandomize=True)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "target" in metafunc.fixturenames:
        targets = find_targets(metafunc.config.getoption("--backend"))
        marked = [pytest.param(t, id=t.id, marks=[pytest.mark.hardware] * t.needs_hardware) for t in targets]
        metafunc.parametrize("target", marked)


def open_target(target: Target, call: str):
    if call not in required_calls(target.backend.capabilities):
        pytest.skip(f"{target.id} does not promise {call}")
    return target.backend(target.device)


@st.composite
def batch_cases(draw):
    lengths = draw(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 40)), max_size=5))
    queries = tuple(query for query, _ in lengths)
    return BatchCase(id="random", query_lens=queries, seq_lens=tuple(query + past for query, past in lengths))


@BOUNDED
@given(data=st.data(), batch=batch_cases(), name=st.text("abc", max_size=4), kv_heads=st.integers(1, 3), group=st.integers(1, 3))
def test_paged_attention_on_any_batch_is_the_references(target, data, batch, name, kv_heads, group):
    backend, declared = open_target(target, "paged_attention"), target.backend.capabilities
    sizes = fit_sizes(declared, FULL)
    if "attention" not in declared.families:
        pytest.skip(f"{target.id} serves no plain attention")
    limits = st.none() | st.integers(1, 50)
    check_paged(
        PagedCase(
            layout="kv",
            dtype=sizes.dtype,
            block_size=data.draw(st.sampled_from(sizes.block_sizes)),
            batch=batch,
            heads=kv_heads * group,
            kv_heads=kv_heads,
            widths=sizes.widths[0],
            note=name,
            masking=Masking(
                window=data.draw(limits) if declared.window else None,
                chunk=data.draw(limits) if declared.chunk else None,
                softcap=data.draw(st.none() | st.floats(0.5, 50)) if declared.softcap else None,
            ),
            need_lse=declared.lse,
        ),
        backend,
    )
