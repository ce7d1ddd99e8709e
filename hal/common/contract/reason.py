"""Why a backend cannot serve a request: a code from a closed list, what there is, what it would take."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from hal.config.errors import InputError

_SENTENCES = {
    "platform": "it runs on {want} devices, not on {have}",
    "arch": "arch {have} is not among {want}",
    "not_built": "{have} is not written yet",
    "library_absent": "it needs {want}, which is not installed",
    "library_broken": "{want} is installed but does not load: {have}",
    "library_version": "it needs {want}, found {have}",
    "kind": "it serves {want}, not {have}",
    "dtype": "dtype {have} is not one of {want}",
    "kv_layout": "KV layout {have} is not one of {want}",
    "block_size": "block size {have} does not fit {want}",
    "head_dim": "head_dim {have} is not {want}",
    "v_head_dim": "v_head_dim {have} is not {want}",
    "heads": "{have}, it takes {want}",
    "topk_width": "top-k width {have} is not {want}",
    "window": "a window of {have} keys, it takes {want}",
    "sink": "attention sinks: {have}, it takes {want}",
    "softcap": "a softcap of {have}, it takes {want}",
    "causal": "causal={have}, it takes {want}",
    "chunk": "chunked attention of {have} keys, it takes {want}",
    "position_bias": "a position bias ({have}), it takes {want}",
    "dcp": "{have} decode-context ranks, it takes {want}",
    "lse": "an LSE is asked for, it returns {want}",
    "deterministic": "deterministic results are asked for, it is {have}",
    "graphs": "graph capture {have}, it allows {want}",
    "spec_decode": "{have} speculative tokens, it takes {want}",
    "compressed": "{have}, it takes {want}",
    "memory": "{have} of memory, it needs {want}",
}

CODES = tuple(_SENTENCES)

_ENVIRONMENT = frozenset({"platform", "arch", "not_built", "library_absent", "library_broken", "library_version"})


@dataclass(frozen=True, slots=True)
class Reason:
    """One obstacle. `have` is the request's or machine's value, `want` what the backend takes, `fix` a next step or ""."""

    code: str
    have: object
    want: object
    fix: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.code, str) or self.code not in _SENTENCES:
            raise InputError(f"unknown reason code {self.code!r}; codes: {', '.join(CODES)}")
        # A set has no order of its own: sorted, the same reason reads and serialises the same in every process.
        for name in ("have", "want"):
            value = getattr(self, name)
            if isinstance(value, (frozenset, set)):
                object.__setattr__(self, name, tuple(sorted(value, key=lambda item: (str(type(item)), item))))

    def __str__(self) -> str:
        text = _SENTENCES[self.code].format(have=show(self.have), want=show(self.want))
        return f"{text}; {self.fix}" if self.fix else text

    @property
    def is_environmental(self) -> bool:
        """Whether the cause lies in the machine rather than in the request."""
        return self.code in _ENVIRONMENT


def show(value: object) -> str:
    """A value as a person writes it: collections as "a, b or c", None as "none"."""
    if value is None:
        return "none"
    if isinstance(value, (tuple, list)):
        items = [show(item) for item in value]
        return items[0] if len(items) == 1 else ", ".join(items[:-1]) + (f" or {items[-1]}" if items else "nothing")
    return str(value)


def order_reasons(reasons: Iterable[Reason]) -> tuple[Reason, ...]:
    """The reasons without duplicates, those that concern the whole environment first."""
    unique = dict.fromkeys(reasons)
    return tuple(sorted(unique, key=lambda reason: not reason.is_environmental))
