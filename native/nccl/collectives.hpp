// Calls that sley runs itself: collectives, sends and receives.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "devices/device_calls.hpp"
#include "devices/device_messages.hpp"
#include "nccl/abi.hpp"
#include "nccl/comm.hpp"

namespace sley::nccl {

// A call as its caller gave it. root: or the other rank of a message.
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

// A send or a receive that sley runs.
struct StreamMessage {
    DeviceMessage message;
    Device::Stream stream;
};

// Makes `made` of a call of a communicator that has a part; none if the real library runs it, which
// is decided from what is equal on all ranks alone: the kind of LinkTables' rows ("all_reduce"), type,
// operation, count and root, and the tables. Refuses what NCCL refuses, and memory and streams that
// kernels couldn't use. function: the name.
Result prepare(Comm& comm, Part& part, const char* kind, const char* function,
               const Request& request, std::optional<Collective>& made);
// Makes `made` of a send or a receive, which has no `receive`; none if it has no bytes. Refuses as the
// other one: sley runs all of them.
Result prepare(const Comm& comm, Part& part, const char* function, const Request& request,
               std::optional<StreamMessage>& made);
// These start it, and don't wait.
Result launch(Part& part, const Collective& call);
// Of one rank and group: in one launch, since what a rank sends may wait for what it receives. As with
// NCCL it follows what is on each of their streams, which go on after all of them.
Result launch(Part& part, const std::vector<StreamMessage>& messages);

// What ncclRedOpCreatePreMulSum (function) makes, for calls that sley runs.
Result scale(const char* function, const RedOp* op, const void* scalar, int type, int residence,
             Comm::Op& made);

}  // namespace sley::nccl
