"""The one format of benchmark results: a row per number, a JSON file per suite, machine and commit.

A file name ends in the day as well, so that a commit measured on two days has two files.
"""

from __future__ import annotations

import json
import math
import platform
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path

import torch

from attnhub.errors import InvalidArgument

FORMAT = 1
_SMALLER_IS_BETTER = frozenset({"ns", "us", "ms", "s", "B", "KB", "MB", "GB"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One measured number, and all that is needed to judge it.

    Attributes:
        suite: What was measured together, as ``"decode"``; names the file.
        case: The problem, as ``"B16 L8192 32/8 D128 page16"``.
        metric: What the value means, as ``"bandwidth"``.
        value: The figure of AttnHub, positive.
        unit: Its unit; of times and sizes the smaller is better, of all others the larger.
        share_of_ceiling: Part of the ceiling measured in the same run, 0.9 for 90 %, if one holds.
        peers: Value of each other library in the same unit, measured in the same run.
        gpu: Name of the GPU, ``"cpu"`` where none was used.
        versions: Version of each piece of software, and the host's processor under ``"cpu"``.
        commit: Git commit, with ``+dirty`` if files had changed.
        date: Time in UTC at which the run began, ``"2026-01-31T14:05:00Z"``.
    """

    suite: str
    case: str
    metric: str
    value: float
    unit: str
    share_of_ceiling: float | None
    peers: dict[str, float]
    gpu: str
    versions: dict[str, str]
    commit: str
    date: str

    def __post_init__(self) -> None:
        wrong = [
            f"{name}={getattr(self, name)!r} is not {wanted}"
            for name, (fits, wanted) in _CHECKS.items()
            if not fits(getattr(self, name))
        ]
        if wrong:
            raise InvalidArgument("result row: " + "; ".join(wrong))

    @property
    def machine(self) -> str:
        """The GPU and the processor, as far as known; without a GPU the processor alone."""
        cpu = self.versions.get("cpu", "")
        if self.gpu == "cpu":
            return cpu or "cpu"
        return f"{self.gpu}, {cpu}" if cpu else self.gpu

    @property
    def short_commit(self) -> str:
        """The first ten digits of the commit, with ``+dirty`` if files had changed."""
        head, mark, _ = self.commit.partition("+dirty")
        return head[:10] + mark

    @property
    def subject(self) -> tuple[str, str, str, str]:
        """What was measured, and where: suite, machine, case and metric."""
        return self.suite, self.machine, self.case, self.metric

    @property
    def key(self) -> tuple[str, str, str, str, str]:
        """The subject and the commit: a later row of the same key replaces an earlier one."""
        return *self.subject, self.commit

    @property
    def smaller_is_better(self) -> bool:
        """Whether the unit is a time or a size."""
        return self.unit in _SMALLER_IS_BETTER

    def advantage(self, peer: str) -> float:
        """Return how many times as good as ``peer`` the value is (above 1: AttnHub is ahead)."""
        if self.smaller_is_better:
            return self.peers[peer] / self.value
        return self.value / self.peers[peer]


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _is_amount(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return math.isfinite(value) and value > 0


def _is_date(value: object) -> bool:
    form = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ"
    return isinstance(value, str) and re.fullmatch(form, value) is not None


def _maps_to(fits: Callable[[object], bool]) -> Callable[[object], bool]:
    def check(value: object) -> bool:
        return isinstance(value, dict) and all(_is_text(k) and fits(v) for k, v in value.items())

    return check


_TEXT = (_is_text, "a text")
_CHECKS: dict[str, tuple[Callable[[object], bool], str]] = {
    "suite": _TEXT,
    "case": _TEXT,
    "metric": _TEXT,
    "value": (_is_amount, "a positive finite number"),
    "unit": _TEXT,
    "share_of_ceiling": (lambda v: v is None or _is_amount(v), "null or a positive finite number"),
    "peers": (_maps_to(_is_amount), "a map from names to positive finite numbers"),
    "gpu": _TEXT,
    "versions": (_maps_to(_is_text), "a map from names to texts"),
    "commit": _TEXT,
    "date": (_is_date, "a time such as 2026-01-31T14:05:00Z"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """Where and when a benchmark ran: the last four fields of its rows."""

    gpu: str
    versions: dict[str, str]
    commit: str
    date: str

    def row(
        self,
        suite: str,
        case: str,
        metric: str,
        value: float,
        unit: str,
        *,
        share_of_ceiling: float | None = None,
        peers: Mapping[str, float] | None = None,
    ) -> Row:
        """Return a row measured here."""
        return Row(
            suite=suite,
            case=case,
            metric=metric,
            value=value,
            unit=unit,
            share_of_ceiling=share_of_ceiling,
            peers=dict(peers or {}),
            gpu=self.gpu,
            versions=dict(self.versions),
            commit=self.commit,
            date=self.date,
        )


def environment(device: torch.device | str | None = None, *, commit: str = "") -> Environment:
    """Return the facts of this machine and this checkout.

    ``device`` is what is measured: default the current GPU, or the CPU where there is none.
    ``commit`` is for a tree that came without its history, or with another one.
    """
    device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    return Environment(
        gpu=torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        versions=_versions(),
        commit=commit or _commit(Path(__file__)),
        date=datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
    )


def _versions() -> dict[str, str]:
    versions = {
        "python": platform.python_version(),
        "cpu": _processor(),
        "torch": torch.__version__,
    }
    if torch.version.cuda is not None:
        versions["cuda"] = torch.version.cuda
    for installed in metadata.distributions():
        name = installed.name.lower()
        if name == "triton" or name.startswith("attnhub"):
            versions[name] = installed.version
    return versions


def _processor() -> str:
    described = Path("/proc/cpuinfo")
    if described.exists():
        found = re.search(r"^model name\s*:\s*(.+)$", described.read_text(), re.MULTILINE)
        if found:
            return found[1].strip()
    return platform.processor() or platform.machine() or "unknown"


def _commit(file: Path) -> str:
    """Return the commit that ``file`` belongs to, "unknown" for an installed copy."""
    git = shutil.which("git")
    if git is None:
        return "unknown"

    def ask(*arguments: str) -> str | None:
        command = [git, "-C", str(file.parent), *arguments]
        answer = subprocess.run(command, capture_output=True, text=True, check=False)
        return answer.stdout.strip() if answer.returncode == 0 else None

    # A package installed below some other repository is not part of it.
    if ask("ls-files", "--error-unmatch", file.name) is None:
        return "unknown"
    head = ask("rev-parse", "HEAD")
    if head is None:
        return "unknown"
    return head + ("+dirty" if ask("status", "--porcelain", "--untracked-files=no") else "")


def usable_folder(path: Path | str) -> Path:
    """Return ``path`` as a folder that can be written to, made if it was not there.

    Raises:
        InvalidArgument: it is a file, or may not be made or written to.
    """
    folder = Path(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except OSError as error:
        why = error.strerror or str(error)
        raise InvalidArgument(f"{folder}: cannot be written to as a folder: {why}") from error


def write(rows: Iterable[Row], folder: Path | str) -> list[Path]:
    """Write rows to ``folder`` and return the paths of the files.

    A file is called ``<suite>-<machine>-<day>-<commit>.json``. Rows already in it stay, unless the
    same case and metric was measured again.

    Raises:
        InvalidArgument: the folder or a file cannot be written, or a file holds something else.
    """
    folder = usable_folder(folder)
    files: dict[Path, dict[tuple[str, ...], Row]] = {}
    for row in rows:
        name = slug(f"{row.suite} {row.machine} {row.date[:10]} {row.short_commit}")
        files.setdefault(folder / f"{name}.json", {})[row.key] = row
    for path, measured in files.items():
        earlier = {row.key: row for row in read([path])} if path.exists() else {}
        _write_file(path, (earlier | measured).values())
    return list(files)


def _write_file(path: Path, rows: Iterable[Row]) -> None:
    content = {"format": FORMAT, "rows": list(map(asdict, rows))}
    part = path.with_suffix(".part")  # an interrupted write leaves the earlier rows whole
    try:
        part.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        part.replace(path)
    except OSError as error:
        raise InvalidArgument(f"{path}: cannot be written: {error.strerror or error}") from error


def read(paths: Iterable[Path | str]) -> list[Row]:
    """Return the rows of result files, in order; a folder stands for every JSON file in it.

    Raises:
        InvalidArgument: a path that does not exist, or a file that is not one of results.
    """
    if isinstance(paths, str):
        raise InvalidArgument(f"paths={paths!r}: give a list of paths")
    files: list[Path] = []
    for path in map(Path, paths):
        if not path.exists():
            raise InvalidArgument(f"{path}: there is no such file or folder")
        files += sorted(path.glob("*.json")) if path.is_dir() else [path]
    return [row for file in files for row in _read_file(file)]


def _read_file(file: Path) -> list[Row]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InvalidArgument(f"{file}: not a readable JSON file: {error}") from error
    if not isinstance(content, dict) or not isinstance(content.get("rows"), list):
        raise InvalidArgument(f'{file}: a result file is {{"format": {FORMAT}, "rows": [...]}}')
    if content.get("format") != FORMAT:
        raise InvalidArgument(
            f"{file}: format {content.get('format')!r}, this version reads {FORMAT}; "
            "measure again or use the version that wrote it"
        )
    return [_read_row(f"{file}, row {i}", item) for i, item in enumerate(content["rows"])]


def _read_row(where: str, item: object) -> Row:
    if not isinstance(item, dict):
        raise InvalidArgument(f"{where}: {item!r} is not an object")
    known = [f.name for f in fields(Row)]
    missing = [name for name in known if name not in item]
    unknown = [name for name in item if name not in known]
    if missing or unknown:
        raise InvalidArgument(
            f"{where}: missing fields: {', '.join(missing) or 'none'}; "
            f"unknown fields: {', '.join(unknown) or 'none'}; a row has {', '.join(known)}"
        )
    try:
        return Row(**item)
    except InvalidArgument as error:
        raise InvalidArgument(f"{where}: {error}") from error


def slug(text: str) -> str:
    """``text`` as part of a file name: small letters, digits and single hyphens."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
