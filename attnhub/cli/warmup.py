"""``attnhub warmup``: compile, ahead of time, what a model or a list of problems needs."""

from __future__ import annotations

import contextlib
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attnhub.cli import output

if TYPE_CHECKING:
    from attnhub.cli.needs import Need
    from attnhub.cli.spent import Spent
    from attnhub.core.device import Device
    from attnhub.jit import Compiler, Cubin, KernelSpec

#: How the summary calls the origins of kernels.
_ORIGINS = {"built": "built", "cache": "in the cache", "prebuilt": "built ahead of time"}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Made:
    """Kernels, and what it took to have them."""

    cubins: list[Cubin]
    spent: Spent
    cache: Path


def warmup(
    config: Annotated[
        Path,
        typer.Argument(
            help="A model's config.json or the folder that holds it, or a JSON list of problems in "
            'the words of `attnhub explain`: [{"op": "attention", "kv": "paged:16", ...}, ...].'
        ),
    ],
    device: Annotated[
        list[str] | None,
        typer.Option(
            help="Compile for this device: 'cuda:0', or any by name, 'h100', 'sm_90'; may be "
            "repeated. Default: the first GPU here."
        ),
    ] = None,
    dtype: Annotated[
        str,
        typer.Option(
            help="Instead of the model's own; three of q, K/V and output are separated by commas."
        ),
    ] = "",
    page_size: Annotated[
        int | None, typer.Option(help="Tokens in a page of the model's cache. Default: 16.", min=1)
    ] = None,
    backend: Annotated[
        str, typer.Option(help="Require this backend for the ops that it serves.")
    ] = "",
    jobs: Annotated[
        int | None,
        typer.Option(help="At most so many compilers at once; memory bounds them too.", min=1),
    ] = None,
    compiler: Annotated[
        str, typer.Option(help="'nvrtc' or 'nvcc'. Default: the first that `doctor` lists usable.")
    ] = "",
    out: Annotated[
        Path | None,
        typer.Option(
            "--output", help="Also write the kernels here, for machines without a compiler."
        ),
    ] = None,
    as_json: output.Json = False,
) -> None:
    """Compile the kernels that a model needs, in parallel, and keep them in the cache.

    Needs no GPU where --device names one. Exits with 1 if a call has no backend or a kernel does
    not compile.
    """
    from attnhub.cli import needs
    from attnhub.core.env import environment
    from attnhub.jit import CompileError, NoCompiler, choose

    with output.quiet():
        chosen = choose(compiler, environment().cuda_home) if compiler else None
        devices = _devices(device or [""])
        wanted = needs.read(config, dtype=dtype, page_size=page_size)
        with _requiring(backend):
            found = {target: needs.find(wanted, target) for target in devices}
    if not as_json:
        for target, group in found.items():
            _show(group, target)
            output.line()
    specs = needs.kernels(need for group in found.values() for need in group)
    try:
        made = _make(specs, jobs, chosen, fresh=out is not None)
    except (CompileError, NoCompiler) as error:
        output.note(f"error: {error}")
        raise typer.Exit(1) from None
    if out is not None:
        _export(made, out)
    faults = [bool(need.fault) for group in found.values() for need in group]
    if as_json:
        output.document(_document(found, made, out))
    elif made.cubins:
        _summarise(made, out)
    elif not any(faults):
        output.line("no kernels are needed")
    if any(faults):
        output.note(f"error: {sum(faults)} of {output.counted(len(faults), 'call')} failed")
        raise typer.Exit(1)


def _devices(names: list[str]) -> list[Device]:
    from attnhub.cli.machine import described
    from attnhub.errors import InvalidArgument

    found = []
    for name in names:
        device = described(name)
        if device.type == "cpu":
            what = f"device {name!r}" if name else "this machine has no GPU"
            raise InvalidArgument(
                f"{what}: kernels are compiled for GPUs; name one, as in --device h100"
            )
        found.append(device)
    return list(dict.fromkeys(found))


def _requiring(backend: str) -> contextlib.AbstractContextManager[None]:
    import attnhub

    return attnhub.use(backend) if backend else contextlib.nullcontext()


def _make(
    specs: list[KernelSpec], jobs: int | None, compiler: Compiler | None, *, fresh: bool
) -> _Made:
    """Compile what is missing; ``fresh``: also what packages bring ready-made."""
    from attnhub.cli.kernels import the_cache
    from attnhub.cli.spent import measured
    from attnhub.jit import compile_kernels

    cache = the_cache()
    with measured() as spent, output.progress("compiling") as tell:
        cubins = compile_kernels(
            specs,
            cache=cache,
            compiler=compiler,
            jobs=jobs,
            progress=lambda p: tell(p.cubin.spec.name, p.done, p.total),
            prebuilt=not fresh,
        )
    return _Made(
        cubins=cubins,
        spent=spent,
        cache=cache.root if any(c.origin == "built" for c in cubins) else cache.home,
    )


def _export(made: _Made, folder: Path) -> None:
    from attnhub.jit import prebuilt

    prebuilt.export(made.cubins, folder)


def _show(needs: list[Need], device: Device) -> None:
    header = ("op", "step", "backend", "kernels", "problem")
    grid = output.Grid(title=f"on {device}", header=header)
    for need in needs:
        kernels = "\n".join(spec.name for spec in need.kernels or ()) or "nothing to compile"
        steps = ", ".join(need.steps) or "-"
        grid.add(
            need.problem.op,
            steps,
            need.backend or "none",
            "-" if need.fault else kernels,
            f"{need.facts}\n{need.fault}" if need.fault else need.facts,
            style="red" if need.fault else "",
        )
    grid.show()


def _summarise(made: _Made, out: Path | None) -> None:
    counts: Counter[str] = Counter(cubin.origin for cubin in made.cubins)
    told = ", ".join(f"{counts[o]} {text}" for o, text in _ORIGINS.items() if counts[o])
    compilers = {c.compiler.partition("-")[0] for c in made.cubins if c.origin == "built"}
    by = f" by {', '.join(sorted(compilers))}" if compilers else ""
    spent = f"{made.spent.seconds:.1f} s, {made.spent.cpu_seconds:.1f} CPU s{by}"
    output.line(f"{output.counted(len(made.cubins), 'kernel')}: {told}; {spent}")
    if counts["prebuilt"] < len(made.cubins):
        output.line(f"kernels are kept in {made.cache}")
    if out is not None:
        output.line(f"kernels are written to {out}")


def _document(found: dict[Device, list[Need]], made: _Made, out: Path | None) -> dict[str, Any]:
    return {
        "problems": [
            {
                "device": str(device),
                "op": need.problem.op,
                "problem": need.facts,
                "steps": list(need.steps),
                "backend": need.backend,
                "kernels": None if need.kernels is None else [s.name for s in need.kernels],
                "fault": need.fault,
            }
            for device, needs in found.items()
            for need in needs
        ],
        "kernels": [
            {
                "name": cubin.spec.name,
                "arch": cubin.spec.arch,
                "key": cubin.key,
                "bytes": len(cubin.image),
                "origin": cubin.origin,
            }
            for cubin in made.cubins
        ],
        **asdict(made.spent),
        "cache": str(made.cache),
        "output": None if out is None else str(out),
    }
