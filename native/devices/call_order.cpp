#include "devices/call_order.hpp"

#include <algorithm>
#include <exception>
#include <stdexcept>
#include <utility>

#include "devices/cuda_driver.hpp"
#include "devices/deferred_free.hpp"
#include "devices/refusal.hpp"

namespace sley {
namespace {

// A start that may still run, by the event behind it. part: see Device::part; all of the device if
// the start waits for others, which may still run.
struct Running {
    std::uint64_t order;
    Resource event;
    double part;
};

// By context; only in a LaunchTurn. At exit the events are the driver's, which may be unloaded.
auto& g_running = *new std::map<std::uintptr_t, std::vector<Running>>;

// At every so many calls a milestone is recorded, and the one before waited for. A driver's queue has
// room for about 1,000 launches; one that waited for room would hold the turn, which the rank that it
// waits for may need, in another thread.
constexpr std::uint64_t kStretch = 64;

}  // namespace

CallOrder::CallOrder(const std::atomic<std::uint64_t>* abort) : abort_(abort) {
    static std::atomic<std::uint64_t> last{0};
    number_ = ++last;
    watch(this, [this] { return is_over(); });
}

CallOrder::~CallOrder() { forget(this); }

void CallOrder::catch_up() const {
    for (const Mark& mark : marks_) {
        if (mark.is_recorded) mark.device->join(mark.milestone.address);
    }
}

bool CallOrder::is_over() const {
    return std::all_of(marks_.begin(), marks_.end(), [](const Mark& mark) {
        return mark.device->is_done(mark.event.address);
    });
}

void CallOrder::wait() const {
    std::vector<Mark> marks;
    {
        const LaunchTurn turn;  // in which others record
        marks = marks_;
    }
    std::exception_ptr problem;
    for (const Mark& mark : marks) {
        try {
            if (mark.is_in_graphs) {
                mark.device->synchronize({});
            } else {
                mark.device->join(mark.event.address);
            }
        } catch (const Interrupted&) {
            throw;
        } catch (...) {  // the others may still run
            problem = std::current_exception();
        }
    }
    free_released();
    if (problem != nullptr) std::rethrow_exception(problem);
}

OrderedCall::OrderedCall(std::shared_ptr<CallOrder> order, std::vector<Start> starts)
    : order_(std::move(order)), starts_(std::move(starts)), states_(starts_.size()) {
    const LaunchTurn turn;
    auto& marks = order_->marks_;
    while (marks.size() < starts_.size()) {
        const auto* device = starts_[marks.size()].device;
        marks.push_back({device, device->event(), device->event()});
    }
    for (std::size_t k = 0; k < starts_.size(); ++k) {
        const auto& [device, launches] = starts_[k];
        turns_ = std::max(turns_, launches.size());
        parts_.push_back(launches.empty() ? 0 : device->part(launches.front()));
        if (parts_.back() > 0) on_[device->context()].push_back(k);
    }
}

bool OrderedCall::start(const std::vector<Device::Stream>& streams, bool recorded) {
    if (streams.size() != starts_.size()) throw std::invalid_argument("a stream for each start");
    if (order_->is_given_up()) return false;
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
    const bool is_milestone = !states_.front().is_captured && ++order_->calls_ % kStretch == 0;
    if (is_milestone) order_->catch_up();
    for_each([&](std::size_t k) { follow(k, streams[k]); });
    const LaunchTurn turn;
    take_room(streams);
    // All runs are launched before all divisions. Otherwise a division that waits in a queue for its
    // rank's run could block the run of another rank, for which the first run waits.
    for (std::size_t t = 0; t < turns_; ++t) {
        for_each([&](std::size_t k) {
            const auto& start = starts_[k];
            if (t < start.launches.size()) start.device->launch(start.launches[t], streams[k]);
        });
    }
    for_each([&](std::size_t k) {
        record(k, streams[k], recorded);
        if (is_milestone) {
            starts_[k].device->record(order_->marks_[k].milestone.address, streams[k], false);
        }
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

void OrderedCall::take_room(const std::vector<Device::Stream>& streams) {
    for (const auto& [context, starts] : on_) {
        if (states_[starts.front()].is_captured) continue;
        auto& running = g_running[context];
        const auto drop = [&running](const auto& is_over) {
            running.erase(std::remove_if(running.begin(), running.end(), is_over), running.end());
        };
        const auto fits = [this, &running, &starts = starts] {
            double part = 0;
            for (const auto& each : running) part += each.part;
            for (const std::size_t k : starts) part += parts_[k];
            return part <= 1;
        };
        // Its own calls before come before it anyway.
        drop([this](const Running& each) { return each.order == order_->number_; });
        if (!fits()) {
            drop([device = starts_[starts.front()].device](const Running& each) {
                return device->is_done(each.event.address);
            });
        }
        const bool waits = !fits();
        std::vector<Running> behind;
        if (waits) behind.swap(running);
        for (const std::size_t k : starts) {
            for (const auto& each : behind) {
                const cuda::Current current(context);
                starts_[k].device->wait(streams[k], each.event.address, false);
            }
            running.push_back({order_->number_, order_->marks_[k].event, waits ? 1 : parts_[k]});
        }
    }
}

void OrderedCall::record(std::size_t k, Device::Stream stream, bool recorded) {
    const auto& state = states_[k];
    auto& mark = order_->marks_[k];
    starts_[k].device->record(mark.event.address, stream, state.is_captured);
    if (state.is_captured) {
        mark.is_in_graphs = true;
    } else {
        mark.is_recorded = recorded;
        mark.stream = state.number;
    }
}

}  // namespace sley
