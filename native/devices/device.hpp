// What a device does: a GPU, or threads of this process.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>

namespace sley {

// What a device made: memory, a stream, an event, by its address or handle; it is freed with its
// last owner, or when no call is under way (deferred_free.hpp). A failure to free is ignored, since
// no caller could handle it: the device has failed, and its next use gets the error.
struct Resource {
    std::uintptr_t address = 0;
    std::shared_ptr<void> owner;
};

// A kernel, and how it is launched. call: its one argument, by value. together: whether all blocks
// must be resident at the same time (a cooperative launch). keeps: what threads keep until the
// kernel has ended; on GPUs whoever frees memory of a device waits for it.
struct Launch {
    std::uintptr_t function;
    std::string name;
    std::string call;
    unsigned blocks, threads;
    bool together;
    std::shared_ptr<void> keeps;
};

// A stream as a call finds it. number: no other stream ever has it. capture: the number of the
// capture that the stream is in, if it is captured; then `number` isn't set.
struct StreamState {
    std::uint64_t number = 0, capture = 0;
    bool is_captured = false;
};

// Memory that a caller allocated, as other processes map it: a whole allocation. id: no other one of
// the process has it. handle, descriptor: of CUDA IPC, or of a file, which is the receiver's to close;
// without either others can't map it.
struct Shown {
    std::uintptr_t address;
    std::size_t bytes;
    std::uint64_t id = 0;
    std::string handle = {};
    int descriptor = -1;
};

// Runs kernels on streams: those of a stream one after the other.
class Device {
public:
    using Stream = std::uintptr_t;
    using Event = std::uintptr_t;

    Device() = default;
    Device(const Device&) = delete;
    Device& operator=(const Device&) = delete;
    virtual ~Device() = default;

    // Memory filled with zeros: the device's, aligned to 256 bytes, and the host's, at one address
    // on the host and on all devices of its kind.
    virtual Resource allocate(std::size_t bytes) = 0;
    virtual Resource allocate_host(std::size_t bytes) = 0;
    // The same of memory that the process has mapped. keeps: what keeps it mapped.
    virtual Resource register_host(void* address, std::size_t bytes, std::shared_ptr<void> keeps) = 0;

    // Memory as `allocate` makes it, for devices of all processes that reach this one already.
    virtual Resource allocate_shared(std::size_t bytes) = 0;
    // A file descriptor of such memory, for other processes; the caller closes it.
    virtual int export_memory(const Resource& memory) const = 0;
    // The memory of a descriptor, which stays the caller's.
    virtual Resource attach(int descriptor, std::size_t bytes) = 0;
    // The allocation behind a piece of the caller's memory; just the piece if others can't map that.
    virtual Shown show(std::uintptr_t address, std::size_t bytes) const { return {address, bytes}; }
    // The memory of a handle of another process; a process can't open its own.
    virtual Resource open(const std::string&) { throw std::logic_error("a device without handles"); }
    virtual const std::string& name() const = 0;
    // By what devices of other processes know it.
    virtual std::string identity() const = 0;
    // Whether the 128 bytes that a warp on this device stores at once, which LL128 relies on, arrive
    // as a whole in memory of the device with this identity.
    virtual bool carries_lines(const std::string& identity) const = 0;

    virtual void write(std::uintptr_t to, const void* from, std::size_t bytes) = 0;
    virtual void read(void* to, std::uintptr_t from, std::size_t bytes) = 0;

    // Lets kernels on this device access memory of another one of the process, whatever made it, and
    // what the other allocates for several processes from now on.
    virtual void reach(Device&) {}
    // Whether another device of the process, which reaches this one, can access the caller's memory
    // at an address of this one.
    virtual bool lends(std::uintptr_t address, const Device& other) const = 0;

    virtual Resource stream() = 0;
    // Waits for a stream; without one for all.
    virtual void synchronize(std::optional<Stream> stream) const = 0;

    // NVIDIA's context in which the functions from here on are called; 0 if they need none.
    virtual std::uintptr_t context() const { return 0; }
    virtual Resource event() const = 0;
    // known: the number of a stream that is known to be the device's.
    virtual StreamState look(Stream stream, std::optional<std::uint64_t> known) const = 0;
    // Lets what is launched on the stream later wait for where the event was last recorded.
    virtual void wait(Stream stream, Event event, bool is_captured) const = 0;
    virtual void record(Event event, Stream stream, bool is_captured) const = 0;
    // Whether all is done before the event was last recorded outside captures.
    virtual bool is_done(Event event) const = 0;
    // Waits until it is, as `synchronize`; the context needn't be current.
    virtual void join(Event event) const = 0;
    // The part of the device that a launch's blocks take while they run; 0: none that others lack.
    virtual double part(const Launch& launch) const = 0;
    // Doesn't wait for the kernel.
    virtual void launch(const Launch& launch, Stream stream) const = 0;
};

}  // namespace sley
