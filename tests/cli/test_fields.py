from __future__ import annotations

from tests.cli.conftest import Cli


def test_fields_say_what_a_sheet_must_mention(cli: Cli) -> None:
    found = cli("fields", "norm.rmsnorm", "--json").json
    by_name = {row["name"]: row for row in found["fields"]}
    assert by_name["hidden"]["required"] is True
    assert by_name["contiguous"] == {
        "name": "contiguous",
        "required": False,
        "default": "True",
        "values": ["True", "False"],
    }
    assert found["sizes"] == ["tokens"]
    text = cli("fields", "norm.rmsnorm").out
    assert "is refused: it must be mentioned" in text
    assert "takes True only" in text


def test_an_unknown_op_names_the_nearest(cli: Cli) -> None:
    result = cli("fields", "norm.rmsnrm")
    assert result.code == 2
    assert "did you mean 'norm.rmsnorm'" in result.err
