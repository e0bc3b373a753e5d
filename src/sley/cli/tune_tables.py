"""Tables of sley tune sweep and sley tune, as lines and as JSON."""

from __future__ import annotations

from math import exp
from typing import TYPE_CHECKING, Any

import numpy as np

from sley.ir.sizes import size_text
from sley.report.tables import table_lines
from sley.tuning.sweep import Sweep

if TYPE_CHECKING:
    from sley.tuning.evaluate import Curve
    from sley.tuning.training import Training


def sweep_lines(found: Sweep) -> list[str]:
    """The table of a sweep."""
    rows: list[tuple[str, ...]] = [("size", "default", "us", "fastest", "us", "faster")]
    for place, size in enumerate(found.sizes.tolist()):
        default, best = int(found.default[place]), int(found.best[place])
        rows.append(
            (
                size_text(size),
                str(found.arms.decisions[default]),
                f"{found.default_us[place]:.1f}",
                str(found.arms.decisions[best]),
                f"{found.best_us[place]:.1f}",
                f"{found.default_us[place] / found.best_us[place]:.2f}x",
            )
        )
    title = f"# {found.arms.collective} on {found.arms.topology.name}, {len(found.arms)} choices"
    return [title, *table_lines(rows, (1, 3)), ""]


def training_lines(training: Training, recorded: Sweep | None) -> list[str]:
    """The table of what an agent has learned; times are its own measurements."""
    backend, tally = training.backend, training.agent.tally
    head = ["size", "choice", "", "us", "default us", "faster"]
    rows: list[tuple[str, ...]] = [(*head, *(["regret"] if recorded else []))]
    for cell, size in enumerate(backend.sizes.tolist()):
        arm, mean = training.agent.best(cell), tally.mean(cell)
        own, default = (exp(float(mean[a])) for a in (arm, backend.default[cell]))
        mark = "(default)" if arm == backend.default[cell] else ""
        row = [size_text(size), str(backend.decisions[arm]), mark, f"{own:.1f}", f"{default:.1f}"]
        row.append(f"{default / own:.2f}x")
        if recorded:
            regret = recorded.true_us(cell, arm) / recorded.best_us[cell] - 1
            row.append(f"{regret:.1%}")
        rows.append(tuple(row))
    title = (
        f"# {backend.collective} on {backend.machine}, {len(backend.decisions)} choices, "
        f"{training.name}, {training.rounds} samples of each size"
    )
    return [title, *table_lines(rows, (1, 2)), ""]


def curve_lines(collective: str, curves: list[Curve]) -> list[str]:
    """The table of a comparison."""
    rows: list[tuple[str, ...]] = [("agent", "samples", "mean regret", "worst", "regressions")]
    for one in curves:
        for place, count in enumerate(one.samples.tolist()):
            rows.append(
                (
                    one.agent if place == 0 else "",
                    str(count),
                    f"{one.regret[place].mean():.1%}",
                    f"{one.regret[place].max():.1%}",
                    str(int(one.regressions[place])),
                )
            )
    return [f"# {collective}, regret against the oracle", *table_lines(rows, (0,)), ""]


def sweep_json(found: Sweep) -> dict[str, Any]:
    """A sweep."""
    return {
        "collective": found.arms.collective,
        "choices": len(found.arms),
        "sizes": [
            {
                "size_bytes": size,
                "default": str(found.arms.decisions[int(found.default[place])]),
                "default_us": float(found.default_us[place]),
                "best": str(found.arms.decisions[int(found.best[place])]),
                "best_us": float(found.best_us[place]),
            }
            for place, size in enumerate(found.sizes.tolist())
        ],
    }


def training_json(training: Training, recorded: Sweep | None) -> dict[str, Any]:
    """What an agent has learned."""
    rows, tally = [], training.agent.tally
    for cell, size in enumerate(training.backend.sizes.tolist()):
        arm, default = training.agent.best(cell), int(training.backend.default[cell])
        time_us, default_us = np.exp(tally.mean(cell)[[arm, default]]).tolist()
        row: dict[str, Any] = {
            "size_bytes": size,
            "choice": str(training.backend.decisions[arm]),
            "default": str(training.backend.decisions[default]),
            "time_us": time_us,
            "default_us": default_us,
        }
        if recorded:
            row["regret"] = float(recorded.true_us(cell, arm) / recorded.best_us[cell] - 1)
        rows.append(row)
    return {
        "collective": training.backend.collective,
        "agent": training.name,
        "samples": training.rounds,
        "sizes": rows,
    }


def curve_json(one: Curve) -> dict[str, Any]:
    """A learning curve."""
    return {
        "agent": one.agent,
        "samples": one.samples.tolist(),
        "regret": one.regret.tolist(),
        "slower": one.slower.tolist(),
        "regressions": one.regressions.tolist(),
    }
