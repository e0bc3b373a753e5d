#include "devices/plan_call.hpp"

#include <cstddef>
#include <cstring>
#include <mutex>
#include <stdexcept>
#include <string>
#include <utility>

namespace sley {
namespace {

std::vector<Start> starts_of(const std::vector<PlanCall::Place>& places, unsigned threads,
                             bool together) {
    if (places.empty()) throw std::invalid_argument("a call without devices");
    std::vector<Start> starts;
    for (const auto& place : places) {
        for (const auto& group : place.plan->groups()) {
            auto& launches = starts.emplace_back(Start{&place.plan->device(), {}}).launches;
            const auto add = [&, blocks = static_cast<unsigned>(group.blocks)](
                                 std::uintptr_t kernel, const char* name, bool is_cooperative) {
                launches.push_back({kernel, name, std::string(sizeof(layout::Call), '\0'), blocks,
                                    threads, is_cooperative, nullptr});
            };
            add(place.run, "sley_run", together);
            // Its blocks don't wait for one another.
            if (place.divide != 0 && group.divisions != 0) add(place.divide, "sley_divide", false);
        }
    }
    return starts;
}

}  // namespace

PlanCall::PlanCall(std::shared_ptr<CallOrder> order, std::shared_ptr<MemoryIndex> memory,
                   std::vector<Place> places, unsigned threads, bool together)
    : memory_(std::move(memory)), places_(std::move(places)),
      call_(std::move(order), starts_of(places_, threads, together)) {}

bool PlanCall::lay_out(const CallValues& values) {
    layout::Setup setup{};
    places_.front().plan->lay_out(values, setup);
    const std::lock_guard<std::mutex> held(memory_->lock);
    found_.clear();
    for (const auto& own : *values.buffers) {
        if (!look_up(own, values)) return false;
    }
    auto start = call_.starts().begin();
    for (const auto& [plan, run, divide] : places_) {
        const auto shifts = memory_->table(plan->device());
        for (const auto& group : plan->groups()) {
            plan->turn_to(group, shifts, setup);
            for (auto& launch : (start++)->launches) {
                // Only what changes: all of it would be 4 KiB, of which most are zeros.
                auto* const call = launch.call.data();
                std::memcpy(call + offsetof(layout::Call, setup), &setup, sizeof setup);
                for (const auto& [rank, buffers, registered] : found_) {
                    std::memcpy(call + offsetof(layout::Call, buffers) + rank * sizeof buffers,
                                &buffers, sizeof buffers);
                    std::memcpy(call + offsetof(layout::Call, registered) + rank * sizeof registered,
                                &registered, sizeof registered);
                }
            }
        }
    }
    return true;
}

bool PlanCall::look_up(const RankBuffers& own, const CallValues& values) {
    const auto& numbers = places_.front().plan->numbers();
    const auto bytes = static_cast<std::uint64_t>(
        numbers.scratch_bytes(own.rank, values.item_bytes, values.count));
    const auto scratch = memory_->scratch(own.rank, bytes);
    if (!scratch) return false;
    auto& found = found_.emplace_back(Found{static_cast<std::size_t>(own.rank), {}, {}});
    const std::uint64_t addresses[] = {own.addresses[0], own.addresses[1], *scratch};
    const std::uint64_t sizes[] = {own.bytes[0], own.bytes[1], bytes};
    for (int m = 0; m < 3; ++m) {
        const std::uint64_t front = m == layout::kScratch ? numbers.front_bytes() : 0;
        found.buffers.memory[m] = reinterpret_cast<char*>(addresses[m] + front);
        if (numbers.protocol != layout::kDirect) continue;
        found.registered.number[m] = memory_->number(own.rank, addresses[m], sizes[m]);
    }
    return true;
}

void PlanCall::keep(const std::shared_ptr<void>& what) {
    for (auto& start : call_.starts()) {
        for (auto& launch : start.launches) launch.keeps = what;
    }
}

}  // namespace sley
