"""From specs to cubins: look each up, compile what is missing in parallel, keep it."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from attnhub.jit import compilers, fingerprint
from attnhub.jit.cache import Cache
from attnhub.jit.compilers import Compiler, Unit
from attnhub.jit.errors import CompileError
from attnhub.jit.spec import KernelSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Cubin:
    """A compiled kernel. ``cached`` is False if this call built it.

    ``seconds`` is how long after the call it was there.
    """

    spec: KernelSpec
    key: str
    image: bytes
    cached: bool
    seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """One more kernel is there: ``done`` of ``total``."""

    cubin: Cubin
    done: int
    total: int


def compile_kernels(
    specs: Iterable[KernelSpec],
    *,
    cache: Cache,
    compiler: Compiler | None = None,
    jobs: int | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> list[Cubin]:
    """The cubin of each spec, in order; those of the cache need neither Jinja nor a compiler's run.

    Args:
        specs: the kernels; equal ones are built once.
        cache: where to look and to keep.
        compiler: default the one that :func:`attnhub.jit.compilers.choose` prefers.
        jobs: at most so many compilers at once; cores and free memory bound it further.
        progress: called as each kernel is there.

    Raises:
        NoCompiler: there is no compiler on this machine.
        CompileError: a kernel does not compile. The others are built and kept first.

    Example:
        >>> [cubin] = compile_kernels([spec], cache=Cache())
    """
    wanted = list(specs)
    batch = _Batch(cache, compiler or compilers.choose(), len(set(wanted)), progress)
    missing = [spec for spec in dict.fromkeys(wanted) if not batch.take(spec)]
    if missing:
        batch.make(missing, jobs)
    return [batch.found[spec] for spec in wanted]


class _Batch:
    """The kernels of one call, and which of them are there."""

    def __init__(
        self,
        cache: Cache,
        compiler: Compiler,
        total: int,
        progress: Callable[[Progress], None] | None,
    ) -> None:
        self.cache, self.compiler = cache, compiler
        self.found: dict[KernelSpec, Cubin] = {}
        self._total, self._progress = total, progress

    def take(self, spec: KernelSpec) -> bool:
        """Take a kernel from the cache, by the source that an earlier process rendered."""
        body = self.cache.rendered(fingerprint.template_key(spec))
        return body is not None and self._load([spec], self._key(spec, body))

    def make(self, missing: list[KernelSpec], jobs: int | None) -> None:
        """Render and compile; kernels that another process builds now are waited for."""
        from attnhub.jit import jobs as parallel
        from attnhub.jit import render

        bodies = {spec: render.render(spec) for spec in missing}
        same: dict[str, list[KernelSpec]] = {}
        for spec, body in bodies.items():
            same.setdefault(self._key(spec, body), []).append(spec)
        with ExitStack() as stack:
            tmp = stack.enter_context(self.cache.workspace())
            locks = {}
            # In one order everywhere, so that two processes never wait for each other.
            for key in sorted(same):
                locks[key] = stack.enter_context(self.cache.lock(key))
            units = {}
            for key, specs in same.items():
                if self._load(specs, key):
                    locks[key].release()
                else:
                    units[_write(tmp / key, specs[0], bodies[specs[0]])] = specs
            start = time.perf_counter()

            def done(unit: Unit) -> None:
                key, seconds = unit.folder.name, time.perf_counter() - start
                self._keep(unit, units[unit], seconds)
                locks[key].release()

            if units:
                self.compiler.compile(list(units), jobs=parallel.limit(jobs), done=done)
            self._remember(bodies)
            self._raise_failures(list(units))

    def _key(self, spec: KernelSpec, body: str) -> str:
        return f"{fingerprint.content_key(spec, body)}.{self.compiler.tag}"

    def _load(self, specs: list[KernelSpec], key: str) -> bool:
        image = self.cache.load(key)
        if image is not None:
            self._arrived([Cubin(spec=s, key=key, image=image, cached=True) for s in specs])
        return image is not None

    def _keep(self, unit: Unit, specs: list[KernelSpec], seconds: float) -> None:
        key = unit.folder.name
        facts = {"name": unit.spec.name, "arch": unit.spec.arch, "compiler": self.compiler.tag}
        image = self.cache.publish(key, unit.folder, {**facts, "seconds": round(seconds, 3)})
        made = functools.partial(Cubin, key=key, image=image, cached=False, seconds=seconds)
        self._arrived([made(spec=s) for s in specs])

    def _remember(self, bodies: dict[KernelSpec, str]) -> None:
        for spec, body in bodies.items():
            if spec in self.found:
                self.cache.remember(fingerprint.template_key(spec), body)

    def _arrived(self, cubins: list[Cubin]) -> None:
        for cubin in cubins:
            self.found[cubin.spec] = cubin
            if self._progress is not None:
                self._progress(Progress(cubin=cubin, done=len(self.found), total=self._total))

    def _raise_failures(self, units: list[Unit]) -> None:
        failed = [unit for unit in units if unit.spec not in self.found]
        errors = [self._failure(unit) for unit in failed]
        if errors:
            raise errors[0]

    def _failure(self, unit: Unit) -> CompileError:
        from attnhub.jit.compilers.log import first_error

        # The build's folder goes away, so what the message names must lie, and be named, elsewhere.
        command = self.compiler.command(unit)
        folder = self.cache.keep_failed(unit.folder.name, unit.folder)
        kept = folder / "build.log"
        log = kept.read_text(encoding="utf-8", errors="replace") if kept.exists() else ""
        old, new = str(unit.folder), str(folder)
        log = log.replace(old, new)
        kept.write_text(log, encoding="utf-8")
        return CompileError(
            kernel=str(unit.spec),
            command=command.replace(old, new),
            source=folder / "kernel.cu",
            error=first_error(log),
            log=log,
        )


def _write(folder: Path, spec: KernelSpec, body: str) -> Unit:
    """The folder of a build, with its source in it."""
    from attnhub.jit import render

    folder.mkdir()
    unit = Unit(spec=spec, folder=folder)
    unit.source.write_text(render.banner(spec) + body, encoding="utf-8")
    return unit
