// A plan on a device of this process: its tables there, and the arguments of its launches.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "devices/device.hpp"
#include "devices/kernel_layout.hpp"
#include "devices/plan_tables.hpp"

namespace sley {

// A rank's input and output in a call; in place: its data alone. The others have address 0.
struct RankBuffers {
    int rank;
    std::uint64_t addresses[2], bytes[2];
};

// What calls differ in; see layout::Setup.
struct CallValues {
    std::int64_t item_bytes = 0, count = 0;
    const std::vector<RankBuffers>* buffers = nullptr;  // of the ranks of this process
    std::uint64_t factor = 0, factor_at = 0;
};

class DevicePlan {
public:
    // Plans that share what they need of a device: one piece of its memory for all tables, and one of
    // the host's for all reports. A communicator has up to some hundred plans, and pieces are slow to
    // get, and whole pages. launches: the ranks of each launch of a call, of this process and on this
    // device. segments: the bases of the symbols' segments, as the device sees them. abort: the word by
    // which calls are given up.
    static std::vector<std::shared_ptr<DevicePlan>> all(
        const std::vector<std::shared_ptr<const PlanTables>>& plans, Device& device,
        const std::vector<std::vector<int>>& launches, const std::vector<std::uint64_t>& segments,
        std::uint64_t abort, std::uint64_t timeout_ns);

    // One of a call's launches: its ranks, its blocks, which are rows of the device's table, and the
    // chunks that AVG divides at the end. first_own: of its ranks' memories in the device's table.
    struct Group {
        std::vector<int> ranks;
        std::size_t first_block, blocks, first_division, divisions, first_own;
        bool fits() const { return ranks.size() <= layout::kOwns; }  // into a call
    };
    const std::vector<Group>& groups() const { return groups_; }
    const Device& device() const { return device_; }
    const PlanNumbers& numbers() const { return plan_->numbers; }
    std::size_t blocks() const { return blocks_.size(); }

    // What all launches of a call, on whatever devices, have in common. Throws Refusal.
    void lay_out(const CallValues& values, layout::Setup& setup) const;
    // What is a launch's own. shifts: the device's table of registered memory.
    void turn_to(const Group& group, std::uint64_t shifts, layout::Setup& setup) const;

    // Leaves the tables and reports, which go with the last plan. Calls can't be started afterwards.
    void free() { tables_ = reports_ = {}; }

    // The blocks that have given up, with their reports.
    std::vector<std::pair<const layout::Block*, layout::Report>> stuck() const;

private:
    struct Image;

    // number: by which ranks know the plan.
    DevicePlan(std::size_t number, std::shared_ptr<const PlanTables> plan, Device& device,
               const std::vector<std::vector<int>>& launches);
    // Adds the tables. report: the address of the first block's report.
    void add_to(Image& image, const std::vector<std::uint64_t>& segments, std::uint64_t report);

    std::shared_ptr<const PlanTables> plan_;
    const Device& device_;
    std::vector<layout::Block> blocks_;  // of the launches
    std::vector<layout::Division> divisions_;
    std::size_t row_bytes_ = 0, owns_ = 0;
    std::vector<Group> groups_;
    Resource tables_, reports_;
    layout::Setup setup_{};  // what is equal in all calls
};

}  // namespace sley
