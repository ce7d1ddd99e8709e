"""Random engine histories: who steps, by how much, in which order."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st

Step = tuple[tuple[int, int], ...]
BOUNDED = settings(max_examples=30, deadline=None, derandomize=True)


@st.composite
def steps(draw, requests: int = 4, longest: int = 7) -> Step:
    """Some of the requests in any order with any number of new tokens, none included."""
    names = draw(st.permutations(range(requests)))[: draw(st.integers(0, requests))]
    return tuple((name, draw(st.integers(0, longest))) for name in names)


# A step, and the request that leaves after it (None: nobody).
HISTORIES = st.lists(st.tuples(steps(), st.none() | st.integers(0, 3)), min_size=1, max_size=4)
