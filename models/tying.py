"""Which parameters share storage, and what says so."""

from __future__ import annotations

from collections.abc import Mapping

from transformers import PreTrainedModel


def explain_ties(module: PreTrainedModel, tied: Mapping[str, str]) -> dict[str, str]:
    """For every tied parameter the class that ties it and the field of the config that says it should."""
    models = [(name, child) for name, child in module.named_modules() if isinstance(child, PreTrainedModel)]
    ties = {path: (child, child.get_expanded_tied_weights_keys()) for path, child in models}
    reasons = {}
    for name in tied:
        owners = [child for path, (child, names) in ties.items() if name.removeprefix(f"{path}." if path else "") in names]
        owner = owners[-1] if owners else module
        reasons[name] = f"{type(owner).__name__} ties it where {type(owner.config).__name__}.tie_word_embeddings is true"
    return reasons
