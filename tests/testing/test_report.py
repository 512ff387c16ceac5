from __future__ import annotations

import io
import sys
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from rich.console import Console

from attnhub.errors import AttnHubError, InvalidArgument
from attnhub.testing.report import draw, table, text
from attnhub.testing.results import Environment, Row

HERE = Environment(
    gpu="NVIDIA H200",
    versions={"torch": "2.11.0", "cpu": "Xeon"},
    commit="0123456789abcdef",
    date="2026-11-30T14:05:00Z",
)
ROWS = [
    HERE.row(
        "decode",
        "B16 L8192 32/8",
        "bandwidth",
        3.9,
        "TB/s",
        share_of_ceiling=0.915,
        peers={"flashinfer": 3.74, "flash-attn": 3.54},
    ),
    HERE.row("decode", "B1 L32768 32/8", "bandwidth", 2.61, "TB/s", peers={"flashinfer": 2.52}),
    HERE.row("decode", "B1 L32768 32/8", "plan", 25.0, "us", peers={"flashinfer": 193.0}),
]
ON_CPU = replace(HERE, gpu="cpu").row("decode", "B1 L32768 32/8", "bandwidth", 0.02, "TB/s")


def test_plain_text_lines_up_and_shows_the_advantage() -> None:
    title, header, *lines = text(ROWS).splitlines()
    assert title == "decode on NVIDIA H200, Xeon, 2026-11-30, 0123456789, torch 2.11.0"
    assert header.split() == [
        "case",
        "metric",
        "attnhub",
        "of",
        "ceiling",
        "flashinfer",
        "flash-attn",
    ]
    assert "3.9 TB/s" in lines[0]
    assert "92%" in lines[0]
    assert "3.74 (1.04x)" in lines[0]
    assert lines[0].endswith("3.54 (1.10x)")
    assert lines[1].endswith("2.52 (1.04x)")
    assert lines[2].endswith("193 (7.72x)")  # a time: ours is the smaller
    column = header.index("metric")
    assert [line[column:].split()[0] for line in lines] == ["bandwidth", "bandwidth", "plan"]


def test_rows_of_several_machines_get_a_column_for_it() -> None:
    title, header, *lines = text([ROWS[0], ON_CPU]).splitlines()
    assert title == "decode, 2026-11-30, 0123456789, torch 2.11.0"
    assert header.split()[0] == "machine"
    assert [line.split()[0] for line in lines] == ["NVIDIA", "Xeon"]


def test_rows_of_several_runs_get_a_column_for_what_differs() -> None:
    later = replace(
        ROWS[0],
        commit="f" * 40 + "+dirty",
        date="2026-12-01T09:00:00Z",
        versions={"torch": "2.12.0", "cpu": "Xeon"},
    )
    title, header, *lines = text([ROWS[0], later]).splitlines()
    assert title == "decode on NVIDIA H200, Xeon"
    assert header.split()[:4] == ["day", "commit", "torch", "version"]
    assert lines[0].split()[:3] == ["2026-11-30", "0123456789", "2.11.0"]
    assert lines[1].split()[:3] == ["2026-12-01", "ffffffffff+dirty", "2.12.0"]


def test_a_peer_may_be_called_torch() -> None:
    _, header, line = text([replace(ROWS[0], peers={"torch": 1.3})]).splitlines()
    assert header.split()[-1] == "torch"
    assert line.endswith("1.3 (3.00x)")


def test_the_table_holds_the_same_cells() -> None:
    result = table(ROWS)
    assert result.row_count == 3
    assert [column.header for column in result.columns][-3:] == [
        "of ceiling",
        "flashinfer",
        "flash-attn",
    ]
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(result)
    shown = console.export_text()
    for cell in ("B16 L8192 32/8", "3.9 TB/s", "92%", "193 (7.72x)"):
        assert cell in shown


def test_the_ceiling_column_goes_when_no_row_has_one() -> None:
    assert "of ceiling" not in text(ROWS[1:])
    assert text([]).split() == ["case", "metric", "attnhub"]


@pytest.fixture
def chart(tmp_path: Path) -> tuple[Path, Path]:
    pytest.importorskip("matplotlib")
    return draw(ROWS, tmp_path / "decode-nvidia-h200-2026-11-30.json")


def test_the_chart_lies_beside_the_results(chart: tuple[Path, Path], tmp_path: Path) -> None:
    assert chart == (
        tmp_path / "decode-nvidia-h200-2026-11-30.png",
        tmp_path / "decode-nvidia-h200-2026-11-30.svg",
    )


def test_the_png_is_a_picture_with_a_bar_per_number(chart: tuple[Path, Path]) -> None:
    from matplotlib.image import imread

    assert chart[0].read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    pixels = imread(chart[0])[..., :3]
    height, width, _ = pixels.shape
    assert width == 9 * 150
    for colour in ((0x00, 0x72, 0xB2), (0xE6, 0x9F, 0x00), (0x00, 0x9E, 0x73)):
        share = (abs(pixels * 255 - colour).max(-1) < 2).mean()
        assert share > 0.01, f"{colour} covers {share:.2%} of {width} x {height}"


def test_the_svg_is_well_formed_and_the_same_every_time(
    chart: tuple[Path, Path], tmp_path: Path
) -> None:
    root = ET.parse(chart[1]).getroot()
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    words = chart[1].read_text(encoding="utf-8").split("<!-- ")
    for label in (
        "B16 L8192 32/8",
        "3.9 (92% of ceiling)",
        "flash-attn",
        "bandwidth [TB/s], larger",
        "plan [us], smaller",
    ):
        assert any(word.startswith(label) for word in words), label
    again = draw(ROWS, tmp_path / "again")[1]
    assert again.name == "again.svg"
    assert again.read_bytes() == chart[1].read_bytes()


@pytest.mark.parametrize("rows", [[], [ROWS[0], ON_CPU]], ids=["none", "two machines"])
def test_a_chart_of_no_or_several_suites_is_refused(rows: list[Row], tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="one suite on one machine"):
        draw(rows, tmp_path / "x")


def test_the_charts_title_says_what_was_measured_and_when(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    later = replace(ROWS[1], commit="f" * 40)
    svg = draw([ROWS[0], later], tmp_path / "x")[1].read_text(encoding="utf-8")
    assert "decode on NVIDIA H200, Xeon, 2026-11-30, torch 2.11.0, 0123456789 ffffffffff" in svg


def test_a_chart_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    with pytest.raises(InvalidArgument, match="absent/x: no chart can be written there"):
        draw(ROWS, tmp_path / "absent" / "x")


def test_a_missing_matplotlib_names_the_extra(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(AttnHubError, match=r"pip install 'attnhub\[bench\]'"):
        draw(ROWS, tmp_path / "x")
