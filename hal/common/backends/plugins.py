"""Entry points that bring platforms and backends: listed from metadata, before anything of them is imported."""

from __future__ import annotations

import importlib.metadata
from dataclasses import dataclass, field

from hal.common.contract.environment import read_variable

GROUP = "hal.backends"
OWN_DISTRIBUTION = "hal-attention"
UNKNOWN = "unknown distribution"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plugin:
    """One entry point: its name, its distribution, what it points at ("module:object"), and whether it may be loaded.

    entry is None, with `failure`, where a distribution names the group and its list of entry points cannot be read.
    """

    name: str
    distribution: str
    target: str
    is_allowed: bool
    entry: importlib.metadata.EntryPoint | None = field(repr=False, compare=False)
    failure: Exception | None = field(default=None, repr=False, compare=False)

    @property
    def is_own(self) -> bool:
        """Whether hal itself brings it."""
        return self.distribution == OWN_DISTRIBUTION

    def __str__(self) -> str:
        return f"{self.name} ({self.distribution})"


def list_plugins() -> tuple[Plugin, ...]:
    """Every entry point of the group by name; with HAL_PLUGINS set, only hal's own and those it names may be loaded."""
    listed = read_variable("HAL_PLUGINS")
    allowed = None if listed is None else {name.strip() for name in listed.split(",")}
    entries, failures = _find_entries()
    plugins = []
    for entry in sorted(entries, key=lambda entry: entry.name):
        distribution = (entry.dist.name if entry.dist is not None else None) or UNKNOWN
        is_allowed = allowed is None or distribution == OWN_DISTRIBUTION or entry.name in allowed
        plugins.append(Plugin(name=entry.name, distribution=distribution, target=entry.value, is_allowed=is_allowed, entry=entry))
    unreadable = [
        Plugin(name="entry points", distribution=name, target="", is_allowed=allowed is None, entry=None, failure=failure)
        for name, failure in sorted(failures.items())
    ]
    return (*plugins, *unreadable)


def _find_entries() -> tuple[list[importlib.metadata.EntryPoint], dict[str, Exception]]:
    """The group's entry points, and by distribution what kept those of one that names the group from being read."""
    try:
        return list(importlib.metadata.entry_points(group=GROUP)), {}
    except Exception:  # noqa: BLE001 - one malformed list of whatever package ends the reading of all: ask each on its own
        pass
    entries: dict[str, list[importlib.metadata.EntryPoint]] = {}
    failures: dict[str, Exception] = {}
    for distribution in importlib.metadata.distributions():
        name = UNKNOWN
        try:
            name = str(distribution.name or UNKNOWN)
            # The first of a name on the path is the one that is imported.
            entries.setdefault(name, list(distribution.entry_points.select(group=GROUP)))
        except Exception as error:  # noqa: BLE001 - kept, and told where it concerns hal
            if _names_group(distribution):
                failures[name] = error
    return [entry for found in entries.values() for entry in found], failures


def _names_group(distribution: importlib.metadata.Distribution) -> bool:
    try:
        return GROUP in (distribution.read_text("entry_points.txt") or "")
    except Exception:  # noqa: BLE001 - what cannot be read may well name it
        return True


def find_unknown_plugins(plugins: tuple[Plugin, ...]) -> tuple[str, ...]:
    """Names in HAL_PLUGINS that no entry point has."""
    listed = read_variable("HAL_PLUGINS") or ""
    names = {name.strip() for name in listed.split(",")} - {"", "none"}
    return tuple(sorted(names - {plugin.name for plugin in plugins}))
