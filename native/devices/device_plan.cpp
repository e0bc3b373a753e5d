#include "devices/device_plan.hpp"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <stdexcept>
#include <utility>

namespace sley {
namespace {

constexpr std::size_t kTableAlignment = 256;  // at least that of each row

// Appends the rows of a rank to others.
template <class Row>
void append(const std::vector<Row>& all, int rank, std::vector<Row>& rows) {
    const auto before = [](const Row& row, int other) { return row.rank < other; };
    const auto first = std::lower_bound(all.begin(), all.end(), rank, before);
    const auto end = std::lower_bound(first, all.end(), rank + 1, before);
    rows.insert(rows.end(), first, end);
}

// Puts the address that a symbol stands for in its place.
template <class T>
void resolve(T*& address, const std::vector<std::uint64_t>& segments) {
    const auto symbol = reinterpret_cast<std::uint64_t>(address);
    if (symbol == 0) return;
    const std::uint64_t offset = symbol & ((std::uint64_t{1} << kOffsetBits) - 1);
    address = reinterpret_cast<T*>(segments.at((symbol >> kOffsetBits) - 1) + offset);
}

template <class T>
void set(T*& pointer, std::uint64_t address) {
    pointer = reinterpret_cast<T*>(address);
}

template <class Row>
void write(std::vector<std::uint8_t>& image, std::size_t at, const std::vector<Row>& rows) {
    if (!rows.empty()) std::memcpy(image.data() + at, rows.data(), rows.size() * sizeof(Row));
}

}  // namespace

DevicePlan::DevicePlan(std::shared_ptr<const PlanTables> plan,
                       std::vector<std::vector<int>> launches)
    : plan_(std::move(plan)) {
    for (const auto& ranks : launches) {
        Group group{blocks_.size(), 0, divisions_.size(), 0};
        for (const int rank : ranks) {
            append(plan_->blocks, rank, blocks_);
            append(plan_->divisions, rank, divisions_);
        }
        group.blocks = blocks_.size() - group.first_block;
        group.divisions = divisions_.size() - group.first_division;
        groups_.push_back(group);
    }
    const std::size_t bytes[kTables] = {
        blocks_.size() * sizeof(layout::Block),
        plan_->peers.size() * sizeof(layout::Peer),
        plan_->instructions.size() * sizeof(layout::Instruction),
        plan_->conditions.size() * sizeof(layout::Condition),
        divisions_.size() * sizeof(layout::Division),
        plan_->homes.size() * sizeof(std::int32_t),
    };
    for (std::size_t t = 0; t < kTables; ++t) {
        ends_[t + 1] = ends_[t] + (bytes[t] + kTableAlignment - 1) / kTableAlignment * kTableAlignment;
    }
}

std::vector<std::uint8_t> DevicePlan::place(const PlanPlaces& places) {
    auto peers = plan_->peers;
    for (auto& peer : peers) {
        resolve(peer.published, places.segments);
        resolve(peer.consumed, places.segments);
        resolve(peer.slots, places.segments);
        resolve(peer.switched, places.segments);
    }
    auto report = places.reports;
    for (auto& block : blocks_) {
        resolve(block.progress, places.segments);
        resolve(block.first_cell, places.segments);
        set(block.report, report);
        report += sizeof(layout::Report);
    }
    std::vector<std::uint8_t> image(table_bytes());
    write(image, ends_[0], blocks_);
    write(image, ends_[1], peers);
    write(image, ends_[2], plan_->instructions);
    write(image, ends_[3], plan_->conditions);
    write(image, ends_[4], divisions_);
    write(image, ends_[5], plan_->homes);

    set(setup_.blocks, places.tables + ends_[0]);
    set(setup_.peers, places.tables + ends_[1]);
    set(setup_.instructions, places.tables + ends_[2]);
    set(setup_.conditions, places.tables + ends_[3]);
    set(setup_.divisions, places.tables + ends_[4]);
    set(setup_.homes, places.tables + ends_[5]);
    set(setup_.abort, places.abort);
    setup_.timeout_ns = places.timeout_ns;
    const auto& numbers = plan_->numbers;
    setup_.slot_bytes = numbers.slot_bytes;
    setup_.slots_bytes = numbers.slots_bytes;
    setup_.chunks = numbers.chunks;
    setup_.slots = numbers.slots;
    setup_.steps = numbers.steps;
    setup_.ranks = static_cast<layout::i32>(numbers.scratch_chunks.size());
    reports_ = places.on_host;
    return image;
}

void DevicePlan::lay_out(const CallValues& values, std::vector<layout::Call>& calls) const {
    calls.resize(groups_.size());
    layout::Setup setup = setup_;
    plan_->numbers.cut(values.item_bytes, values.count, setup);
    set(setup.shifts, values.shifts);
    setup.factor = values.factor;
    set(setup.factor_at, values.factor_at);
    const auto front = static_cast<std::uint64_t>(plan_->numbers.front_bytes());
    for (std::size_t g = 0; g < groups_.size(); ++g) {
        auto& call = calls[g];
        call.setup = setup;
        call.setup.blocks += groups_[g].first_block;
        call.setup.divisions += groups_[g].first_division;
        call.setup.division_count = static_cast<layout::i32>(groups_[g].divisions);
        for (const auto& own : *values.memories) {
            if (own.rank < 0 || own.rank >= setup.ranks) {
                throw std::invalid_argument("memory of an unknown rank");
            }
            for (int m = 0; m < 3; ++m) set(call.buffers[own.rank].memory[m], own.addresses[m]);
            call.buffers[own.rank].memory[layout::kScratch] += front;
            call.registered[own.rank] = own.registered;
        }
    }
}

std::vector<std::pair<const layout::Block*, layout::Report>> DevicePlan::stuck() const {
    std::vector<std::pair<const layout::Block*, layout::Report>> found;
    for (std::size_t b = 0; reports_ != nullptr && b < blocks_.size(); ++b) {
        // A kernel writes the status last.
        const auto* status = reinterpret_cast<const std::atomic<std::uint64_t>*>(&reports_[b].status);
        if (status->load(std::memory_order_acquire) != 0) {
            found.emplace_back(&blocks_[b], reports_[b]);
        }
    }
    return found;
}

}  // namespace sley
