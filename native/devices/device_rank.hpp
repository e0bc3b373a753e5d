// A rank of a communicator on a GPU, opened without Python.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "devices/cuda_device.hpp"
#include "devices/device_calls.hpp"
#include "devices/link_tables.hpp"
#include "devices/links.hpp"
#include "network/meeting.hpp"

namespace sley {

// Where a rank finds what was made ahead, and how long it waits for others.
struct RankSettings {
    std::string tables;   // the folder of files of LinkTables
    std::string kernels;  // the folder of machine code
    double timeout_s = 600;
};

class DeviceRank {
public:
    // What the other ranks must know of this one, as RankDescription::offered.
    static std::map<std::string, std::string> offer(const CudaDevice& device);

    // All ranks call it together, after they have met. ranks: the descriptions of all. Throws Refusal,
    // in all ranks, if one can't run: several hosts, unlike devices or tables, no tables for them, no
    // kernels, too little room on a device.
    DeviceRank(std::shared_ptr<Exchange> exchange, int rank,
               const std::vector<RankDescription>& ranks, CudaDevice& device,
               const RankSettings& settings);
    ~DeviceRank();

    const LinkTables& tables() const;
    // Its calls: rows of `tables().rows`, kernels of `tables().kernels`, all loaded. No call allocates.
    DeviceCalls& calls();

    // Why calls have failed or were given up; none as long as none was. Never waits; for any thread.
    std::optional<Refusal> error();
    // Ends all calls that are under way, on all ranks. Any thread may call it at any time.
    void give_up(const Refusal& why);
    // Waits for this rank's calls and, if it meets the others, until all ranks close; then frees the
    // memory. A second call does nothing.
    void close(bool meet);

private:
    struct State;
    std::unique_ptr<State> state_;
};

}  // namespace sley
