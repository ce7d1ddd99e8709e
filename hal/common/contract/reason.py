"""Why a backend cannot serve a request: a code from a closed list, what there is, what it would take."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from hal.config.errors import InputError

# {it}, {is_} and the verbs are said of one backend or of several; {code} is the code of whoever `have` names.
_SENTENCES = {
    "platform": "{it} {runs} on {want} devices, not on {have}",
    "arch": "arch {have} is not among {want}",
    "not_built": "{code} is not written yet",
    "library_absent": "{it} {needs} {want}, which is not installed",
    "library_broken": "{want} is installed but does not load: {have}",
    "library_version": "{it} {needs} {want}, found {have}",
    "kind": "{it} {serves} {want}, not {have}",
    "dtype": "dtype {have} is not one of {want}",
    "kv_layout": "KV layout {have} is not one of {want}",
    "block_size": "block size {have} does not fit {want}",
    "head_dim": "head_dim {have} is not {want}",
    "v_head_dim": "v_head_dim {have} is not {want}",
    "heads": "{have}, {it} {takes} {want}",
    "topk_width": "top-k width {have} is not {want}",
    "window": "a window of {have} keys, {it} {takes} {want}",
    "sink": "attention sinks: {have}, {it} {takes} {want}",
    "softcap": "a softcap of {have}, {it} {takes} {want}",
    "causal": "causal={have}, {it} {takes} {want}",
    "chunk": "chunked attention of {have} keys, {it} {takes} {want}",
    "position_bias": "a position bias ({have}), {it} {takes} {want}",
    "dcp": "{have} decode-context ranks, {it} {takes} {want}",
    "lse": "an LSE is asked for, {it} {returns} {want}",
    "deterministic": "deterministic results are asked for, {it} {is_} {have}",
    "graphs": "graph capture {have}, {it} {allows} {want}",
    "spec_decode": "{have} speculative tokens, {it} {takes} {want}",
    "compressed": "{have}, {it} {takes} {want}",
    "memory": "{have} of memory, {it} {needs} {want}",
}
_VERBS = ("runs", "needs", "serves", "takes", "returns", "allows")
_ONE = {"it": "it", "is_": "is", "its": "its", **{verb: verb for verb in _VERBS}}
_SEVERAL = {"it": "they", "is_": "are", "its": "their", **{verb: verb.removesuffix("s") for verb in _VERBS}}

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
        return self.render()

    def render(self, subjects: Sequence[str] = ()) -> str:
        """The sentence, with its next step, as it is said of the backends of these names: of "it" or of "them"."""
        words = _SEVERAL if len(subjects) > 1 else _ONE
        code = f"{words['its']} code" if self.have is None else show(self.have)
        text = _SENTENCES[self.code].format(have=show(self.have), want=show(self.want), code=code, **words)
        return f"{text}; {self.fix}" if self.fix else text

    def without(self, name: str) -> Reason:
        """The reason that says nothing of the backend of this name, so that what stops several is one reason."""
        return replace(self, have=None) if self.have == name else self

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
