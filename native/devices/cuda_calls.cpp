#include "devices/cuda_calls.hpp"

#include <algorithm>
#include <stdexcept>

#include "devices/deferred_free.hpp"

namespace sley {

using namespace cuda;

namespace {

// A start that may still run, by the event behind it. share: what it takes of a device's room, all
// of it if it waits for others, which may still run.
struct Running {
    std::uint64_t order;
    Resource event;
    double share;
};

// By device; only in a LaunchTurn. At exit the events are the driver's, which may be unloaded.
auto& g_running = *new std::map<Context, std::vector<Running>>;

bool is_done(const Resource& event, Context context) {
    try {
        const ApartFromCaptures apart(context);
        return cuEventQuery(Event{event.address}) != Result::kNotReady;
    } catch (const Error&) {  // the device has failed: nothing runs
        return true;
    }
}

}  // namespace

CudaOrder::CudaOrder(const std::atomic<std::uint64_t>* abort) : abort_(abort) {
    static std::atomic<std::uint64_t> last{0};
    number_ = ++last;
    watch(this, [this] { return is_over(); });
}

CudaOrder::~CudaOrder() { forget(this); }

bool CudaOrder::is_over() const {
    return std::all_of(places_.begin(), places_.end(), [](const Place& place) {
        return is_done(place.event, place.device->context());
    });
}

void CudaOrder::wait() const {
    for (const Place& place : places_) {
        if (place.is_in_graphs) {
            place.device->synchronize({});
        } else {
            const ApartFromCaptures apart(place.device->context());
            call(cuEventSynchronize, {"waiting for calls on ", place.device->name()},
                 Event{place.event.address});
        }
    }
    free_released();
}

CudaCall::CudaCall(std::shared_ptr<CudaOrder> order, std::vector<CudaStart> starts)
    : order_(std::move(order)), starts_(std::move(starts)), targets_(starts_.size()) {
    const LaunchTurn turn;
    auto& places = order_->places_;
    while (places.size() < starts_.size()) {
        const auto* device = starts_[places.size()].device;
        places.push_back({device, device->event()});
    }
    for (std::size_t k = 0; k < starts_.size(); ++k) {
        const auto& [device, launches] = starts_[k];
        turns_ = std::max(turns_, launches.size());
        const CudaLaunch& run = launches.at(0);
        const int room = device->blocks_at_once(run.function, static_cast<int>(run.threads));
        shares_.push_back(static_cast<double>(run.blocks) / std::max(room, 1));
        on_[device->context()].push_back(k);
    }
}

bool CudaCall::start(const std::vector<Stream>& streams, bool recorded) {
    if (streams.size() != starts_.size()) throw std::invalid_argument("a stream for each start");
    if (order_->abort_->load(std::memory_order_relaxed) != 0) return false;
    if (starts_.empty()) return true;
    Current current(starts_.front().device->context());
    const auto for_each = [&](const auto& what) {
        for (std::size_t k = 0; k < starts_.size(); ++k) {
            current.to(starts_[k].device->context());
            what(k);
        }
    };
    for_each([&](std::size_t k) { targets_[k] = look(k, streams[k]); });
    for_each([&](std::size_t k) { follow(k, streams[k], targets_[k]); });
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
    for_each([&](std::size_t k) { record(k, streams[k], targets_[k], recorded); });
    return true;
}

CudaCall::Target CudaCall::look(std::size_t k, Stream stream) const {
    const auto& device = *starts_[k].device;
    const Purpose purpose{"looking at a stream of ", device.name(), "stream"};
    Target target;
    CaptureStatus status{};
    call(cuStreamGetCaptureInfo, purpose, stream, &status, &target.capture, nullptr, nullptr,
         nullptr);
    target.is_captured = status != CaptureStatus::kNone;
    if (target.is_captured) return target;  // further queries could invalidate the capture
    call(cuStreamGetId, purpose, stream, &target.stream);
    const auto& place = order_->places_[k];
    if (place.is_recorded && place.stream == target.stream) return target;  // it was looked at
    Context own = 0;
    call(cuStreamGetCtx, purpose, stream, &own);
    if (own == device.context()) return target;
    Device other = 0;
    const Current others(own);
    call(cuCtxGetDevice, purpose, &other);
    if (other != device.device()) {
        throw Error(cuStreamGetCtx.name, Result::kElsewhere, {device.name()});
    }
    return target;
}

void CudaCall::follow(std::size_t k, Stream stream, const Target& target) {
    auto& place = order_->places_[k];
    if (target.is_captured) {
        // Later starts of a capture follow the first one on its stream.
        if (std::exchange(place.capture, target.capture) == target.capture) return;
    } else if (!place.is_in_graphs && (!place.is_recorded || place.stream == target.stream)) {
        return;
    }
    call(cuStreamWaitEvent, {"letting a call wait for the one before", "", "stream"}, stream,
         Event{place.event.address}, target.is_captured ? kExternal : 0U);
}

void CudaCall::take_room(const std::vector<Stream>& streams) {
    for (const auto& [context, starts] : on_) {
        if (targets_[starts.front()].is_captured) continue;
        auto& running = g_running[context];
        const auto drop = [&running](const auto& is_over) {
            running.erase(std::remove_if(running.begin(), running.end(), is_over), running.end());
        };
        const auto fits = [this, &running, &starts = starts] {
            double share = 0;
            for (const auto& each : running) share += each.share;
            for (const std::size_t k : starts) share += shares_[k];
            return share <= 1;
        };
        // Its own calls before come before it anyway.
        drop([this](const Running& each) { return each.order == order_->number_; });
        if (!fits()) {
            drop([context = context](const Running& each) { return is_done(each.event, context); });
        }
        const bool waits = !fits();
        std::vector<Running> behind;
        if (waits) behind.swap(running);
        for (const std::size_t k : starts) {
            for (const auto& each : behind) {
                const Current current(context);
                call(cuStreamWaitEvent, {"letting a call wait for others", "", "stream"}, streams[k],
                     Event{each.event.address}, 0U);
            }
            running.push_back({order_->number_, order_->places_[k].event, waits ? 1 : shares_[k]});
        }
    }
}

void CudaCall::record(std::size_t k, Stream stream, const Target& target, bool recorded) {
    auto& place = order_->places_[k];
    call(cuEventRecordWithFlags, {"setting an event behind a call", "", "stream"},
         Event{place.event.address}, stream, target.is_captured ? kExternal : 0U);
    if (target.is_captured) {
        place.is_in_graphs = true;
    } else {
        place.is_recorded = recorded;
        place.stream = target.stream;
    }
}

}  // namespace sley
