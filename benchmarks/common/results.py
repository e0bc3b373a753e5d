"""Results: a JSON file for each run, named by the benchmark, the setting and the date."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parents[1] / "results"


def save(results: Mapping[str, Any], folder: Path, name: str) -> Path:
    """Writes the results to NAME-DATE.json in a folder, and returns the path."""
    folder.mkdir(parents=True, exist_ok=True)
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    path = folder / f"{name}-{stamp}.json"
    path.write_text(text_of(results))
    return path


def text_of(results: Mapping[str, Any]) -> str:
    """JSON with a line for each value, and for each row of a list."""
    parts = []
    for name, value in results.items():
        text = json.dumps(value)
        if isinstance(value, list) and any(isinstance(row, dict) for row in value):
            text = "[\n" + ",\n".join(f" {json.dumps(row)}" for row in value) + "\n]"
        parts.append(f"{json.dumps(name)}: {text}")
    return "{\n" + ",\n".join(parts) + "\n}\n"
