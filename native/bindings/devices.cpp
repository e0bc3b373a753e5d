// Devices, for Python: GPUs, and what frees their memory.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings/arrays.hpp"
#include "bindings/bindings.hpp"
#include "devices/cuda_calls.hpp"
#include "devices/cuda_device.hpp"
#include "devices/deferred_free.hpp"
#include "torch/dlpack.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace sley {
namespace {

// Frees without Python's lock, since that may wait for the device. At exit the driver frees; it may
// already be unloaded.
struct Lease : Resource {
    Lease(Resource made) : Resource(std::move(made)) {}
    Lease(Lease&&) = default;
    ~Lease() {
        if (owner == nullptr) return;
        if (is_python_ending()) {
            new std::shared_ptr<void>(std::move(owner));
            return;
        }
        const Unlocked unlocked;
        owner.reset();
    }
};

template <class Raw>
nb::bytes to_bytes(const Raw& raw) {
    return nb::bytes(raw.bytes, sizeof raw.bytes);
}

template <class Raw>
Raw from_bytes(const nb::bytes& bytes) {
    Raw raw{};
    if (bytes.size() != sizeof raw.bytes) throw std::invalid_argument("bytes of another length");
    std::memcpy(raw.bytes, bytes.c_str(), sizeof raw.bytes);
    return raw;
}

Array<std::uint8_t> allocate_host(CudaDevice& self, std::size_t bytes) {
    const auto made = [&]() -> Lease {
        const Unlocked unlocked;
        return self.allocate_host(bytes);
    };
    nb::object owner = nb::cast(made());
    return Array<std::uint8_t>(at(nb::cast<const Lease&>(owner).address), {bytes}, owner);
}

Lease register_host(CudaDevice& self, const Array<std::uint8_t>& array) {
    // The memory is mapped until the driver has let it go.
    const auto keeps = std::make_shared<Function>(nb::cast(array));
    const Unlocked unlocked;
    return self.register_host(array.data(), array.size(), keeps);
}

std::tuple<std::vector<Address>, Address, Lease> window(const std::vector<CudaDevice*>& devices,
                                                        std::size_t bytes) {
    auto made = CudaDevice::window(devices, bytes);
    return {std::move(made.parts), made.switched, Lease({0, std::move(made.owner)})};
}

// Of a tensor that another library lends by DLPack: the address of its first element, shape, strides
// in elements (none: no gaps), the code and the bits of its elements' type (0 bits for vectors), and
// whether it may be written. The capsule isn't used up.
using Lent = std::tuple<Address, std::vector<std::int64_t>,
                        std::optional<std::vector<std::int64_t>>, int, int, bool>;

Lent lent_by(nb::capsule capsule) {
    const bool is_versioned = std::strcmp(capsule.name(), "dltensor_versioned") == 0;
    const auto& versioned = *static_cast<const dlpack::VersionedTensor*>(capsule.data());
    const auto& tensor =
        is_versioned ? versioned.tensor : *static_cast<const dlpack::Tensor*>(capsule.data());
    const auto numbers = [&tensor](const std::int64_t* first) {
        return std::vector<std::int64_t>(first, first + tensor.ndim);
    };
    std::optional<std::vector<std::int64_t>> strides;
    if (tensor.strides != nullptr) strides = numbers(tensor.strides);
    return {reinterpret_cast<Address>(tensor.data) + tensor.byte_offset,
            numbers(tensor.shape),
            strides,
            tensor.dtype.code,
            tensor.dtype.lanes == 1 ? tensor.dtype.bits : 0,
            !is_versioned || (versioned.flags & dlpack::kReadOnly) == 0};
}

void translate(const std::exception_ptr& error, void*) {
    try {
        std::rethrow_exception(error);
    } catch (const cuda::Error& e) {
        const nb::object failure = nb::module_::import_("sley.engine.devices.cuda.driver")
                                       .attr("failure")(e.function, e.name, e.words, e.doing,
                                                        e.subject);
        PyErr_SetObject(failure.type().ptr(), failure.ptr());
    }
}

// Function, its name, the argument, blocks, threads, whether the blocks are together.
using LaunchRow = std::tuple<Address, std::string, nb::bytes, unsigned, unsigned, bool>;
using StartRows = std::vector<std::pair<const CudaDevice*, std::vector<LaunchRow>>>;

CudaLaunch to_launch(const LaunchRow& row) {
    const auto& [function, name, call, blocks, threads, together] = row;
    return {function, name, {call.c_str(), call.size()}, blocks, threads, together};
}

struct TurnContext {
    std::optional<LaunchTurn> turn;
};

void release_later(nb::typed<nb::callable, void()> free) {
    const Function kept(std::move(free));
    const Unlocked unlocked;
    release([kept] {
        const Locked locked;
        (*kept)();
    });
}

}  // namespace

void define_devices(nb::module_& m) {
    nb::register_exception_translator(&translate);

    nb::class_<TurnContext>(
        m, "LaunchTurn",
        "A context for all launches of a call; only one thread at a time is in it, and no device's "
        "memory is freed meanwhile.")
        .def(nb::init<>())
        .def("__enter__", [](TurnContext& self) { self.turn.emplace(); },
             nb::call_guard<Unlocked>())
        .def("__exit__",
             [](TurnContext& self, const nb::args&) {
                 const Unlocked unlocked;
                 self.turn.reset();
             },
             nb::sig("def __exit__(self, *args: object) -> None"));
    m.def("release", &release_later, "free"_a,
          "Calls a function that frees devices' memory, and raises nothing: now, or after the "
          "launches that are being made.");

    nb::class_<Lease>(m, "CudaResource", "What the driver made; freed with this object.")
        .def_ro("address", &Lease::address);
    m.def("start_cuda", &cuda::start, nb::call_guard<Unlocked>(),
          "Loads and starts NVIDIA's driver; RuntimeError if there is none.");
    m.def("lent_by", &lent_by, "capsule"_a,
          "Of a tensor in a capsule of DLPack: address, shape, strides in elements, the code and the "
          "bits of its type, and whether it may be written.");

    const nb::call_guard<Unlocked> unlocked;
    nb::class_<CudaDevice>(m, "CudaDevice",
                           "A GPU of this process, in its primary context. Addresses are those of "
                           "devices, streams and kernels. Errors of the driver are SleyErrors.")
        .def(nb::init<int>(), "ordinal"_a, unlocked)
        .def_static("count", &CudaDevice::count, unlocked)
        .def_static("driver_version", &CudaDevice::driver_version, unlocked)
        .def_prop_ro("name", &CudaDevice::name)
        .def_prop_ro("uuid", [](const CudaDevice& self) { return to_bytes(self.uuid()); })
        .def_prop_ro("multiprocessors", &CudaDevice::multiprocessors)
        .def_prop_ro("capability", &CudaDevice::capability)
        .def_prop_ro("device", &CudaDevice::device)
        .def_prop_ro("context", &CudaDevice::context)
        .def("allocate", [](CudaDevice& self, std::size_t n) -> Lease { return self.allocate(n); },
             "size_bytes"_a, unlocked)
        .def("allocate_host", &allocate_host, "size_bytes"_a)
        .def("register_host", &register_host, "array"_a)
        .def("write",
             [](CudaDevice& self, Address to, const Array<const std::uint8_t>& data) {
                 const Unlocked unlocked;
                 self.write(to, data.data(), data.size());
             },
             "to"_a, "data"_a)
        .def("read",
             [](CudaDevice& self, const Array<std::uint8_t>& data, Address from) {
                 const Unlocked unlocked;
                 self.read(data.data(), from, data.size());
             },
             "data"_a, "source"_a)
        .def("reach", &CudaDevice::reach, "other"_a, unlocked)
        .def("has_atomics_to", &CudaDevice::has_atomics_to, "device"_a, unlocked)
        .def("device_with",
             [](const CudaDevice& self, const nb::bytes& uuid) {
                 return self.device_with(from_bytes<cuda::Uuid>(uuid));
             },
             "uuid"_a)
        .def("lends", &CudaDevice::lends, "address"_a, "other"_a, unlocked)
        .def("place_of", &CudaDevice::place_of, "address"_a, unlocked)
        .def("has_multicast", &CudaDevice::has_multicast, unlocked)
        .def_static("window", &window, "devices"_a, "size_bytes"_a, unlocked,
                    "The addresses of the devices' parts, of all of them behind the switch, and "
                    "what keeps them.")
        .def("allocate_shared",
             [](CudaDevice& self, std::size_t n) -> Lease { return self.allocate_shared(n); },
             "size_bytes"_a, unlocked)
        .def("offset_of", &CudaDevice::offset_of, "address"_a, unlocked)
        .def("descriptor", &CudaDevice::descriptor, "address"_a, unlocked,
             "A file descriptor of mapped memory for other processes, which the caller closes; None "
             "for other memory.")
        .def("share",
             [](const CudaDevice& self, Address address) { return to_bytes(self.share(address)); },
             "address"_a)
        .def("attach_descriptor",
             [](CudaDevice& self, int descriptor, std::size_t n) -> Lease {
                 return self.attach(descriptor, n);
             },
             "descriptor"_a, "size_bytes"_a, unlocked)
        .def("attach",
             [](CudaDevice& self, const nb::bytes& handle) -> Lease {
                 const auto opened = from_bytes<cuda::IpcHandle>(handle);
                 const Unlocked unlocked;
                 return self.attach(opened);
             },
             "handle"_a)
        .def("load",
             [](const CudaDevice& self, const nb::bytes& code) {
                 const Unlocked unlocked;
                 return self.load(code.c_str());
             },
             "code"_a)
        .def("function", &CudaDevice::function, "module"_a, "name"_a, unlocked)
        .def("blocks_at_once", &CudaDevice::blocks_at_once, "function"_a, "threads"_a, unlocked)
        .def("stream", [](CudaDevice& self) -> Lease { return self.stream(); }, unlocked)
        .def("is_captured", &CudaDevice::is_captured, "stream"_a, unlocked)
        .def("launch",
             [](const CudaDevice& self, const LaunchRow& row, Address stream) {
                 const CudaLaunch launch = to_launch(row);
                 const Unlocked unlocked;
                 const cuda::Current current(self.context());
                 self.launch(launch, stream);
             },
             "launch"_a, "stream"_a)
        .def("synchronize", &CudaDevice::synchronize, "stream"_a.none(), unlocked);

    nb::class_<CudaOrder>(m, "CudaOrder", "Serialises calls on GPUs.")
        .def(nb::new_([](const Array<const std::uint8_t>& abort) {
                 const auto* word = reinterpret_cast<const std::atomic<std::uint64_t>*>(abort.data());
                 // At exit its events are the driver's, which may already be unloaded.
                 return std::shared_ptr<CudaOrder>(
                     new CudaOrder(word),
                     [kept = std::make_shared<Function>(nb::cast(abort))](CudaOrder* order) {
                         if (!is_python_ending()) delete order;
                     });
             }),
             "abort"_a)
        .def("wait", &CudaOrder::wait, unlocked, "Waits until all calls are done.");
    nb::class_<CudaCall>(m, "CudaCall", "A call on GPUs, which can be started many times.")
        .def("__init__",
             [](CudaCall* self, std::shared_ptr<CudaOrder> order, const StartRows& rows) {
                 std::vector<CudaStart> starts;
                 for (const auto& [device, launches] : rows) {
                     auto& start = starts.emplace_back(CudaStart{device, {}});
                     for (const auto& row : launches) start.launches.push_back(to_launch(row));
                 }
                 const Unlocked unlocked;  // who has the turn may need Python's lock to end it
                 new (self) CudaCall(std::move(order), std::move(starts));
             },
             "order"_a, "starts"_a, nb::keep_alive<1, 3>())
        .def("start", &CudaCall::start, "streams"_a, "recorded"_a, unlocked,
             "Starts the call, each start on its stream. recorded: whether the next call has to "
             "wait for this one. False, without a launch, if a call was given up.");
}

}  // namespace sley
