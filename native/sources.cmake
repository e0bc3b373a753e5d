# The C++ sources by what they are part of. CMakeLists.txt and the tests of C++ read this list
# (tests/support/native_programs.py): names in capitals, paths in this folder.
set(FABRIC  # the ground: memory, connections, how ranks hear of one another
  fabric/attach.cpp
  fabric/copy.cpp
  fabric/fabric.cpp
  fabric/segment.cpp)
set(ENGINE  # the interpreter of plans, and calls in order
  engine/calls.cpp
  engine/engine.cpp
  engine/execution.cpp
  engine/layout.cpp
  engine/program.cpp
  engine/reduce.cpp)
set(MESSAGES  # from rank to rank, with tags
  messages/matching.cpp
  messages/pieces.cpp
  messages/point_to_point.cpp)
set(NETWORK  # transports between hosts
  network/handshake.cpp
  network/link.cpp
  network/pump.cpp
  network/socket.cpp
  network/tcp.cpp
  network/ucx.cpp
  network/ucx_library.cpp)
set(SIMULATOR
  simulator/sharing.cpp
  simulator/simulator.cpp)
set(ENGINE_MODULE  # what Python sees of the first four, sley.engine._native
  bindings/calls.cpp
  bindings/engine.cpp
  bindings/fabric.cpp
  bindings/messages.cpp
  bindings/module.cpp
  bindings/network.cpp)
set(SIMULATOR_MODULE  # and of the simulator, sley.simulate._event_loop
  bindings/event_loop.cpp)
