"""Tables of sley tune sweep and sley tune, as lines and as JSON."""

from __future__ import annotations

from math import exp
from typing import TYPE_CHECKING, Any

import numpy as np

from sley.ir.sizes import size_text
from sley.report.tables import table_lines
from sley.tuning.sweeps import ArmTimes

if TYPE_CHECKING:
    from sley.tuning.training import Training


def sweep_lines(found: ArmTimes) -> list[str]:
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


def training_lines(training: Training, recorded: ArmTimes | None) -> list[str]:
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


def sweep_json(found: ArmTimes) -> dict[str, Any]:
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


def training_json(training: Training, recorded: ArmTimes | None) -> dict[str, Any]:
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
