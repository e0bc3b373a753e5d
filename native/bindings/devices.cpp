// Devices, for Python: GPUs and threads, calls on them, and what frees their memory.
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
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings/arrays.hpp"
#include "bindings/bindings.hpp"
#include "devices/call_order.hpp"
#include "devices/cuda_device.hpp"
#include "devices/deferred_free.hpp"
#include "devices/threads_device.hpp"

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

// Objects that streams have let go, which Python's main thread drops as soon as it can, or whoever
// prepares a call or synchronises: a stream never waits for Python's lock. Threads use this at exit.
std::mutex g_lock;
auto& g_dropped = *new std::vector<PyObject*>;

int drop(void* = nullptr) {
    std::unique_lock<std::mutex> held(g_lock);
    const auto objects = std::exchange(g_dropped, {});
    held.unlock();
    for (PyObject* object : objects) Py_DECREF(object);
    return 0;
}

void let_go(void* object) {
    if (is_python_ending()) return;
    if (PyGILState_Check() != 0) return Py_DECREF(static_cast<PyObject*>(object));
    const std::lock_guard<std::mutex> held(g_lock);
    g_dropped.push_back(static_cast<PyObject*>(object));
    // Python may be unable to take it down, and its main thread may wait for long.
    if (g_dropped.size() == 1) Py_AddPendingCall(&drop, nullptr);
}

void translate(const std::exception_ptr& error, void*) {
    nb::object failure;
    const auto of = [](const char* module, const char* function) {
        return nb::module_::import_(module).attr(function);
    };
    try {
        std::rethrow_exception(error);
    } catch (const cuda::Error& e) {
        failure = of("sley.engine.devices.cuda.driver", "failure")(e.function, e.name, e.words,
                                                                   e.doing, e.subject);
    } catch (const TooFewThreads& e) {
        failure = of("sley.engine.devices.threads", "too_few")(e.wanted, e.started);
    }
    PyErr_SetObject(failure.type().ptr(), failure.ptr());
}

// Function, its name, the argument, blocks, threads, whether the blocks are together, and what
// threads keep until the kernel has ended.
using LaunchRow = std::tuple<Address, std::string, nb::bytes, unsigned, unsigned, bool, nb::object>;

Launch to_launch(const LaunchRow& row) {
    const auto& [function, name, call, blocks, threads, together, keeps] = row;
    const std::string argument(call.c_str(), call.size());
    return {function, name,     argument, blocks,
            threads,  together, for_streams(keeps)};
}

void release_later(nb::typed<nb::callable, void()> free) {
    const Function kept(std::move(free));
    const Unlocked unlocked;
    release([kept] {
        const Locked locked;
        (*kept)();
    });
}

}  // namespace

std::shared_ptr<void> for_streams(nb::object object) {
    drop();
    return {object.release().ptr(), &let_go};
}

void define_devices(nb::module_& m) {
    nb::register_exception_translator(&translate);

    m.def("release", &release_later, "free"_a,
          "Calls a function that frees devices' memory, and raises nothing: now, or after the "
          "launches that are being made.");

    nb::class_<Lease>(m, "Resource", nb::is_weak_referenceable(),
                      "What a device made; freed with this object. descriptor: of the file in which "
                      "memory is; -1 if it is in none.")
        .def_ro("address", &Lease::address)
        .def_ro("descriptor", &Lease::descriptor)
        .def("array",
             [](nb::handle self, Address address, std::size_t size_bytes) {
                 return Array<std::uint8_t>(at(address), {size_bytes}, self);
             },
             "address"_a, "size_bytes"_a, "Bytes of memory of the host, which keep this object.");
    m.def("start_cuda", &cuda::start, nb::call_guard<Unlocked>(),
          "Loads and starts NVIDIA's driver; RuntimeError if there is none.");

    const nb::call_guard<Unlocked> unlocked;
    nb::class_<Device>(m, "Device",
                       "A GPU, or threads of this process. Addresses are those of memory, streams "
                       "and kernels. What devices fail to do are SleyErrors, or OSErrors of threads.")
        .def("allocate", [](Device& self, std::size_t n) -> Lease { return self.allocate(n); },
             "size_bytes"_a, unlocked)
        .def("allocate_host",
             [](Device& self, std::size_t n) -> Lease { return self.allocate_host(n); },
             "size_bytes"_a, unlocked)
        .def("write",
             [](Device& self, Address to, const Array<const std::uint8_t>& data) {
                 self.write(to, data.data(), data.size());
             },
             "to"_a, "data"_a, unlocked)
        .def("read",
             [](Device& self, const Array<std::uint8_t>& data, Address from) {
                 self.read(data.data(), from, data.size());
             },
             "data"_a, "source"_a, unlocked)
        .def("lends", &Device::lends, "address"_a, "other"_a, unlocked)
        .def("stream", [](Device& self) -> Lease { return self.stream(); }, unlocked)
        .def("launch",
             [](const Device& self, const LaunchRow& row, Address stream) {
                 const Launch launch = to_launch(row);
                 const Unlocked unlocked;
                 const cuda::Current current(self.context());
                 self.launch(launch, stream);
             },
             "launch"_a, "stream"_a)
        .def("synchronize",
             [](const Device& self, std::optional<Address> stream) {
                 {
                     const Waiting waiting;
                     self.synchronize(stream);
                 }
                 raise_if_interrupted();
                 drop();
             },
             "stream"_a.none());

    nb::class_<ThreadsDevice, Device>(m, "ThreadsDevice", "Threads of this process.")
        .def(nb::init<>())
        .def_static("attach",
                    [](int fd, std::size_t n) -> Lease { return ThreadsDevice::attach(fd, n); },
                    "descriptor"_a, "size_bytes"_a,
                    "The begin of another process's memory, by a descriptor, which stays the caller's.")
        .def_static("function", &ThreadsDevice::function, "path"_a, "name"_a,
                    "The address of a function of a shared object, which stays loaded.");

    nb::class_<CudaDevice, Device>(m, "CudaDevice",
                                   "A GPU of this process, in its primary context.")
        .def(nb::init<int>(), "ordinal"_a, unlocked)
        .def_static("count", &CudaDevice::count, unlocked)
        .def_static("driver_version", &CudaDevice::driver_version, unlocked)
        .def_prop_ro("name", &CudaDevice::name)
        .def_prop_ro("uuid", [](const CudaDevice& self) { return to_bytes(self.uuid()); })
        .def_prop_ro("multiprocessors", &CudaDevice::multiprocessors)
        .def_prop_ro("capability", &CudaDevice::capability)
        .def_prop_ro("device", &CudaDevice::device)
        .def_prop_ro("context", &CudaDevice::context)
        .def("register_host", &register_host, "array"_a)
        .def("reach", &CudaDevice::reach, "other"_a, unlocked)
        .def("has_atomics_to", &CudaDevice::has_atomics_to, "device"_a, unlocked)
        .def("device_with",
             [](const CudaDevice& self, const nb::bytes& uuid) {
                 return self.device_with(from_bytes<cuda::Uuid>(uuid));
             },
             "uuid"_a)
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
        .def("is_captured", &CudaDevice::is_captured, "stream"_a, unlocked);

    nb::class_<CallOrder>(m, "CallOrder", "Serialises calls on devices.")
        .def(nb::new_([](const Array<const std::uint8_t>& abort) {
                 const auto* word = reinterpret_cast<const std::atomic<std::uint64_t>*>(abort.data());
                 // At exit its events are the driver's, which may already be unloaded.
                 return std::shared_ptr<CallOrder>(
                     new CallOrder(word),
                     [kept = std::make_shared<Function>(nb::cast(abort))](CallOrder* order) {
                         if (!is_python_ending()) delete order;
                     });
             }),
             "abort"_a)
        .def("wait",
             [](const CallOrder& self) {
                 {
                     const Waiting waiting;
                     self.wait();
                 }
                 raise_if_interrupted();
                 drop();
             },
             "Waits until all calls are done, on whatever streams; others may start meanwhile. "
             "Where a call was captured, waits for all work of the devices, since nothing tells "
             "that a graph runs.");
}

}  // namespace sley
