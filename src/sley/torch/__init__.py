"""Torch: the backend "sley" of `torch.distributed`, which runs sley's plans on CPU tensors.

Importing this package registers it; `dist.init_process_group("sley")` then makes a group.

group.py        the process group, and its registration
forms.py        how PyTorch makes its collectives, in one table
collectives.py  runs them; coalesced.py runs several as one
messages.py     its messages between two ranks
monitored.py    a barrier that names the ranks that are late
operators.py    collectives as operators, which torch.compile keeps
ready.py        equal calls again, which the engine runs without Python
calls.py        calls on the communicator, synchronous or not
work.py         work objects, futures and errors
flight_recorder.py  the latest calls, in files for PyTorch's tools
gloo.py         groups of gloo that are sley's instead
nccl.py         PyTorch's backend for CUDA tensors, over sley's library
comms.py        sley as a backend of torchcomms
fallback.py     other backends, for what the communicator doesn't support
arguments.py    validates tensors
elements.py     PyTorch's types and reductions as the engine's
memory.py       addresses of tensors, copies, and shared memory
"""

from __future__ import annotations

try:
    import torch as torch
except ImportError as error:
    from sley.errors.runtime import R512

    raise R512.error(
        expected="the package torch",
        found=str(error),
        remedy='Install the extra: pip install "sley[torch]", or any PyTorch from 2.9 on.',
    ) from None

from sley.torch.gloo import GlooReplacement as GlooReplacement
from sley.torch.gloo import replace_gloo as replace_gloo
from sley.torch.gloo import replace_gloo_if_asked
from sley.torch.group import ProcessGroupSley as ProcessGroupSley
from sley.torch.group import register as register
from sley.torch.memory import empty as empty
from sley.torch.work import CollectiveError as CollectiveError

register()
replace_gloo_if_asked()
