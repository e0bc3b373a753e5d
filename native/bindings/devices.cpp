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
#include "bindings/lease.hpp"
#include "devices/call_order.hpp"
#include "devices/cuda_device.hpp"
#include "devices/cuda_errors.hpp"
#include "devices/deferred_free.hpp"
#include "devices/processes.hpp"
#include "devices/threads_device.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace sley {
namespace {

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
    const nb::object failure = sley_error_of(error);
    try {
        if (failure.is_none()) std::rethrow_exception(error);
    } catch (const Interrupted&) {  // Python has the error of the signal's handler
        return;
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

}  // namespace

nb::object sley_error_of(const std::exception_ptr& error) {
    const auto of = [](const char* module, const char* function) {
        return nb::module_::import_(module).attr(function);
    };
    const auto refused = [of](const Refusal& e) -> nb::object {
        const nb::object rule = of("sley.errors.catalog", "all_rules")()[e.rule.c_str()];
        nb::list places;
        if (!e.place.empty()) places.append(of("sley.errors", "Place")("detail"_a = e.place));
        return rule.attr("error")("expected"_a = e.expected, "found"_a = e.found, "at"_a = places,
                                  "remedy"_a = e.remedy);
    };
    try {
        std::rethrow_exception(error);
    } catch (const cuda::Error& e) {
        return refused(cuda::refusal_of(e));
    } catch (const TooFewThreads& e) {
        return of("sley.engine.devices.threads", "too_few")(e.wanted, e.started);
    } catch (const Refusal& e) {
        return refused(e);
    } catch (const Told& e) {
        nb::list refusals;
        for (const auto& each : e.refusals) refusals.append(nb::bytes(each.data(), each.size()));
        return of("sley.engine.devices.device_ranks", "read_refusals")(refusals);
    } catch (const nb::python_error& e) {
        const bool is_told = nb::isinstance(e.value(), of("sley.errors", "SleyError"));
        return is_told ? nb::borrow(e.value()) : nb::none();
    } catch (...) {
        return nb::none();
    }
}

std::shared_ptr<void> for_streams(nb::object object) {
    drop();
    return {object.release().ptr(), &let_go};
}

void define_devices(nb::module_& m) {
    nb::register_exception_translator(&translate);

    nb::class_<Lease>(m, "Resource", nb::is_weak_referenceable(),
                      "What a device made; freed with this object.")
        .def_ro("address", &Lease::address)
        .def("array",
             [](nb::handle self, Address address, std::size_t size_bytes) {
                 return Array<std::uint8_t>(at(address), {size_bytes}, self);
             },
             "address"_a, "size_bytes"_a, "Bytes of memory of the host, which keep this object.");
    m.def("start_cuda", &cuda::start, nb::call_guard<Unlocked>(),
          "Loads and starts NVIDIA's driver. K501 if it is missing or doesn't start, K510 if it has no "
          "device.");

    const nb::call_guard<Unlocked> unlocked;
    nb::class_<Device>(m, "Device",
                       "A GPU, or threads of this process. Addresses are those of memory, streams "
                       "and kernels. What devices fail to do are SleyErrors, or OSErrors of threads.")
        .def("allocate", [](Device& self, std::size_t n) -> Lease { return self.allocate(n); },
             "size_bytes"_a, unlocked)
        .def("allocate_host",
             [](Device& self, std::size_t n) -> Lease { return self.allocate_host(n); },
             "size_bytes"_a, unlocked)
        .def("allocate_shared",
             [](Device& self, std::size_t n) -> Lease { return self.allocate_shared(n); },
             "size_bytes"_a, unlocked, "Memory that other processes attach.")
        .def("export_memory", [](const Device& self, const Lease& m) { return self.export_memory(m); },
             "memory"_a, unlocked, "A file descriptor of it, which the caller closes.")
        .def("attach", [](Device& self, int fd, std::size_t n) -> Lease { return self.attach(fd, n); },
             "descriptor"_a, "size_bytes"_a, unlocked,
             "Another process's memory, by a descriptor, which stays the caller's.")
        .def_prop_ro("identity",
                     [](const Device& self) {
                         const auto identity = self.identity();
                         return nb::bytes(identity.data(), identity.size());
                     })
        .def("carries_lines",
             [](const Device& self, const nb::bytes& identity) {
                 return self.carries_lines({identity.c_str(), identity.size()});
             },
             "identity"_a)
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
                 drop();
             },
             "stream"_a.none());

    nb::class_<ThreadsDevice, Device>(m, "ThreadsDevice", "Threads of this process.")
        .def(nb::init<>())
        .def_static("function", &ThreadsDevice::function, "path"_a, "name"_a,
                    "The address of a function of a shared object, which stays loaded.");

    nb::class_<CudaDevice, Device>(m, "CudaDevice",
                                   "A GPU of this process, in its primary context.")
        .def(nb::init<int>(), "ordinal"_a, unlocked)
        .def_static("count", &CudaDevice::count, unlocked)
        .def_static("queues", &CudaDevice::queues,
                    "Onto how many the driver maps a device's streams, as the environment says when "
                    "first asked.")
        .def_static("multiprocessors_of", &CudaDevice::multiprocessors_of, "ordinal"_a, unlocked,
                    "Without a context, as is_line_carried.")
        .def_static("is_line_carried", &CudaDevice::is_line_carried, "origin"_a, "to"_a, unlocked,
                    "Whether a line of LL128 arrives as a whole, between two of the devices.")
        .def_static("driver_version", &CudaDevice::driver_version, unlocked)
        .def_prop_ro("name", &CudaDevice::name)
        .def_prop_ro("multiprocessors", &CudaDevice::multiprocessors)
        .def_prop_ro("capability", &CudaDevice::capability)
        .def_prop_ro("device", &CudaDevice::device)
        .def_prop_ro("context", &CudaDevice::context)
        .def("reach", &CudaDevice::reach, "other"_a, unlocked)
        .def("has_multicast", &CudaDevice::has_multicast, unlocked)
        .def_static("window", &window, "devices"_a, "size_bytes"_a, unlocked,
                    "The addresses of the devices' parts, of all of them behind the switch, and "
                    "what keeps them.")
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
                 return on_devices(new CallOrder(word),
                                   std::make_shared<Function>(nb::cast(abort)));
             }),
             "abort"_a)
        .def("wait",
             [](const CallOrder& self) {
                 {
                     const Waiting waiting;
                     self.wait();
                 }
                 drop();
             },
             "Waits until all calls are done, on whatever streams; others may start meanwhile. "
             "Where a call was captured, waits for all work of the devices, since nothing tells "
             "that a graph runs.")
        .def("is_idle", &CallOrder::is_idle, nb::call_guard<Waiting>(),
             "Whether no call is under way; False if calls were captured.");
}

}  // namespace sley
