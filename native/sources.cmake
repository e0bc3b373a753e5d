# The C++ sources by part. CMakeLists.txt and the tests of C++ read this list
# (tests/support/devices/native_programs.py): names in capitals, paths in this folder.
set(FABRIC  # the base: memory, connections, the state that ranks share
  fabric/copy.cpp
  fabric/fabric.cpp
  fabric/heap.cpp
  fabric/segment.cpp)
set(ENGINE  # the interpreter of plans, and calls in order
  engine/calls.cpp
  engine/engine.cpp
  engine/execution.cpp
  engine/layout.cpp
  engine/program.cpp
  engine/ready.cpp
  engine/reduce.cpp
  engine/varying.cpp)
set(MESSAGES  # messages from rank to rank, with tags
  messages/matching.cpp
  messages/pieces.cpp
  messages/point_to_point.cpp)
set(MEETING  # how processes find one another
  network/hmac.cpp
  network/introduction.cpp
  network/meeting.cpp
  network/meeting_root.cpp
  network/process.cpp
  network/socket.cpp)
set(NETWORK  # transports between hosts
  network/handshake.cpp
  network/pump.cpp
  network/tcp.cpp
  network/ucx.cpp
  network/ucx_library.cpp)
set(DEVICES  # plans and calls on devices, their processes, and threads as a device
  devices/arguments.cpp
  devices/barrier.cpp
  devices/call_order.cpp
  devices/cuda_driver.cpp
  devices/deferred_free.cpp
  devices/descriptor_box.cpp
  devices/device_calls.cpp
  devices/device_messages.cpp
  devices/device_plan.cpp
  devices/link_tables.cpp
  devices/links.cpp
  devices/memory_exchange.cpp
  devices/memory_index.cpp
  devices/plan_call.cpp
  devices/plan_tables.cpp
  devices/processes.cpp
  devices/registrations.cpp
  devices/threads_device.cpp)
set(CUDA  # GPUs, and ranks on them
  devices/cuda_device.cpp
  devices/cuda_errors.cpp
  devices/cuda_mappings.cpp
  devices/device_rank.cpp
  devices/kernel_files.cpp)
set(NCCL  # the library with NCCL's interface, which needs no Python
  nccl/collectives.cpp
  nccl/comm.cpp
  nccl/communicators.cpp
  nccl/errors.cpp
  nccl/gpu.cpp
  nccl/group.cpp
  nccl/library.cpp
  nccl/memory.cpp
  nccl/opening.cpp
  nccl/part.cpp
  nccl/real.cpp
  nccl/settings.cpp)
set(TORCH  # PyTorch's C interfaces
  torch/libtorch.cpp)
set(SIMULATOR
  simulator/sharing.cpp
  simulator/simulator.cpp)
set(ENGINE_MODULE  # sley.engine._native, over all of the above
  bindings/calls.cpp
  bindings/device_plans.cpp
  bindings/devices.cpp
  bindings/engine.cpp
  bindings/fabric.cpp
  bindings/messages.cpp
  bindings/module.cpp
  bindings/network.cpp
  bindings/operators.cpp
  bindings/processes.cpp
  bindings/ready.cpp
  bindings/tensors.cpp
  bindings/views.cpp)
set(SIMULATOR_MODULE  # sley.model.simulation._event_loop
  bindings/event_loop.cpp)
set(GRAPHS
  graphs/graph.cpp
  graphs/hazards.cpp
  graphs/matching.cpp
  graphs/order.cpp
  graphs/waits.cpp)
set(GRAPHS_MODULE  # sley.ir._graphs
  bindings/graphs.cpp)
