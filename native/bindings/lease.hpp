// What devices make, for Python.
#pragma once

#include <unistd.h>

#include <memory>
#include <utility>

#include "bindings/python_lock.hpp"
#include "devices/device.hpp"

namespace sley {

// Whether what a process has made is left alone here: at its exit the driver frees, and may already be
// unloaded; in a forked child it is the parent's.
inline bool is_left(pid_t process) { return is_python_ending() || getpid() != process; }

// Frees without Python's lock, since that may wait for the device.
struct Lease : Resource {
    Lease(Resource made) : Resource(std::move(made)) {}
    Lease(Lease&&) = default;
    ~Lease() {
        if (owner == nullptr) return;
        if (is_left(process)) {
            new std::shared_ptr<void>(std::move(owner));
            return;
        }
        const Unlocked unlocked;
        owner.reset();
    }

    pid_t process = getpid();
};

// The same for what has memory of devices. needs: what lasts as long.
template <class T>
std::shared_ptr<T> on_devices(T* made, std::shared_ptr<void> needs = {}) {
    return {made, [needs = std::move(needs), process = getpid()](T* one) {
                if (is_left(process)) return;
                const Unlocked unlocked;
                delete one;
            }};
}

}  // namespace sley
