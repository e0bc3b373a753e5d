"""Rules of devices: what may stop kernels on GPUs, or on threads of this machine (K5xx)."""

from sley.errors.diagnostic import Rule

K501 = Rule(
    "K501",
    "no-cuda",
    what="Something that every use of a GPU needs is not there: the Python packages for CUDA, the "
    "compiler NVRTC, or NVIDIA's driver.",
    why="The packages come with the extra `cuda`. The driver (libcuda.so.1) is part of the system, "
    "never of a package; containers get it from the host. And a process that was forked after its "
    "parent had used CUDA can't use it at all.",
    example='sley.devices.cuda.CudaDevice.open(0)  # after pip install "sley", without the extra',
    instead='`pip install "sley[cuda]"` for the packages; for the driver, a machine on which '
    "`nvidia-smi` works (docker: --gpus all); start processes with `spawn`, not `fork`.",
)
K502 = Rule(
    "K502",
    "versions-disagree",
    what="The driver, the compiler NVRTC and the GPU don't fit together.",
    why="A driver runs kernels of compilers up to its own major version of CUDA: those of CUDA 12 "
    "need driver 525.60 or newer, those of CUDA 13 need 580.65. And a compiler knows the GPUs of "
    "its time: neither those that came later nor those that it has dropped (CUDA 13 has none "
    "before compute capability 7.5).",
    example="pip install nvidia-cuda-nvrtc  # CUDA 13, on a machine with driver 550",
    instead="Install a newer driver, or the packages for the driver's CUDA: "
    '`pip install "cuda-core[cu12]"`.',
)
K503 = Rule(
    "K503",
    "kernel-rejected",
    what="The text of a kernel does not compile, or has no kernel of the name asked for.",
    why="Generated text compiles on every GPU and every platform that sley supports. So this is a "
    "mistake of sley's, or the text was edited. The compiler's own words stand in the notes.",
    example='device.build("int f( {", ["f"])',
    instead="Undo the edit; otherwise report it, with the plan and the compiler's words.",
)
K504 = Rule(
    "K504",
    "wrong-device",
    what="An array lies on another device than the rank that it is meant for.",
    why="A rank's kernels work on the arrays of one device; sley copies nothing behind your back.",
    example="executor([torch.zeros(8)])  # on the host; rank 0 is on cuda:0",
    instead='Make the array where its rank is: `torch.zeros(8, device="cuda:0")`.',
)
K505 = Rule(
    "K505",
    "not-contiguous",
    what="The elements of an array don't lie side by side, in the order of its indices, or the "
    "first doesn't lie at a multiple of its size.",
    why="Kernels take an array as one row of elements, each read and written at once. A slice with "
    "a step, a transposed matrix or an expanded tensor has gaps, another order, or elements that "
    "share memory. Elements at odd addresses, as in a view of a file's bytes, GPUs can't read.",
    example="executor([matrix.T])",
    instead="`tensor.contiguous()`, or `cupy.ascontiguousarray(array)`; for an output, give a "
    "contiguous one and copy from it afterwards.",
)
K506 = Rule(
    "K506",
    "too-many-blocks",
    what="The device can't hold all thread blocks of a launch at the same time.",
    why="Blocks wait for one another, so all of them must be at work at once: one that waits for "
    "its turn, behind blocks that wait for it, waits for ever. How many fit depends on the "
    "device's multiprocessors and on the threads, registers and shared memory of a block. All "
    "ranks that share a device share its room.",
    example="sley run plan.xml --device cuda --ranks-per-gpu 8  # with 64 blocks a rank",
    instead="Compile the plan for fewer blocks (max_blocks, fewer channels or instances), use "
    "fewer threads a block, or put fewer ranks on a device.",
)
K507 = Rule(
    "K507",
    "no-device-memory",
    what="The device, or the host for memory that devices see, has not enough memory left.",
    why="The connections' slots, the scratch and the state are allocated before the first launch. "
    "Other processes, and the caches of array libraries, hold memory of the same device.",
    example="sley run plan.xml --device cuda -b 64G",
    instead="Use smaller sizes, fewer ranks a device, fewer slots or a smaller slot_bytes; empty "
    "the caches (`torch.cuda.empty_cache()`); look at `nvidia-smi` for who else is there.",
)
K508 = Rule(
    "K508",
    "plan-stuck",
    what="A kernel gave up: an instruction waited longer than the timeout for a message, a free "
    "slot or another block.",
    why="Kernels never wait without end, so a device is never left hanging. Either a peer never "
    "came (its process is gone, was stopped, or made another call), or the plan hangs "
    "(docs/machine.md).",
    example="executor(inputs)  # on seven ranks of eight",
    instead="See which instruction waits, and for whom: make the same calls, in the same order, on "
    "all ranks. If a peer is only slow, raise timeout_s. If nobody is missing, let `sley.verify` "
    "judge the plan.",
)
K509 = Rule(
    "K509",
    "no-peer-access",
    what="Two devices can't reach each other's memory.",
    why="Kernels write messages straight into the memory of the receiver's device, over NVLink or "
    "PCIe. Not every pair can: consumer GPUs, devices behind different host bridges, virtual "
    "machines and MIG instances often can't. `nvidia-smi topo -p2p r` shows the pairs that can.",
    example="sley run plan.xml --device cuda:0,cuda:1  # a pair without peer access",
    instead="Take devices that can reach one another, put the ranks on one device "
    "(--ranks-per-gpu), or switch off ACS and the IOMMU if they keep the devices apart.",
)
K510 = Rule(
    "K510",
    "no-such-device",
    what="There is no device of that name or number.",
    why="There are `threads` of this machine and `cuda`, NVIDIA's GPUs, which are counted from 0, "
    "among those that CUDA_VISIBLE_DEVICES lets the process see.",
    example="CUDA_VISIBLE_DEVICES=1 sley run plan.xml --device cuda:1",
    instead="`nvidia-smi -L` lists the GPUs; look at CUDA_VISIBLE_DEVICES.",
)
K511 = Rule(
    "K511",
    "executor-failed",
    what="An executor is used again after one of its calls failed, or after it was closed.",
    why="A call that was given up leaves messages in the connections and counters that differ "
    "among the ranks; a later call would take old messages for its own.",
    example="executor.close(); executor(inputs)",
    instead="Make a new executor, on all ranks.",
)
K512 = Rule(
    "K512",
    "read-only-output",
    what="An array that a call writes may not be written.",
    why="The library that made the array says so: it is a view of constant data, or was exported "
    "read-only. In place, input and output are the same array.",
    example="executor([array])  # a read-only array, in place",
    instead="Give a writable output, or a copy of the array.",
)
K513 = Rule(
    "K513",
    "no-compiler",
    what="There is no C++ compiler for kernels on this machine's CPUs.",
    why="`ThreadsDevice` compiles a kernel's text with the system's C++ compiler, when it is "
    "first used. GPUs need none: NVRTC comes as a Python package.",
    example="sley run plan.xml --device threads  # in a container without g++",
    instead="Install one (Debian: `apt install g++`), or name one in the variable CXX; it must "
    "know C++17.",
)
K514 = Rule(
    "K514",
    "rank-gone",
    what="The process of a rank is gone, or what processes say could not be exchanged with it.",
    why="Ranks in several processes reach one another's memory through CUDA IPC. It takes both "
    "processes alive, on one host, with the same devices visible, and in containers the same "
    "namespaces (docker: --ipc=host). Only plain allocations have handles: those of memory pools "
    "and of PyTorch's expandable segments have none.",
    example="PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True torchrun ...",
    instead="See why the process ended, and that `exchange` gives every process the bytes of all; "
    "start the ranks with the same settings, and arrays from "
    "plain allocations; then make a new executor.",
)
K515 = Rule(
    "K515",
    "too-many-ranks",
    what="The plan has more ranks than a kernel takes.",
    why="A kernel's one argument carries a record for each rank, and must stay under the 4 KB that "
    "every GPU takes: 128 ranks.",
    example="sley compile ring.py --ranks 256 -o kernels.cu",
    instead="Use a plan with at most 128 ranks, or write the plan for another executor "
    "(`sley compile -o plan.xml`).",
)
K516 = Rule(
    "K516",
    "device-failed",
    what="The driver refused a call, or the device failed while kernels ran.",
    why="The driver's name for it stands under `found`. Some failures (an illegal address, an "
    "error of the hardware) end the process's use of the device, whoever caused them: a kernel of "
    "another library may be to blame, since failures show in a later call.",
    example="a kernel of the caller's that writes outside its array, then `executor(inputs)`",
    instead="Run under `compute-sanitizer` to see which kernel it was; then start a new process.",
)
K517 = Rule(
    "K517",
    "not-a-stream",
    what="What was given as a stream is none, or belongs to another device.",
    why="A stream is anything with `__cuda_stream__`, a torch.cuda.Stream, a CuPy stream, the "
    "address of a cudaStream_t as an int, or None for the default one. Work is started on "
    "streams of its own device only.",
    example='executor(inputs, streams="default")',
    instead="Give such a stream, made on the rank's device: `torch.cuda.current_stream(device)`.",
)
K518 = Rule(
    "K518",
    "during-capture",
    what="A call was made, while a CUDA graph is captured, that a graph can't hold.",
    why="During a capture nothing runs, so there is nothing to wait for. Kernels can be captured; "
    "waiting for a stream cannot.",
    example="with torch.cuda.graph(graph, stream=stream): device.synchronize(stream)",
    instead="Only start work inside the capture; wait after the graph was launched.",
)
K519 = Rule(
    "K519",
    "not-an-array",
    what="What was given as an array is none that a kernel could use.",
    why="An array has `__dlpack__` (PyTorch, CuPy, JAX, Numba) or `__cuda_array_interface__`, and "
    "its library agrees to lend it.",
    example="executor([[1.0, 2.0]])",
    instead="Give a tensor or array of such a library; if it requires a gradient, "
    "`tensor.detach()`.",
)
K520 = Rule(
    "K520",
    "overlapping-chunks",
    what="A local copy or reduction has a source and a destination that overlap, but aren't the "
    "same chunks.",
    why="An execution acts as if it had read all its chunks before it writes any "
    "(docs/machine.md). The threads of a block work on all of them at the same time, and promise "
    "no such order. The languages refuse such an operation (L108), but a file may contain one.",
    example='<step type="cpy" srcbuf="i" srcoff="0" dstbuf="i" dstoff="1" cnt="2" ...>',
    instead="Copy through scratch, or chunk by chunk in an order that keeps what is still to be "
    "read.",
)
K521 = Rule(
    "K521",
    "kernel-too-large",
    what="A plan has more than a kernel's records have room for.",
    why="A step's number has 20 bits and the number of its waits 11, and a chunk's number has 30 "
    "bits.",
    example="a thread block with 2,000,000 instructions",
    instead="Compile the plan with fewer instances or coarser chunks, or spread it over more "
    "thread blocks.",
)
