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
    path.write_text(json.dumps(results, indent=1) + "\n")
    return path
