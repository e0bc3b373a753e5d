// Links among processes, for Python.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/vector.h>

#include <exception>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bindings/arrays.hpp"
#include "bindings/bindings.hpp"
#include "bindings/lease.hpp"
#include "devices/memory_exchange.hpp"

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

class PythonExchange : public Exchange {
public:
    explicit PythonExchange(nb::object function) : function_(std::move(function)) {}

    std::vector<std::string> gather(const std::string& message) override {
        const Locked locked;
        std::vector<std::string> found;
        try {
            for (nb::handle each : (*function_)(nb::bytes(message.data(), message.size()))) {
                const auto bytes = nb::cast<nb::bytes>(each);
                found.emplace_back(bytes.c_str(), bytes.size());
            }
        } catch (nb::python_error& problem) {
            if (problem.matches(PyExc_Exception)) throw;
            problem.restore();  // as of a signal's handler
            throw Interrupted{};
        }
        return found;
    }

    std::string refusal(const std::exception_ptr& problem) override {
        const Locked locked;
        const auto error = sley_error_of(problem);
        if (error.is_none()) return "";
        const auto ranks = nb::module_::import_("sley.engine.devices.device_ranks");
        const auto said = nb::cast<nb::bytes>(ranks.attr("refusal")(error));
        return {said.c_str(), said.size()};
    }

private:
    Function function_;
};

using AllGather = nb::typed<nb::callable, std::vector<nb::bytes>(nb::bytes)>;

std::shared_ptr<Processes> make_processes(int ranks, std::optional<AllGather> exchange) {
    std::shared_ptr<Exchange> asked;
    if (exchange) asked = std::make_shared<PythonExchange>(std::move(*exchange));
    return std::make_shared<Processes>(ranks, std::move(asked));
}

using Devices = std::map<int, Device*>;

std::shared_ptr<MemoryExchange> make_memory(std::shared_ptr<Processes> processes,
                                            nb::typed<nb::dict, int, Device> devices,
                                            bool has_lines) {
    const auto own = nb::cast<Devices>(devices);
    return {new MemoryExchange(std::move(processes), own, has_lines),
            [kept = std::make_shared<Function>(std::move(devices))](MemoryExchange* memory) {
                if (is_python_ending()) return;  // as all memory of devices
                const Unlocked unlocked;
                delete memory;
            }};
}

std::pair<nb::typed<nb::dict, int, Lease>, std::vector<Processes::Numbers>> allocate(
    MemoryExchange& self, const std::vector<std::size_t>& sizes) {
    MemoryExchange::Made made;
    wait_for_processes([&] { made = self.allocate(sizes); });
    nb::dict own;
    for (auto& [rank, memory] : made.own) own[nb::cast(rank)] = nb::cast(Lease(std::move(memory)));
    return {nb::typed<nb::dict, int, Lease>(own), std::move(made.seen)};
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
    nb::class_<Processes>(m, "Processes",
                          "The processes of a communicator's ranks. All call the same functions in "
                          "the same order. Errors: those that other processes told; K514 if one has "
                          "ended or the exchange is invalid, R503 for a rank in two processes.")
        .def(nb::new_(&make_processes), "ranks"_a, "exchange"_a.none(),
             "exchange: an all-gather of bytes among the processes; None if all ranks are in this "
             "one.")
        .def_prop_ro("is_one", &Processes::is_one, "Whether all ranks are in this process.")
        .def("use", &Processes::use, "barrier"_a,
             "Processes meet at the barrier before each later exchange.")
        .def("gather",
             [](Processes& self, const std::map<int, nb::bytes>& own) {
                 std::map<int, std::string> said;
                 for (const auto& [rank, value] : own) said[rank] = {value.c_str(), value.size()};
                 std::vector<std::string> found;
                 wait_for_processes([&] { found = self.gather(said); });
                 std::vector<nb::bytes> values;
                 for (const auto& each : found) values.emplace_back(each.data(), each.size());
                 return values;
             },
             "own"_a, "Gathers bytes for each rank; own: of this process's ranks.")
        .def("meet", [](Processes& self) { wait_for_processes([&self] { self.meet(); }); },
             "Waits until all processes call this.")
        .def("tell",
             [](Processes& self, const nb::bytes& refusal) {
                 const std::string said(refusal.c_str(), refusal.size());
                 wait_for_processes([&] { self.tell(said); });
             },
             "refusal"_a, "Instead of an exchange: the others raise this refusal there.");
    nb::class_<MemoryExchange>(m, "MemoryExchange",
                               "Memory for every rank, which the devices of all processes reach.")
        .def(nb::new_(&make_memory), "processes"_a, "devices"_a, "has_lines"_a,
             "devices: of the ranks of this process. has_lines: whether kernels write lines of "
             "LL128.")
        .def("allocate", &allocate, "sizes_bytes"_a,
             "Allocates so many bytes for each rank; all processes call this together. Returns the "
             "memory of this process's ranks, and for each rank the addresses of all ranks' memory "
             "on its device. R503 if the processes' sizes differ, K523 if lines don't arrive whole.")
        .def("allocate_host",
             [](MemoryExchange& self, std::size_t bytes) {
                 Resource made;
                 wait_for_processes([&] { made = self.allocate_host(bytes); });
                 return Lease(std::move(made));
             },
             "size_bytes"_a,
             "Zeroed memory of the host that the devices of all processes can access; all processes "
             "call this together.")
        .def("detach", &MemoryExchange::detach, nb::call_guard<Unlocked>(),
             "Releases the memory of other processes.");
}

}  // namespace sley
