#include "engine/ready.hpp"

#include <utility>

namespace sley {

CallRequest update_request(std::int32_t kind, const Elements& data, ReduceOp op,
                           std::int32_t root) {
    return {{kind, data.type, op, true, root, data.count},
            {{data.start, nullptr}, {data.bytes(), 0}}};
}

std::optional<CallRequest> move_request(std::int32_t kind, PartsOf parts, const Elements& output,
                                        const Elements& input, ReduceOp op, std::int32_t rank,
                                        std::int32_t ranks) {
    if (input.own_type != output.own_type) return {};
    const std::int64_t in_parts = parts == PartsOf::kOutput ? 1 : ranks;
    const std::int64_t out_parts = parts == PartsOf::kInput ? 1 : ranks;
    const auto count = input.count / in_parts;
    if (count * in_parts != input.count || count * out_parts != output.count) return {};
    const CallKey key{kind, input.type, op, false, 0, count};
    if (!input.overlaps(output)) {
        return CallRequest{key, {{input.start, output.start}, {input.bytes(), output.bytes()}}};
    }
    const auto& whole = parts == PartsOf::kOutput ? output : input;
    const auto& part = parts == PartsOf::kOutput ? input : output;
    if (parts == PartsOf::kBoth || part.start != whole.start + rank * part.bytes()) return {};
    auto in_place = key;
    in_place.in_place = true;
    return CallRequest{in_place, {{whole.start, nullptr}, {whole.bytes(), 0}}};
}

void ReadyCalls::put(const CallKey& key, ReadyCall call) {
    auto ready = std::make_shared<const ReadyCall>(std::move(call));
    const std::lock_guard lock(mutex_);
    if (calls_) ready_[key] = std::move(ready);
}

void ReadyCalls::clear() {
    decltype(ready_) ended;  // destroyed without the lock
    const std::lock_guard lock(mutex_);
    ended.swap(ready_);
}

void ReadyCalls::set_timeout(double seconds) {
    const std::lock_guard lock(mutex_);
    timeout_s_ = seconds;
}

void ReadyCalls::close() {
    std::shared_ptr<Calls> calls;
    {
        const std::lock_guard lock(mutex_);
        calls.swap(calls_);
    }
    clear();
}

std::optional<Outcome> ReadyCalls::run(const CallRequest& request) {
    const auto& [key, memory] = request;
    const auto found = find(key);
    if (!found || found->calls->is_own_thread()) return {};
    const auto& ready = *found->ready;
    const Call call{key.count,
                    key.type,
                    key.op,
                    {memory.start[0], memory.start[1]},
                    {memory.bytes[0], memory.bytes[1]},
                    {0, ready.what, static_cast<std::uint64_t>(key.count), ready.varying},
                    nullptr,
                    nullptr};
    number_.fetch_add(1, std::memory_order_relaxed);
    return found->calls->run(ready.runner, call, found->timeout_s);
}

std::optional<ReadyCalls::Found> ReadyCalls::find(const CallKey& key) const {
    const std::lock_guard lock(mutex_);
    const auto found = ready_.find(key);
    if (found == ready_.end() || !calls_) return {};
    return Found{calls_, found->second, timeout_s_};
}

}  // namespace sley
