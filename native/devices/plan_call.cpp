#include "devices/plan_call.hpp"

#include <algorithm>
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
            const auto add = [&](std::uintptr_t kernel, const char* name, std::size_t blocks,
                                 bool is_cooperative) {
                launches.push_back({kernel, name, std::string(sizeof(layout::Call), '\0'),
                                    static_cast<unsigned>(blocks), threads, is_cooperative, nullptr});
            };
            for (std::size_t first = 0; !group.fits() && first < group.ranks.size();
                 first += layout::kOwns) {
                add(place.place, "sley_place", 1, false);
            }
            add(place.run, "sley_run", group.blocks, together);
            // Its blocks don't wait for one another.
            if (place.divide != 0 && group.divisions != 0) {
                add(place.divide, "sley_divide", group.blocks, false);
            }
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
    for (const auto& place : places_) {
        const auto shifts = memory_->table(place.plan->device());
        for (const auto& group : place.plan->groups()) {
            place.plan->turn_to(group, shifts, setup);
            setup.stamps = reinterpret_cast<layout::Stamp*>(place.stamps);
            if (place.stamps != 0) setup.stamps += group.first_block * layout::kStampRows;
            auto& launches = (start++)->launches;
            for (std::size_t k = 0; k < launches.size(); ++k) {
                // The ranks that the launch brings, where a call has no room for all.
                const auto& ranks = group.ranks;
                const auto first = group.fits() ? 0 : std::min(k * layout::kOwns, ranks.size());
                const auto end = std::min(first + layout::kOwns, ranks.size());
                layout::Call call;
                call.setup = setup;
                if (first != end) call.setup.owns += first;
                for (auto at = first; at < end; ++at) call.own[at - first] = own_of(ranks[at]);
                const auto used = offsetof(layout::Call, own) + (end - first) * sizeof(layout::Own);
                std::memcpy(launches[k].call.data(), &call, used);
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
    auto& found = found_.emplace_back(Found{own.rank, {}}).own;
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

const layout::Own& PlanCall::own_of(int rank) const {
    const auto is_own = [rank](const Found& found) { return found.rank == rank; };
    return std::find_if(found_.begin(), found_.end(), is_own)->own;
}

void PlanCall::keep(const std::shared_ptr<void>& what) {
    for (auto& start : call_.starts()) {
        for (auto& launch : start.launches) launch.keeps = what;
    }
}

}  // namespace sley
