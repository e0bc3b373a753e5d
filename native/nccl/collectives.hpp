// Collective calls that sley runs itself.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "devices/device_calls.hpp"
#include "nccl/abi.hpp"
#include "nccl/comm.hpp"

namespace sley::nccl {

// A collective as its caller gave it.
struct Request {
    const void* send;
    void* receive;
    std::size_t count;
    int type;
    RedOp op;
    int root;
    Handle* comm;
    void* stream;
};

// One that sley runs, as DeviceCalls::start takes it. It has all that its reduction was made with: that
// may be destroyed before the group's end.
struct Collective {
    CallKind kind;
    CallProgram program;
    std::uint64_t size_bytes;
    CallValues values;
    RankBuffers buffers;
    Device::Stream stream;
};

// Makes `made` of a call of a communicator that has a part; none if the real library runs it, which
// is decided from what is equal on all ranks alone: the kind of LinkTables' rows ("all_reduce"), type,
// operation, count and root, and the tables. Refuses what NCCL refuses, and memory and streams that
// kernels couldn't use. function: the name.
Result prepare(Comm& comm, Part& part, const char* kind, const char* function,
               const Request& request, std::optional<Collective>& made);
// Starts it; doesn't wait.
Result launch(Part& part, const Collective& call);

// What ncclRedOpCreatePreMulSum (function) makes, for calls that sley runs.
Result scale(const char* function, const RedOp* op, const void* scalar, int type, int residence,
             Comm::Op& made);

}  // namespace sley::nccl
