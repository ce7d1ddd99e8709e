"""Entry points that bring platforms and backends: listed from metadata, before anything of them is imported."""

from __future__ import annotations

import importlib.metadata
from dataclasses import dataclass, field

from .environment import read_variable

GROUP = "hal.backends"
OWN_DISTRIBUTION = "hal-attention"
UNKNOWN = "unknown distribution"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plugin:
    """One entry point: its name, its distribution, what it points at ("module:object"), and whether it may be loaded."""

    name: str
    distribution: str
    target: str
    is_allowed: bool
    entry: importlib.metadata.EntryPoint = field(repr=False, compare=False)

    def __str__(self) -> str:
        return f"{self.name} ({self.distribution})"


def list_plugins() -> tuple[Plugin, ...]:
    """Every entry point of the group by name; with HAL_PLUGINS set, only hal's own and those it names may be loaded."""
    listed = read_variable("HAL_PLUGINS")
    allowed = None if listed is None else {name.strip() for name in listed.split(",")}
    plugins = []
    for entry in sorted(importlib.metadata.entry_points(group=GROUP), key=lambda entry: entry.name):
        distribution = entry.dist.name if entry.dist is not None else UNKNOWN
        is_allowed = allowed is None or distribution == OWN_DISTRIBUTION or entry.name in allowed
        plugins.append(Plugin(name=entry.name, distribution=distribution, target=entry.value, is_allowed=is_allowed, entry=entry))
    return tuple(plugins)


def find_unknown_plugins(plugins: tuple[Plugin, ...]) -> tuple[str, ...]:
    """Names in HAL_PLUGINS that no entry point has."""
    listed = read_variable("HAL_PLUGINS") or ""
    names = {name.strip() for name in listed.split(",")} - {"", "none"}
    return tuple(sorted(names - {plugin.name for plugin in plugins}))
