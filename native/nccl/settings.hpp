// The user's settings of NCCL's interface, from the environment.
#pragma once

#include <chrono>
#include <set>
#include <string>

#include "devices/device_rank.hpp"

namespace sley::nccl {

// What sley runs: the functions' names, with a "Config" behind them too, and the kinds of calls. A send
// isn't run without its receive.
inline constexpr char kSendReceive[] = "send_recv";
inline constexpr struct {
    const char* function;
    const char* kind;
} kKinds[] = {
    {"AllReduce", "all_reduce"}, {"Broadcast", "broadcast"},
    {"Bcast", "broadcast"},      {"Reduce", "reduce"},
    {"AllGather", "all_gather"}, {"ReduceScatter", "reduce_scatter"},
    {"AlltoAll", "all_to_all"},  {"Gather", "gather"},
    {"Scatter", "scatter"},      {"Send", kSendReceive},
    {"Recv", kSendReceive},
};

// SLEY_SAME_BITS: all sums have one order, which NCCL's don't have.
bool wants_same_bits();

struct Settings {
    // SLEY_NCCL: unset (sley runs what it can), "eager" (so, too, but NCCL's communicators are made at
    // once, not when a call needs them), "off", "only" (no call goes to NCCL), or the functions that sley
    // runs: "AllReduce,AllGather". All ranks have the same, or NCCL runs all.
    std::string which;
    std::set<std::string> kinds;            // of the functions
    std::string lacks;                      // why sley can run no calls; "" if nothing is known
    std::chrono::milliseconds wait{60000};  // SLEY_NCCL_WAIT_S: for ranks that may lack sley
    RankSettings rank;                      // SLEY_NCCL_TABLES, _KERNELS, SLEY_TIMEOUT_S, SLEY_SAME_BITS

    static Settings from_environment();
    bool is_off() const { return which == "off"; }
    bool is_only() const { return which == "only"; }
    // Whether calls need NCCL's communicators for certain.
    bool is_eager() const { return which == "eager" || !kinds.empty(); }
    // Whether sley answers what belongs to no communicator: it may run calls, and NCCL none.
    bool is_alone() const;
    // Whether sley runs a kind of calls ("all_reduce", "send_recv").
    bool runs(const std::string& kind) const;
};

}  // namespace sley::nccl
