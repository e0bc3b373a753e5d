// What the parts of the Python module `sley.engine._native` share.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "engine.hpp"
#include "outcome.hpp"

namespace sley {

// A call without memory. Throws std::invalid_argument.
Call make_call(std::int64_t count, std::int32_t type, std::int32_t op);

// (status, seconds, rank, [(instruction, tile, reason, target)]): plain values, which travel.
nanobind::tuple to_tuple(const Outcome& outcome);

// Descriptors of which each becomes readable when a rank's process has ended.
void watch(Fabric& fabric, std::vector<std::pair<int, std::int32_t>> descriptors);
bool settle(Fabric& fabric, double timeout_s);

// Calls and messages of a communicator.
void define_calls(nanobind::module_& m);

}  // namespace sley
