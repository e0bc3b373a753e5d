// UCX, loaded at run time.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "network/ucx_abi.hpp"

namespace sley {

// A rank's settings of UCX.
struct UcxSettings {
    std::string library;            // path of libucp.so.0
    std::vector<std::string> nics;  // names of this host's NICs
    std::size_t nic = 0;            // the number of this rank's NIC
    std::size_t frame_bytes = 0;    // of the longest payload
    std::chrono::milliseconds silence{0};  // after which a peer is cut off
};

class UcxLibrary {
public:
    // path: of libucp.so.0; throws std::system_error if it cannot be used. It stays loaded.
    explicit UcxLibrary(const std::string& path);

    std::string version() const;
    unsigned minor() const { return minor_; }
    // Throws std::system_error for an error.
    void check(ucp::Status status, const std::string& what) const;

    const ucp::Functions& operator()() const { return functions_; }

private:
    ucp::Functions functions_{};
    unsigned major_ = 0, minor_ = 0, release_ = 0;  // the version
};

// A NIC through UCX: a context that uses it alone, and a worker. Not movable.
class UcxRail {
public:
    UcxRail(std::shared_ptr<const UcxLibrary> library, const std::string& nic, std::size_t peers,
            const UcxSettings& settings);
    ~UcxRail();
    UcxRail(const UcxRail&) = delete;
    UcxRail& operator=(const UcxRail&) = delete;

    ucp::Worker worker() const { return worker_; }
    // Readable once something has come to an armed worker.
    int descriptor() const { return descriptor_; }
    std::string address() const;
    void handle(unsigned id, ucp::ActiveMessageCallback callback, void* argument) const;

private:
    std::shared_ptr<const UcxLibrary> library_;
    ucp::Context context_ = nullptr;
    ucp::Worker worker_ = nullptr;
    int descriptor_ = -1;
};

}  // namespace sley
