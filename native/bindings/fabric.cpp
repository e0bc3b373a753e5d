// Segments and fabrics, for Python.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <memory>
#include <optional>
#include <stdexcept>
#include <system_error>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings/bindings.hpp"
#include "bindings/columns.hpp"
#include "fabric/copy.hpp"
#include "fabric/fabric.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace sley {
namespace {

FabricShape make_shape(const Column<std::int32_t>& fifos, std::int64_t slots,
                       std::int64_t slot_bytes, std::int64_t envelopes) {
    FabricShape shape{to_vector(fifos), {slots, slot_bytes, envelopes}};
    shape.check();
    return shape;
}

// An own descriptor of a file that another owner has open.
class Descriptor {
public:
    explicit Descriptor(int fd) : fd_(fcntl(fd, F_DUPFD_CLOEXEC, 0)) {
        if (fd_ < 0) throw std::system_error(errno, std::generic_category(), "dup");
    }
    Descriptor(const Descriptor&) = delete;
    ~Descriptor() { close(fd_); }

    int fd() const { return fd_; }

private:
    int fd_;
};

using Watched = std::vector<std::pair<std::shared_ptr<Descriptor>, std::int32_t>>;

// descriptors: each becomes readable when the process of its rank has ended.
void watch(Fabric& fabric, Watched descriptors) {
    fabric.control().is_dead = [&fabric, descriptors = std::move(descriptors)](std::int32_t rank) {
        if (fabric.has_lost(rank)) return true;
        for (const auto& [one, of] : descriptors) {
            pollfd polled{one->fd(), POLLIN, 0};
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

void define_segment(nb::module_& m) {
    nb::class_<Segment>(m, "Segment", "Memory of this process or shared with others.")
        .def_static(
            "create", [](std::size_t bytes) { return Segment::create(bytes, true); }, "bytes"_a,
            "Shared memory, all zeros; OSError if there is too little.")
        .def_static("attach", &Segment::attach, "fd"_a, "bytes"_a,
                    "The segment that another process shares by a descriptor, which stays the "
                    "caller's.")
        .def_prop_ro("size", &Segment::size, "In bytes.")
        .def_prop_ro("fd", &Segment::fd, "The descriptor to share it by; -1 if it isn't shared.")
        .def_prop_ro(
            "array",
            [](Segment& self) {
                return nb::ndarray<nb::numpy, std::uint8_t, nb::ndim<1>>(
                    self.data(), {self.size()}, nb::find(self));
            },
            "The memory as a NumPy array, which keeps the segment alive.");
}

void define_heap(nb::module_& m) {
    nb::class_<Descriptor>(m, "Descriptor", nb::is_weak_referenceable(),
                           "A duplicate of a descriptor, closed with its last user.")
        .def(nb::init<int>(), "fd"_a);
    nb::class_<Heap>(m, "Heap", nb::is_weak_referenceable(),
                     "Memory of a process that the others of its host read in place. It grows by "
                     "parts, which each process maps when it first uses them.")
        .def(nb::init<>(), "This process' own; OSError.")
        .def(nb::init<int>(), "fd"_a,
             "Another process', by its descriptor, which stays the caller's.")
        .def("grow", &Heap::grow, "bytes"_a,
             "Adds a part, without memory, and returns its offset; OSError if there are no "
             "addresses left.")
        .def(
            "address",
            [](Heap& self, std::uint64_t offset, std::size_t bytes) {
                return reinterpret_cast<std::uint64_t>(self.at(offset, bytes));
            },
            "offset"_a, "bytes"_a, "The address of a range of one part; 0 if it can't be mapped.")
        .def("reserve", &Heap::reserve, "offset"_a, "bytes"_a,
             "Allocates memory for a range; OSError if there is none.")
        .def("release", &Heap::release, "offset"_a, "bytes"_a, "Frees the memory of a range.")
        .def_prop_ro("fd", &Heap::fd, "The descriptor to share it by.");
}

void define_fabrics(nb::module_& m) {
    nb::class_<FabricShape>(m, "FabricShape", "The layout of the memory of ranks.")
        .def_static("create", &make_shape, "fifos"_a, "slots"_a, "slot_bytes"_a, "envelopes"_a,
                    "fifos: the number of connections that each rank may send on. ValueError for a "
                    "shape without room, MemoryError for one whose bytes overflow.")
        .def("bytes_of", &FabricShape::bytes_of, "ranks"_a,
             "The bytes of some ranks' memory, side by side in one segment.");

    using SharedHeaps = std::vector<std::optional<std::shared_ptr<Heap>>>;
    nb::class_<Fabric>(m, "Fabric",
                       "The memory and connections of all ranks, as one rank sees them.")
        .def_static(
            "join",
            [](const FabricShape& shape, int fd, const SharedHeaps& heaps, std::int32_t rank) {
                std::vector<std::int32_t> local;
                Heaps found;
                for (const auto& heap : heaps) {
                    found.push_back(heap.value_or(nullptr));
                    if (heap) local.push_back(static_cast<std::int32_t>(found.size()) - 1);
                }
                const auto segment = Segment::attach_sparse(fd, true);
                segment->grow(shape.bytes_of(local));
                auto regions = Fabric::side_by_side(shape, segment, local);
                return std::make_shared<Fabric>(shape, rank, std::move(regions), std::move(found));
            },
            "shape"_a, "fd"_a, "heaps"_a, "rank"_a,
            "A fabric with the memory of this host's ranks in one file, which stays the caller's. "
            "heaps: of every rank of this host, None for ranks of others.")
        .def(
            "announce", [](Fabric& self) { announce(self.state(self.rank())); },
            "Lets other processes find this one's memory.")
        .def_prop_ro(
            "ranks", [](const Fabric& self) { return self.shape().ranks(); },
            "The number of ranks.")
        .def_prop_ro(
            "failure",
            [](Fabric& self) {
                return std::tuple(static_cast<int>(self.control().failure_kind()),
                                  self.control().failure_rank());
            },
            "(kind, rank) of the first failure: `sley.communicator.failures.Failure`.")
        .def(
            "call_of",
            [](Fabric& self, std::int32_t rank) {
                const auto call = self.control().call_of(rank);
                return std::tuple(call.sequence, call.what, call.count);
            },
            "rank"_a, "A rank's current call: (number, what, count).")
        .def(
            "has_left",
            [](Fabric& self, std::int32_t rank) {
                self.progress();
                auto& control = self.control();
                return control.has_left(rank) || (control.is_dead && control.is_dead(rank));
            },
            "rank"_a, "Whether a rank has left, or its process has ended.")
        .def("reads_others", &Fabric::reads_others,
             "Whether this rank can read the memory of the other ranks' processes.")
        .def_rw("is_attached", &Fabric::is_attached, "Whether all ranks can: they have agreed.")
        .def(
            "use_only",
            [](Fabric& self, std::uint64_t way) {
                if (way >= kWays) throw std::invalid_argument("no such way");
                self.ways().only = Way{way};
            },
            "way"_a, "Lets all calls use one way (by its number), if they have it.")
        .def(
            "close", [](Fabric& self) { self.control().close(); },
            "Tells the others that this rank has left.")
        .def(
            "abort",
            [](Fabric& self) {
                self.control().fail(Failure::kGaveUp, self.rank());
                self.progress();
            },
            "Ends every call, on all ranks.")
        .def("watch", &watch, "descriptors"_a,
             "Pairs (descriptor, rank): each becomes readable when the rank's process ends.")
        .def(
            "settle", &settle, "timeout_s"_a, nb::call_guard<Unlocked>(),
            "Waits until all sent messages have left this host; False after the time.");
}

}  // namespace

void define_fabric(nb::module_& m) {
    define_segment(m);
    define_heap(m);
    define_fabrics(m);
}

}  // namespace sley
