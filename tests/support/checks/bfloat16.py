"""bfloat16: values of a type that NumPy lacks, as float32."""

from __future__ import annotations

from typing import Any

import numpy as np


def bfloat16_values(bits: Any) -> Any:
    """Bits of bfloat16 (uint16) as float32 values."""
    return (bits.astype(np.uint32) << 16).view(np.float32)
