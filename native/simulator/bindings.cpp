// The Python module `sley.simulate._native`: the event loop.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/vector.h>

#include <stdexcept>
#include <utility>
#include <vector>

#include "simulator.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace sley {
namespace {

template <class T>
std::vector<T> column(const nb::kwargs& columns, const char* name) {
    using Array = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
    const auto array = nb::cast<Array>(columns[name]);
    return std::vector<T>(array.data(), array.data() + array.size());
}

template <class T>
auto array(const std::vector<T>& values) {
    auto* copy = new std::vector<T>(values);
    nb::capsule owner(copy, [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
    return nb::ndarray<nb::numpy, T, nb::ndim<1>>(copy->data(), {copy->size()}, owner);
}

double number(const nb::kwargs& k, const char* name) { return nb::cast<double>(k[name]); }
std::int64_t whole(const nb::kwargs& k, const char* name) {
    return nb::cast<std::int64_t>(k[name]);
}

SimulatorPlan make_plan(const nb::kwargs& k) {
    SimulatorPlan plan;
    plan.block_offset = column<std::int64_t>(k, "block_offset");
    plan.send = column<std::int32_t>(k, "send");
    plan.receive = column<std::int32_t>(k, "receive");
    plan.messages = column<std::int32_t>(k, "messages");
    plan.chunks = column<double>(k, "chunks");
    plan.kind = column<std::int32_t>(k, "kind");
    plan.wait_offset = column<std::int64_t>(k, "wait_offset");
    plan.wait_target = column<std::int32_t>(k, "wait_target");
    plan.instruction_major = nb::cast<bool>(k["instruction_major"]);
    return plan;
}

SimulatorSettings make_settings(const nb::kwargs& k) {
    SimulatorSettings s;
    s.tiles = whole(k, "tiles");
    s.tile_bytes = number(k, "tile_bytes");
    s.last_tile_bytes = number(k, "last_tile_bytes");
    s.slots = whole(k, "slots");
    s.slices = whole(k, "slices");
    s.overhead_bytes = number(k, "overhead_bytes");
    s.least_slice_bytes = number(k, "least_slice_bytes");
    s.launch_us = number(k, "launch_us");
    s.wait_us = number(k, "wait_us");
    s.decode_us = number(k, "decode_us");
    s.links = static_cast<std::int32_t>(whole(k, "links"));
    return s;
}

// Runs the plan that the columns describe; sley/simulate/inputs.py says what they are.
nb::dict simulate(const nb::kwargs& k) {
    FlowClasses classes{column<double>(k, "class_cap"), column<double>(k, "class_push"),
                        column<std::int64_t>(k, "class_first"),
                        column<std::int32_t>(k, "class_resource"),
                        column<double>(k, "class_weight")};
    SimulatorConnections connections{column<double>(k, "fence_us"), column<double>(k, "latency_us"),
                                     column<std::int32_t>(k, "wire")};
    Simulator simulator(make_plan(k), std::move(connections), std::move(classes),
                        column<double>(k, "capacity"), column<double>(k, "gamma"),
                        make_settings(k));
    {
        nb::gil_scoped_release release;
        simulator.run();
    }
    nb::dict result;
    result["end_us"] = array(simulator.end_us);
    result["moving_us"] = array(simulator.moving_us);
    result["waiting_us"] = array(simulator.waiting_us);
    result["message_us"] = array(simulator.message_us);
    result["slot_us"] = array(simulator.slot_us);
    result["overhead_us"] = array(simulator.overhead_us);
    result["execution_turn_us"] = array(simulator.executions.turn_us);
    result["execution_start_us"] = array(simulator.executions.start_us);
    result["execution_end_us"] = array(simulator.executions.end_us);
    result["execution_cause"] = array(simulator.executions.cause);
    result["execution_after"] = array(simulator.executions.after);
    result["execution_moving_us"] = array(simulator.executions.moving_us);
    result["execution_cause_us"] = array(simulator.executions.cause_us);
    result["execution_first_cause"] = array(simulator.executions.first_cause);
    result["execution_first_after"] = array(simulator.executions.first_after);
    result["moved_bytes"] = array(simulator.moved_bytes);
    result["load_bytes"] = array(simulator.load_bytes);
    result["bin_us"] = simulator.bin_us;
    result["stuck"] = array(simulator.stuck);
    return result;
}

}  // namespace
}  // namespace sley

NB_MODULE(_native, m) {
    m.doc() = "The event loop of sley's simulator.";
    m.def("simulate", &sley::simulate);
}
