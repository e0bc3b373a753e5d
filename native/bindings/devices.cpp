// Devices, for Python: GPUs, and what frees their memory.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

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

template <class Handle>
Handle to_handle(Address address) {
    return reinterpret_cast<Handle>(address);
}

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
    auto* const address = to_handle<std::uint8_t*>(nb::cast<const Lease&>(owner).address);
    return Array<std::uint8_t>(address, {bytes}, owner);
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

struct TurnContext {
    std::optional<LaunchTurn> turn;
};

void release_later(nb::typed<nb::callable, void()> free) {
    release([kept = Function(std::move(free))] {
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
        .def_prop_ro("context", [](const CudaDevice& self) { return Address(self.context()); })
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
        .def("share",
             [](const CudaDevice& self, Address address) {
                 const auto [handle, offset] = self.share(address);
                 return std::make_pair(to_bytes(handle), offset);
             },
             "address"_a)
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
                 return Address(self.load(code.c_str()));
             },
             "code"_a)
        .def("function",
             [](const CudaDevice& self, Address module, const std::string& name) {
                 return Address(self.function(to_handle<cuda::Module>(module), name));
             },
             "module"_a, "name"_a, unlocked)
        .def("blocks_at_once",
             [](const CudaDevice& self, Address function, int threads) {
                 return self.blocks_at_once(to_handle<cuda::Function>(function), threads);
             },
             "function"_a, "threads"_a, unlocked)
        .def("stream", [](CudaDevice& self) -> Lease { return self.stream(); }, unlocked)
        .def("event", [](CudaDevice& self) -> Lease { return self.event(); }, unlocked)
        .def("is_captured",
             [](const CudaDevice& self, Address stream) {
                 return self.is_captured(to_handle<cuda::Stream>(stream));
             },
             "stream"_a, unlocked)
        .def("record",
             [](const CudaDevice& self, Address event, Address stream) {
                 self.record(to_handle<cuda::Event>(event), to_handle<cuda::Stream>(stream));
             },
             "event"_a, "stream"_a, unlocked)
        .def("wait",
             [](const CudaDevice& self, Address stream, Address event) {
                 self.wait(to_handle<cuda::Stream>(stream), to_handle<cuda::Event>(event));
             },
             "stream"_a, "event"_a, unlocked)
        .def("launch",
             [](const CudaDevice& self, Address function, const std::string& name,
                const nb::bytes& call, unsigned blocks, unsigned threads, bool together,
                Address stream) {
                 const CudaLaunch launch{to_handle<cuda::Function>(function), name,
                                         {call.c_str(), call.size()}, blocks, threads, together};
                 const Unlocked unlocked;
                 self.launch(launch, to_handle<cuda::Stream>(stream));
             },
             "function"_a, "name"_a, "call"_a, "blocks"_a, "threads"_a, "together"_a, "stream"_a)
        .def("synchronize",
             [](const CudaDevice& self, std::optional<Address> stream) {
                 if (stream) return self.synchronize(to_handle<cuda::Stream>(*stream));
                 self.synchronize();
             },
             "stream"_a.none(), unlocked);
}

}  // namespace sley
