"""sley tune sweep, train and show: what they print, write and refuse."""

import json
from dataclasses import replace

import pytest
from click.testing import CliRunner

from sley.cli import main
from sley.tuning import Simulated
from sley.tuning.policy import read

SMALL = ("alltonext", "--topology", "1x2", "-b", "16K", "-e", "1M", "-f", "64", "--actions", "nccl")


def call(*arguments, code=0):
    result = CliRunner().invoke(main, list(map(str, arguments)))
    assert result.exit_code == code, result.output
    return result.stdout if "--json" in arguments else result.output  # notes are on stderr


def test_sweep_shows_the_oracle_beside_the_default(tmp_path):
    found = json.loads(call("tune", "sweep", *SMALL, "-o", tmp_path, "--json"))
    (swept,) = found["sweeps"]
    assert [row["size_bytes"] for row in swept["sizes"]] == [16 << 10, 1 << 20]
    assert all(0 < row["best_us"] <= row["default_us"] for row in swept["sizes"])
    (file,) = tmp_path.iterdir()
    before = file.stat().st_mtime_ns
    table = call("tune", "sweep", *SMALL, "-o", tmp_path)
    assert file.stat().st_mtime_ns == before, "a sweep that is there was repeated"
    assert "16K" in table
    assert "direct-alltonext" in table
    call("tune", "sweep", *SMALL[:3], "-b", "64K", "-e", "64K", *SMALL[-2:], "-o", tmp_path)
    assert file.stat().st_mtime_ns != before
    before = file.stat().st_mtime_ns
    again = json.loads(call("tune", "sweep", *SMALL, "-o", tmp_path, "--json"))
    assert again["sweeps"] == found["sweeps"]
    assert file.stat().st_mtime_ns == before, "another size has replaced those that were there"


def test_tune_writes_a_policy_that_show_prints_and_draws(tmp_path):
    policy, sweeps = tmp_path / "policy.toml", tmp_path / "sweeps"
    arguments = ("tune", "train", *SMALL, "--samples", 30, "--sweeps", sweeps)
    found = json.loads(call(*arguments, "-o", policy, "--json"))
    (trained,) = found["results"]
    assert trained["agent"] == "thompson"
    assert all(row["regret"] < 0.05 for row in trained["sizes"])
    one = read(policy)
    assert one.facts["notes"]["samples"] == "30"
    assert one.facts["changes"]
    for row in trained["sizes"]:
        chosen = one.find("alltonext", row["size_bytes"])
        assert (chosen is None) == (row["choice"] == row["default"])
        assert chosen is None or str(chosen.recipe) == row["choice"]
    picture = tmp_path / "map.svg"
    shown = call("tune", "show", policy, "-o", picture)
    assert "direct-alltonext" in shown
    assert "changes in training" in shown
    assert "x of " in shown
    assert picture.read_text().startswith("<?xml")
    again = tmp_path / "again.svg"
    call("tune", "show", policy, "-o", again)
    assert again.read_bytes() == picture.read_bytes(), "equal policies give different pictures"


def test_tune_goes_on_from_its_checkpoint(tmp_path, monkeypatch):
    arguments = ("tune", "train", *SMALL, "--checkpoints", tmp_path, "--json")
    call(*arguments, "--samples", 3)
    with monkeypatch.context() as patched:
        patched.setattr(Simulated, "measure", lambda *_: pytest.fail("it measured again"))
        found = json.loads(call(*arguments, "--samples", 3))
        assert found["results"][0]["samples"] == 3
    assert "3 samples of each size, which count" in call(*arguments[:-1], "--samples", 2)


def test_an_interrupted_training_goes_on_where_it_was(tmp_path, monkeypatch):
    measure, count = Simulated.measure, 0

    def interrupt(*arguments):
        nonlocal count
        count += 1
        if count == 8:
            raise KeyboardInterrupt
        return measure(*arguments)

    monkeypatch.setattr(Simulated, "measure", interrupt)
    arguments = ("tune", "train", *SMALL, "--checkpoints", tmp_path, "--samples", 6)
    assert "3 samples of each size to go on from" in call(*arguments, code=130)
    assert "6 samples of each size" in call(*arguments)
    assert count == 8 + 6


def test_a_recurrent_agent_trains_its_network_once(tmp_path, monkeypatch):
    from sley.tuning import train

    def train_less(sites, steps, settings, **others):
        return train(sites, steps, replace(settings, environments=2, calls=4), **others)

    monkeypatch.setattr("sley.tuning.train", train_less, raising=False)
    network = tmp_path / "network.npz"
    arguments = (
        "tune",
        "train",
        *SMALL,
        "--agent",
        "recurrent",
        "--network",
        network,
        "--samples",
        10,
    )
    sweeps = ("--sweeps", tmp_path / "sweeps")
    found = json.loads(call(*arguments, *sweeps, "--steps", 1, "--json"))
    assert found["results"][0]["agent"] == "recurrent"
    content = network.read_bytes()
    assert "trained on this sweep" in call(*arguments, *sweeps)
    assert network.read_bytes() == content
    assert "--steps" in call(*arguments, *sweeps, "--steps", 1, code=2)


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("tune", "train", "allsum", "--topology", "1x2"), 2, "allsum"),
        (("tune", "train", *SMALL, "--agent", "star"), 2, "recurrent"),
        (
            ("tune", "train", "allreduce", "--live", "--ranks", "2", "--network", "n.npz"),
            2,
            "--network",
        ),
        (("tune", "train", *SMALL, "--samples", "0"), 2, "0"),
        (("tune", "train", *SMALL, "-j", "2"), 2, "--sweeps"),
        (
            ("tune", "train", "allreduce", "--live", "--ranks", "2", "--checkpoints", "c"),
            2,
            "not for",
        ),
        (("tune", "train", *SMALL, "--checkpoints", "/dev/null/c"), 1, "F461"),
        (("tune", "sweep", *SMALL, "-o", "/dev/null/s"), 1, "F461"),
        (("tune", "show", "p.png", "-o", "./p.png"), 2, "policy itself"),
        (("tune", "export", "p", "--target", "rccl", "-o", "./p"), 2, "policy itself"),
        (("tune", "train", *SMALL, "--agent", "recurrent"), 2, "--network"),
        (("tune", "train", *SMALL, "--network", "n.npz"), 2, "--agent"),
        (("tune", "train", *SMALL, "--agent", "recurrent", "--network", "n.npz"), 2, "--sweeps"),
        (("tune", "train", *SMALL, "-o", "missing/p.toml"), 2, "F461"),
        (("tune", "sweep", "alltonext", "--topology", "nowhere"), 2, "nowhere"),
        (("tune", "show", "missing.toml"), 2, "D901"),
    ],
)
def test_wrong_use_is_refused(tmp_path, monkeypatch, arguments, code, says):
    monkeypatch.chdir(tmp_path)
    assert says in call(*arguments, code=code)


def test_a_missing_extra_is_named(monkeypatch):
    import sys

    monkeypatch.delitem(sys.modules, "sley.tuning.training", raising=False)
    monkeypatch.delattr("sley.tuning.training", raising=False)
    monkeypatch.setitem(sys.modules, "sley.tuning.agents.contextual", None)
    assert "R512" in call("tune", "train", *SMALL, code=1)
