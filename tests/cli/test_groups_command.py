"""sley groups: plans of groups as files and as numbers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from sley.cli import main


def groups(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["groups", *(str(a) for a in arguments)])


def test_groups_of_a_grid_and_of_ranks_have_plans(tmp_path: Path) -> None:
    calls = ("tp:allreduce:1M", "0-1/3,2:allgather:2M")
    options = ("--topology", "2x2", "--grid", "tp=2,dp=2", "-o", tmp_path / "plans")
    result = groups(*calls, *options, "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert [one["size_bytes"] for one in found["calls"]] == [1 << 20, 2 << 20]
    assert found["time_us"] == max(one["time_us"] for one in found["calls"]) > found["bound_us"]
    names = [Path(one).name for one in found["output"]]
    assert names[:2] == [f"0-tp-allreduce-{rank}.plan" for rank in (0, 2)]
    assert names[2:] == [f"1-0-1+3,2-allgather-{rank}.plan" for rank in (0, 3)]
    verified = CliRunner().invoke(main, ["verify", found["output"][-1]])
    assert verified.exit_code == 0, verified.output
    result = groups("0-1/2-3:allgather:1M", "--topology", "2x2")
    assert "2 groups" in result.output
    assert "us planned together" in result.output


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["tp:allreduce:1M"], "'tp' is a dimension of a grid: --grid is needed, such as --grid tp"),
        (["dp:allreduce:1M", "--grid", "tp=2,pp=4"], "--grid has tp and pp"),
        (["tp:allreduce"], "as in tp:allreduce:64M"),
        (["tp:allreduce:many"], "not a size"),
        (["tp:allreduce:1M", "--grid", "tp"], "as in tp=4,dp=8"),
        (["tp:allreduce:1M", "--grid", "tp=2,tp=4"], "different names"),
        (["0-1-3:allreduce:1M"], "no groups such as"),
        (["3-1:allreduce:1M"], "no groups such as"),
        (["0-99999999999:allreduce:1M"], "no 99999999999"),
        (["0,99999999999:allreduce:1M"], "no 99999999999"),
        (["tp:allreduce:1M", "--grid", "tp=3,dp=4"], "T613"),
        (["0-3/2-5:allreduce:1M"], "T613"),
        (["0-3:broadcast:1M"], "T612"),
    ],
)
def test_wrong_words_are_refused(words: list[str], text: str) -> None:
    result = groups(*words, "--topology", "2x4")
    assert result.exit_code == 2
    assert text in result.output
