"""`heliograph trace` and `fit`: what a trace or measured prefills would make of an experiment."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from commands.shared import BAD_INPUT, fail
from inputs.options import whole
from outputs.terminal import say

if TYPE_CHECKING:
    from workloads.tenants import TimeUnit


def trace(
    file: Annotated[Path, typer.Argument(help="trace file: plain, gzip or zstd", show_default=False)],
    source: Annotated[str, typer.Option(help="its format; auto recognises it by content")] = "auto",
    cluster: Annotated[
        Path | None, typer.Option(metavar="EXPERIMENT.yaml", help="also say what this experiment's cluster would see")
    ] = None,
    max_context_tokens: Annotated[
        int, typer.Option(parser=whole(2), metavar="N", help="longer requests are dropped and counted")
    ] = 131_072,
    time_unit: Annotated[
        str | None, typer.Option(metavar="s|ms", help="what its times are in, where its format leaves that open")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", metavar="", help="as JSON, in real units")] = False,
) -> None:
    """What would be replayed of a trace: rows, percentiles of tokens, prefix hits, load and KV demand of a cluster."""
    import json

    from experiments.schema.spec import SpecError, load
    from inputs.plugin_file import PluginError, find, names_plugin
    from workloads.traces.formats import SOURCES, open_trace
    from workloads.traces.summary import Server, lines, summarise
    from workloads.traces.trace import TraceError

    if time_unit not in (None, "s", "ms"):
        fail(f"--time-unit {time_unit!r} is no unit of times (allowed: s, ms)", BAD_INPUT)
    if source not in SOURCES and not names_plugin(source):
        allowed = ", ".join((*SOURCES, "module:Class"))
        fail(f"--source {source!r} is no trace format (allowed: {allowed})", BAD_INPUT)
    try:
        if names_plugin(source):
            source = find(source, [Path.cwd()])
        server = None
        if cluster is not None:
            experiment = load(cluster)
            server = Server(experiment.cluster.prefill_instances, experiment.timing, experiment.kv)
        reading = open_trace(
            file, source, max_context_tokens=max_context_tokens, time_unit=cast("TimeUnit | None", time_unit)
        )
        found = summarise(reading, server)
    except PluginError as error:
        fail(f"--source {source!r}: {error}", BAD_INPUT)
    except (SpecError, TraceError) as error:
        fail(str(error), BAD_INPUT)
    say(json.dumps(found, indent=2) if as_json else "\n".join(lines(found, reading.report().lines())))


def fit(
    file: Annotated[Path, typer.Argument(help="CSV of measured prefills: new and cached tokens, and ms (or s, us)")],
    tp: Annotated[int, typer.Option(parser=whole(1), metavar="N", help="tensor-parallel ranks that were measured")],
    chunk_tokens: Annotated[
        int, typer.Option(parser=whole(1), metavar="N", help="most new tokens of one chunk")
    ] = 2048,
    output: Annotated[
        Path | None, typer.Option(help="timing file to write (default: FILE with .yaml; never overwritten)")
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", metavar="", help="write it also where the model is far from the rows")
    ] = False,
) -> None:
    """Fit a prefill timing model to measurements, and write it as a file that prefill.timing takes."""
    from inputs.errors import InputError
    from results.records.artifacts import ArtifactError, write_text
    from workloads.prefill_fit import fit as fit_timing
    from workloads.prefill_fit import misfit, timing_yaml
    from workloads.prefill_samples import read_samples, unit_doubt

    target = output or file.with_suffix(".yaml")
    if target.suffix not in (".yaml", ".yml"):
        fail(f"--output {target}: prefill.timing takes a file ending in .yaml; name it so", BAD_INPUT)
    if target.exists():
        fail(f"{target} exists: name another file with --output, or remove it", BAD_INPUT)
    try:
        samples = read_samples(file)
        found = fit_timing(samples, chunk_tokens=chunk_tokens, where=str(file))
        doubts = [doubt for doubt in (unit_doubt(samples), misfit(found, samples)) if doubt]
        if doubts and not force:
            remedy = "nothing is written; repair the rows, or write it anyway with --force"
            fail("\n".join(f"{file}: {doubt}; {remedy}" for doubt in doubts), BAD_INPUT)
        write_text(target, timing_yaml(found, tp=tp, source=file.name))
    except InputError as error:
        fail(str(error), BAD_INPUT)
    except ArtifactError as error:
        fail(f"{error}; name another file with --output", BAD_INPUT)
    timing, worst = found.timing, found.worst
    say(
        f"T_ms = max({timing.floor_ms:.4g}, {timing.t0_ms:.4g} + {timing.a_ms_per_token:.4g} n + "
        f"{timing.b_ms_per_token2:.4g} n (c + n/2))"
    )
    say(
        f"{found.rows} rows, relative error: median {found.median_error:.2%}, p95 {found.p95_error:.2%}, maximum "
        f"{found.max_error:.2%} (new {worst.new_tokens}, cached {worst.cached_tokens}, {worst.ms:g} ms)"
    )
    for doubt in doubts:
        say(f"warning: {doubt}")
    say(f"written to {target}: use it with --set prefill.timing={target}")
