// A rank of a communicator on a GPU, opened without Python.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "devices/cuda_device.hpp"
#include "devices/device_calls.hpp"
#include "devices/device_messages.hpp"
#include "devices/link_tables.hpp"
#include "network/meeting.hpp"

namespace sley {

// Where a rank finds what was made ahead, and how long it waits for others.
struct RankSettings {
    std::string tables;   // the folder of files of LinkTables
    std::string kernels;  // the folder of machine code
    std::string version;  // of sley, as whoever wrote the tables says it
    double timeout_s = 600;
    bool same_bits = false;  // whether all sums have one order
};

// The functions that wait for other ranks end if these can't meet any more (`Participant::end`). Calls
// don't: whoever sees the end gives them up.
class DeviceRank {
public:
    // What the other ranks must know of this one, as RankDescription::offered.
    static std::map<std::string, std::string> offer(const CudaDevice& device);

    // All ranks call it together, after they have met. ranks: the descriptions of all. The device
    // outlives it. Throws Refusal, in all ranks, if one can't run: several hosts (K514), other tables
    // than rank 0's (N604), no tables for such ranks or no kernels (N653), too little room on a device
    // (K506, K507), or devices that can't reach one another (K509, K523).
    DeviceRank(std::shared_ptr<Participant> participant, int rank,
               const std::vector<RankDescription>& ranks, CudaDevice& device,
               const RankSettings& settings);
    ~DeviceRank();

    const LinkTables& tables() const;
    // Its calls: rows of `tables().rows`, kernels of `tables().kernels`, all loaded. No call allocates
    // memory of the device.
    DeviceCalls& calls();
    // Its sends and receives, likewise.
    DeviceMessages& messages();

    // Why calls have failed or were given up: the same from then on; none as long as none was. Never
    // waits; for any thread.
    std::optional<Refusal> error();
    // Ends all calls that are under way, on all ranks. Any thread may call it at any time.
    void give_up(const Refusal& why);
    // Waits for this rank's calls.
    void wait();
    // Waits for this rank's calls and, if it meets the others, until all ranks close; then frees the
    // memory. Throws Refusal, after that, if one doesn't. A second call does nothing. One thread at a
    // time. If calls were captured, their graphs may run at any time: their memory stays until the
    // process ends.
    void close(bool meet);
    bool has_graphs() const;

private:
    struct State;
    std::unique_ptr<State> state_;
};

}  // namespace sley
