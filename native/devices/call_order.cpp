#include "devices/call_order.hpp"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "devices/cuda_driver.hpp"
#include "devices/deferred_free.hpp"

namespace sley {

OrderedCall::OrderedCall(std::shared_ptr<CallOrder> order, std::vector<Start> starts)
    : order_(std::move(order)), starts_(std::move(starts)), states_(starts_.size()) {
    auto& marks = order_->marks_;
    while (marks.size() < starts_.size()) {
        const Resource event = starts_[marks.size()].device->event();
        marks.emplace_back().event = event;
    }
    for (const auto& start : starts_) turns_ = std::max(turns_, start.launches.size());
}

bool OrderedCall::start(const std::vector<Device::Stream>& streams, bool recorded) {
    if (streams.size() != starts_.size()) throw std::invalid_argument("a stream for each start");
    if (order_->abort_->load(std::memory_order_relaxed) != 0) return false;
    if (starts_.empty()) return true;
    cuda::Current current(starts_.front().device->context());
    const auto for_each = [&](const auto& what) {
        for (std::size_t k = 0; k < starts_.size(); ++k) {
            current.to(starts_[k].device->context());
            what(k);
        }
    };
    for_each([&](std::size_t k) {
        const auto& mark = order_->marks_[k];
        const auto known = mark.is_recorded ? std::optional(mark.stream) : std::nullopt;
        states_[k] = starts_[k].device->look(streams[k], known);
    });
    for_each([&](std::size_t k) { follow(k, streams[k]); });
    {
        const LaunchTurn turn;
        // All runs are launched before all divisions. Otherwise a division that waits in a queue for
        // its rank's run could block the run of another rank, for which the first run waits.
        for (std::size_t t = 0; t < turns_; ++t) {
            for_each([&](std::size_t k) {
                const auto& start = starts_[k];
                if (t < start.launches.size()) start.device->launch(start.launches[t], streams[k]);
            });
        }
    }
    for_each([&](std::size_t k) {
        if (recorded || states_[k].is_captured) record(k, streams[k]);
    });
    return true;
}

void OrderedCall::follow(std::size_t k, Device::Stream stream) {
    const auto& state = states_[k];
    auto& mark = order_->marks_[k];
    if (state.is_captured) {
        // Later starts of a capture follow the first one on its stream.
        if (std::exchange(mark.capture, state.capture) == state.capture) return;
    } else if (!mark.is_in_graphs && (!mark.is_recorded || mark.stream == state.number)) {
        return;
    }
    starts_[k].device->wait(stream, mark.event.address, state.is_captured);
}

void OrderedCall::record(std::size_t k, Device::Stream stream) {
    const auto& state = states_[k];
    auto& mark = order_->marks_[k];
    starts_[k].device->record(mark.event.address, stream, state.is_captured);
    if (state.is_captured) {
        mark.is_in_graphs = true;
    } else {
        mark.is_recorded = true;
        mark.stream = state.number;
    }
}

}  // namespace sley
