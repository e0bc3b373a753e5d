// The Python module `sley.model.simulation._event_loop`.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "bindings/arrays.hpp"
#include "bindings/columns.hpp"
#include "bindings/python_lock.hpp"
#include "simulator/simulator.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace sley {
namespace {

SLEY_PYTHON_CLASS(Inputs, "sley.model.simulation.inputs.LoopInputs");
SLEY_PYTHON_CLASS(Cut, "sley.model.simulation.inputs.Tiling");

SimulatorPlan make_plan(const Inputs& inputs) {
    SimulatorPlan plan;
    plan.block_offset = column<std::int64_t>(inputs, "block_offset");
    plan.call = column<std::int32_t>(inputs, "call");
    plan.send_offset = column<std::int64_t>(inputs, "send_offset");
    plan.send_target = column<std::int32_t>(inputs, "send_target");
    plan.receive_offset = column<std::int64_t>(inputs, "receive_offset");
    plan.receive_target = column<std::int32_t>(inputs, "receive_target");
    plan.messages = column<std::int32_t>(inputs, "messages");
    plan.chunks = column<double>(inputs, "chunks");
    plan.kind = column<std::int32_t>(inputs, "kind");
    plan.wait_offset = column<std::int64_t>(inputs, "wait_offset");
    plan.wait_target = column<std::int32_t>(inputs, "wait_target");
    plan.begin_us = column<double>(inputs, "begin_us");
    plan.instruction_major = column<std::int8_t>(inputs, "instruction_major");
    return plan;
}

SimulatorSettings make_settings(const Inputs& inputs) {
    SimulatorSettings s;
    s.slices = attribute<std::int64_t>(inputs, "slices");
    s.overhead_bytes = attribute<double>(inputs, "overhead_bytes");
    s.least_slice_bytes = attribute<double>(inputs, "least_slice_bytes");
    s.whole_posts = attribute<bool>(inputs, "whole_posts");
    s.launch_us = attribute<double>(inputs, "launch_us");
    s.links = attribute<std::int32_t>(inputs, "links");
    return s;
}

// `SimulatorResult` as arrays.
struct Result {
    explicit Result(SimulatorResult&& r)
        : end_us(array(std::move(r.end_us))),
          moving_us(array(std::move(r.moving_us))),
          waiting_us(array(std::move(r.waiting_us))),
          message_us(array(std::move(r.message_us))),
          slot_us(array(std::move(r.slot_us))),
          overhead_us(array(std::move(r.overhead_us))),
          execution_turn_us(array(std::move(r.executions.turn_us))),
          execution_start_us(array(std::move(r.executions.start_us))),
          execution_end_us(array(std::move(r.executions.end_us))),
          execution_moving_us(array(std::move(r.executions.moving_us))),
          execution_cause_us(array(std::move(r.executions.cause_us))),
          execution_cause(array(std::move(r.executions.cause))),
          execution_first_cause(array(std::move(r.executions.first_cause))),
          execution_after(array(std::move(r.executions.after))),
          execution_first_after(array(std::move(r.executions.first_after))),
          moved_bytes(array(std::move(r.moved_bytes))),
          load_bytes(array(std::move(r.load_bytes))),
          bin_us(r.bin_us),
          stuck(array(std::move(r.stuck))),
          is_whole(r.is_whole) {}

    Array<double> end_us, moving_us, waiting_us, message_us, slot_us, overhead_us;
    Array<double> execution_turn_us, execution_start_us, execution_end_us, execution_moving_us;
    Array<double> execution_cause_us;
    Array<std::int8_t> execution_cause, execution_first_cause;
    Array<std::int64_t> execution_after, execution_first_after;
    Array<double> moved_bytes, load_bytes;
    double bin_us;
    Array<std::int32_t> stuck;
    bool is_whole;
};

Result simulate(const Inputs& inputs, const nb::typed<nb::list, Cut>& cuts, std::int64_t slots,
                double until_us, bool records) {
    SimulatorSettings settings = make_settings(inputs);
    for (const auto cut : cuts) {
        settings.cuts.push_back({attribute<std::int64_t>(cut, "tiles"),
                                 attribute<double>(cut, "tile_bytes"),
                                 attribute<double>(cut, "last_bytes")});
    }
    settings.slots = slots;
    settings.until_us = until_us;
    settings.records = records;
    FlowClasses classes{column<double>(inputs, "class_cap"), column<double>(inputs, "class_push"),
                        column<std::int64_t>(inputs, "class_first"),
                        column<std::int32_t>(inputs, "class_resource"),
                        column<double>(inputs, "class_weight")};
    SimulatorConnections connections{column<double>(inputs, "fence_us"),
                                     column<double>(inputs, "latency_us"),
                                     column<double>(inputs, "credit_us"),
                                     column<std::int32_t>(inputs, "wire"),
                                     column<double>(inputs, "before_us"),
                                     column<double>(inputs, "post_us"),
                                     column<std::int32_t>(inputs, "post")};
    Simulator simulator(make_plan(inputs), std::move(connections), std::move(classes),
                        column<double>(inputs, "capacity"), column<double>(inputs, "gamma"),
                        settings);
    SimulatorResult result;
    {
        const Unlocked unlocked;
        result = simulator.run();
    }
    return Result(std::move(result));
}

// Adds columns as properties.
class Columns {
public:
    explicit Columns(nb::class_<Result>& result) : result_(result) {}

    template <class T>
    Columns& add(const char* name, Array<T> Result::*column, const char* doc) {
        const auto get = [column](const Result& self) { return self.*column; };
        result_.def_prop_ro(name, get, nb::rv_policy::automatic, doc);
        return *this;
    }

private:
    nb::class_<Result>& result_;
};

void define_result(nb::module_& m) {
    nb::class_<Result> result(m, "Result", "The result of a run: times in us, data in bytes.");
    result.def_ro("bin_us", &Result::bin_us, "The length of a bin of `load_bytes`.");
    result.def_ro("is_whole", &Result::is_whole, "Whether all blocks came to their ends.");
    Columns(result)
        .add("end_us", &Result::end_us, "(blocks,), the end of each.")
        .add("moving_us", &Result::moving_us, "(blocks,), spent moving data.")
        .add("waiting_us", &Result::waiting_us,
             "(blocks,), spent waiting for instructions of other blocks.")
        .add("message_us", &Result::message_us, "(blocks,), spent waiting for messages.")
        .add("slot_us", &Result::slot_us, "(blocks,), spent waiting for free slots.")
        .add("overhead_us", &Result::overhead_us,
             "(blocks,), spent on decoding, waits and fences themselves.")
        .add("execution_turn_us", &Result::execution_turn_us,
             "(instructions x tiles,), when the block came to each execution.")
        .add("execution_start_us", &Result::execution_start_us,
             "(instructions x tiles,), when it began to move data; below 0 if it never did.")
        .add("execution_end_us", &Result::execution_end_us, "(instructions x tiles,), its end.")
        .add("execution_moving_us", &Result::execution_moving_us,
             "(instructions x tiles,), how long it moved data.")
        .add("execution_cause", &Result::execution_cause,
             "(instructions x tiles,), the reason of its last wait, as a `Cause`.")
        .add("execution_after", &Result::execution_after,
             "(instructions x tiles,), the execution that this wait was for; -1: none.")
        .add("execution_cause_us", &Result::execution_cause_us,
             "(instructions x tiles,), the end of this wait.")
        .add("execution_first_cause", &Result::execution_first_cause,
             "(instructions x tiles,), the reason of its last wait before it moved data.")
        .add("execution_first_after", &Result::execution_first_after,
             "(instructions x tiles,), the execution that that wait was for; -1: none.")
        .add("moved_bytes", &Result::moved_bytes, "(links,), the bytes that each has carried.")
        .add("load_bytes", &Result::load_bytes,
             "(bins x links,), the bytes that each link carries in each bin of time.")
        .add("stuck", &Result::stuck,
             "The instructions at which blocks are stuck; empty if all have ended.");
}

}  // namespace
}  // namespace sley

NB_MODULE(_event_loop, m) {
    m.doc() = "The event loop of sley's simulator.";
    sley::define_result(m);
    m.def("simulate", &sley::simulate, "inputs"_a, "cuts"_a, "slots"_a,
          "until_us"_a = std::numeric_limits<double>::infinity(), "records"_a = true,
          "Runs calls on a topology, each with its cut of chunks into tiles as they are on links. A "
          "run that takes longer than until_us ends as soon as that shows. records: whether the "
          "result has executions, and the bytes of links.");
}
