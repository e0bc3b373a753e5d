// What the parts of the Python module `sley.engine._native` share.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <tuple>
#include <utility>
#include <vector>

#include "engine.hpp"
#include "outcome.hpp"

namespace sley {

// A call without memory. Throws std::invalid_argument.
Call make_call(std::int64_t count, std::int32_t type, std::int32_t op);

// What Python hears of an outcome, as plain values, which travel: (status, seconds, rank, bytes,
// [(instruction, tile, reason, target)]).
using StuckRow = std::tuple<std::int32_t, std::int64_t, int, std::int32_t>;
using Report = std::tuple<int, double, std::int32_t, std::int64_t, std::vector<StuckRow>>;
Report to_report(const Outcome& outcome);

// Descriptors of which each becomes readable when a rank's process has ended.
void watch(Fabric& fabric, std::vector<std::pair<int, std::int32_t>> descriptors);
bool settle(Fabric& fabric, double timeout_s);

// Calls and messages of a communicator.
void define_calls(nanobind::module_& m);

}  // namespace sley
