"""Rules of the PyTorch backend: what may stop a collective of `torch.distributed` (B9xx)."""

from sley.errors.diagnostic import Rule

B901 = Rule(
    "B901",
    "no-torch",
    what="PyTorch, which sley.torch is a backend for, is not installed or cannot be loaded.",
    why="PyTorch is large, and the rest of sley does without it; it comes with the extra `torch`.",
    example='import sley.torch  # after pip install "sley", without the extra',
    instead='`pip install "sley[torch]"`, or install PyTorch 2.9 or newer for this Python.',
)
B902 = Rule(
    "B902",
    "unfit-tensors",
    what="The tensors of a collective don't fit one another or the group: in their number, their "
    "numbers of elements, their types, or where they lie.",
    why="A collective moves equal parts between all ranks of the group, of one element type. With "
    "an unfit tensor some rank would wait for bytes that nobody sends, or write beyond a tensor.",
    example="dist.all_gather_into_tensor(torch.empty(7), torch.ones(4))  # 2 ranks: 8 elements",
    instead="Give tensors of the sizes that torch.distributed's documentation names for the "
    "collective, all of one type and on one device.",
)
B903 = Rule(
    "B903",
    "unserved-device",
    what="A collective was called with a tensor on a device that the group has no backend for.",
    why='"sley" serves CPU tensors. Tensors on other devices need a backend of their own, named '
    "when the group is made.",
    example='dist.init_process_group("sley"); dist.all_reduce(torch.ones(4, device="cuda"))',
    instead='Name a backend for each type of device: `init_process_group("cpu:sley,cuda:nccl")`, '
    "or move the tensor to the CPU.",
)
B904 = Rule(
    "B904",
    "still-at-work",
    what="A call didn't end within the timeout that was given for it alone.",
    why="`work.wait(timeout)` and `dist.barrier(timeout=...)` wait only so long. The call itself "
    "goes on, and the group's own timeout still holds for it; its tensors stay in use.",
    example="dist.all_reduce(tensor, async_op=True).wait(timedelta(milliseconds=1))",
    instead="Wait longer, or find out which rank is late: the group's own timeout names it.",
)
