#include "engine/ready.hpp"

#include <utility>

namespace sley {
namespace {

bool are_in_a_row(const std::vector<Elements>& list) {
    for (std::size_t i = 1; i < list.size(); ++i) {
        if (list[i].start != list[i - 1].start + list[i - 1].bytes()) return false;
    }
    return true;
}

std::vector<Part> parts_of(const std::vector<Elements>& list) {
    std::vector<Part> parts;
    parts.reserve(list.size());
    for (const auto& one : list) parts.push_back({one.start, one.count});
    return parts;
}

}  // namespace

CallRequest update_request(const Kind& kind, const Elements& data, ReduceOp op,
                           std::int32_t root) {
    return {{kind.number, data.type, op, true, root, data.count, data.element},
            {{data.start, nullptr}, {data.bytes(), 0}},
            nullptr};
}

std::optional<CallRequest> move_request(const Kind& kind, const Elements& output,
                                        const Elements& input, ReduceOp op, std::int32_t rank,
                                        std::int32_t ranks) {
    if (input.element != output.element) return {};
    const std::int64_t in_parts = kind.input_parts ? ranks : 1;
    const std::int64_t out_parts = kind.output_parts ? ranks : 1;
    const auto count = input.count / in_parts;
    if (count * in_parts != input.count || count * out_parts != output.count) return {};
    const CallKey key{kind.number, input.type, op, false, 0, count, input.element};
    if (!input.overlaps(output)) {
        return CallRequest{
            key, {{input.start, output.start}, {input.bytes(), output.bytes()}}, nullptr};
    }
    const auto& whole = kind.output_parts ? output : input;
    const auto& part = kind.output_parts ? input : output;
    const bool has_two_wholes = kind.input_parts && kind.output_parts;
    if (has_two_wholes || part.start != whole.start + rank * part.bytes()) return {};
    auto in_place = key;
    in_place.in_place = true;
    return CallRequest{in_place, {{whole.start, nullptr}, {whole.bytes(), 0}}, nullptr};
}

std::optional<CallRequest> list_request(const Kind& kind, const std::vector<Elements>& outputs,
                                        const std::vector<Elements>& inputs, ReduceOp op,
                                        std::int32_t root, std::int32_t rank, std::int32_t ranks) {
    const auto parts = static_cast<std::size_t>(kind.has_root && root != rank ? 0 : ranks);
    if (inputs.size() != (kind.input_parts ? parts : 1)) return {};
    if (outputs.size() != (kind.output_parts ? parts : 1)) return {};
    const auto& first = inputs.empty() ? outputs.front() : inputs.front();
    const std::vector<Elements>* sides[2] = {&inputs, &outputs};
    for (const auto* side : sides) {
        for (const auto& one : *side) {
            if (one.count != first.count || one.element != first.element) return {};
        }
    }
    for (const auto& input : inputs) {
        for (const auto& output : outputs) {
            if (input.overlaps(output)) return {};
        }
    }
    const CallKey key{kind.number, first.type, op, false, root, first.count, first.element};
    CallRequest request{key, {}, nullptr};
    const bool is_in_a_row = are_in_a_row(inputs) && are_in_a_row(outputs);
    for (std::size_t side = 0; side < 2; ++side) {
        const auto& list = *sides[side];
        request.memory.bytes[side] = static_cast<std::int64_t>(list.size()) * first.bytes();
        if (is_in_a_row && !list.empty()) request.memory.start[side] = list.front().start;
    }
    if (!is_in_a_row) {
        request.blocks = std::make_shared<const Parts>(Parts{{parts_of(inputs), parts_of(outputs)}});
    }
    return request;
}

void ReadyCalls::put(const CallKey& key, Runner runner) {
    auto ready = std::make_shared<const Runner>(std::move(runner));
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
    const auto& [key, memory, blocks] = request;
    const auto found = find(key);
    if (!found || found->calls->is_own_thread()) return {};
    const Call call{key.count,
                    key.type,
                    key.op,
                    {memory.start[0], memory.start[1]},
                    {memory.bytes[0], memory.bytes[1]},
                    {},
                    nullptr,
                    blocks};
    number_.fetch_add(1, std::memory_order_relaxed);
    return found->calls->run(*found->runner, call, found->timeout_s);
}

std::optional<double> ReadyCalls::timeout() const {
    const std::lock_guard lock(mutex_);
    return calls_ ? std::optional(timeout_s_) : std::nullopt;
}

std::optional<ReadyCalls::Found> ReadyCalls::find(const CallKey& key) const {
    const std::lock_guard lock(mutex_);
    const auto found = ready_.find(key);
    if (found == ready_.end() || !calls_) return {};
    return Found{calls_, found->second, timeout_s_};
}

}  // namespace sley
