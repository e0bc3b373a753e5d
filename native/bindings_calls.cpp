// The part of the Python module for communicators: calls, tickets, messages between two ranks.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>
#include <poll.h>
#include <sched.h>
#include <unistd.h>

#include <chrono>
#include <memory>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings.hpp"
#include "calls.hpp"
#include "point_to_point.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace sley {
namespace {

using Address = std::uintptr_t;

std::byte* at(Address address) { return reinterpret_cast<std::byte*>(address); }

// A call on memory that is given by address and bytes.
struct Submission {
    std::shared_ptr<Engine> engine;
    Call call;
};

Submission make_submission(std::shared_ptr<Engine> engine, std::int64_t count, std::int32_t type,
                           std::int32_t op, Address input, std::int64_t input_bytes, Address output,
                           std::int64_t output_bytes, std::uint64_t what) {
    Call call = make_call(count, type, op);
    call.memory[kInput] = at(input);
    call.memory[kOutput] = at(output);
    call.bytes[kInput] = input_bytes;
    call.bytes[kOutput] = output_bytes;
    call.record = {0, what, static_cast<std::uint64_t>(count)};
    return {std::move(engine), call};
}

// None for a call that went well, so that the usual case costs little.
using Problem = std::optional<Report>;

Problem problem_of(const Outcome& outcome) {
    if (outcome.status == Status::kDone) return {};
    return to_report(outcome);
}

// A time without Python's lock in which the thread waits for other ranks. Python's handlers of
// signals have their turn meanwhile, in the main thread; what they raise ends the call, and is
// raised when it has ended.
class Waiting {
public:
    Waiting() {
        is_interrupted = [] {
            const nb::gil_scoped_acquire acquire;
            return PyErr_CheckSignals() != 0;
        };
    }
    Waiting(const Waiting&) = delete;
    Waiting& operator=(const Waiting&) = delete;
    ~Waiting() { is_interrupted = nullptr; }

private:
    nb::gil_scoped_release release_;
};

void raise_if_interrupted() {
    if (PyErr_Occurred()) throw nb::python_error();
}

// What has threads. It ends without Python's lock, which a thread that it joins may want for a
// callback. In a forked child it never ends: its threads, and whoever waits for its locks, are the
// parent's.
template <class Base>
class Owned {
public:
    template <class... More>
    explicit Owned(std::shared_ptr<Fabric> fabric, More... more)
        : base_(std::make_unique<Base>(std::move(fabric), more...)) {}
    Owned(const Owned&) = delete;
    Owned& operator=(const Owned&) = delete;
    ~Owned() {
        const nb::gil_scoped_release release;
        if (getpid() == process_) {
            base_.reset();
        } else {
            static_cast<void>(base_.release());
        }
    }
    Base* operator->() const { return base_.get(); }

private:
    std::unique_ptr<Base> base_;
    pid_t process_ = getpid();
};

Problem run_now(Owned<Calls>& calls, std::shared_ptr<Engine> engine, std::int64_t count,
                std::int32_t type, std::int32_t op, Address input, std::int64_t input_bytes,
                Address output, std::int64_t output_bytes, std::uint64_t what, double timeout_s,
                std::int64_t iterations) {
    const auto s = make_submission(std::move(engine), count, type, op, input, input_bytes, output,
                                   output_bytes, what);
    Outcome outcome;
    {
        const Waiting waiting;
        outcome = calls->run(s.engine, s.call, timeout_s, iterations);
    }
    raise_if_interrupted();
    return problem_of(outcome);
}

std::shared_ptr<Ticket> submit(Owned<Calls>& calls, std::shared_ptr<Engine> engine,
                               std::int64_t count, std::int32_t type, std::int32_t op,
                               Address input, std::int64_t input_bytes, Address output,
                               std::int64_t output_bytes, std::uint64_t what, double timeout_s) {
    const auto s = make_submission(std::move(engine), count, type, op, input, input_bytes, output,
                                   output_bytes, what);
    return calls->submit(s.engine, s.call, timeout_s);
}

Problem send_now(Owned<PointToPoint>& messages, Address data, std::int64_t bytes, std::int32_t dst,
                 std::int64_t tag, double timeout_s) {
    Outcome outcome;
    {
        const Waiting waiting;
        outcome = messages->send_now(at(data), bytes, dst, tag, timeout_s);
    }
    raise_if_interrupted();
    return problem_of(outcome);
}

// (problem, source)
std::tuple<Problem, std::int32_t> recv_now(Owned<PointToPoint>& messages, Address data,
                                           std::int64_t bytes, std::int32_t src, std::int64_t tag,
                                           double timeout_s) {
    Outcome outcome;
    {
        const Waiting waiting;
        outcome = messages->recv_now(at(data), bytes, src, tag, timeout_s);
    }
    raise_if_interrupted();
    return {problem_of(outcome), outcome.rank};
}

void call_when_done(Ticket& ticket, nb::typed<nb::callable, void()> then) {
    auto* kept = then.release().ptr();
    ticket.on_done([kept] {
        const nb::gil_scoped_acquire acquire;
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
        const nb::gil_scoped_acquire acquire;
        Py_DECREF(kept);
    });
}

}  // namespace

void watch(Fabric& fabric, std::vector<std::pair<int, std::int32_t>> descriptors) {
    fabric.control().is_dead = [&fabric, descriptors = std::move(descriptors)](std::int32_t rank) {
        if (fabric.has_lost(rank)) return true;
        for (const auto& [fd, of] : descriptors) {
            pollfd polled{fd, POLLIN, 0};
            if (of == rank && poll(&polled, 1, 0) > 0) return true;
        }
        return false;
    };
}

bool settle(Fabric& fabric, double timeout_s) {
    using Clock = std::chrono::steady_clock;
    const auto deadline = Clock::now() + std::chrono::duration<double>(timeout_s);
    while (!fabric.is_settled()) {
        if (fabric.control().failed() || Clock::now() >= deadline) return false;
        fabric.progress();
        sched_yield();
    }
    return true;
}

namespace {

void define_ticket(nb::module_& m) {
    nb::class_<Ticket>(m, "Ticket", "The end of a call, on which somebody waits.")
        .def("is_done", &Ticket::is_done, "Whether the call has ended, well or not.")
        .def("wait", &Ticket::wait, "timeout_s"_a, nb::call_guard<nb::gil_scoped_release>(),
             "Whether the call ended within the time; below 0 without an end.")
        .def("on_done", &call_when_done, "then"_a,
             "Calls `then` at the end, in the thread that ends the call; at once where it has.")
        .def("keep", &keep_alive, "object"_a, "Keeps what the call is about alive to its end.")
        .def_prop_ro(
            "rank", [](const Ticket& self) { return self.outcome().rank; },
            "After the end of a receive: the rank that it was from.")
        .def_prop_ro(
            "outcome", [](const Ticket& self) { return problem_of(self.outcome()); },
            "After the end: the report of a call that went wrong; None of one that went well.");
}

void define_messages(nb::module_& m) {
    using Messages = Owned<PointToPoint>;
    nb::class_<Messages>(m, "PointToPoint", "Messages from one rank to another, with tags.")
        .def(nb::init<std::shared_ptr<Fabric>, std::int32_t, std::int32_t>(), "fabric"_a,
             "stride"_a, "offset"_a,
             "They travel to rank dst on FIFO dst * stride + offset of the sender.")
        .def("send_now", &send_now, "address"_a, "size_bytes"_a, "dst"_a, "tag"_a, "timeout_s"_a,
             "Sends memory; the report of what went wrong, None where all went well.")
        .def("recv_now", &recv_now, "address"_a, "size_bytes"_a, "src"_a, "tag"_a, "timeout_s"_a,
             "Receives into memory; (report as of send_now, source). src: -1 for any.")
        .def(
            "send",
            [](Messages& self, Address address, std::int64_t size_bytes, std::int32_t dst,
               std::int64_t tag, double timeout_s) {
                return self->send(at(address), size_bytes, dst, tag, timeout_s);
            },
            "address"_a, "size_bytes"_a, "dst"_a, "tag"_a, "timeout_s"_a,
            nb::call_guard<nb::gil_scoped_release>(), "Begins to send; the memory must stay.")
        .def(
            "recv",
            [](Messages& self, Address address, std::int64_t size_bytes, std::int32_t src,
               std::int64_t tag, double timeout_s) {
                return self->recv(at(address), size_bytes, src, tag, timeout_s);
            },
            "address"_a, "size_bytes"_a, "src"_a, "tag"_a, "timeout_s"_a,
            nb::call_guard<nb::gil_scoped_release>(), "Begins to receive; the memory must stay.")
        .def(
            "wait",
            [](Messages& self, Ticket& ticket, double timeout_s) {
                return self->wait(ticket, timeout_s);
            },
            "ticket"_a, "timeout_s"_a, nb::call_guard<nb::gil_scoped_release>(),
            "Like `ticket.wait`, but moves the messages meanwhile.")
        .def(
            "close", [](Messages& self) { self->close(); },
            nb::call_guard<nb::gil_scoped_release>(), "Ends what is under way.");
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
             "output"_a, "output_bytes"_a, "what"_a, "timeout_s"_a, "iterations"_a,
             "Runs a call so many times back to back, on memory by address; the report of what "
             "went wrong, None where all went well. what: the call's record.")
        .def("submit", &submit, "engine"_a, "count"_a, "dtype"_a, "op"_a, "input"_a,
             "input_bytes"_a, "output"_a, "output_bytes"_a, "what"_a, "timeout_s"_a,
             "Has the thread run a call; the memory must stay.")
        .def(
            "close", [](Owned<Calls>& self) { self->close(); },
            nb::call_guard<nb::gil_scoped_release>(), "Ends what is under way.");
    define_messages(m);
}

}  // namespace sley
