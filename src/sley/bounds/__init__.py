"""Lower bounds: times that no algorithm falls below."""

from sley.bounds.bound import Bound
from sley.bounds.bounds import Bounds, bound

__all__ = ["Bound", "Bounds", "bound"]
