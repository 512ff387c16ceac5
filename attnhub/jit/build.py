"""From specs to cubins: look each up, compile what is missing in parallel, keep it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from attnhub.core.env import environment
from attnhub.jit import compilers, fingerprint
from attnhub.jit import prebuilt as ahead
from attnhub.jit.cache import Cache
from attnhub.jit.compilers import Compiler, Unit
from attnhub.jit.errors import CompileError, NoCompiler
from attnhub.jit.spec import KernelSpec

Origin = Literal["built", "cache", "prebuilt"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cubin:
    """A compiled kernel, and whether this call built it, or the cache or a package had it.

    ``seconds`` is how long after the call it was there.
    """

    spec: KernelSpec
    key: str
    image: bytes
    origin: Origin
    seconds: float = 0.0

    @property
    def cached(self) -> bool:
        """Whether it was there before."""
        return self.origin != "built"

    @property
    def content(self) -> str:
        """The key of its content, whoever compiled it."""
        return self.key.partition(".")[0]

    @property
    def compiler(self) -> str:
        """The name and the build of its compiler; empty if it was built ahead of time."""
        return self.key.partition(".")[2]


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
    prebuilt: bool = True,
) -> list[Cubin]:
    """The cubin of each spec, in order; those that are there need neither Jinja nor a compiler.

    What packages bring ready-made comes before the cache. A machine without a compiler takes from
    the cache what any compiler made of the same content.

    Args:
        specs: the kernels; equal ones are built once.
        cache: where to look and to keep.
        compiler: default the one that :func:`attnhub.jit.compilers.choose` prefers.
        jobs: at most so many compilers at once; cores and free memory bound it further.
        progress: called as each kernel is there.
        prebuilt: False to have even those that packages bring compiled here.

    Raises:
        NoCompiler: a kernel is missing, and there is no compiler on this machine.
        CompileError: a kernel does not compile. The others are built and kept first.

    Example:
        >>> [cubin] = compile_kernels([spec], cache=Cache())
    """
    wanted = list(specs)
    batch = _Batch(cache, compiler, len(set(wanted)), progress, prebuilt=prebuilt)
    missing = [spec for spec in dict.fromkeys(wanted) if not batch.take(spec)]
    if missing:
        batch.make(missing, jobs)
    return [batch.found[spec] for spec in wanted]


class _Batch:
    """The kernels of one call, and which of them are there."""

    def __init__(
        self,
        cache: Cache,
        compiler: Compiler | None,
        total: int,
        progress: Callable[[Progress], None] | None,
        *,
        prebuilt: bool,
    ) -> None:
        self.cache, self._compiler, self._prebuilt = cache, compiler, prebuilt
        self.found: dict[KernelSpec, Cubin] = {}
        self._total, self._progress = total, progress

    @property
    def compiler(self) -> Compiler:
        """The caller's, or the one to prefer here; not looked for until a kernel needs it."""
        if self._compiler is None:
            self._compiler = compilers.choose(environment().compiler)
        return self._compiler

    def take(self, spec: KernelSpec) -> bool:
        """Take a kernel that is there, by the source that an earlier process rendered."""
        key = fingerprint.template_key(spec)
        body = ahead.rendered(spec, key) if self._prebuilt else None
        body = body or self.cache.rendered(key)
        return body is not None and self._find([spec], fingerprint.content_key(spec, body))

    def make(self, missing: list[KernelSpec], jobs: int | None) -> None:
        """Render, and compile what is not there."""
        from attnhub.jit import render

        bodies = {spec: render.render(spec) for spec in missing}
        same: dict[str, list[KernelSpec]] = {}
        for spec, body in bodies.items():
            same.setdefault(fingerprint.content_key(spec, body), []).append(spec)
        left = {content: specs for content, specs in same.items() if not self._find(specs, content)}
        failed = self._build(left, bodies, jobs) if left else []
        self._remember(bodies)
        if failed:
            raise failed[0]

    def _build(
        self, same: dict[str, list[KernelSpec]], bodies: dict[KernelSpec, str], jobs: int | None
    ) -> list[CompileError]:
        """Compile, each content once; kernels that another process builds now are waited for."""
        from attnhub.jit import jobs as parallel

        by_key = {self._key(content): specs for content, specs in same.items()}
        with ExitStack() as stack:
            tmp = stack.enter_context(self.cache.workspace())
            locks = {}
            # In one order everywhere, so that two processes never wait for each other.
            for key in sorted(by_key):
                locks[key] = stack.enter_context(self.cache.lock(key))
            units = {}
            for key, specs in by_key.items():
                if image := self.cache.load(key):
                    self._arrived(specs, key, image, "cache")
                    locks[key].release()
                else:
                    units[_write(tmp / key, specs[0], bodies[specs[0]])] = specs
            start = time.perf_counter()

            def done(unit: Unit) -> None:
                self._keep(unit, units[unit], time.perf_counter() - start)
                locks[unit.folder.name].release()

            if units:
                self.compiler.compile(list(units), jobs=parallel.limit(jobs), done=done)
            return [self._failure(unit) for unit in units if unit.spec not in self.found]

    def _key(self, content: str) -> str:
        return f"{content}.{self.compiler.tag}"

    def _find(self, specs: list[KernelSpec], content: str) -> bool:
        """Take kernels of one content from a package, else from the cache."""
        if self._prebuilt:
            for spec in specs:
                if image := ahead.load(spec, content):
                    self._arrived(specs, content, image, "prebuilt")
                    return True
        if found := self._cached(content):
            self._arrived(specs, *found, "cache")
        return bool(found)

    def _cached(self, content: str) -> tuple[str, bytes] | None:
        try:
            key = self._key(content)
        except NoCompiler:
            return self.cache.load_of_any_compiler(content)
        image = self.cache.load(key)
        return (key, image) if image else None

    def _keep(self, unit: Unit, specs: list[KernelSpec], seconds: float) -> None:
        key = unit.folder.name
        facts = {"name": unit.spec.name, "arch": unit.spec.arch, "compiler": self.compiler.tag}
        image = self.cache.publish(key, unit.folder, {**facts, "seconds": round(seconds, 3)})
        self._arrived(specs, key, image, "built", seconds)

    def _remember(self, bodies: dict[KernelSpec, str]) -> None:
        for spec, body in bodies.items():
            # Ready-made kernels may run where nothing can be written, and bring their own sources.
            if spec in self.found and self.found[spec].origin != "prebuilt":
                self.cache.remember(fingerprint.template_key(spec), body)

    def _arrived(
        self,
        specs: list[KernelSpec],
        key: str,
        image: bytes,
        origin: Origin,
        seconds: float = 0.0,
    ) -> None:
        for spec in specs:
            cubin = Cubin(spec=spec, key=key, image=image, origin=origin, seconds=seconds)
            self.found[spec] = cubin
            if self._progress is not None:
                self._progress(Progress(cubin=cubin, done=len(self.found), total=self._total))

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
