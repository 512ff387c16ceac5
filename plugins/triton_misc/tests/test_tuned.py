"""Settings that were measured: kept, read, refused, and taken by the plans they are for."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import attnhub
from attnhub.plugin import Cache, Device, describe, isolated, registry
from attnhub.testing.compare import assert_close
from attnhub_triton_misc import rmsnorm as rmsnorm_module
from attnhub_triton_misc import settings, tuned
from attnhub_triton_misc.benchmarks import tune

H200, H100 = describe("h200"), describe("h100")
DEFAULT = settings.whole_row(4096)
BETTER = replace(DEFAULT, warps=DEFAULT.warps // 2)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The cache folder of a user who has measured nothing."""
    monkeypatch.setattr(tuned, "Cache", lambda: SimpleNamespace(home=tmp_path))
    tuned.read.cache_clear()
    yield tmp_path
    tuned.read.cache_clear()


def problem(device: Device = H200, **facts: Any) -> Any:
    facts = {"dtype": "bfloat16", "hidden": 4096, "tokens": 100, **facts}
    return registry().problem_class("norm.rmsnorm").of(device, **facts)


def save(setting: Any = BETTER, device: Device = H200) -> Path:
    return tuned.save(device, {tuned.key_of(problem(device)): setting})


def test_the_file_is_in_the_cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuned, "Cache", Cache)
    monkeypatch.setenv("ATTNHUB_CACHE_DIR", str(tmp_path))
    with isolated():  # reads the environment anew
        assert tuned.file_of(H200).parent == tmp_path / "tuned"


def test_what_was_kept_is_chosen(cache: Path) -> None:
    assert tuned.choose(problem(), DEFAULT) is DEFAULT
    file = save()
    assert file.is_relative_to(cache)
    assert "H200" in file.name
    chosen = tuned.choose(problem(), DEFAULT)
    assert chosen == BETTER
    assert chosen.reason == tuned.REASON
    assert tuned.choose(problem(tokens=128), DEFAULT) == BETTER  # of the same bucket
    save(None)
    assert tuned.choose(problem(), DEFAULT) is DEFAULT


@pytest.mark.parametrize(
    "facts",
    [{"hidden": 2048}, {"dtype": "float16"}, {"tokens": 129}, {"contiguous": False}],
    ids=str,
)
def test_a_setting_is_for_its_problem_alone(facts: dict[str, Any]) -> None:
    save()
    assert tuned.choose(problem(**facts), DEFAULT) is DEFAULT


def test_what_was_kept_before_stays() -> None:
    save()
    tuned.save(H200, {tuned.key_of(problem(hidden=2048)): DEFAULT})
    assert tuned.choose(problem(), DEFAULT) == BETTER


def test_settings_of_another_gpu_are_not_taken() -> None:
    file = save(device=H200)
    assert tuned.choose(problem(H100), DEFAULT) is DEFAULT
    file.rename(tuned.file_of(H100))
    tuned.read.cache_clear()
    with pytest.warns(RuntimeWarning, match="something else, .* measure anew by .* or remove"):
        assert tuned.choose(problem(H100), DEFAULT) is DEFAULT


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", "null", "\xff"])
def test_a_broken_file_is_told_of_once(text: str) -> None:
    save().write_text(text, encoding="latin-1")
    tuned.read.cache_clear()
    with pytest.warns(RuntimeWarning, match="measure anew by .* or remove the file"):
        assert tuned.choose(problem(), DEFAULT) is DEFAULT
    assert tuned.choose(problem(), DEFAULT) is DEFAULT


@pytest.mark.parametrize(
    "entry",
    [
        pytest.param({"rows": 1, "block": 4096}, id="no warps"),
        pytest.param({"rows": 1, "block": 4096, "warps": 6}, id="no power of two"),
        pytest.param({"rows": 1, "block": 4096, "warps": 64}, id="more threads than a program has"),
        pytest.param({"rows": 8, "block": 4096, "warps": 4}, id="more than registers hold"),
        pytest.param({"rows": 1, "block": 4096, "warps": "4"}, id="a text"),
        pytest.param({"rows": 1, "block": 4096, "warps": 4, "reason": "mine"}, id="one more"),
        pytest.param([1, 4096, 4], id="a list"),
    ],
)
def test_an_entry_that_is_no_setting_is_not_taken(entry: Any) -> None:
    file = save()
    content = json.loads(file.read_text())
    content["settings"] = dict.fromkeys(content["settings"], entry)
    file.write_text(json.dumps(content))
    tuned.read.cache_clear()
    with pytest.warns(RuntimeWarning, match="is no setting for norm.rmsnorm: dtype=bfloat16"):
        assert tuned.choose(problem(), DEFAULT) is DEFAULT


def test_trials_nest() -> None:
    save()
    with tuned.trying(lambda key, default: replace(default, warps=2)):
        with tuned.trying(lambda key, default: replace(default, warps=1)):
            assert tuned.choose(problem(), DEFAULT).warps == 1
        assert tuned.choose(problem(), DEFAULT).warps == 2
    assert tuned.choose(problem(), DEFAULT) == BETTER


def test_plans_of_calls_take_what_was_kept(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    launched = []
    launch = rmsnorm_module.launch
    monkeypatch.setattr(
        rmsnorm_module, "launch", lambda *a, **o: (launched.append(o["num_warps"]), launch(*a, **o))
    )
    x, weight = torch.randn(2, 40, device=device), torch.ones(40, device=device)
    default = settings.whole_row(40)
    facts = {"dtype": "float32", "hidden": 40, "tokens": 2}
    own = describe(device)
    tuned.save(own, {tuned.key_of(problem(own, **facts)): replace(default, warps=2, rows=1)})
    with tune.copies(1) as [name], attnhub.use(name):  # one that has no plan yet
        y = attnhub.norm.rmsnorm(x, weight)
    assert launched == [2] != [default.warps]
    assert_close(y, torch.nn.functional.rms_norm(x.double(), (40,), eps=1e-6))


@pytest.mark.parametrize("name", tune.OPS)
def test_each_op_runs_by_every_candidate(name: str, device: torch.device) -> None:
    def random(*shape: int) -> torch.Tensor:
        return torch.randn(shape, device=device)

    call = tune.OPS[name](random, 3, 40)
    key, default = tune.default_of(call)
    near = tune.neighbours(default)
    assert len(near) >= 3
    assert all(setting.is_legal() and setting != default for setting in near)
    ran = []
    with tune.copies(len(near)) as names:
        for copy, setting in zip(names, near, strict=True):
            tune.planned(call, copy, lambda asked, _, s=setting: (ran.append(asked), s)[1])
    assert ran == [key] * len(near)


class FakeTimer:
    """Runs each peer; of the first round, and of two side by side, the second is the fastest."""

    def __init__(self) -> None:
        self.rounds: list[int] = []

    def __call__(self, peers: dict[str, Any], **_: Any) -> Any:
        for run in peers.values():
            run()
        best = 1 if len(peers) == 2 or not self.rounds else None
        self.rounds.append(len(peers))
        timings = {
            name: SimpleNamespace(median_us=5.0 if i == best else 10.0)
            for i, name in enumerate(peers)
        }
        return SimpleNamespace(timings=timings)


ONE_CASE = ["--op", "rmsnorm", "--hidden", "40", "--tokens", "2", "--dtype", "float32"]


def test_the_command_line_measures_and_keeps(
    device: torch.device,
    cache: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(tune, "compare_peers", FakeTimer())
    tune.main([*ONE_CASE, "--device", str(device), "--dry-run"])
    assert "5.00" in capsys.readouterr().out
    assert not list(cache.iterdir())
    monkeypatch.setattr(tune, "compare_peers", FakeTimer())
    tune.main([*ONE_CASE, "--device", str(device)])
    own = describe(device)
    [entry] = tuned.read(own).values()
    assert entry != {name: getattr(settings.whole_row(40), name) for name in entry}
    kept = tuned.choose(problem(own, dtype="float32", hidden=40, tokens=2), settings.whole_row(40))
    assert kept.is_legal()
    assert kept.reason == tuned.REASON


def test_luck_is_not_kept() -> None:
    """What is faster in the search must be so beside the default alone."""

    def measure(tried: Any) -> list[float]:
        return [10.0, 10.0] if len(tried) == 2 else [10.0, 5.0, *[10.0] * (len(tried) - 2)]

    assert tune.search("key", DEFAULT, measure).kept is None


def test_the_search_goes_on_from_what_is_faster() -> None:
    goal = replace(DEFAULT, block=512, warps=2, rows=4)

    def measure(tried: Any) -> list[float]:
        return [
            10.0
            + sum(abs(getattr(s, n).bit_length() - getattr(goal, n).bit_length()) for n in s.CHOSEN)
            for s in tried
        ]

    assert tune.search("key", DEFAULT, measure).kept == goal
