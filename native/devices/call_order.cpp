#include "devices/call_order.hpp"

#include <algorithm>
#include <exception>
#include <iterator>
#include <random>
#include <stdexcept>
#include <utility>

#include "devices/cuda_driver.hpp"
#include "devices/deferred_free.hpp"
#include "devices/refusal.hpp"

namespace sley {

// A call of a crowd, which may still run. left: launches to come, of ranks that are later. events:
// behind those that were launched, by their orders. gate: what they all wait for; if nothing, null.
// part: see Device::part, of all launches; all of the device if they wait for others, which may still
// run.
struct CallOrder::Running {
    std::weak_ptr<Crowd> crowd;
    std::uint64_t call;
    double part;
    std::size_t left;
    Resource gate;
    std::vector<std::pair<std::uint64_t, Resource>> events;
};

// At exit the events are the driver's, which may be unloaded.
std::map<std::uintptr_t, std::vector<CallOrder::Running>>& CallOrder::running() {
    static auto& found = *new std::map<std::uintptr_t, std::vector<Running>>;
    return found;
}

namespace {

// At every so many calls a milestone is recorded, and the one before waited for. A driver's queue has
// room for about 1,000 launches; one that waited for room would hold the turn, which the rank that it
// waits for may need, in another thread. So a rank is at most 127 calls ahead of its device; then its
// thread waits, as others do that fill a queue. A thread that drives several ranks makes their calls in
// turn, or in groups, as NCCL wants it, and waits only for calls that all of them have started.
constexpr std::uint64_t kStretch = 64;

}  // namespace

CallOrder::CallOrder(const std::atomic<std::uint64_t>* abort) : abort_(abort) {
    static std::atomic<std::uint64_t> last{0};
    number_ = ++last;
    watch(this, [this] { return is_over(); });
}

CallOrder::~CallOrder() { forget(this); }

void CallOrder::join(std::atomic<std::uint64_t>& word,
                     const std::map<std::uintptr_t, std::size_t>& launches) {
    static auto& crowds = *new std::map<std::uint64_t, std::weak_ptr<Crowd>>;
    std::random_device random;
    const auto drawn = (std::uint64_t{random()} << 32 | random()) | 1;
    std::uint64_t known = 0;
    if (word.compare_exchange_strong(known, drawn)) known = drawn;
    const LaunchTurn turn;
    for (auto each = crowds.begin(); each != crowds.end();) {
        each = each->second.expired() ? crowds.erase(each) : std::next(each);
    }
    auto& joined = crowds[known];
    if (const auto found = joined.lock()) crowd_ = found;
    joined = crowd_;
    for (const auto& [context, count] : launches) crowd_->launches[context] += count;
}

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

bool CallOrder::is_idle() const {
    const LaunchTurn turn;
    return !has_graphs_ && is_over();
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

OrderedCall::OrderedCall(std::shared_ptr<CallOrder> order, std::vector<Start> starts, Kind kind)
    : order_(std::move(order)), kind_(kind), starts_(std::move(starts)), states_(starts_.size()) {
    const LaunchTurn turn;
    auto& marks = order_->marks_;
    while (marks.size() < starts_.size()) {
        const auto* device = starts_[marks.size()].device;
        marks.push_back({device, device->event(), device->event(), device->event()});
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
    const std::lock_guard<std::mutex> held(order_->starting_);
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
    const bool is_captured = states_.front().is_captured;
    if (!is_captured && kind_ == Kind::kOfAllRanks) ++order_->calls_;
    const bool is_milestone = !is_captured && ++order_->started_ % kStretch == 0;
    if (is_milestone) order_->catch_up();
    for_each([&](std::size_t k) { follow(k, streams[k]); });
    const LaunchTurn turn;
    if (order_->is_given_up()) return false;  // whoever waits for calls doesn't know of this one yet
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
        // Later starts of a capture follow the first one, within the graph.
        if (mark.capture == state.capture) {
            starts_[k].device->wait(stream, mark.branch.address, false);
            return;
        }
    } else if (!mark.is_in_graphs && (!mark.is_recorded || mark.stream == state.number)) {
        return;
    }
    starts_[k].device->wait(stream, mark.event.address, state.is_captured);
}

void OrderedCall::take_room(const std::vector<Device::Stream>& streams) {
    for (const auto& [context, starts] : on_) {
        if (states_[starts.front()].is_captured) continue;
        take_room(CallOrder::running()[context], starts, streams);
    }
}

// What the first rank of a crowd decides for a call holds for the others, which are launched later:
// a rank that waited for calls that began between could wait for one that waits for the first rank.
// Ranks know a call by its number; where one captures a call that another starts at once, numbers
// differ from then on, each decides for itself, and what it noted stays until the communicator ends.
// Calls of one rank have no such number: while any of a crowd is under way, a further one may be what it
// waits for, and begins as it did.
void OrderedCall::take_room(std::vector<CallOrder::Running>& running,
                            const std::vector<std::size_t>& starts,
                            const std::vector<Device::Stream>& streams) {
    using Running = CallOrder::Running;
    const auto& crowd = order_->crowd_;
    const auto& device = *starts_[starts.front()].device;
    const auto drop = [&running](const auto& is_over) {
        running.erase(std::remove_if(running.begin(), running.end(), is_over), running.end());
    };
    // The order's calls before come before this one anyway.
    for (auto& each : running) {
        auto& events = each.events;
        const auto is_own = [this](const auto& event) { return event.first == order_->number_; };
        events.erase(std::remove_if(events.begin(), events.end(), is_own), events.end());
    }
    drop([](const Running& each) { return each.left == 0 && each.events.empty(); });
    const bool is_of_all = kind_ == Kind::kOfAllRanks;
    const auto number = is_of_all ? order_->calls_.load() : CallOrder::kUncounted;
    const auto is_done = [&device](const auto& event) {
        return device.is_done(event.second.address);
    };
    const auto is_same = [&](const Running& each) {
        return each.call == number && each.crowd.lock() == crowd;
    };
    if (!is_of_all) {
        drop([&](const Running& each) {
            return is_same(each) &&
                   std::all_of(each.events.begin(), each.events.end(), is_done);
        });
    }
    auto own = std::find_if(running.begin(), running.end(), is_same);
    if (own == running.end()) {
        const auto here = crowd->launches.find(device.context());
        const std::size_t all =
            here == crowd->launches.end() ? starts.size() : std::max(here->second, starts.size());
        double part = 0;
        for (const std::size_t k : starts) part += parts_[k];
        part *= static_cast<double>(all) / static_cast<double>(starts.size());
        const auto is_other = [&](const Running& each) { return each.crowd.lock() != crowd; };
        const auto fits = [&] {
            double sum = part;
            for (const auto& each : running) sum += is_other(each) ? each.part : 0;
            return sum <= 1;
        };
        if (!fits()) {
            drop([&](const Running& each) {
                return (each.left == 0 || each.crowd.expired()) &&
                       std::all_of(each.events.begin(), each.events.end(), is_done);
            });
        }
        Resource gate;
        if (!fits()) {
            const cuda::Current current(device.context());
            const auto first = streams[starts.front()];
            for (const auto& each : running) {
                if (!is_other(each)) continue;
                for (const auto& [_, event] : each.events) device.wait(first, event.address, false);
            }
            gate = device.event();
            device.record(gate.address, first, false);
            part = 1;
        }
        own = running.insert(running.end(), {crowd, number, part, is_of_all ? all : 0, gate, {}});
    }
    for (const std::size_t k : starts) {
        if (own->gate.owner != nullptr) {
            const cuda::Current current(device.context());
            starts_[k].device->wait(streams[k], own->gate.address, false);
        }
        own->events.emplace_back(order_->number_, order_->marks_[k].event);
    }
    own->left -= std::min(own->left, starts.size());
}

void OrderedCall::record(std::size_t k, Device::Stream stream, bool recorded) {
    const auto& state = states_[k];
    auto& mark = order_->marks_[k];
    starts_[k].device->record(mark.event.address, stream, state.is_captured);
    if (state.is_captured) {
        starts_[k].device->record(mark.branch.address, stream, false);
        mark.capture = state.capture;
        mark.is_in_graphs = order_->has_graphs_ = true;
    } else {
        mark.is_recorded = recorded;
        mark.stream = state.number;
    }
}

}  // namespace sley
