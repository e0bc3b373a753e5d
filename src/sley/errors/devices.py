"""Rules of devices: errors of kernels on GPUs, or on threads of this machine (K5xx)."""

from sley.errors import Rule

K501 = Rule(
    "K501 no-cuda",
    what="A requirement of every use of a GPU is missing: the Python packages for CUDA, the "
    "compiler NVRTC, or NVIDIA's driver.",
    why="The extra `cuda` installs the packages. The driver (libcuda.so.1) is part of the system "
    "and never of a package; containers get it from the host. A process that was forked after its "
    "parent had used CUDA can't use CUDA.",
    example="pip install sley; sley run ring-allreduce --ranks 2 --device cuda",
    instead='Install the extra for the packages: pip install "sley[cuda]"; for the driver, use a '
    "machine on which `nvidia-smi` works (docker: --gpus all); start processes with `spawn`, not "
    "`fork`.",
)
K502 = Rule(
    "K502 versions-disagree",
    what="The driver, the compiler NVRTC and the GPU don't fit together.",
    why="A driver runs kernels of compilers up to its own major version of CUDA: those of CUDA 12 "
    "need driver 525.60 or newer, those of CUDA 13 need 580.65. A compiler supports neither newer "
    "GPUs nor those that it has dropped (CUDA 13: below compute capability 7.5).",
    example="pip install nvidia-cuda-nvrtc  # CUDA 13, on a machine with driver 550",
    instead="Install a newer driver, or the packages for the driver's CUDA: `pip install "
    '"cuda-bindings[all]==12.*"`.',
)
K503 = Rule(
    "K503 kernel-rejected",
    what="The text of a kernel does not compile, or has no kernel with the requested name.",
    why="Generated text compiles on every GPU and every platform that sley supports. So this is a "
    "bug of sley, or the text was edited. The notes contain the compiler's message.",
    example='device.build("int f( {", ["f"])',
    instead="Undo the edit; otherwise report the bug, with the plan and the compiler's message.",
)
K504 = Rule(
    "K504 wrong-device",
    what="An array is on another device than its rank.",
    why="A rank's kernels use the arrays of one device; sley copies no data between devices.",
    example="executor([torch.zeros(8)])  # on the host; rank 0 is on cuda:0",
    instead='Make the array on its rank\'s device: `torch.zeros(8, device="cuda:0")`.',
)
K506 = Rule(
    "K506 too-many-blocks, formerly K526",
    what="The device can't hold all thread blocks of a launch at the same time, or has fewer "
    "queues than ranks that are launched one by one.",
    why="Blocks and ranks wait for one another, so all of them must run at the same time. The "
    "number of blocks depends on the device's multiprocessors and on the threads, registers and "
    "shared memory of a block; all ranks on a device share its multiprocessors. CUDA maps the "
    "streams of Launching.BY_RANK onto 8 queues, or onto as many as CUDA_DEVICE_MAX_CONNECTIONS "
    "says when CUDA starts (1 to 32); two kernels in one queue run one after the other.",
    example="sley run plan.xml --device cuda --ranks-per-gpu 8  # with 64 blocks a rank",
    instead="Compile the plan for fewer blocks (max_blocks, fewer channels or instances), use "
    "fewer threads in a block, or fewer ranks on a device.",
)
K507 = Rule(
    "K507 no-device-memory",
    what="The device, or the host for memory that devices can access, does not have enough memory.",
    why="The connections' slots, the scratch and the state are allocated before the first launch. "
    "Other processes, and the caches of array libraries, use memory of the same device.",
    example="sley run plan.xml --device cuda -b 64G",
    instead="Use smaller sizes, fewer ranks on a device, fewer slots or a smaller slot_bytes; "
    "empty the caches (`torch.cuda.empty_cache()`); `nvidia-smi` shows the other processes.",
)
K508 = Rule(
    "K508 plan-stuck",
    what="An instruction of a kernel waited too long for a message, a free slot or another block, "
    "or a receive has other bytes than its send.",
    why="Kernels never wait without a limit, so a device never hangs. Either a peer is missing "
    "(its process ended, was stopped, or made another call), or the plan hangs (docs/machine.md). "
    "If a call times out in one process, it ends in all of them.",
    example="executor(inputs)  # on seven ranks of eight",
    instead="The message names the waiting instruction and its peer: make the same calls, in the "
    "same order, on all ranks. If a peer is only slow, raise timeout_s. If all ranks made the "
    "call, verify the plan with `sley.verify`.",
)
K509 = Rule(
    "K509 no-peer-access",
    what="Two devices can't access each other's memory.",
    why="Kernels write messages directly into the memory of the receiver's device, over NVLink or "
    "PCIe. Consumer GPUs, devices behind different host bridges, virtual machines and MIG "
    "instances often don't support this. `nvidia-smi topo -p2p r` shows the pairs that do.",
    example="sley run plan.xml --device cuda:0,cuda:1  # a pair without peer access",
    instead="Use devices that can access one another, put the ranks on one device "
    "(--ranks-per-gpu), or disable ACS and the IOMMU if they separate the devices.",
)
K510 = Rule(
    "K510 no-such-device, formerly K525",
    what="This process sees no device of this name or number.",
    why="The devices are `threads` of this machine and `cuda`, NVIDIA's GPUs, numbered from 0 "
    "among those in CUDA_VISIBLE_DEVICES. A launcher that gives each process one GPU by that "
    "variable makes it number 0 in each.",
    example="CUDA_VISIBLE_DEVICES=1 sley run plan.xml --device cuda:1",
    instead="`nvidia-smi -L` lists the GPUs; check CUDA_VISIBLE_DEVICES.",
)
K513 = Rule(
    "K513 no-compiler",
    what="No C++ compiler for kernels on this machine's CPUs was found.",
    why="`ThreadsDevice` compiles a kernel's text with the system's C++ compiler on first use. "
    "GPUs don't need it: NVRTC is a Python package.",
    example="sley run plan.xml --device threads  # in a container without g++",
    instead="Install one (Debian: `apt install g++`) for C++17, or name one in the variable CXX.",
)
K514 = Rule(
    "K514 rank-gone",
    what="The process of a rank has ended or doesn't come, or data could not be exchanged with it.",
    why="Ranks in several processes access one another's memory. They pass its file descriptors "
    "through sockets in /dev/shm, so they must run on one host, and in containers with one "
    "/dev/shm (docker: --ipc=host); the driver must support virtual memory management.",
    example="docker run IMAGE python rank.py  # for each rank, without --ipc=host",
    instead="Find out why the process ended. Start the ranks with the same settings, and make the "
    "same calls on all, `register`, `split` and `close` too; an executor's `exchange` gives every "
    "process the bytes of all. Then make a new executor or communicator.",
)
K516 = Rule(
    "K516 device-failed",
    what="The driver refused a call, or the device failed while kernels ran.",
    why="`found` contains the driver's name for the failure. Some failures (an illegal address, a "
    "hardware error) end the process's use of the device. The cause may be a kernel of another "
    "library, because a failure appears only in a later call.",
    example="a kernel of the caller's that writes outside its array, then `executor(inputs)`",
    instead="Run under `compute-sanitizer` to find the kernel; then start a new process.",
)
K517 = Rule(
    "K517 not-a-stream",
    what="An argument is not a stream, or is a stream of another device.",
    why="A stream is an object with `__cuda_stream__`, a torch.cuda.Stream, a CuPy stream, the "
    "address of a cudaStream_t as an int, or None for the default stream.",
    example='executor(inputs, streams="default")',
    instead="Pass such a stream, made on the rank's device: `torch.cuda.current_stream(device)`.",
)
K518 = Rule(
    "K518 during-capture",
    what="A call that a CUDA graph can't contain was made during the capture of a graph.",
    why="During a capture nothing runs, so a wait would never end; a graph can't contain one. The "
    "first call of a type, reduction and size waits, to load kernels and to allocate scratch.",
    example="with torch.cuda.graph(graph, stream=stream): device.synchronize(stream)",
    instead="Only start work during the capture; wait after the launch of the graph. Call "
    "`reserve` before, or make the same call once.",
)
K519 = Rule(
    "K519 unfit-array, formerly K505 K512",
    what="An argument is not an array that a kernel can use: its library doesn't export it, its "
    "elements are not adjacent in the order of their indices or not aligned, or it is read-only "
    "and the call writes it.",
    why="An array has `__dlpack__` (PyTorch, CuPy, JAX, Numba) or `__cuda_array_interface__`. "
    "Kernels treat it as one row of elements; a slice with a step, a transposed matrix or an "
    "expanded tensor has gaps, another order, or elements that share memory. GPUs can't read "
    "unaligned elements, such as a file's bytes. In place, input and output are one array.",
    example="executor([[1.0, 2.0]]); executor([matrix.T])",
    instead="Pass a tensor or array of such a library, `tensor.detach()` if it needs a gradient, "
    "and `tensor.contiguous()` or `cupy.ascontiguousarray(array)` if it is not contiguous; for an "
    "output, pass a contiguous array and copy from it afterwards.",
)
K521 = Rule(
    "K521 kernel-too-large, formerly K515",
    what="A plan exceeds the size of a kernel's records, or has more ranks than a kernel supports.",
    why="A step's number has 20 bits, and a chunk's number 30 bits. The waits of an instruction "
    "and the connections of a block are in shared memory, of which a block has 48 KiB: 40 bytes "
    "for each wait, 80 for each connection. A kernel's only argument has a record for each rank, "
    "and must fit into the 4 KB that every GPU supports: 128 ranks.",
    example="a thread block with 2,000,000 instructions",
    instead="Compile the plan with fewer instances or coarser chunks, or distribute it over more "
    "thread blocks; for more than 128 ranks, write it for another executor (`sley compile -o "
    "plan.xml`).",
)
K523 = Rule(
    "K523 torn-lines",
    what="A plan in LL128 has ranks on devices between which lines of 128 bytes may be split.",
    why="The last 8 bytes of a line say that its other 120 have arrived. That holds where a warp's "
    "store of 128 bytes arrives as a whole: over NVLink, and within one GPU. PCIe may split it; "
    "the receiver would then read old data without notice. Links that carry whole lines are those "
    "with native atomics (`nvidia-smi topo -p2p a`), which the driver tells only of devices that "
    "the process sees.",
    example='sley.compile(ring, protocol="LL128")  # on two GPUs that are connected by PCIe',
    instead="Compile the plan for Simple, LL or Direct, or use GPUs that NVLink connects.",
)
