#include "devices/device_plan.hpp"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <iterator>

namespace sley {
namespace {

constexpr std::size_t kTableAlignment = 256;  // at least that of each row

// Appends the rows of a rank to others, each as `changed`.
template <class Row, class Change>
void append(const std::vector<Row>& all, int rank, std::vector<Row>& rows, const Change& changed) {
    const auto before = [](const Row& row, int other) { return row.rank < other; };
    const auto first = std::lower_bound(all.begin(), all.end(), rank, before);
    const auto end = std::lower_bound(first, all.end(), rank + 1, before);
    std::transform(first, end, std::back_inserter(rows), changed);
}

template <class T>
void set(T*& pointer, std::uint64_t address) {
    pointer = reinterpret_cast<T*>(address);
}

// Puts the address that a symbol stands for in its place.
template <class T>
void resolve(T*& address, const std::vector<std::uint64_t>& segments) {
    const auto symbol = reinterpret_cast<std::uint64_t>(address);
    if (symbol == 0) return;
    const std::uint64_t offset = symbol & ((std::uint64_t{1} << kOffsetBits) - 1);
    set(address, segments.at((symbol >> kOffsetBits) - 1) + offset);
}

}  // namespace

// The tables side by side, and where the device will have them.
struct DevicePlan::Image {
    std::vector<char> bytes;
    std::vector<std::pair<std::size_t, std::function<void(std::uint64_t)>>> begins;

    template <class Row, class Begin>
    void add(const std::vector<Row>& rows, Begin& begin) {
        const std::size_t at = bytes.size(), size = rows.size() * sizeof(Row);
        begins.emplace_back(at, [&begin](std::uint64_t address) { set(begin, address); });
        const auto* first = reinterpret_cast<const char*>(rows.data());
        bytes.insert(bytes.end(), first, first + size);
        bytes.resize(at + (size + kTableAlignment - 1) / kTableAlignment * kTableAlignment);
    }
};

std::vector<std::shared_ptr<DevicePlan>> DevicePlan::all(
    const std::vector<std::shared_ptr<const PlanTables>>& plans, Device& device,
    const std::vector<std::vector<int>>& launches, const std::vector<std::uint64_t>& segments,
    std::uint64_t abort, std::uint64_t timeout_ns) {
    std::vector<std::shared_ptr<DevicePlan>> made;
    std::size_t blocks = 0;
    for (const auto& plan : plans) {
        made.emplace_back(new DevicePlan(made.size(), plan, device, launches));
        blocks += made.back()->blocks();
    }
    const auto reports = device.allocate_host(blocks * sizeof(layout::Report));
    Image image;
    auto report = reports.address;
    for (const auto& plan : made) {
        plan->reports_ = {report, reports.owner};
        plan->add_to(image, segments, report);
        report += plan->blocks() * sizeof(layout::Report);
        set(plan->setup_.abort, abort);
        plan->setup_.timeout_ns = timeout_ns;
    }
    const auto tables = device.allocate(image.bytes.size());
    device.write(tables.address, image.bytes.data(), image.bytes.size());
    for (const auto& [at, place] : image.begins) place(tables.address + at);
    for (const auto& plan : made) plan->tables_ = tables;
    return made;
}

DevicePlan::DevicePlan(std::size_t number, std::shared_ptr<const PlanTables> plan, Device& device,
                       const std::vector<std::vector<int>>& launches)
    : plan_(std::move(plan)), device_(device) {
    for (const auto& ranks : launches) {
        const std::size_t block = blocks_.size(), division = divisions_.size();
        for (std::size_t place = 0; place < ranks.size(); ++place) {
            const auto number = static_cast<layout::i32>(place);
            append(plan_->blocks, ranks[place], blocks_, [number](layout::Block row) {
                row.place = number;
                return row;
            });
            append(plan_->divisions, ranks[place], divisions_, [number](layout::Division row) {
                row.rank = number;
                return row;
            });
        }
        groups_.push_back({ranks, block, blocks_.size() - block, division,
                           divisions_.size() - division, owns_});
        if (groups_.back().fits()) continue;
        owns_ += (ranks.size() + layout::kOwns - 1) / layout::kOwns * layout::kOwns;
    }
    for (const auto& block : blocks_) {
        setup_.row_peers = std::max(setup_.row_peers, block.senders + block.receivers);
    }
    row_bytes_ = sizeof(layout::Block) +
                 static_cast<std::size_t>(setup_.row_peers) * sizeof(layout::Peer);
    setup_.call = number & ((1U << layout::kPlanBits) - 1);
    const auto& numbers = plan_->numbers;
    setup_.slot_bytes = numbers.slot_bytes;
    setup_.slots_bytes = numbers.slots_bytes;
    setup_.chunks = numbers.chunks;
    setup_.slots = numbers.slots;
    setup_.steps = numbers.steps;
    setup_.ranks = static_cast<layout::i32>(numbers.scratch_chunks.size());
}

void DevicePlan::add_to(Image& image, const std::vector<std::uint64_t>& segments,
                        std::uint64_t report) {
    for (auto& block : blocks_) {
        resolve(block.progress, segments);
        resolve(block.first_cell, segments);
        set(block.report, report);
        report += sizeof(layout::Report);
    }
    auto peers = plan_->peers;
    for (auto& peer : peers) {
        resolve(peer.published, segments);
        resolve(peer.consumed, segments);
        resolve(peer.slots, segments);
        resolve(peer.switched, segments);
    }
    std::vector<char> rows(blocks_.size() * row_bytes_);
    auto* row = rows.data();
    for (const auto& block : blocks_) {
        const auto* const senders = peers.data() + block.first_sender;
        const auto* const receivers = peers.data() + block.first_receiver;
        auto* const own = reinterpret_cast<layout::Peer*>(row + sizeof block);
        std::memcpy(row, &block, sizeof block);
        std::copy_n(receivers, block.receivers, std::copy_n(senders, block.senders, own));
        row += row_bytes_;
    }
    image.add(rows, setup_.rows);
    image.add(peers, setup_.peers);
    image.add(std::vector<layout::Own>(owns_), setup_.owns);
    image.add(plan_->instructions, setup_.instructions);
    image.add(plan_->conditions, setup_.conditions);
    image.add(divisions_, setup_.divisions);
    image.add(plan_->homes, setup_.homes);
}

void DevicePlan::lay_out(const CallValues& values, layout::Setup& setup) const {
    setup = setup_;
    plan_->numbers.cut(values.item_bytes, values.count, setup);
    setup.call += static_cast<std::uint64_t>(values.count * values.item_bytes) << layout::kPlanBits;
    setup.factor = values.factor;
    set(setup.factor_at, values.factor_at);
}

void DevicePlan::turn_to(const Group& group, std::uint64_t shifts, layout::Setup& setup) const {
    setup.rows = setup_.rows + group.first_block * row_bytes_;
    setup.owns = group.fits() ? nullptr : setup_.owns + group.first_own;
    setup.peers = setup_.peers;
    setup.instructions = setup_.instructions;
    setup.conditions = setup_.conditions;
    setup.divisions = setup_.divisions + group.first_division;
    setup.division_count = static_cast<layout::i32>(group.divisions);
    setup.homes = setup_.homes;
    set(setup.shifts, shifts);
}

std::vector<std::pair<const layout::Block*, layout::Report>> DevicePlan::stuck() const {
    std::vector<std::pair<const layout::Block*, layout::Report>> found;
    const auto* reports = reinterpret_cast<const layout::Report*>(reports_.address);
    for (std::size_t b = 0; reports != nullptr && b < blocks_.size(); ++b) {
        // A kernel writes the status last.
        const auto* status = reinterpret_cast<const std::atomic<std::uint64_t>*>(&reports[b].status);
        if (status->load(std::memory_order_acquire) != 0) {
            found.emplace_back(&blocks_[b], reports[b]);
        }
    }
    return found;
}

}  // namespace sley
