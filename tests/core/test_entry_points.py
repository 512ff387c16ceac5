"""Plugins are found in whatever way packages lie on the path."""

from __future__ import annotations

import sys
import zipfile
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import pytest

from attnhub.core import discovery
from attnhub.errors import InvalidArgument


def install(folder: Path, project: str, points: str, kind: str = "1.0.dist-info") -> None:
    info = folder / f"{project}-{kind}"
    info.mkdir(parents=True)
    file = "PKG-INFO" if kind.endswith("egg-info") else "METADATA"
    (info / file).write_text(f"Metadata-Version: 2.1\nName: {project}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(points)


def found(monkeypatch: pytest.MonkeyPatch, *places: Path) -> list[tuple[str, str]]:
    """Name and value of each, and the same from the standard library's search."""
    monkeypatch.setattr(sys, "path", [str(place) for place in places])
    ours = of_ours()
    theirs = metadata.entry_points(group=discovery.GROUP)
    assert sorted(ours) == sorted((e.name, e.value) for e in theirs)
    return ours


def of_ours() -> list[tuple[str, str]]:
    return [(e.name, e.value) for e in discovery.entry_points()]


def test_among_other_groups_and_packages(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    install(tmp_path, "b", "[console_scripts]\nx = b:main\n\n[attnhub]\nbee = b.manifest\n")
    install(tmp_path, "a", "[attnhub]\nzoo = a.manifest\nant = a.other\n", "2.0.egg-info")
    install(tmp_path, "c", "[attnhub.other]\ncat = c.manifest\n")
    install(tmp_path, "d", "[console_scripts]\nattnhub = d:main\n")
    names = [("ant", "a.other"), ("bee", "b.manifest"), ("zoo", "a.manifest")]
    assert found(monkeypatch, tmp_path) == names


def test_the_first_installation_of_a_package_counts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    install(tmp_path / "first", "a", "[console_scripts]\nx = a:main\n")
    install(tmp_path / "second", "a", "[attnhub]\nold = a.manifest\n")
    assert found(monkeypatch, tmp_path / "first", tmp_path / "second") == []


def test_two_packages_may_give_one_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Which the registry then tells of: neither disappears here."""
    for project in ("a", "b"):
        install(tmp_path, project, f"[attnhub]\nsame = {project}.manifest\n")
    assert sorted(found(monkeypatch, tmp_path)) == [("same", "a.manifest"), ("same", "b.manifest")]


def test_archives_and_folders_that_are_not_there(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    install(tmp_path / "plain", "a", "[attnhub]\nfolder = a.manifest\n")
    archive = tmp_path / "b.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("b-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: b\nVersion: 1.0\n")
        file.writestr("b-1.0.dist-info/entry_points.txt", "[attnhub]\narchive = b.manifest\n")
    places = (tmp_path / "nowhere", archive, tmp_path / "plain")
    assert [name for name, _ in found(monkeypatch, *places)] == ["archive", "folder"]


def test_an_archive_may_hold_what_a_folder_before_it_does(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    install(tmp_path / "plain", "My_A", "[attnhub]\nnew = a.manifest\n")
    archive = tmp_path / "a.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("my_a-1.0.dist-info/METADATA", "Name: my-a\nVersion: 1.0\n")
        file.writestr("my_a-1.0.dist-info/entry_points.txt", "[attnhub]\nold = a.manifest\n")
    assert found(monkeypatch, tmp_path / "plain", archive) == [("new", "a.manifest")]


@pytest.mark.parametrize("kind", ["folder", "archive"])
def test_eggs(kind: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    files = {"PKG-INFO": "Name: my-a\nVersion: 1.0\n", "entry_points.txt": "[attnhub]\na = b.c\n"}
    egg = tmp_path / "my_a-1.0-py3.11.egg"
    if kind == "folder":
        (egg / "EGG-INFO").mkdir(parents=True)
        for name, text in files.items():
            (egg / "EGG-INFO" / name).write_text(text)
    else:
        with zipfile.ZipFile(egg, "w") as archive:
            for name, text in files.items():
                archive.writestr(f"EGG-INFO/{name}", text)
    assert found(monkeypatch, egg) == [("a", "b.c")]
    install(tmp_path / "first", "my-a", "[other]\na = b.c\n", "2.dist-info")
    monkeypatch.setattr(sys, "path", [str(tmp_path / "first"), str(egg)])
    assert of_ours() == []


def test_a_folder_outside_an_egg_is_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "EGG-INFO").mkdir()
    (tmp_path / "EGG-INFO/entry_points.txt").write_text("[attnhub]\na = b.c\n")
    assert found(monkeypatch, tmp_path) == []


@pytest.mark.parametrize(
    ("first", "second"),
    [
        pytest.param("my-a.egg-info", "my-b.egg-info", id="no version"),
        pytest.param("my-a-1.0.dist-info", "my-b-1.0.dist-info", id="a dash before the version"),
        pytest.param("my-a-1.0-py3.11.egg-info", "my-b-1.0-py3.11.egg-info", id="of a Python"),
        pytest.param("my_a-1.0.dist-info", "my-1.0.dist-info", id="a longer name"),
    ],
)
def test_two_projects_are_two(
    first: str, second: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The standard library takes the first three pairs for two installations of ``my``."""
    for number, name in enumerate((first, second)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "entry_points.txt").write_text(f"[attnhub]\np{number} = x\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    assert [name for name, _ in of_ours()] == ["p0", "p1"]


@pytest.mark.parametrize(
    "second",
    ["my.a-1.0.dist-info", "My_A-2.0.dist-info", "my-a.egg-info", "MY--a-1!2.0.DIST-INFO"],
)
def test_one_project_by_any_spelling_is_one(
    second: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for folder, name in (("first", "my_a-1.0.dist-info"), ("second", second)):
        (tmp_path / folder / name).mkdir(parents=True)
        (tmp_path / folder / name / "entry_points.txt").write_text(f"[attnhub]\n{folder} = x\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path / "first"), str(tmp_path / "second")])
    assert [name for name, _ in of_ours()] == ["first"]


class Finder:
    """As of an importer of frozen or remote packages: its distributions lie in no folder."""

    def __init__(self, **projects: str) -> None:
        self._projects = projects

    def find_spec(self, *_: object) -> None:
        return None

    def find_distributions(self, context: object) -> list[metadata.Distribution]:
        return [Frozen(name, text) for name, text in self._projects.items()]


class Frozen(metadata.Distribution):
    def __init__(self, project: str, points: str) -> None:
        self._files = {
            "METADATA": f"Name: {project}\nVersion: 1\n",
            "entry_points.txt": points,
        }

    def read_text(self, filename: str) -> str | None:
        return self._files.get(filename)

    def locate_file(self, path: object) -> Path:
        raise NotImplementedError


@pytest.mark.parametrize("is_first", [True, False])
def test_other_finders_are_asked_in_their_turn(
    is_first: bool,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    install(tmp_path, "my_a", "[attnhub]\na = of.folder\n")
    finder = Finder(**{"My.A": "[attnhub]\na = frozen\n", "b": "[attnhub]\nb = x\n", "c": ""})
    others = [*sys.meta_path]
    monkeypatch.setattr(sys, "meta_path", [finder, *others] if is_first else [*others, finder])
    expected = [("a", "frozen" if is_first else "of.folder"), ("b", "x")]
    assert found(monkeypatch, tmp_path) == expected


def test_the_backport_of_the_library_is_not_asked(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It looks where we do, and parses what every package says."""
    backport = type("MetadataPathFinder", (Finder,), {"__module__": "importlib_metadata"})
    install(tmp_path, "a", "[attnhub]\na = of.folder\n")
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, backport(b="[attnhub]\nb = x\n")])
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    assert of_ours() == [("a", "of.folder")]


@pytest.mark.parametrize(
    ("text", "names", "denied"),
    [
        ("", set(), False),
        (" a , b", {"a", "b"}, False),
        ("-a,b", {"a", "b"}, True),
        ("- a, -b", {"a", "b"}, True),
    ],
)
def test_what_the_variable_names(
    text: str, names: set[str], denied: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(discovery, "environment", lambda: SimpleNamespace(plugins=text))
    assert discovery.listed() == (names, denied)


def test_plugins_both_named_and_denied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(discovery, "environment", lambda: SimpleNamespace(plugins="a,-b"))
    with pytest.raises(InvalidArgument, match="'a,-b' names plugins to load and plugins to skip"):
        discovery.selected("a")
