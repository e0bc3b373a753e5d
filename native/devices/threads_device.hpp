// Threads of this process as a device: a stream is a thread, and so is each block of a kernel.
#pragma once

#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "devices/device.hpp"

namespace sley {

class ThreadsStream;

// A kernel started fewer threads than it has blocks, and gave up its call.
struct TooFewThreads : std::runtime_error {
    TooFewThreads(unsigned wanted, int started)
        : std::runtime_error("too few threads"), wanted(wanted), started(started) {}

    unsigned wanted;
    int started;
};

// A kernel is a function `int kernel(const void* call, int blocks)`, which runs its blocks as threads
// and returns their number when all have ended. Addresses of memory are those of the process.
//
// What a kernel throws, and TooFewThreads, is thrown by the next `synchronize` of its stream, or `join`
// of an event on it. A stream that is freed still runs what was launched on it. After a fork, a stream
// that was used before has no thread in the child. Failures of the system are std::system_error.
class ThreadsDevice : public Device {
public:
    // Throws Refusal (K507) if memory runs out.
    Resource allocate(std::size_t bytes) override;
    Resource allocate_host(std::size_t bytes) override { return allocate(bytes); }
    Resource register_host(void* address, std::size_t, std::shared_ptr<void> keeps) override {
        return {reinterpret_cast<std::uintptr_t>(address), std::move(keeps)};
    }
    // In a file without a name; likewise.
    Resource allocate_shared(std::size_t bytes) override;
    int export_memory(const Resource& memory) const override;
    // Throws Refusal (K514) for a descriptor of no memory.
    Resource attach(int descriptor, std::size_t bytes) override;
    const std::string& name() const override { return name_; }
    std::string identity() const override { return name_; }
    // On CPUs a line's flag is stored after its data.
    bool carries_lines(const std::string&) const override { return true; }
    void write(std::uintptr_t to, const void* from, std::size_t bytes) override;
    void read(void* to, std::uintptr_t from, std::size_t bytes) override;
    bool lends(std::uintptr_t, const Device&) const override { return true; }

    // The address of a function of a shared object, which stays loaded until the process ends.
    // Throws std::invalid_argument if there is none.
    static std::uintptr_t function(const std::string& path, const std::string& name);

    Resource stream() override;
    // Waits also for streams that are freed.
    void synchronize(std::optional<Stream> stream) const override;
    Resource event() const override;
    StreamState look(Stream stream, std::optional<std::uint64_t> known) const override;
    void wait(Stream stream, Event event, bool is_captured) const override;
    void record(Event event, Stream stream, bool is_captured) const override;
    bool is_done(Event event) const override;
    void join(Event event) const override;
    double part(const Launch&) const override { return 0; }
    void launch(const Launch& launch, Stream stream) const override;

private:
    const std::string name_ = "threads";
    mutable std::mutex lock_;
    std::vector<std::weak_ptr<ThreadsStream>> streams_;
};

}  // namespace sley
