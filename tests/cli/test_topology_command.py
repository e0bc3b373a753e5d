"""sley topology: list, show and import; --topology."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from sley import topologies
from sley.cli import main
from support.checks.golden import Golden
from support.inputs.topology_texts import CLOUD


def sley(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(a) for a in arguments])


@pytest.mark.parametrize(
    "name", ["ndv4:2", "dgx1", "ndv5-nvls", "resccl:4", "pcie-8:2", "mesh:2x2"]
)
def test_show_prints_the_matrix_and_the_model(name: str, golden: Golden) -> None:
    result = sley("topology", "show", name)
    assert result.exit_code == 0, result.output
    assert not result.stderr
    golden(f"topology-{name.replace(':', '-')}.txt", without_defaults(result.stdout))


def without_defaults(text: str) -> str:
    """The text without the parameters of the model that have their values by default: what those
    are is the model's own affair."""
    before, _, after = text.partition("\n  cost model ")
    rows, _, rest = after.partition("\n\n")
    own = [" ".join(row.split()) for row in rows.splitlines() if "by default" in row]
    return "\n".join([before, "cost model", *own, "", rest])


def test_show_prints_every_parameter_of_the_model() -> None:
    result = sley("topology", "show", "ndv5")
    for name, value in topologies.ndv5().model.items().items():
        assert f"  {name} " in result.stdout
        assert value in result.stdout
    assert result.stdout.count("by default") == 6
    assert re.search(r"^  wait_us +0.5 +assumption$", result.stdout, re.MULTILINE)


def test_a_machine_with_known_errors_says_so() -> None:
    assert "mi250x: T611 known-error: from 4 MB up" in sley("topology", "show", "mi250x:2").stderr


def test_show_prints_json() -> None:
    said = json.loads(sley("topology", "show", "ndv5", "--nodes", 2, "--json").stdout)
    assert (said["name"], said["ranks"], said["nodes"]) == ("ndv5:2", 16, 2)
    assert said["card"] == list(range(16))
    assert said["model"]["nvlink_block_GBps"] == {
        "value": "36.7",
        "default": "20",
        "origin": "NCCL's tuner, A100",
    }
    assert said["matrices"][0]["nodes"] == [0, 1]
    assert said["matrices"][0]["matrix"][0][:2] == ["X", "NV 370"]
    assert sum(link["count"] for link in said["links"]) == 96
    assert said["sources"]["cards"]


def test_nodes_that_differ_are_shown_apart(tmp_path: Path) -> None:
    path = tmp_path / "two.toml"
    topologies.save(topologies.find("2x2"), path)
    text = path.read_text().replace(
        '[0, 4, "nvlink", 300.0, 230.0]', '[0, 4, "nvlink", 300.0, 9.0]'
    )
    path.write_text(text)
    result = sley("topology", "show", path)
    assert "node 0\n" in result.stdout
    assert "node 1\n" in result.stdout
    assert "NV 9" in result.stdout


def test_large_nodes_are_shown_without_their_matrix() -> None:
    result = sley("topology", "show", "torus:4x4x4")
    assert "64 GPUs; --json prints matrices of more than 16" in result.stdout


def test_list_names_every_machine() -> None:
    lines = sley("topology", "list").stdout.splitlines()
    assert [line.split()[0] for line in lines[1:]] == list(topologies.machine_names())
    said = json.loads(sley("topology", "list", "--json").stdout)
    assert [m["name"] for m in said] == list(topologies.machine_names())
    assert all(m["sources"] for m in said)


@pytest.mark.parametrize(
    ("suffix", "options"),
    [
        ("", ("--like", "resccl-4gpu", "--nodes", 2)),
        (",like=resccl-4gpu", ("--nodes", 2)),
        (",like=resccl-4gpu:2", ()),
    ],
)
def test_like_completes_an_imported_file(
    suffix: str, options: tuple[object, ...], tmp_path: Path
) -> None:
    source, target = tmp_path / "cloud.xml", tmp_path / "out.toml"
    source.write_text(CLOUD)
    result = sley("topology", "import", f"{source}{suffix}", *options, "-o", target)
    assert "NVLink as in resccl-4gpu" in result.stderr
    shown = sley("topology", "show", f"{source},like=resccl-4gpu:2", "--json")
    own = topologies.load(target)
    assert json.loads(shown.stdout)["card"] == own.nic.tolist()
    assert own == topologies.load(source, nodes=2, like="resccl-4gpu")
    for more in (("--like", "ndv4"), ("--nodes", 2)):
        twice = sley("topology", "import", f"{source},like=ndv4:2", *more, "-o", target)
        assert (twice.exit_code, f"{more[0]} or FILE" in twice.stderr) == (2, True)


def test_import_writes_what_it_read_and_says_what_it_assumed(tmp_path: Path) -> None:
    source, target = tmp_path / "topo.txt", tmp_path / "out.toml"
    source.write_text(
        "\tGPU0\tGPU1\tNIC0\nGPU0\tX\tNV4\tPIX\nGPU1\tNV4\tX\tSYS\nNIC0\tPIX\tSYS\tX\n"
    )
    result = sley("topology", "import", source, "-o", target, "--nodes", 2)
    assert result.exit_code == 0, result.output
    assert "F434" in result.stderr
    assert topologies.load(target) == topologies.load(source, nodes=2)
    assert sley("topology", "show", target).exit_code == 0
    told = result.stderr.count("F434")
    assert told > 2
    bound = sley("bound", "allreduce", "--topology", f"{source}:2").stderr
    assert bound == (
        f"note: {source}: F434 assumed: {told} values that the file leaves open, which sley "
        f"topology show tells; {source},like=MACHINE takes most of them from a machine\n"
    )


def test_import_of_nothing_writes_nothing(tmp_path: Path) -> None:
    target = tmp_path / "out.toml"
    result = sley("topology", "import", tmp_path / "none.xml", "-o", target)
    assert result.exit_code == 2
    assert "T605" in result.stderr
    assert not target.exists()


def test_unknown_names_are_told_the_nearest() -> None:
    for command in (
        ("topology", "show", "ndv44:2"),
        ("compile", "ring-allreduce", "--ranks", 8, "--topology", "ndv44:2"),
    ):
        result = sley(*command)
        assert result.exit_code == 2
        assert "T604" in result.stderr
        assert "Did you mean ndv4" in result.stderr


@pytest.mark.parametrize("name", ["ndv4", "dgx-a100:1", "1x8:4", "torus:8", "FILE"])
def test_plans_are_compiled_for_topologies_of_any_kind(name: str, tmp_path: Path) -> None:
    if name == "FILE":
        name = str(tmp_path / "mine.toml")
        topologies.save(topologies.mi300x(), name)
    result = sley("compile", "ring-allreduce", "--ranks", 8, "--topology", name, "--json")
    assert result.exit_code == 0, result.output


def test_programs_must_fit_their_topology() -> None:
    more = sley("compile", "ring-allreduce", "--ranks", 16, "--topology", "ndv4")
    assert (more.exit_code, "C305" in more.stderr) == (2, True)
    unlinked = sley("compile", "ring-allreduce", "--ranks", 8, "--topology", "mesh:8")
    assert (unlinked.exit_code, "C301" in unlinked.stderr) == (2, True)
