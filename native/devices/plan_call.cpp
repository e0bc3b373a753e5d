#include "devices/plan_call.hpp"

#include <utility>

namespace sley {
namespace {

std::vector<Start> starts_of(const std::vector<PlanCall::Place>& places, unsigned threads,
                             bool together, const std::shared_ptr<void>& keeps) {
    std::vector<Start> starts;
    for (const auto& place : places) {
        for (const auto& group : place.plan->groups()) {
            auto& launches = starts.emplace_back(Start{&place.plan->device(), {}}).launches;
            const auto add = [&, blocks = static_cast<unsigned>(group.blocks)](
                                 std::uintptr_t kernel, const char* name, bool is_cooperative) {
                launches.push_back({kernel, name, "", blocks, threads, is_cooperative, keeps});
            };
            add(place.run, "sley_run", together);
            // Its blocks don't wait for one another.
            if (place.divide != 0 && group.divisions != 0) add(place.divide, "sley_divide", false);
        }
    }
    return starts;
}

}  // namespace

PlanCall::PlanCall(std::shared_ptr<CallOrder> order, std::vector<Place> places, unsigned threads,
                   bool together, const std::shared_ptr<void>& keeps)
    : places_(std::move(places)),
      call_(std::move(order), starts_of(places_, threads, together, keeps)) {}

void PlanCall::lay_out(const CallValues& values) {
    auto start = call_.starts().begin();
    for (const auto& place : places_) {
        place.plan->lay_out(values, place.shifts, argument_);
        for (const auto& group : place.plan->groups()) {
            place.plan->turn_to(group, argument_.setup);
            for (auto& launch : (start++)->launches) {
                launch.call.assign(reinterpret_cast<const char*>(&argument_), sizeof argument_);
            }
        }
    }
}

}  // namespace sley
