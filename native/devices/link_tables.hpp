// Link tables: all that is derived ahead for a communicator of so many ranks on devices, as a file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "devices/device_calls.hpp"
#include "devices/plan_tables.hpp"

namespace sley {

// What decides the plans of a communicator: equal on all its ranks.
struct LinkKey {
    static constexpr int kMostBlocks = 32;  // as many as NCCL's

    int ranks = 0;
    bool has_lines = false;      // whether LL128's lines arrive as a whole between all devices
    bool is_one_device = false;  // that all ranks share
    int most_blocks = 0;         // of a rank: all ranks' on a device run at once
    bool same_bits = false;      // whether all sums have one order

    // The name of the file with its tables.
    std::string file_name() const;
};

struct LinkTables {
    // A kind of calls, of one root: its plans by size, as DeviceCalls::set_table takes them. They are
    // right whether or not a rank's call is in place as NCCL defines it.
    struct Row {
        std::string name;  // "all_reduce"
        Kind kind;
        CallKind call;
        std::vector<std::uint64_t> ends;
        std::vector<int> plans;
    };
    // The file with a plan's kernels for a type and an operation, in the folder of kernels. Plans that
    // reduce nothing have them for the sum of the signed integers of each size.
    struct Kernels {
        int plan;
        CallProgram program;
        std::string file;
    };

    LinkKey key;
    std::string version;   // of sley
    unsigned threads = 0;  // of a block, at most
    // Of a file, once it is written or read, in hexadecimal digits: ranks compare it.
    std::string digest;
    std::vector<std::string> names;  // of the plans
    std::vector<std::shared_ptr<const PlanTables>> plans;
    std::vector<std::size_t> mailboxes;  // bytes of each rank's
    std::size_t scratch = 0;  // bytes that a rank needs for the calls of bounded size, at most
    std::vector<Row> rows;
    std::vector<Kernels> kernels;
    std::string messages;  // the file with the kernel of sends and receives

    // The bytes of a file, for runtimes of the same version, without Python. Equal tables have equal
    // bytes.
    std::string to_bytes() const;
    // Throws Refusal (F425) for bytes that `to_bytes` of this version didn't write.
    static LinkTables from_bytes(std::string_view bytes);

    // Throws Refusal (F425) unless the parts fit one another.
    void check() const;
};

}  // namespace sley
