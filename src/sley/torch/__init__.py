"""The backend "sley" of `torch.distributed`: CPU tensors through sley's compiled plans.

Importing this package registers it; `dist.init_process_group("sley")` then makes a group.
"""

from __future__ import annotations

try:
    import torch as torch
except ImportError as error:
    from sley.errors.torch import B901

    raise B901.error(expected="the package torch", found=str(error)) from None

from sley.torch.group import ProcessGroupSley, register
from sley.torch.memory import empty
from sley.torch.work import CollectiveError

__all__ = ["CollectiveError", "ProcessGroupSley", "empty", "register"]

register()
