"""The contract over every registered backend: a call added to it is missed by name, and hal's own jobs stay hal's."""

from __future__ import annotations

import pytest

from hal.common.backends.registry import backends
from hal.common.contract import backend as contract
from hal.common.contract.backend import CALLS_BY_FAMILY, Backend, check_backend
from hal.common.contract.errors import BackendError

WRITTEN = [cls for cls in backends().values() if cls.capabilities is not None]


@pytest.mark.parametrize("family", sorted(CALLS_BY_FAMILY))
@pytest.mark.parametrize("able", WRITTEN, ids=lambda cls: cls.name)
def test_call_added_to_the_contract_refuses_exactly_the_classes_that_lack_it(
    monkeypatch: pytest.MonkeyPatch, family: str, able: type[Backend]
) -> None:
    def rotate_cache(self: Backend) -> None:
        raise NotImplementedError

    monkeypatch.setattr(Backend, "rotate_cache", rotate_cache, raising=False)
    monkeypatch.setitem(contract.CALLS_BY_FAMILY, family, (*CALLS_BY_FAMILY[family], "rotate_cache"))
    monkeypatch.setattr(able, "rotate_cache", lambda _: None, raising=False)
    refused = {}
    for cls in WRITTEN:
        try:
            check_backend(cls)
        except BackendError as error:
            refused[cls] = str(error)
    lacking = [cls for cls in WRITTEN if family in cls.capabilities.families and not issubclass(cls, able)]
    assert refused == {cls: f"{cls.name} ({cls.__qualname__}) promises calls that it lacks: rotate_cache" for cls in lacking}


@pytest.mark.parametrize("cls", WRITTEN, ids=lambda cls: cls.name)
@pytest.mark.parametrize("job", ["build", "plan", "select", "open", "allocate", "attend"])
def test_subclass_that_overrides_hals_job_cannot_be_made(cls: type[Backend], job: str) -> None:
    with pytest.raises(TypeError, match=f"overrides {job}"):
        type("Greedy", (cls,), {job: lambda _: None})


@pytest.mark.parametrize("cls", WRITTEN, ids=lambda cls: cls.name)
def test_declared_calls_are_the_classes_own(cls: type[Backend]) -> None:
    """What a vendor backend lists as its library's is written in it, and nothing else is but for what a backend is told."""
    if cls.provides is None:
        return
    own = {call for call in Backend.__dict__ if call in cls.__dict__ and not call.startswith(("_", "explain"))}
    told = {
        "prepare_step",
        "name",
        "platform",
        "capabilities",
        "libraries",
        "alternatives",
        "former_names",
        "preferred_block_size",
        "provides",
    }
    assert own - told == cls.provides
