// The list scheduling of instructions (sley.compiler.passes.order) as an execution of the abstract machine.
#pragma once

#include <cstdint>
#include <vector>

namespace sley {

// What is to be ordered. Half 2t is transfer t at its source, 2t + 1 at its destination; a local
// transfer is its half 2t. Number -1 means none.
struct OrderInputs {
    std::int64_t slots;  // of every connection
    // By transfer: the slots that its message takes, the transfer whose send is one instruction with
    // its receive, the copy that is one instruction with its send, its connection (-1: local), and
    // the transfers that stand for its group: at both ends, where it is sent, where it is received.
    std::vector<std::int32_t> width, forward, copied, connection, leader, sender, receiver;
    // The transfers of each group by its leader, and each other transfer by itself.
    std::vector<std::int64_t> row_offset;
    std::vector<std::int32_t> row;
    // Whether a transfer leads a group whose messages a switch combines.
    std::vector<std::uint8_t> reduces;
    // By half: its place in the order of depths, and the halves that wait for it. By place: the
    // first place with the same depth and reverse depth.
    std::vector<std::int32_t> priority, first_alike;
    std::vector<std::int64_t> offset;
    std::vector<std::int32_t> successor;
};

// One row an instruction: the transfer that it receives or executes locally, and the one that it
// sends.
struct Ordered {
    std::vector<std::int32_t> receive, send;
};

// Throws std::runtime_error if the scheduling stops before the end.
Ordered order_instructions(const OrderInputs& inputs);

}  // namespace sley
