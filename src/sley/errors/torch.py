"""Rules of the PyTorch backend: errors in collectives of `torch.distributed` (B9xx)."""

from sley.errors import Rule

B902 = Rule(
    "B902 unfit-tensors",
    what="The tensors of a collective do not match one another or the group, in their number, "
    "numbers of elements, types or devices.",
    why="A collective moves equal parts of one element type between all ranks of the group. With a "
    "wrong tensor some rank would wait for bytes that are never sent, or write beyond a tensor.",
    example="dist.all_gather_into_tensor(torch.empty(7), torch.ones(4))  # 2 ranks: 8 elements",
    instead="Pass tensors of the sizes that torch.distributed's documentation names for the "
    "collective, all of one type and on one device.",
)
B903 = Rule(
    "B903 unserved-device",
    what="A collective was called with a tensor on a device that the group has no backend for.",
    why='"sley" serves CPU tensors, and under `sley exec` CUDA tensors. Others need a backend, '
    "named when the group is made.",
    example='dist.init_process_group("sley"); dist.all_reduce(torch.ones(4, device="cuda"))',
    instead="Start the program with `sley exec -- COMMAND`, name a backend for each type of "
    'device: `init_process_group("cpu:sley,cuda:nccl")`, or move the tensor to the CPU.',
)
B904 = Rule(
    "B904 still-at-work",
    what="A call did not end within its own timeout.",
    why="`work.wait(timeout)` and `dist.barrier(timeout=...)` wait only for this time. The call "
    "itself continues under the group's timeout, and its tensors stay in use.",
    example="dist.all_reduce(tensor, async_op=True).wait(timedelta(milliseconds=1))",
    instead="Wait longer, or find the late rank: the error of the group's timeout names it.",
)
B905 = Rule(
    "B905 unknown-pytorch",
    what="This PyTorch creates its groups in an unknown way, so sley can't replace gloo.",
    why="PyTorch has no interface for replacing one of its own backends. sley wraps the function "
    "that creates all groups of PyTorch, and a release of PyTorch may change that function.",
    example="sley.torch.replace_gloo()  # with a PyTorch that sley was not tested with",
    instead='Name the backend "sley" in the program, or use a PyTorch that docs/torch.md names.',
)
B907 = Rule(
    "B907 late-ranks",
    what="Some ranks did not call `monitored_barrier` in its timeout.",
    why="A rank that failed, waits for something else or skipped the call holds up all others. The "
    "ranks that arrived agree on the late ones, and all raise this error, late ranks too.",
    example="if dist.get_rank() != 1: group.monitored_barrier(timedelta(seconds=1))",
    instead="Check what the named ranks do: their logs, or their stacks (`py-spy dump`).",
)
B909 = Rule(
    "B909 nccl-not-in-place",
    what="A group was to serve CUDA tensors by sley, but PyTorch in this process doesn't call "
    "sley's library with NCCL's interface.",
    why="`\"cuda:sley\"` is PyTorch's own backend for NCCL, with sley's library in the place of "
    "NVIDIA's. The loader puts it there at the start of the program only, for a PyTorch that is "
    "linked with libnccl.so.2.",
    example="python -c \"import torch.distributed as dist; dist.init_process_group('cuda:sley')\"",
    instead='Start the program with `sley exec -- COMMAND`, or name the backend "nccl".',
)
