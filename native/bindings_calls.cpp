// The part of the Python module for communicators: calls, tickets, messages between two ranks.
#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/vector.h>
#include <poll.h>
#include <sched.h>
#include <unistd.h>

#include <chrono>
#include <memory>
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
nb::object to_object(const Outcome& outcome) {
    if (outcome.status == Status::kDone) return nb::none();
    return to_tuple(outcome);
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

nb::object run_now(Owned<Calls>& calls, std::shared_ptr<Engine> engine, std::int64_t count,
                   std::int32_t type, std::int32_t op, Address input, std::int64_t input_bytes,
                   Address output, std::int64_t output_bytes, std::uint64_t what,
                   double timeout_s, std::int64_t iterations) {
    const auto s = make_submission(std::move(engine), count, type, op, input, input_bytes, output,
                                   output_bytes, what);
    Outcome outcome;
    {
        const Waiting waiting;
        outcome = calls->run(s.engine, s.call, timeout_s, iterations);
    }
    raise_if_interrupted();
    return to_object(outcome);
}

std::shared_ptr<Ticket> submit(Owned<Calls>& calls, std::shared_ptr<Engine> engine,
                               std::int64_t count, std::int32_t type, std::int32_t op,
                               Address input, std::int64_t input_bytes, Address output,
                               std::int64_t output_bytes, std::uint64_t what, double timeout_s) {
    const auto s = make_submission(std::move(engine), count, type, op, input, input_bytes, output,
                                   output_bytes, what);
    return calls->submit(s.engine, s.call, timeout_s);
}

nb::object send_now(Owned<PointToPoint>& messages, Address data, std::int64_t bytes,
                    std::int32_t dst, std::int64_t tag, double timeout_s) {
    Outcome outcome;
    {
        const Waiting waiting;
        outcome = messages->send_now(at(data), bytes, dst, tag, timeout_s);
    }
    raise_if_interrupted();
    return to_object(outcome);
}

// (what `to_object` gives, source)
nb::tuple recv_now(Owned<PointToPoint>& messages, Address data, std::int64_t bytes,
                   std::int32_t src, std::int64_t tag, double timeout_s) {
    Outcome outcome;
    {
        const Waiting waiting;
        outcome = messages->recv_now(at(data), bytes, src, tag, timeout_s);
    }
    raise_if_interrupted();
    return nb::make_tuple(to_object(outcome), outcome.rank);
}

void call_when_done(Ticket& ticket, nb::callable then) {
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

void define_calls(nb::module_& m) {
    nb::class_<Ticket>(m, "Ticket")
        .def("is_done", &Ticket::is_done)
        .def("wait", &Ticket::wait, "timeout_s"_a, nb::call_guard<nb::gil_scoped_release>(),
             "Whether the call ended within the time; below 0 without an end.")
        .def("on_done", &call_when_done, "then"_a)
        .def_prop_ro("rank", [](const Ticket& self) { return self.outcome().rank; })
        .def_prop_ro("outcome", [](const Ticket& self) { return to_object(self.outcome()); });
    nb::class_<Owned<Calls>>(m, "Calls")
        .def(nb::init<std::shared_ptr<Fabric>>(), "fabric"_a)
        .def("is_own_thread", [](const Owned<Calls>& self) { return self->is_own_thread(); })
        .def("run", &run_now)
        .def("submit", &submit)
        .def(
            "close", [](Owned<Calls>& self) { self->close(); },
            nb::call_guard<nb::gil_scoped_release>());
    nb::class_<Owned<PointToPoint>>(m, "PointToPoint")
        .def(nb::init<std::shared_ptr<Fabric>, std::int32_t, std::int32_t>(), "fabric"_a,
             "stride"_a, "offset"_a)
        .def("send_now", &send_now)
        .def("recv_now", &recv_now)
        .def(
            "send",
            [](Owned<PointToPoint>& self, Address data, std::int64_t bytes, std::int32_t dst,
               std::int64_t tag, double timeout_s) {
                return self->send(at(data), bytes, dst, tag, timeout_s);
            },
            nb::call_guard<nb::gil_scoped_release>())
        .def(
            "recv",
            [](Owned<PointToPoint>& self, Address data, std::int64_t bytes, std::int32_t src,
               std::int64_t tag, double timeout_s) {
                return self->recv(at(data), bytes, src, tag, timeout_s);
            },
            nb::call_guard<nb::gil_scoped_release>())
        .def(
            "wait",
            [](Owned<PointToPoint>& self, Ticket& ticket, double timeout_s) {
                return self->wait(ticket, timeout_s);
            },
            nb::call_guard<nb::gil_scoped_release>())
        .def(
            "close", [](Owned<PointToPoint>& self) { self->close(); },
            nb::call_guard<nb::gil_scoped_release>());
}

}  // namespace sley
