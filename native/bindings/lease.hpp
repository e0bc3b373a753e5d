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

// The same for what has memory of devices. needs: what lasts as long.
template <class T>
std::shared_ptr<T> on_devices(T* made, std::shared_ptr<void> needs = {}) {
    return {made, [needs = std::move(needs)](T* one) {
                if (is_python_ending()) return;
                const Unlocked unlocked;
                delete one;
            }};
}

}  // namespace sley
