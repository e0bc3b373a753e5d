// What devices make, for Python.
#pragma once

#include <memory>
#include <utility>

#include "bindings/python_lock.hpp"
#include "devices/device.hpp"

namespace sley {

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

}  // namespace sley
