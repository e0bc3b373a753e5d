// The transports, for Python.
#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <chrono>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "bindings/bindings.hpp"
#include "network/pump.hpp"
#include "network/tcp.hpp"
#include "network/ucx.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace sley {
namespace {

using Clock = std::chrono::steady_clock;

std::vector<bool> remote_ranks(const Fabric& fabric) {
    std::vector<bool> remote;
    for (std::int32_t r = 0; r < fabric.shape().ranks(); ++r) remote.push_back(fabric.is_remote(r));
    return remote;
}

std::shared_ptr<Pump> attach(const std::shared_ptr<Fabric>& fabric, std::unique_ptr<Wire> wire) {
    auto pump = std::make_shared<Pump>(*fabric, std::move(wire));
    fabric->set_transport(pump);
    return pump;
}

// A host that is silent for half of the timeout is cut off: so this is known before the ranks that
// wait for it give up.
std::shared_ptr<Pump> make_tcp(const std::shared_ptr<Fabric>& fabric,
                               std::vector<std::string> nics, std::size_t nic, double timeout_s) {
    const auto silence = to_duration<std::chrono::milliseconds>(timeout_s / 2);
    return attach(fabric, std::make_unique<TcpWire>(fabric->rank(), remote_ranks(*fabric),
                                                    std::move(nics), nic, silence));
}

// UCX relies on the kernel, for which a host is also silent if its rank doesn't read. So it gets
// nearly the whole timeout.
std::shared_ptr<Pump> make_ucx(const std::shared_ptr<Fabric>& fabric,
                               std::vector<std::string> nics, std::size_t nic, double timeout_s,
                               std::string library) {
    UcxSettings settings;
    settings.library = std::move(library);
    settings.nics = std::move(nics);
    settings.nic = nic;
    settings.frame_bytes = static_cast<std::size_t>(fabric->shape().fifo.slot_bytes);
    settings.silence = to_duration<std::chrono::milliseconds>(timeout_s * 7 / 8);
    return attach(fabric, std::make_unique<UcxWire>(fabric->rank(), remote_ranks(*fabric),
                                                    std::move(settings)));
}

void check_signals() {
    const Locked locked;
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
}

void connect(Pump& pump, const std::vector<nb::bytes>& addresses, const nb::bytes& secret,
             double deadline_s) {
    Meeting meeting;
    for (const auto& a : addresses) meeting.addresses.emplace_back(a.c_str(), a.size());
    if (secret.size() != meeting.secret.size()) {
        throw std::invalid_argument("a secret must have 32 bytes");
    }
    std::memcpy(meeting.secret.data(), secret.c_str(), secret.size());
    meeting.deadline = Clock::now() + to_duration<Clock::duration>(deadline_s);
    meeting.glance = check_signals;
    const Unlocked unlocked;
    pump.connect(meeting);
}

}  // namespace

void define_network(nb::module_& m) {
    nb::class_<Transport>(m, "Transport");
    nb::class_<Pump, Transport>(m, "NetworkTransport")
        .def_prop_ro(
            "address",
            [](const Pump& self) {
                return nb::bytes(self.address().data(), self.address().size());
            },
            "The address by which other ranks find this one.")
        .def("connect", &connect, "addresses"_a, "secret"_a, "deadline_s"_a,
             "Connects to all ranks of other hosts; OSError, which names ranks that don't connect "
             "in time.")
        .def("close", &Pump::close, "wait_s"_a, nb::call_guard<Unlocked>(),
             "Tells the other ranks, for at most `wait_s`, that this one leaves; then ends.");
    m.def("tcp_transport", &make_tcp, "fabric"_a, "nics"_a, "nic"_a, "timeout_s"_a,
          nb::keep_alive<0, 1>(),
          "Lets `fabric` reach other hosts over TCP. nics: IP addresses of this host; this rank "
          "uses number `nic`.");
    m.def("ucx_transport", &make_ucx, "fabric"_a, "nics"_a, "nic"_a, "timeout_s"_a, "library"_a,
          nb::keep_alive<0, 1>(),
          "Lets `fabric` reach other hosts over UCX. nics: names of this host's NICs; this rank "
          "uses number `nic`. library: path of libucp.so.0; OSError if it cannot be used.");
    m.def(
        "ucx_version", [](const std::string& library) { return UcxLibrary(library).version(); },
        "library"_a, "The version of a libucp.so.0; OSError if it cannot be used.");
}

}  // namespace sley
