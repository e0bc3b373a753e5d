// Collective calls and tickets, for Python.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <memory>

#include "bindings/bindings.hpp"
#include "engine/calls.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace sley {
namespace {

Call make_recorded(std::int64_t count, std::int32_t type, std::int32_t op, Address input,
                   std::int64_t input_bytes, Address output, std::int64_t output_bytes,
                   std::uint64_t what, std::uint64_t unplanned) {
    Call call = make_call(count, type, op, at(input), input_bytes, at(output), output_bytes);
    call.record = {0, what, static_cast<std::uint64_t>(count), unplanned};
    return call;
}

Problem run_now(Owned<Calls>& calls, const std::shared_ptr<Engine>& engine, std::int64_t count,
                std::int32_t type, std::int32_t op, Address input, std::int64_t input_bytes,
                Address output, std::int64_t output_bytes, std::uint64_t what,
                std::uint64_t unplanned, double timeout_s, std::int64_t iterations) {
    const auto call = make_recorded(count, type, op, input, input_bytes, output, output_bytes,
                                    what, unplanned);
    Outcome outcome;
    {
        const Waiting waiting;
        outcome = calls->run(engine, call, timeout_s, iterations);
    }
    raise_if_interrupted();
    return problem_of(outcome);
}

std::shared_ptr<Ticket> submit(Owned<Calls>& calls, const std::shared_ptr<Engine>& engine,
                               std::int64_t count, std::int32_t type, std::int32_t op,
                               Address input, std::int64_t input_bytes, Address output,
                               std::int64_t output_bytes, std::uint64_t what,
                               std::uint64_t unplanned, double timeout_s) {
    const auto call = make_recorded(count, type, op, input, input_bytes, output, output_bytes,
                                    what, unplanned);
    return calls->submit(engine, call, timeout_s);
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
            "After the end: the report of a failed call; None of a successful one.");
}

}  // namespace

void define_calls(nb::module_& m) {
    define_ticket(m);
    nb::class_<Owned<Calls>>(m, "Calls", "The collective calls of a communicator, in order.")
        .def(nb::init<std::shared_ptr<Fabric>>(), "fabric"_a)
        .def(
            "is_own_thread", [](const Owned<Calls>& self) { return self->is_own_thread(); },
            "Whether this is the thread that runs submitted calls, which must not wait for one.")
        .def("run", &run_now, "engine"_a, "count"_a, "dtype"_a, "op"_a, "input"_a, "input_bytes"_a,
             "output"_a, "output_bytes"_a, "what"_a, "unplanned"_a, "timeout_s"_a, "iterations"_a,
             "Runs a call `iterations` times back to back, on memory by address; returns the "
             "report of a failed call, None of a successful one. what: the call's record. "
             "unplanned: the record of ranks that do it without the plan (`skip`), in which case "
             "nothing is done; 0: none does.")
        .def("submit", &submit, "engine"_a, "count"_a, "dtype"_a, "op"_a, "input"_a,
             "input_bytes"_a, "output"_a, "output_bytes"_a, "what"_a, "unplanned"_a, "timeout_s"_a,
             "Runs a call in the thread; its memory must stay.")
        .def(
            "skip", [](Owned<Calls>& self, std::uint64_t what) { self->skip(what); }, "what"_a,
            "Counts a call that this rank does without a plan.")
        .def(
            "close", [](Owned<Calls>& self) { self->close(); },
            nb::call_guard<Unlocked>(), "Ends all pending calls.");
}

}  // namespace sley
