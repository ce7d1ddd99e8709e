"""hal matrix --github: the cells of CI for GitHub's workflows."""

from __future__ import annotations

from hal.matrix.ci import choose_cells, read_cells
from hal.matrix.github import github_matrix

from .console import InputError, checked


def run_github(names: str | None, *, is_alone: bool) -> int:
    """0 after printing every hosted cell, and the hardware cells of some names, all by default, as one line of JSON."""
    if not is_alone:
        raise InputError("--cells goes with --github, and --github with no config, target or other form")
    cells = read_cells()
    hosted = [cell for cell in cells if not cell.needs_hardware]
    hardware = checked(lambda given: choose_cells(cells, given), "all" if names is None else names)
    print(github_matrix(hosted, hardware))
    return 0
