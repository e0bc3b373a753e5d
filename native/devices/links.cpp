#include "devices/links.hpp"

#include <utility>

#include "devices/deferred_free.hpp"

namespace sley {

Links::Links(std::shared_ptr<MemoryExchange> memory, std::shared_ptr<MemoryIndex> index,
             std::shared_ptr<Barrier> barrier, std::shared_ptr<CallOrder> order,
             std::uint64_t abort, const std::vector<std::size_t>& mailboxes, const Tables& tables,
             const std::vector<Place>& places, std::uint64_t timeout_ns)
    : memory_(std::move(memory)), index_(std::move(index)),
      registrations_(std::make_shared<Registrations>(memory_, index_)), barrier_(std::move(barrier)),
      order_(std::move(order)) {
    std::map<std::uintptr_t, std::size_t> starts;
    for (const auto& place : places) starts[place.device->context()] += place.launches.size();
    order_->join(barrier_->free_word(), starts);  // before any meets the others
    auto made = memory_->allocate(mailboxes);
    mailboxes_ = std::move(made.own);
    memory_->processes().use(barrier_);  // where the others wait, also for a refusal
    memory_->processes().telling([&] {
        plans_.resize(tables.size());
        for (const auto& [device, launches, behind] : places) {
            auto segments = made.found.at(device);
            segments.insert(segments.end(), behind.begin(), behind.end());
            auto own = DevicePlan::all(tables, *device, launches, segments, abort, timeout_ns);
            for (std::size_t k = 0; k < own.size(); ++k) plans_[k].push_back(std::move(own[k]));
        }
    });
}

Links::~Links() {
    if (!is_closed_) free();
}

void Links::check_open() const {
    if (is_closed_) throw Refusal("R508", "an executor that is open", "a closed one");
}

bool Links::check() const {
    check_open();
    if (!failed_.empty()) throw Refusal("R508", "an executor without a failed call", failed_);
    return !barrier_->is_given_up();
}

std::optional<bool> Links::lacks(int rank) const {
    const auto own = order_->calls();
    if (!has_left(rank) || own == CallOrder::kUncounted) return {};
    const auto made = barrier_->calls(rank);
    return made == CallOrder::kUncounted ? std::nullopt : std::optional(own > made);
}

void Links::end() {
    order_->wait();
    leave();
}

void Links::close(bool meet) {
    if (is_closed_) return;
    order_->wait();
    is_closed_ = true;
    if (!stays_) memory_->detach(), registrations_->detach();
    leave();  // then callers may free what the others had mapped
    try {
        if (meet) barrier_->wait_for_others();  // their kernels write into this process's memory
    } catch (...) {
        free();
        throw;
    }
    free();
}

// Others may still have the plans and calls of them, which can't be started any more.
void Links::free() {
    if (stays_) return;
    release([barrier = barrier_, memory = memory_, index = index_, registrations = registrations_,
             order = order_, mailboxes = std::move(mailboxes_), plans = std::move(plans_),
             kept = std::move(kept_)] {
        barrier->leave(order->calls());
        memory->detach();
        registrations->detach();
        index->free();
        for (const auto& each : plans) {
            for (const auto& plan : each) plan->free();
        }
    });
}

}  // namespace sley
