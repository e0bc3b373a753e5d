#include "devices/device_calls.hpp"

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace sley {
namespace {

constexpr unsigned kMostThreads = 1024;  // of a block, on any GPU

}  // namespace

DeviceCalls::DeviceCalls(std::shared_ptr<CallOrder> order, std::shared_ptr<MemoryIndex> memory,
                         int rank, bool together)
    : order_(std::move(order)), memory_(std::move(memory)), together_(together),
      buffers_{{rank, {}, {}}}, streams_(1) {}

int DeviceCalls::add_plan(std::shared_ptr<const DevicePlan> plan) {
    if (plan->groups().size() != 1) throw std::invalid_argument("a plan of more than one launch");
    const std::lock_guard<std::mutex> held(lock_);
    plans_.push_back(std::move(plan));
    return static_cast<int>(plans_.size()) - 1;
}

void DeviceCalls::set_table(const CallKind& kind, std::vector<std::uint64_t> ends,
                            std::vector<int> plans) {
    const std::lock_guard<std::mutex> held(lock_);
    const auto is_unknown = [this](int plan) { return plan < 0 || plan >= int(plans_.size()); };
    if (ends.size() + 1 != plans.size() || !std::is_sorted(ends.begin(), ends.end()) ||
        std::any_of(plans.begin(), plans.end(), is_unknown)) {
        throw std::invalid_argument("ascending ends, and a plan up to each and behind the last");
    }
    std::vector<Tally> none(plans.size());
    rows_[{kind.kind, kind.in_place, kind.root}] = {std::move(ends), std::move(plans),
                                                    std::move(none)};
}

void DeviceCalls::set_program(int plan, const CallProgram& program, std::uintptr_t run,
                              std::uintptr_t divide) {
    const std::lock_guard<std::mutex> held(lock_);
    const std::array<int, 4> key{plan, program.dtype, program.op, program.scales};
    plans_.at(static_cast<std::size_t>(plan));
    const bool divides = program.op == static_cast<int>(ReduceOp::kAverage);
    programs_[key] = {run, divides ? divide : 0};
    calls_.erase(calls_.lower_bound({key, 0}), calls_.upper_bound({key, kMostThreads}));
}

PlanCall* DeviceCalls::call_of(const std::array<int, 4>& key, unsigned threads) {
    const auto found = calls_.find({key, threads});
    if (found != calls_.end()) return &found->second;
    const auto program = programs_.find(key);
    if (program == programs_.end()) return nullptr;
    const auto& [run, divide] = program->second;
    const auto& plan = plans_[static_cast<std::size_t>(key[0])];
    PlanCall made(order_, memory_, {{plan, run, divide, 0, 0}}, threads, together_);
    return &calls_.emplace(std::pair(key, threads), std::move(made)).first->second;
}

int DeviceCalls::plan_of(const CallKind& kind, std::uint64_t size_bytes) const {
    const std::lock_guard<std::mutex> held(lock_);
    const auto& row = row_of(kind);
    return row.plans[row.range_of(size_bytes)];
}

bool DeviceCalls::is_ready(const CallKind& kind, const CallProgram& program,
                           std::uint64_t size_bytes, const CallValues& values) const {
    const int plan = plan_of(kind, size_bytes);
    const std::lock_guard<std::mutex> held(lock_);
    return programs_.count({plan, program.dtype, program.op, program.scales}) > 0 &&
           has_scratch(plan, values);
}

std::vector<DeviceCalls::Tally> DeviceCalls::tallies(const CallKind& kind) const {
    const std::lock_guard<std::mutex> held(lock_);
    return row_of(kind).tallies;
}

StartOutcome DeviceCalls::start(const CallKind& kind, const CallProgram& program,
                                std::uint64_t size_bytes, CallValues values, RankBuffers buffers,
                                Device::Stream stream, const std::shared_ptr<void>& keeps) {
    const std::lock_guard<std::mutex> held(lock_);
    if (order_->is_given_up()) return StartOutcome::kGivenUp;
    if (size_bytes == 0) return StartOutcome::kStarted;
    const auto& row = row_of(kind);
    const auto range = row.range_of(size_bytes);
    const int plan = row.plans[range];
    const auto& numbers = plans_[static_cast<std::size_t>(plan)]->numbers();
    auto* const call = call_of({plan, program.dtype, program.op, program.scales},
                               numbers.threads(values.item_bytes, values.count));
    if (call == nullptr) return StartOutcome::kLacksProgram;
    buffers.rank = buffers_[0].rank;
    buffers_[0] = buffers;
    values.buffers = &buffers_;
    if (!call->lay_out(values) || !has_scratch(plan, values)) return StartOutcome::kLacksScratch;
    streams_[0] = stream;
    if (keeps != nullptr) call->keep(keeps);
    const bool is_started = call->start(streams_, true);
    if (keeps != nullptr) call->keep(nullptr);
    if (!is_started) return StartOutcome::kGivenUp;
    auto& [calls, bytes] = row.tallies[range];
    ++calls;
    bytes += size_bytes;
    return StartOutcome::kStarted;
}

std::optional<StartOutcome> DeviceCalls::start(const Kind& kind, const Elements& input,
                                               const Elements& output, ReduceOp op, int root,
                                               Device::Stream stream,
                                               const std::shared_ptr<void>& keeps) {
    const auto ranks = static_cast<std::int32_t>(plans_.front()->numbers().scratch_chunks.size());
    if (!input.is_aligned() || !output.is_aligned() || input.element != output.element) return {};
    if (root < 0 || root >= ranks) return {};
    const bool is_update =
        kind.is_update() && input.start == output.start && input.count == output.count;
    if (!is_update && kind.has_root) return {};
    const auto request =
        is_update ? std::optional(update_request(kind, output, op, root))
                  : move_request(kind, output, input, op, buffers_[0].rank, ranks);
    if (!request) return {};
    auto [key, memory, blocks] = *request;
    if (key.in_place && !has_row({key.kind, true, key.root})) {
        key.in_place = false;
        memory = {{input.start, output.start}, {input.bytes(), output.bytes()}};
    }
    const auto parts = kind.input_parts || kind.output_parts ? ranks : 1;
    RankBuffers buffers{};
    for (int m = 0; m < 2; ++m) {
        buffers.addresses[m] = reinterpret_cast<std::uint64_t>(memory.start[m]);
        buffers.bytes[m] = static_cast<std::uint64_t>(memory.bytes[m]);
    }
    return start({key.kind, key.in_place, key.root},
                 {static_cast<int>(key.type), static_cast<int>(key.op), false},
                 static_cast<std::uint64_t>(key.count * parts * input.item),
                 {input.item, key.count, nullptr, 0, 0}, buffers, stream, keeps);
}

bool DeviceCalls::has_scratch(int plan, const CallValues& values) const {
    const auto& numbers = plans_[static_cast<std::size_t>(plan)]->numbers();
    const auto& chunks = numbers.scratch_chunks;
    const auto rank = std::max_element(chunks.begin(), chunks.end()) - chunks.begin();
    const auto most = numbers.scratch_bytes(static_cast<int>(rank), values.item_bytes, values.count);
    const std::lock_guard<std::mutex> held(memory_->lock);
    return memory_->scratch(buffers_[0].rank, static_cast<std::uint64_t>(most)).has_value();
}

bool DeviceCalls::has_row(const CallKind& kind) const {
    const std::lock_guard<std::mutex> held(lock_);
    return rows_.count({kind.kind, kind.in_place, kind.root}) != 0;
}

const DeviceCalls::Row& DeviceCalls::row_of(const CallKind& kind) const {
    const auto found = rows_.find({kind.kind, kind.in_place, kind.root});
    if (found == rows_.end()) throw std::invalid_argument("no plans for a kind of calls");
    return found->second;
}

std::size_t DeviceCalls::Row::range_of(std::uint64_t size_bytes) const {
    const auto end = std::lower_bound(ends.begin(), ends.end(), size_bytes);
    return static_cast<std::size_t>(end - ends.begin());
}

}  // namespace sley
