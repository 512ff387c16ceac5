"""Plugins are found in whatever way packages lie on the path."""

from __future__ import annotations

import sys
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

from attnhub.core import discovery


def install(folder: Path, project: str, points: str, kind: str = "1.0.dist-info") -> None:
    info = folder / f"{project}-{kind}"
    info.mkdir(parents=True)
    file = "PKG-INFO" if kind.endswith("egg-info") else "METADATA"
    (info / file).write_text(f"Metadata-Version: 2.1\nName: {project}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(points)


def found(monkeypatch: pytest.MonkeyPatch, *places: Path) -> list[tuple[str, str]]:
    """Name and value of each, and the same from the standard library's search."""
    monkeypatch.setattr(sys, "path", [str(place) for place in places])
    ours = [(e.name, e.value) for e in discovery.entry_points()]
    theirs = metadata.entry_points(group=discovery.GROUP)
    assert sorted(ours) == sorted((e.name, e.value) for e in theirs)
    return ours


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
