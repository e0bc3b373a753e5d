// Messages from one rank to another, for Python.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <chrono>
#include <memory>
#include <tuple>

#include "bindings/bindings.hpp"
#include "messages/point_to_point.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace sley {
namespace {

Problem send_now(Owned<PointToPoint>& messages, Address data, std::int64_t bytes, std::int32_t dst,
                 std::int64_t tag, double timeout_s, std::int32_t type) {
    Outcome outcome;
    {
        const Waiting waiting;
        outcome = messages->send_now(at(data), bytes, dst, tag, timeout_s, type);
    }
    raise_if_interrupted();
    return problem_of(outcome);
}

// (problem, source)
std::tuple<Problem, std::int32_t> recv_now(Owned<PointToPoint>& messages, Address data,
                                           std::int64_t bytes, std::int32_t src, std::int64_t tag,
                                           double timeout_s, std::int32_t type) {
    Outcome outcome;
    {
        const Waiting waiting;
        outcome = messages->recv_now(at(data), bytes, src, tag, timeout_s, type);
    }
    raise_if_interrupted();
    return {problem_of(outcome), outcome.rank};
}

// Exchanges messages with a rank again and again: one to it and one from it, of which one comes first
// on this rank and the other on that one. (seconds of all, problem of the last message, whether this
// one was sent)
std::tuple<double, Problem, bool> exchange(Owned<PointToPoint>& messages, Address source,
                                           std::int64_t source_bytes, Address target,
                                           std::int64_t target_bytes, std::int32_t peer,
                                           bool sends_first, std::int64_t iterations,
                                           double timeout_s) {
    constexpr std::int64_t kTag = 0;
    Outcome outcome;
    bool sends = sends_first;
    std::chrono::duration<double> took{};
    {
        const Waiting waiting;
        const auto begin = std::chrono::steady_clock::now();
        for (std::int64_t i = 0; i < 2 * iterations && outcome.status == Status::kDone; ++i) {
            sends = (i % 2 == 0) == sends_first;
            outcome = sends ? messages->send_now(at(source), source_bytes, peer, kTag, timeout_s)
                            : messages->recv_now(at(target), target_bytes, peer, kTag, timeout_s);
        }
        took = std::chrono::steady_clock::now() - begin;
    }
    raise_if_interrupted();
    return {took.count(), problem_of(outcome), sends};
}

// The message stays in progress if a signal handler raises an exception.
bool finish(Owned<PointToPoint>& messages, Ticket& ticket) {
    constexpr double kPieceSeconds = 0.1;
    for (;;) {
        bool is_done = false;
        {
            const Unlocked unlocked;
            is_done = messages->wait(ticket, kPieceSeconds);
        }
        if (is_done) return ticket.outcome().status == Status::kDone;
        if (PyErr_CheckSignals() != 0) throw nb::python_error();
    }
}

}  // namespace

void define_messages(nb::module_& m) {
    using Messages = Owned<PointToPoint>;
    nb::class_<Messages>(m, "PointToPoint", "Messages from one rank to another, with tags.")
        .def(nb::init<std::shared_ptr<Fabric>, std::int32_t, std::int32_t>(), "fabric"_a,
             "stride"_a, "offset"_a,
             "Messages to rank dst use FIFO dst * stride + offset of the sender.")
        .def("send_now", &send_now, "address"_a, "size_bytes"_a, "dst"_a, "tag"_a, "timeout_s"_a,
             "type"_a,
             "Sends memory; returns the report of a failure, or None. type: the caller's number of "
             "the elements' type; 0: any.")
        .def("recv_now", &recv_now, "address"_a, "size_bytes"_a, "src"_a, "tag"_a, "timeout_s"_a,
             "type"_a,
             "Receives into memory; returns (report as of send_now, source). src: -1 for any.")
        .def("exchange", &exchange, "source"_a, "source_bytes"_a, "target"_a, "target_bytes"_a,
             "peer"_a, "sends_first"_a, "iterations"_a, "timeout_s"_a,
             "Sends to a rank and receives from it, again and again; returns (seconds of all, report "
             "of a failure or None, whether it is that of a send).")
        .def(
            "send",
            [](Messages& self, Address address, std::int64_t size_bytes, std::int32_t dst,
               std::int64_t tag, double timeout_s, std::int32_t type) {
                return self->send(at(address), size_bytes, dst, tag, timeout_s, type);
            },
            "address"_a, "size_bytes"_a, "dst"_a, "tag"_a, "timeout_s"_a, "type"_a,
            nb::call_guard<Unlocked>(), "Begins to send; the memory must stay.")
        .def(
            "recv",
            [](Messages& self, Address address, std::int64_t size_bytes, std::int32_t src,
               std::int64_t tag, double timeout_s, std::int32_t type) {
                return self->recv(at(address), size_bytes, src, tag, timeout_s, type);
            },
            "address"_a, "size_bytes"_a, "src"_a, "tag"_a, "timeout_s"_a, "type"_a,
            nb::call_guard<Unlocked>(), "Begins to receive; the memory must stay.")
        .def(
            "wait",
            [](Messages& self, Ticket& ticket, double timeout_s) {
                return self->wait(ticket, timeout_s);
            },
            "ticket"_a, "timeout_s"_a, nb::call_guard<Unlocked>(),
            "Like `ticket.wait`, but makes progress meanwhile.")
        .def("finish", &finish, "ticket"_a,
             "Waits for the end, and meanwhile for signals; whether the message has been moved.")
        .def(
            "test", [](Messages& self, Ticket& ticket) { return self->test(ticket); }, "ticket"_a,
            nb::call_guard<Unlocked>(), "Like `ticket.is_done`, but makes progress once.")
        .def(
            "close", [](Messages& self) { self->close(); },
            nb::call_guard<Unlocked>(), "Ends all pending messages.");
}

}  // namespace sley
