// Links among processes, for Python.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/vector.h>

#include <utility>
#include <vector>

#include "bindings/arrays.hpp"
#include "bindings/bindings.hpp"
#include "devices/barrier.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace sley {
namespace {

// Waits for other processes without Python's lock, until a signal's handler raises something.
template <class Wait>
void wait_for_processes(const Wait& wait) {
    try {
        const Waiting waiting;
        wait();
    } catch (const Interrupted&) {
    }
    raise_if_interrupted();
}

}  // namespace

void define_processes(nb::module_& m) {
    nb::class_<Barrier>(m, "Barrier",
                        "How far each process of a communicator has come, in memory that the "
                        "processes share. Any thread may call it.")
        .def(
            "__init__",
            [](Barrier* self, const Array<std::uint8_t>& memory, int ranks, std::vector<int> own,
               double patience_s) {
                new (self) Barrier(memory.data(), ranks, std::move(own), patience_s);
            },
            "memory"_a, "ranks"_a, "own"_a, "patience_s"_a, nb::keep_alive<1, 2>(),
            "memory: zeros, as many as `bytes`, whose first word is set when a call is given up. own: "
            "the ranks of this process. patience_s: the longest wait for another process.")
        .def_static("bytes", &Barrier::bytes, "ranks"_a)
        .def_prop_ro("is_given_up", &Barrier::is_given_up,
                     "Whether a process has given up a call or a meeting.")
        .def("refuse", [](const Barrier&) { throw Barrier::given_up(); },
             "Raises K508 for a call of which this process has no report.")
        .def("meet", [](Barrier& self) { wait_for_processes([&self] { self.meet(); }); },
             "Waits until all processes have come here as often as this one. If one can't come any "
             "more: K508 if a call was given up, K514 otherwise. K514 if one doesn't come in time; "
             "then all give up, as after a failed call.")
        .def("leave", &Barrier::leave,
             "Says that no kernel of this process runs or will run, and that it comes no more.")
        .def("wait_for_others",
             [](Barrier& self) { wait_for_processes([&self] { self.wait_for_others(); }); },
             "Waits until all processes have left or one has given up; K514 if one does neither in "
             "time.");
}

}  // namespace sley
