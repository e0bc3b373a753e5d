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
#include "bindings/calls.hpp"
#include "engine/calls.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace sley {
namespace {

Call make_recorded(std::int64_t count, std::int32_t type, std::int32_t op, Address input,
                   std::int64_t input_bytes, Address output, std::int64_t output_bytes,
                   std::uint64_t what, const Varying& varying) {
    Call call = make_call(count, type, op, at(input), input_bytes, at(output), output_bytes);
    const auto record = varying ? std::get<1>(*varying) : 0;
    call.record = {0, what, static_cast<std::uint64_t>(count), record};
    return call;
}

Problem run_here(Owned<Calls>& calls, const Runner& runner, const Call& call, double timeout_s,
                 std::int64_t iterations) {
    Outcome outcome;
    {
        const Waiting waiting;
        outcome = calls->run(runner, call, timeout_s, iterations);
    }
    raise_if_interrupted();
    return problem_of(outcome);
}

template <class Target>
Problem run_now(Owned<Calls>& calls, const std::shared_ptr<Target>& target, std::int64_t count,
                std::int32_t type, std::int32_t op, Address input, std::int64_t input_bytes,
                Address output, std::int64_t output_bytes, std::uint64_t what,
                const Varying& varying, double timeout_s, std::int64_t iterations) {
    const auto call = make_recorded(count, type, op, input, input_bytes, output, output_bytes,
                                    what, varying);
    return run_here(calls, runner_of(target, varying), call, timeout_s, iterations);
}

template <class Target>
std::shared_ptr<Ticket> submit(Owned<Calls>& calls, const std::shared_ptr<Target>& target,
                               std::int64_t count, std::int32_t type, std::int32_t op,
                               Address input, std::int64_t input_bytes, Address output,
                               std::int64_t output_bytes, std::uint64_t what,
                               const Varying& varying, double timeout_s) {
    const auto call = make_recorded(count, type, op, input, input_bytes, output, output_bytes,
                                    what, varying);
    return calls->submit(runner_of(target, varying), call, timeout_s);
}

// A call of equal counts whose buffers are blocks, maybe apart.
Call make_in_blocks(std::int64_t count, std::int32_t type, std::int32_t op,
                    const std::shared_ptr<Parts>& blocks, std::uint64_t what) {
    const auto item = static_cast<std::int64_t>(item_size(make_call(0, type, op, {}, 0, {}, 0).type));
    const auto bytes = [&](Memory memory) {
        return static_cast<std::int64_t>(blocks->of[memory].size()) * count * item;
    };
    auto call = make_recorded(count, type, op, 0, bytes(kInput), 0, bytes(kOutput), what, {});
    call.blocks = blocks;
    return call;
}

template <class Target>
Problem run_in_blocks(Owned<Calls>& calls, const std::shared_ptr<Target>& target,
                      std::int64_t count, std::int32_t type, std::int32_t op,
                      const std::shared_ptr<Parts>& blocks, std::uint64_t what, double timeout_s,
                      std::int64_t iterations) {
    const auto call = make_in_blocks(count, type, op, blocks, what);
    return run_here(calls, runner_of(target, {}), call, timeout_s, iterations);
}

template <class Target>
std::shared_ptr<Ticket> submit_in_blocks(Owned<Calls>& calls, const std::shared_ptr<Target>& target,
                                         std::int64_t count, std::int32_t type, std::int32_t op,
                                         const std::shared_ptr<Parts>& blocks, std::uint64_t what,
                                         double timeout_s) {
    return calls->submit(runner_of(target, {}), make_in_blocks(count, type, op, blocks, what),
                         timeout_s);
}

Problem run_varying(Owned<Calls>& calls, const std::shared_ptr<Engine>& engine,
                    const std::shared_ptr<Parts>& parts, std::int32_t type, std::uint64_t what,
                    double timeout_s, std::int64_t iterations) {
    return run_here(calls, runner_of(engine, {}), make_varying(parts, type, what), timeout_s,
                    iterations);
}

std::shared_ptr<Ticket> submit_varying(Owned<Calls>& calls, const std::shared_ptr<Engine>& engine,
                                       const std::shared_ptr<Parts>& parts, std::int32_t type,
                                       std::uint64_t what, double timeout_s) {
    return calls->submit(runner_of(engine, {}), make_varying(parts, type, what), timeout_s);
}

// A Python function that any thread may call and destroy.
class Function {
public:
    explicit Function(nb::callable function)
        : function_(function.release().ptr(), [](PyObject* kept) {
              if (is_python_ending()) return;
              const Locked locked;
              Py_DECREF(kept);
          }) {}
    nb::handle operator*() const { return function_.get(); }

private:
    std::shared_ptr<PyObject> function_;
};

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

void call_when_done(Ticket& ticket, nb::typed<nb::callable, void()> then) {
    auto* kept = then.release().ptr();
    ticket.on_done([kept] {
        const Locked locked;
        const auto function = nb::steal<nb::callable>(kept);
        try {
            function();
        } catch (nb::python_error& error) {
            error.discard_as_unraisable("a callback of a collective call");
        }
    });
}

void keep_alive(Ticket& ticket, nb::object object) {
    auto* kept = object.release().ptr();
    ticket.on_done([kept] {
        const Locked locked;
        Py_DECREF(kept);
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

void define_calls(nb::module_& m) {
    define_ticket(m);
    define_choice(m);
    nb::class_<Owned<Calls>>(m, "Calls", "The collective calls of a communicator, in order.")
        .def(nb::init<std::shared_ptr<Fabric>>(), "fabric"_a)
        .def(
            "is_own_thread", [](const Owned<Calls>& self) { return self->is_own_thread(); },
            "Whether this is the thread that runs submitted calls, which must not wait for one.")
        .def("run", &run_now<Engine>, "engine"_a, "count"_a, "dtype"_a, "op"_a, "input"_a,
             "input_bytes"_a, "output"_a, "output_bytes"_a, "what"_a, "varying"_a.none(),
             "timeout_s"_a, "iterations"_a,
             "Runs a call `iterations` times back to back, on memory by address; returns what "
             "`Ticket.outcome` does. what: the call's record. varying: the engine, and its record, "
             "that run the call if another rank makes it with varying counts; None if none may.")
        .def("run", &run_now<Choice>, "choice"_a, "count"_a, "dtype"_a, "op"_a, "input"_a,
             "input_bytes"_a, "output"_a, "output_bytes"_a, "what"_a, "varying"_a.none(),
             "timeout_s"_a, "iterations"_a,
             "Runs a call on the engines of a choice, with their records.")
        .def("submit", &submit<Engine>, "engine"_a, "count"_a, "dtype"_a, "op"_a, "input"_a,
             "input_bytes"_a, "output"_a, "output_bytes"_a, "what"_a, "varying"_a.none(),
             "timeout_s"_a, "Runs a call in the thread; its memory must stay.")
        .def("submit", &submit<Choice>, "choice"_a, "count"_a, "dtype"_a, "op"_a, "input"_a,
             "input_bytes"_a, "output"_a, "output_bytes"_a, "what"_a, "varying"_a.none(),
             "timeout_s"_a, "Runs a call on the engines of a choice, with their records.")
        .def("run_varying", &run_varying, "engine"_a, "parts"_a, "dtype"_a, "what"_a,
             "timeout_s"_a, "iterations"_a, "Runs a call of varying counts, as `run`.")
        .def("submit_varying", &submit_varying, "engine"_a, "parts"_a, "dtype"_a, "what"_a,
             "timeout_s"_a, "Runs a call of varying counts in the thread.")
        .def("run_in_blocks", &run_in_blocks<Engine>, "engine"_a, "count"_a, "dtype"_a, "op"_a,
             "blocks"_a, "what"_a, "timeout_s"_a, "iterations"_a,
             "Runs a call of equal counts, as `run`, whose buffers' blocks may be apart.")
        .def("run_in_blocks", &run_in_blocks<Choice>, "choice"_a, "count"_a, "dtype"_a, "op"_a,
             "blocks"_a, "what"_a, "timeout_s"_a, "iterations"_a,
             "Runs such a call on the engines of a choice.")
        .def("submit_in_blocks", &submit_in_blocks<Engine>, "engine"_a, "count"_a, "dtype"_a,
             "op"_a, "blocks"_a, "what"_a, "timeout_s"_a, "Runs such a call in the thread.")
        .def("submit_in_blocks", &submit_in_blocks<Choice>, "choice"_a, "count"_a, "dtype"_a,
             "op"_a, "blocks"_a, "what"_a, "timeout_s"_a,
             "Runs such a call in the thread, on the engines of a choice.")
        .def(
            "close", [](Owned<Calls>& self) { self->close(); },
            nb::call_guard<Unlocked>(), "Ends all pending calls.");
}

}  // namespace sley
