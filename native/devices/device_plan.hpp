// A plan on a device of this process: its tables there, and the arguments of its launches.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "devices/kernel_layout.hpp"
#include "devices/plan_tables.hpp"

namespace sley {

// Where a plan's memory is, as a device sees it. segments: the bases of the symbols' segments.
// tables: memory of the device, of `table_bytes`. reports: memory of the host, zeroed, of
// `report_bytes`; on_host: its address on the host. abort: the word by which a call is given up.
struct PlanPlaces {
    std::vector<std::uint64_t> segments;
    std::uint64_t tables = 0, reports = 0, abort = 0, timeout_ns = 0;
    const layout::Report* on_host = nullptr;
};

// A rank's memories in a call: the addresses of its input, output and scratch, 0 for none, and
// their numbers in the table `layout::Setup::shifts`.
struct RankMemory {
    int rank;
    std::uint64_t addresses[3];
    layout::Registrations registered;
};

// What calls differ in; see layout::Setup.
struct CallValues {
    std::int64_t item_bytes = 0, count = 0;
    const std::vector<RankMemory>* memories = nullptr;  // of the ranks of this process
    std::uint64_t shifts = 0, factor = 0, factor_at = 0;
};

class DevicePlan {
public:
    // launches: the ranks of each launch of a call, of this process and on this device.
    DevicePlan(std::shared_ptr<const PlanTables> plan, std::vector<std::vector<int>> launches);

    // One of a call's launches: its blocks, which are rows of the device's table, and the chunks
    // that AVG divides at the end.
    struct Group {
        std::size_t first_block = 0, blocks = 0, first_division = 0, divisions = 0;
    };
    const std::vector<Group>& groups() const { return groups_; }
    std::size_t blocks() const { return blocks_.size(); }
    std::size_t table_bytes() const { return ends_[kTables]; }
    std::size_t report_bytes() const { return blocks_.size() * sizeof(layout::Report); }

    // Places the plan, and returns the bytes of its tables, with addresses.
    std::vector<std::uint8_t> place(const PlanPlaces& places);

    // The arguments of the launches of a call, one each; `calls` is used again. The plan is placed.
    // Throws Refusal.
    void lay_out(const CallValues& values, std::vector<layout::Call>& calls) const;

    // The blocks that have given up, with their reports.
    std::vector<std::pair<const layout::Block*, layout::Report>> stuck() const;

    const PlanNumbers& numbers() const { return plan_->numbers; }

private:
    static constexpr std::size_t kTables = 6;

    std::shared_ptr<const PlanTables> plan_;
    std::vector<layout::Block> blocks_;  // of the launches
    std::vector<layout::Division> divisions_;
    std::vector<Group> groups_;
    std::size_t ends_[kTables + 1] = {};  // the begin of each table in the device's memory, the end
    layout::Setup setup_{};  // what is equal in all calls
    const layout::Report* reports_ = nullptr;
};

}  // namespace sley
