"""hal compile: the portable kernels, compiled for archs that are not here, with what each binary takes and holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from hal.common.backends.detection import find_device
from hal.common.backends.proof_report import read_commit, write_report
from hal.common.contract.device import Device
from hal.common.contract.parallel import Parallel
from hal.common.contract.wording import say_all
from hal.config import ModelShape
from hal.matrix.compile import CompileReport, compile_models, fleet_devices, sample_models
from hal.matrix.compiled import report_rows
from hal.matrix.models import read_models

from .console import InputError, checked, fail, make_console, print_json

FAILED = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What the command line asks; without configs the sample models, without targets the whole fleet."""

    configs: tuple[Path, ...] = ()
    targets: tuple[str, ...] = ()
    tp: int = 1
    jobs: int = 2


def run_compile(order: Order, *, as_json: bool, proof: Path | None = None) -> int:
    """0 where every binary is good, 1 where one is not, 2 where nothing could be compiled for a target that was named.

    A target of the fleet that this environment has no compiler for is reported, and is no failure unless it was named or
    nothing else was compiled. proof: where to write what the binaries prove, as a report file of hal.matrix.
    """
    from .compile_view import by_reason, show, to_dict

    models = _read_models(order.configs)
    devices = tuple(checked(find_device, target) for target in order.targets) or fleet_devices()
    checked(lambda tp: Parallel(tp=tp), order.tp)
    commit = read_commit(Path(__file__).parent) if proof is not None else ""
    report = _compile(models, devices, order)
    if proof is not None:
        write_report(proof, report_rows(report, models), commit)
    if as_json:
        print_json(to_dict(report))
    else:
        show(report, models, make_console())
    if any(row.faults for row in report.rows):
        return FAILED
    if report.absent and (order.targets or not report.rows):
        absent = by_reason(report.absent).items()
        return fail("; ".join(f"{say_all(of)} {'was' if len(of) == 1 else 'were'} not compiled: {why}" for why, of in absent))
    return 0


def _read_models(configs: Sequence[Path]) -> Mapping[str, ModelShape]:
    if not configs:
        return sample_models()
    missing = [config for config in configs if not config.exists()]
    if missing:
        raise InputError(f"{missing[0]} does not exist; give a config.json or the model folder that holds one")
    return read_models(configs)


def _compile(models: Mapping[str, ModelShape], devices: Sequence[Device], order: Order) -> CompileReport:
    """The report, with a bar on stderr where that is a terminal."""
    console = Console(stderr=True)
    columns = (TextColumn("compiling"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("compiling", total=None)
        return compile_models(
            models,
            devices,
            tp=order.tp,
            workers=order.jobs,
            on_start=lambda count: progress.update(task, total=count),
            on_done=lambda: progress.advance(task),
        )
