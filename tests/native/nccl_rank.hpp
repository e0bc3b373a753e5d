// Ranks on devices without a device: they meet, open and close as DeviceRank's do. `script` says what a
// process's ranks do in the course of it.
#pragma once

#include <atomic>
#include <cstdlib>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "devices/device_rank.hpp"
#include "nccl/gpu.hpp"

namespace sley::nccl_test {

struct Script {
    std::string lacks;    // why there is no device
    std::string refuses;  // why it can't be opened
    // Called where a rank is: "offer" (of rank -1), "open", "opened", "close".
    std::function<void(const std::string& where, int rank)> at = [](const auto&, int) {};
};
inline Script script;

}  // namespace sley::nccl_test

namespace sley {

struct DeviceRank::State {
    std::shared_ptr<Participant> participant;
    std::mutex mutex;
    std::optional<Refusal> error;
    std::atomic<bool> is_given_up{false};

    // As Processes: what one rank refuses, all do.
    void exchange(const std::string& said) {
        for (const auto& each : participant->gather(said)) {
            if (!each.empty()) throw Refusal("K506", "room on a device", each);
        }
    }
};

std::map<std::string, std::string> DeviceRank::offer(const CudaDevice&) {
    nccl_test::script.at("offer", -1);
    return {{"uuid", "none"}};
}

DeviceRank::DeviceRank(std::shared_ptr<Participant> participant, int rank,
                       const std::vector<RankDescription>&, CudaDevice&, const RankSettings&)
    : state_(new State) {
    state_->participant = std::move(participant);
    nccl_test::script.at("open", rank);
    state_->exchange("");
    state_->exchange(nccl_test::script.refuses);
    nccl_test::script.at("opened", rank);
}
DeviceRank::~DeviceRank() = default;

// Nobody calls for these: calls are the tests' own.
const LinkTables& DeviceRank::tables() const { std::abort(); }
DeviceCalls& DeviceRank::calls() { std::abort(); }
DeviceMessages& DeviceRank::messages() { std::abort(); }

std::optional<Refusal> DeviceRank::error() {
    const std::lock_guard held(state_->mutex);
    return state_->error;
}

void DeviceRank::give_up(const Refusal& why) {
    const std::lock_guard held(state_->mutex);
    if (!state_->error) state_->error = why;
    state_->is_given_up = true;
}

void DeviceRank::wait() {}
bool DeviceRank::has_graphs() const { return false; }

void DeviceRank::close(bool meet) {
    nccl_test::script.at("close", state_->participant->rank());
    if (meet && !state_->is_given_up) state_->participant->gather("close");
}

namespace nccl {

Gpu Gpu::current() { return with(0); }

// One that nobody looks into.
Gpu Gpu::with(int) {
    alignas(CudaDevice) static char memory[sizeof(CudaDevice)]{};
    const auto& lacks = nccl_test::script.lacks;
    return {lacks.empty() ? reinterpret_cast<CudaDevice*>(memory) : nullptr, 0, lacks};
}

}  // namespace nccl
}  // namespace sley
