"""Distributions that stand in each other's way: two that install one package, and versions that hal's extras exclude."""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Iterable, Iterator, Mapping

from hal.common.backends.plugins import OWN_DISTRIBUTION
from hal.common.contract.software import version_tuple
from hal.common.contract.wording import say_all

PACKAGES = ("hal", "torch", "triton", "transformers", "pynvml", "amdsmi", "pyrsmi", "pyzes")
"""Packages that hal imports and that several distributions are known to install; the last one installed wins."""

_REQUIREMENT = re.compile(r"\s*([A-Za-z0-9._-]+)\s*(?:\[[^\]]*\])?\s*([^;]*)(?:;(.*))?")
_CLAUSE = re.compile(r"\s*(>=|<=|==|!=|>|<)\s*([0-9][^,\s]*)\s*")
_SKIPPED_EXTRAS = ("demo", "test")


def find_clashes() -> tuple[str, ...]:
    """A sentence for each."""
    owners = importlib.metadata.packages_distributions()
    return (*find_shared(PACKAGES, owners), *find_excluded(importlib.metadata.requires(OWN_DISTRIBUTION) or ()))


def find_shared(packages: Iterable[str], owners: Mapping[str, list[str]]) -> Iterator[str]:
    """Those of some packages that several distributions install."""
    for package in packages:
        names = sorted(set(owners.get(package, ())))
        if len(names) > 1:
            yield f"several distributions install a package named {package}: {say_all(names)}; uninstall all but one"


def find_excluded(requirements: Iterable[str]) -> Iterator[str]:
    """Installed distributions of a version that one of hal's extras does not take, whether it was asked for or not."""
    for requirement in requirements:
        matched = _REQUIREMENT.fullmatch(requirement)
        if matched is None or any(f'extra == "{extra}"' in (matched[3] or "") for extra in _SKIPPED_EXTRAS):
            continue
        name, clauses = matched[1], _CLAUSE.findall(matched[2])
        version = _find_version(name)
        if version is not None and not all(_admits(version, operator, bound) for operator, bound in clauses):
            wanted = " and ".join(f"{operator} {bound}" for operator, bound in sorted(clauses, reverse=True))
            yield f"{name} {version} is installed and hal takes {wanted}: pip install '{name}{matched[2].strip()}'"


def _find_version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _admits(version: str, operator: str, bound: str) -> bool:
    have, limit = version_tuple(version), version_tuple(bound)
    answers = {
        ">=": have >= limit,
        "<=": have <= limit,
        ">": have > limit,
        "<": have < limit,
        "==": have == limit,
        "!=": have != limit,
    }
    return answers[operator]
