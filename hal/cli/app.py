"""The commands and their options; each command's work lies in the module of its name."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from hal.common.contract.extras import naming_extra
from hal.config import HalError

from .console import InputError, fail, start_logging

HAL_EXAMPLES = """Examples:

  hal doctor

  hal explain config.json --device cuda:sm_90 --memory 80

  hal generate ./my-model "What is the capital of France?"

Each command's own --help has more.
"""

app = typer.Typer(
    help="One attention layer for a mixed fleet: what runs where, why, and how much memory it takes.",
    epilog=HAL_EXAMPLES,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

EXPLAIN_EXAMPLES = """Examples:

  hal explain ./my-model

  hal explain config.json --device cuda:sm_90 --device rocm:gfx942 --memory 80

  hal explain config.json --device sm_90 --software flash_attn_3=3.0.0

  hal explain config.json --device xpu:pvc --tp 2 --dtype float16 --json
"""
GENERATE_EXAMPLES = """Examples:

  hal generate ./my-model "What is the capital of France?"

  hal generate ./my-model "Once upon a time" --raw --max-new-tokens 64 --stats

  hal generate ./my-model - --temperature 0.7 --top-p 0.9 --seed 1 < prompt.txt
"""
COMPILE_EXAMPLES = """Examples:

  hal compile

  hal compile config.json --device cuda:sm_90 --device gfx942

  hal compile ./my-model --tp 8 --json > figures.json
"""
INSPECT_EXAMPLES = """Examples:

  hal inspect ./my-model

  hal inspect ./my-model --tp 8 --json > plan.json
"""
MATRIX_EXAMPLES = """Examples:

  hal matrix

  hal matrix config.json --device sm_90 --kv-layout fp8 --feature sinks --feature dcp

  hal matrix --html > support.html

  hal matrix --github --cells cuda-sm_90,rocm-gfx942

  hal matrix diff old.json new.json --markdown

  hal matrix parity
"""
BENCH_EXAMPLES = """Examples:

  hal bench ./my-model

  hal bench config.json --context 16384 --requests 1 --prefill 512

  hal bench config.json --device cuda:sm_90 --tp 8 --json > times.json
"""
DOCTOR_EXAMPLES = """Examples:

  hal doctor

  hal doctor --json > report.json
"""


def run(arguments: Sequence[str] | None = None) -> int:
    """The exit code of one command line; a mistake of the user's is one line on stderr and 2, never a traceback."""
    try:
        code = _dispatch(list(sys.argv[1:] if arguments is None else arguments))
        # A reader that has left is met here, and not by the interpreter at its end.
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (HalError, OSError) as error:
        return fail(str(error))


def _dispatch(arguments: list[str]) -> int:
    try:
        start_logging()
        with naming_extra("this command"):
            app(args=arguments, prog_name="hal")
    except SystemExit as stop:
        # typer and rich make an end of their own of a reader that has left, and of Ctrl-C.
        met = stop.__context__
        while met is not None and not isinstance(met, (BrokenPipeError, KeyboardInterrupt)):
            met = met.__context__
        if met is not None:
            raise met from None
        return stop.code if isinstance(stop.code, int) else 0
    return 0


def _print_version(is_asked: bool) -> None:
    if is_asked:
        import hal

        typer.echo(f"hal {hal.__version__}")
        raise typer.Exit


@app.callback()
def start(
    version: Annotated[
        bool, typer.Option("--version", help="Print hal's version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """What all commands share."""


@app.command(epilog=DOCTOR_EXAMPLES, short_help="Show what this machine has and whether it computes rightly.")
def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for a bug report.")] = False,
) -> None:
    """Show this machine: devices, backends, libraries, variables, and one checked computation per usable backend."""
    from .doctor import run_doctor

    raise typer.Exit(run_doctor(as_json=as_json))


@app.command(epilog=EXPLAIN_EXAMPLES, short_help="Say who serves a model where, why the others do not, and how much fits.")
def explain(
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="A config.json or a model folder.")],
    device: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TARGET", help="A target such as cuda:sm_90, gfx942 or cpu; repeat for several. Default: this machine's."
        ),
    ] = None,
    tp: Annotated[int, typer.Option(metavar="N", help="Tensor-parallel ranks; sizes are one rank's.")] = 1,
    dcp: Annotated[
        int, typer.Option(metavar="N", help="Decode-context ranks, which share tokens; lengths are what they hold together.")
    ] = 1,
    dtype: Annotated[str, typer.Option(metavar="DTYPE", help="float16, bfloat16, float32, or auto for the config's.")] = "auto",
    kv_layout: Annotated[
        str,
        typer.Option(metavar="LAYOUT", help="A cache layout by name, auto, or fp8 for each layer's own fp8 layout."),
    ] = "auto",
    block_size: Annotated[int | None, typer.Option(metavar="N", help="Tokens per page. Default: the backend's.")] = None,
    backend: Annotated[str | None, typer.Option(metavar="NAME", help="Pin a backend by name.")] = None,
    memory: Annotated[
        float | None,
        typer.Option(metavar="GB", help="GB of each rank for the caches and what lies beside; gives the capacity."),
    ] = None,
    weights: Annotated[
        str,
        typer.Option(
            metavar="auto|BYTES",
            help="What a rank's weights take of --memory: auto (by headers or config), or a size such as 15GiB.",
        ),
    ] = "",
    software: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VERSION,...",
            help="Vendor libraries to take as installed for devices that are not here, or none. Default: every one.",
        ),
    ] = None,
    max_model_len: Annotated[int | None, typer.Option(metavar="N", help="Longest request. Default: the model's.")] = None,
    max_num_seqs: Annotated[int | None, typer.Option(metavar="N", help="Requests per step. Default: 64.")] = None,
    max_num_batched_tokens: Annotated[int | None, typer.Option(metavar="N", help="Tokens per step. Default: 8192.")] = None,
    allow_unserved: Annotated[
        bool, typer.Option("--allow-unserved", help="Exit with 0, not 3, where no device asked for serves the model.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Say which backend serves a model on which hardware, why the others do not, and how much memory it takes."""
    from .explain import run_explain
    from .explain_answer import Question

    question = Question(
        config=config,
        targets=tuple(device or ()),
        tp=tp,
        dcp=dcp,
        dtype=dtype,
        kv_layout=kv_layout,
        block_size=block_size,
        backend=backend,
        memory_gb=memory,
        max_model_len=max_model_len,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        software=tuple(software or ()),
        weights=weights,
    )
    raise typer.Exit(run_explain(question, as_json=as_json, allow_unserved=allow_unserved))


@app.command(epilog=GENERATE_EXAMPLES, short_help="Let a model answer a prompt.")
def generate(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="A model folder with config.json, safetensors and a tokenizer.")
    ],
    prompt: Annotated[str, typer.Argument(metavar="PROMPT", help="What to say to the model; - reads it from stdin.")],
    device: Annotated[str, typer.Option(metavar="TARGET", help="Where to run. Default: the best device of this machine.")] = "",
    backend: Annotated[str | None, typer.Option(metavar="NAME", help="Pin a backend by name.")] = None,
    dtype: Annotated[
        str, typer.Option(metavar="DTYPE", help="float16, bfloat16, float32, or auto for the checkpoint's.")
    ] = "auto",
    max_new_tokens: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Most tokens to write. Default: up to 128.")
    ] = None,
    temperature: Annotated[
        float, typer.Option(metavar="T", help="0 for the likeliest token, else how freely tokens are drawn.")
    ] = 0.0,
    top_p: Annotated[float, typer.Option(metavar="P", help="Draw from the likeliest tokens that reach this probability.")] = 1.0,
    seed: Annotated[int | None, typer.Option(metavar="N", help="Draw the same tokens every time.")] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Leave the tokenizer's chat template out.")] = False,
    stats: Annotated[bool, typer.Option("--stats", help="Print times and tokens per second.")] = False,
) -> None:
    """Let a model answer on hal attention, streaming the text. A seed decides nothing where the likeliest token is taken."""
    from .generate import Prompt, run_generate

    request = Prompt(
        folder=folder,
        text=prompt,
        device=device,
        backend=backend,
        dtype=dtype,
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        top_p=top_p,
        seed=seed,
        raw=raw,
        stats=stats,
    )
    raise typer.Exit(run_generate(request))


@app.command(epilog=INSPECT_EXAMPLES, short_help="Say what loading a checkpoint folder would do, from its headers alone.")
def inspect(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="A model folder with config.json and safetensors files.")],
    tp: Annotated[int, typer.Option(metavar="N", min=1, help="Tensor-parallel ranks; shows what each has to read.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, every tensor by itself.")] = False,
) -> None:
    """Say which tensor becomes which parameter, what is missing, left over or wrong, and how much there is to read."""
    from .inspect import run_inspect

    raise typer.Exit(run_inspect(folder, tp, as_json=as_json))


@app.command(epilog=MATRIX_EXAMPLES, short_help="Show who serves which model on every arch, and how far that is proved.")
def matrix(
    configs: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="CONFIG... | diff OLD NEW | parity",
            help="Configs or model folders (default: a list of real ones); or two tables compared; or features by platform.",
        ),
    ] = None,
    device: Annotated[
        list[str] | None, typer.Option(metavar="TARGET", help="A target; repeat for several. Default: the whole fleet.")
    ] = None,
    dtype: Annotated[list[str] | None, typer.Option(metavar="DTYPE", help="A dtype; repeat for several.")] = None,
    kv_layout: Annotated[
        list[str] | None, typer.Option(metavar="LAYOUT", help="A cache layout, auto or fp8; repeat for several.")
    ] = None,
    feature: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="One of sinks, window, softcap, chunk, dcp, graphs, spec, lse, deterministic; repeat."),
    ] = None,
    tp: Annotated[int, typer.Option(metavar="N", help="Tensor-parallel ranks.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown.")] = False,
    as_html: Annotated[bool, typer.Option("--html", help="Print one page of HTML that needs no network.")] = False,
    write: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Write the generated files of matrix/ into a folder.")
    ] = None,
    check: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Exit with 1 where a folder's generated files are stale.")
    ] = None,
    as_github: Annotated[bool, typer.Option("--github", help="Print the cells of CI as a line of JSON for fromJSON.")] = False,
    cells: Annotated[
        str | None,
        typer.Option(metavar="NAME,...", help="With --github: the hardware cells that have a runner, or none. Default: all."),
    ] = None,
) -> None:
    """Show who serves which model on every arch, in which dtype and layout, with which features, and how far that is proved.

    dtypes, layouts and features that are given are crossed; without any, each of the usual ones is tried alone.
    """
    from .matrix import Inquiry, check_files, run_matrix, write_files
    from .matrix_diff import run_diff, run_parity

    form = _choose_form(as_json, as_markdown, as_html)
    if as_github or cells is not None:
        from .matrix_github import run_github

        others = (configs, device, dtype, kv_layout, feature, write, check)
        raise typer.Exit(run_github(cells, is_alone=as_github and form == "text" and not any(others)))
    given = tuple(map(str, configs or ()))
    inquiry = Inquiry(
        configs=tuple(configs or ()),
        targets=tuple(device or ()),
        dtypes=tuple(dtype or ()),
        kv_layouts=tuple(kv_layout or ()),
        features=tuple(feature or ()),
        tp=tp,
    )
    if write is not None or check is not None:
        raise typer.Exit(write_files(write) if write is not None else check_files(check or Path()))
    if given[:1] == ("diff",):
        raise typer.Exit(run_diff(given[1:], form=form))
    if given[:1] == ("parity",):
        raise typer.Exit(run_parity(given[1:], form=form))
    raise typer.Exit(run_matrix(inquiry, form=form))


def _choose_form(as_json: bool, as_markdown: bool, as_html: bool) -> str:
    forms = [name for name, is_asked in (("json", as_json), ("markdown", as_markdown), ("html", as_html)) if is_asked]
    if len(forms) > 1:
        raise InputError(f"--{' and --'.join(forms)} are asked for together; expected one of them")
    return forms[0] if forms else "text"


@app.command("compile", epilog=COMPILE_EXAMPLES, short_help="Compile the portable kernels for archs that are not here.")
def compile_kernels(
    configs: Annotated[
        list[Path] | None, typer.Argument(metavar="CONFIG", help="Config files or model folders. Default: two samples.")
    ] = None,
    device: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TARGET", help="A target such as cuda:sm_90 or gfx942; repeat for several. Default: the whole fleet."
        ),
    ] = None,
    tp: Annotated[int, typer.Option(metavar="N", help="Tensor-parallel ranks; a binary serves one rank's heads.")] = 1,
    jobs: Annotated[int, typer.Option(metavar="N", min=1, help="Compilers at a time.")] = 2,
    proof: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also write what this proves, as the report files of matrix/ are.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, every binary by itself.")] = False,
) -> None:
    """Compile the portable kernels for archs that are not here; show what each binary takes, and which will not do."""
    from .compile import Order, run_compile

    order = Order(configs=tuple(configs or ()), targets=tuple(device or ()), tp=tp, jobs=jobs)
    raise typer.Exit(run_compile(order, as_json=as_json, proof=proof))


@app.command(epilog=BENCH_EXAMPLES, short_help="Time a model's attention on this machine, layer by layer.")
def bench(
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="A config.json or a model folder; no weights are read.")],
    device: Annotated[str, typer.Option(metavar="TARGET", help="Where to run. Default: the best device of this machine.")] = "",
    context: Annotated[int, typer.Option(metavar="N", help="Tokens that each decoding request has.")] = 4096,
    requests: Annotated[int, typer.Option(metavar="N", help="Requests that decode in a step.")] = 8,
    prefill: Annotated[int, typer.Option(metavar="N", help="Tokens of the one prompt that is prefilled in a step.")] = 1024,
    tp: Annotated[int, typer.Option(metavar="N", help="Tensor-parallel ranks; one rank's heads are measured.")] = 1,
    dtype: Annotated[str, typer.Option(metavar="DTYPE", help="float16, bfloat16, float32, or auto for the config's.")] = "auto",
    kv_layout: Annotated[str, typer.Option(metavar="LAYOUT", help="A cache layout by name, or auto.")] = "auto",
    backend: Annotated[str | None, typer.Option(metavar="NAME", help="Pin a backend by name.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Time a step of decodes and one of prefill: a layer of each kind on random caches, all layers added up."""
    from .bench import run_bench
    from .bench_timing import Trial

    trial = Trial(
        config=config,
        device=device,
        context=context,
        requests=requests,
        prefill=prefill,
        tp=tp,
        dtype=dtype,
        kv_layout=kv_layout,
        backend=backend,
    )
    raise typer.Exit(run_bench(trial, as_json=as_json))
