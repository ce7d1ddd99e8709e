"""How far it is shown that a backend's call does what the contract says, and in which words that is told."""

from __future__ import annotations

SCHEMA = 1
"""Of the report files that suites write."""

STATES = ("verified", "executed", "emulated", "compiled", "declared", "unsupported")
"""The strongest first. verified: on the arch itself. executed: compiled or vendor's code, on a CPU in the arch's place.
emulated: in an interpreter, or against a stand-in of the vendor's library. compiled: ahead of time, within the arch's limits.
declared: by the backend's capabilities alone. unsupported: by nobody."""

_WORDS = {
    "verified": "ran on a card",
    "executed": "executed on a CPU",
    "emulated": "emulated",
    "compiled": "compiled",
    "declared": "declared",
    "unsupported": "unsupported",
}


def say_state(state: str, *, is_card: bool) -> str:
    """The state for people; what is verified on a CPU, whose own device that is, ran on no card."""
    return "verified on a CPU" if state == "verified" and not is_card else _WORDS[state]


def weakest(states: list[str]) -> str:
    """The state of what needs them all; "declared" for nothing."""
    return max(states, key=STATES.index) if states else "declared"


def shorten_commit(commit: str) -> str:
    """Nine letters of a commit, and whether the checkout differed from it."""
    head, dash, changed = commit.partition("-")
    return f"{head[:9]}{dash}{changed}"
