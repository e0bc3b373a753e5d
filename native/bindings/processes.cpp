// Links among processes, for Python.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <exception>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings/arrays.hpp"
#include "bindings/bindings.hpp"
#include "bindings/lease.hpp"
#include "devices/links.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace sley {
namespace {

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
    return on_devices(new MemoryExchange(std::move(processes), own, has_lines),
                      std::make_shared<Function>(std::move(devices)));
}

std::pair<nb::typed<nb::dict, int, Lease>, std::vector<Processes::Numbers>> allocate(
    MemoryExchange& self, const std::vector<std::size_t>& sizes) {
    auto made = [&] {
        const Waiting waiting;
        return self.allocate(sizes);
    }();
    nb::dict own;
    for (auto& [rank, memory] : made.own) own[nb::cast(rank)] = nb::cast(Lease(std::move(memory)));
    return {nb::typed<nb::dict, int, Lease>(own), std::move(made.seen)};
}

// A device, the ranks of each launch of a call, and the bases of the segments behind the mailboxes'.
using LinkPlace = std::tuple<Device*, std::vector<std::vector<int>>, std::vector<std::uint64_t>>;

std::shared_ptr<Links> make_links(std::shared_ptr<MemoryExchange> memory,
                                  std::shared_ptr<MemoryIndex> index,
                                  std::shared_ptr<Barrier> barrier,
                                  std::shared_ptr<CallOrder> order, Address abort,
                                  const std::vector<std::size_t>& mailboxes,
                                  const std::vector<std::shared_ptr<PlanTables>>& tables,
                                  const std::vector<LinkPlace>& rows, std::uint64_t timeout_ns) {
    std::vector<Links::Place> places;
    for (const auto& [device, launches, behind] : rows) places.push_back({device, launches, behind});
    const auto made = [&] {
        const Waiting waiting;
        return new Links(std::move(memory), std::move(index), std::move(barrier), std::move(order),
                         abort, mailboxes, {tables.begin(), tables.end()}, places, timeout_ns);
    };
    return on_devices(made());
}

std::map<int, Address> mailboxes_of(const Links& self) {
    std::map<int, Address> found;
    for (const auto& [rank, memory] : self.mailboxes()) found[rank] = memory.address;
    return found;
}

}  // namespace

void define_processes(nb::module_& m) {
    nb::class_<Barrier>(m, "Barrier",
                        "How far each process of a communicator has come, in memory that the "
                        "processes share.")
        .def(
            "__init__",
            [](Barrier* self, const Array<std::uint8_t>& memory, int ranks, std::vector<int> own,
               double patience_s) {
                new (self) Barrier(memory.data(), ranks, std::move(own), patience_s);
            },
            "memory"_a, "ranks"_a, "own"_a, "patience_s"_a, nb::keep_alive<1, 2>(),
            "memory: zeros, as many as `bytes`, whose first word is set when a call is given up. own: "
            "the ranks of this process. patience_s: the longest wait for another process.")
        .def_static("bytes", &Barrier::bytes, "ranks"_a);
    nb::class_<Processes>(m, "Processes",
                          "The processes of a communicator's ranks. All call the same functions in "
                          "the same order. Errors: those that other processes told; K514 if one has "
                          "ended or the exchange is invalid, R503 for a rank in two processes.")
        .def(nb::new_(&make_processes), "ranks"_a, "exchange"_a.none(),
             "exchange: an all-gather of bytes among the processes; None if all ranks are in this "
             "one.")
        .def_prop_ro("is_one", &Processes::is_one, "Whether all ranks are in this process.")
        .def("gather",
             [](Processes& self, const std::map<int, nb::bytes>& own) {
                 std::map<int, std::string> said;
                 for (const auto& [rank, value] : own) said[rank] = {value.c_str(), value.size()};
                 const auto found = [&] {
                     const Waiting waiting;
                     return self.gather(said);
                 }();
                 std::vector<nb::bytes> values;
                 for (const auto& each : found) values.emplace_back(each.data(), each.size());
                 return values;
             },
             "own"_a, "Gathers bytes for each rank; own: of this process's ranks.")
        .def("meet", &Processes::meet, nb::call_guard<Waiting>(),
             "Waits until all processes call this.")
        .def("tell",
             [](Processes& self, const nb::bytes& refusal) {
                 const std::string said(refusal.c_str(), refusal.size());
                 const Waiting waiting;
                 self.tell(said);
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
             [](MemoryExchange& self, std::size_t n) -> Lease { return self.allocate_host(n); },
             "size_bytes"_a, nb::call_guard<Waiting>(),
             "Zeroed memory of the host that the devices of all processes can access; all processes "
             "call this together.");
    nb::class_<Links>(m, "Links",
                      "What persists between the calls of a communicator, for this process: the ranks' "
                      "mailboxes, and the plans on each device. Freed, its memory lasts until no call "
                      "is under way.")
        .def(nb::new_(&make_links), "memory"_a, "index"_a, "barrier"_a, "order"_a, "abort"_a,
             "mailboxes"_a, "tables"_a, "places"_a, "timeout_ns"_a,
             "All processes call this together. abort: the address of the barrier's memory. "
             "mailboxes: the bytes of each rank's. places: each device, the ranks of its launches, and "
             "the bases of the segments behind the mailboxes'.")
        .def_prop_ro("mailboxes", &mailboxes_of, "The addresses of this process's ranks' mailboxes.")
        .def_prop_ro("plans", &Links::plans, "Each plan on each device.")
        .def("keep",
             [](Links& self, nb::object memory) {
                 self.keep(std::make_shared<Function>(std::move(memory)));
             },
             "memory"_a, "Keeps an object until the other memory is freed.")
        .def("register",
             [](const Links& self, const std::map<int, std::pair<Address, std::size_t>>& arrays) {
                 const auto made = self.registrations().add(arrays);
                 return std::pair(made.number, made.readers);
             },
             "arrays"_a, nb::call_guard<Waiting>(),
             "Lets peers read the caller's memory in place: of each rank of this process, the address "
             "and the bytes of an array. All processes call this together, while no call is under way. "
             "Returns the registration's number, and the other ranks that read each rank's memory; to "
             "the rest its messages go through slots.")
        .def("deregister",
             [](const Links& self, std::uint64_t number) { self.registrations().remove(number); },
             "number"_a, nb::call_guard<Waiting>(), "Likewise. R503 if processes name another one.")
        .def_prop_ro("is_closed", &Links::is_closed)
        .def("check_open", &Links::check_open, "R508 if they are closed.")
        .def("check", &Links::check,
             "R508 if they are closed or a call has failed. False if one was given up: then the caller "
             "ends the calls, and says why one has failed.")
        .def("end", &Links::end, nb::call_guard<Waiting>(),
             "Waits until all blocks have reported; this process comes to no further meeting.")
        .def("fail", &Links::fail, "why"_a)
        .def("refuse", [](const Links&) { throw Barrier::given_up(); },
             "Raises K508 for a call of which this process has no report.")
        .def("give_up", &Links::give_up, "why"_a,
             "Ends all calls that are under way, in all processes; any thread may call it. why: kept "
             "for all unless calls were given up before.")
        .def_prop_ro("why", &Links::why, "0 if nobody said why calls were given up.")
        .def("leave", &Links::leave,
             "Comes to no further meeting: processes that wait for this one fail, but for those that "
             "close.")
        .def("has_left", &Links::has_left, "rank"_a)
        .def("lacks", &Links::lacks, "rank"_a,
             "Whether this process has started a call that a rank which has left doesn't make; None "
             "if the rank hasn't left, or if calls in graphs aren't counted.")
        .def("close", &Links::close, "meet"_a, nb::call_guard<Waiting>(),
             "Waits for calls, and, if it meets others, until all processes have left; then frees the "
             "memory. K514, after that, if one doesn't in time. A second call does nothing.");
}

}  // namespace sley
