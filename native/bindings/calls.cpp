// Collective calls and tickets, for Python.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings/bindings.hpp"
#include "engine/calls.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace sley {
namespace {

Call make_call(std::int64_t count, std::int32_t type, std::int32_t op, Address input,
               std::int64_t input_bytes, Address output, std::int64_t output_bytes) {
    return {count, to_type(type), to_op(op), {at(input), at(output)}, {input_bytes, output_bytes},
            {}, nullptr, nullptr};
}

Call make_in_blocks(std::int64_t count, std::int32_t type, std::int32_t op,
                    std::shared_ptr<Parts> blocks) {
    auto call = make_call(count, type, op, 0, 0, 0, 0);
    const auto item = static_cast<std::int64_t>(item_size(call.type));
    for (const auto memory : {kInput, kOutput}) {
        call.bytes[memory] = static_cast<std::int64_t>(blocks->of[memory].size()) * count * item;
    }
    call.blocks = std::move(blocks);
    return call;
}

Call make_varying(std::shared_ptr<Parts> parts, std::int32_t type) {
    return varying_call(std::move(parts), to_type(type));
}

Runner make_runner(std::shared_ptr<Engine> engine, std::shared_ptr<Choice> choice,
                   std::uint64_t what, const Runner* varying) {
    return {{std::move(engine), what}, std::move(choice), varying ? varying->own : Option{}};
}

Problem run(Owned<Calls>& calls, const Runner& runner, const Call& call, double timeout_s,
            std::int64_t iterations, bool meet) {
    Outcome outcome;
    {
        const Waiting waiting;
        outcome = calls->run(runner, call, timeout_s, iterations, meet);
    }
    raise_if_interrupted();
    return problem_of(outcome);
}

using Options = std::vector<std::tuple<std::shared_ptr<Engine>, std::uint64_t>>;
using TurnRows = std::vector<std::tuple<std::int32_t, std::int64_t>>;
using DecideFunction = nb::typed<nb::callable, TurnRows(std::vector<double>)>;

std::vector<Turn> turns_of(const TurnRows& rows) {
    std::vector<Turn> turns;
    for (const auto& [option, calls] : rows) turns.push_back({option, calls});
    return turns;
}

std::shared_ptr<Choice> make_choice(const Options& options, const std::shared_ptr<Engine>& sum,
                                    std::uint64_t what, const TurnRows& turns,
                                    DecideFunction decide) {
    std::vector<Option> engines;
    for (const auto& [engine, record] : options) engines.push_back({engine, record});
    const Function function(std::move(decide));
    const auto next = [function](const std::vector<double>& seconds) {
        const Locked locked;
        try {
            return turns_of(nb::cast<TurnRows>((*function)(seconds)));
        } catch (nb::python_error& error) {
            // A thread of the caller's, where signal handlers run: `run_now` raises their error.
            if (is_interrupted) {
                error.restore();
                throw Choice::Interrupted();
            }
            error.discard_as_unraisable("the choice of a plan by its times");
        } catch (const nb::cast_error&) {
        }
        return std::vector<Turn>{};  // impossible turns
    };
    return std::make_shared<Choice>(std::move(engines), Option{sum, what}, turns_of(turns), next);
}

void define_choice(nb::module_& m) {
    nb::class_<Choice>(m, "Choice",
                       "Engines that run equal calls in turns, which all ranks change at the same "
                       "call.")
        .def_static("create", &make_choice, "options"_a, "sum"_a, "what"_a, "turns"_a, "decide"_a,
                    "options: engines, each with the record of its calls. sum, what: the engine "
                    "of an AllReduce in place that adds up the times, and its record. turns: the "
                    "first ones, each an option's number and its calls. decide: makes the next "
                    "turns from the sums over all ranks of the mean seconds of a call, by turn. "
                    "ValueError for impossible turns.")
        .def_prop_ro("current", &Choice::current,
                     "The number of the option that runs the next call, or that failed.")
        .def_prop_ro_static("most_turns", [](nb::handle) { return Choice::kMostTurns; },
                            "How many turns there may be at once.");
}

void define_call(nb::module_& m) {
    nb::class_<Call>(m, "Call", "A rank's call, on memory by address, which must stay.")
        .def_static("create", &make_call, "count"_a, "dtype"_a, "op"_a, "input"_a, "input_bytes"_a,
                    "output"_a, "output_bytes"_a,
                    "count: elements of a block. dtype, op: numbers of a DataType and a ReduceOp.")
        .def_static("in_blocks", &make_in_blocks, "count"_a, "dtype"_a, "op"_a, "blocks"_a,
                    "A call of equal counts whose buffers' blocks may be apart.")
        .def_static("varying", &make_varying, "parts"_a, "dtype"_a, "A call of varying counts.");
    nb::class_<Runner>(m, "Runner", "What runs equal calls.")
        .def_static(
            "create",
            [](std::shared_ptr<Engine> engine, std::uint64_t what, const Runner* varying) {
                return make_runner(std::move(engine), nullptr, what, varying);
            },
            "engine"_a, "what"_a, "varying"_a.none(),
            "what: the calls' record. varying: what runs them if another rank makes them with "
            "varying counts; None if none may.")
        .def_static(
            "create",
            [](std::shared_ptr<Choice> choice, std::uint64_t what, const Runner* varying) {
                return make_runner(nullptr, std::move(choice), what, varying);
            },
            "choice"_a, "what"_a, "varying"_a.none(), "On a choice's engines, with their records.");
}

void call_when_done(Ticket& ticket, nb::typed<nb::callable, void()> then) {
    auto* kept = then.release().ptr();
    ticket.on_done([kept] {
        const Locked locked;
        const nb::error_scope error;  // of a signal handler that has ended the call in this thread
        const auto function = nb::steal<nb::callable>(kept);
        try {
            function();
        } catch (nb::python_error& error) {
            error.discard_as_unraisable("a callback of a collective call");
        }
    });
}

void define_ticket(nb::module_& m) {
    nb::class_<Ticket>(m, "Ticket", "The end of a call that runs in another thread.")
        .def("is_done", &Ticket::is_done, "Whether the call has ended, successfully or not.")
        .def("wait", &Ticket::wait, "timeout_s"_a, nb::call_guard<Unlocked>(),
             "Waits; returns whether the call has ended.")
        .def("on_done", &call_when_done, "then"_a,
             "Calls `then` at the end, in the thread that ends the call; at once if it has ended.")
        .def("keep", &keep_alive, "object"_a, "Keeps an object alive until the end.")
        .def_prop_ro(
            "rank", [](const Ticket& self) { return self.outcome().rank; },
            "After the end of a receive: the message's source.")
        .def_prop_ro(
            "outcome", [](const Ticket& self) { return problem_of(self.outcome()); },
            "After the end: the report of a call that failed, or that ran with varying counts "
            "instead; None of any other.");
}

}  // namespace

void keep_alive(Ticket& ticket, nb::object object) {
    ticket.keep(std::shared_ptr<PyObject>(object.release().ptr(), [](PyObject* kept) {
        if (is_python_ending()) return;
        const Locked locked;
        const nb::error_scope error;  // of a signal handler that has ended the call in this thread
        Py_DECREF(kept);
    }));
}

void define_calls(nb::module_& m) {
    define_ticket(m);
    define_choice(m);
    define_call(m);
    nb::class_<Owned<Calls>>(m, "Calls", "The collective calls of a communicator, in order.")
        .def(nb::init<std::shared_ptr<Fabric>>(), "fabric"_a)
        .def(
            "is_own_thread", [](const Owned<Calls>& self) { return self->is_own_thread(); },
            "Whether this is the thread that runs submitted calls, which must not wait for one.")
        .def("run", &run, "runner"_a, "call"_a, "timeout_s"_a, "iterations"_a, "meet"_a = false,
             "Runs a call `iterations` times back to back; returns what `Ticket.outcome` does. "
             "meet: after a barrier with all other ranks, from which its time is taken.")
        .def(
            "submit",
            [](Owned<Calls>& self, const Runner& runner, const Call& call, double timeout_s) {
                return self->submit(runner, call, timeout_s);
            },
            "runner"_a, "call"_a, "timeout_s"_a, "Runs a call in the thread.")
        .def(
            "run_up_to",
            [](Owned<Calls>& self, const Ticket& last) {
                {
                    const Waiting waiting;
                    self->run_up_to(last);
                }
                raise_if_interrupted();
            },
            "last"_a,
            "Runs submitted calls up to this one in the caller's thread, as far as the other has "
            "not begun them.")
        .def(
            "close", [](Owned<Calls>& self) { self->close(); },
            nb::call_guard<Unlocked>(), "Ends all pending calls.");
}

}  // namespace sley
