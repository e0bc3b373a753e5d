// Deferred free: frees devices' memory, but not while the launches of a call are half done.
//
// A free waits until the device is idle. A kernel that waits for another one, which isn't launched
// yet, would keep it waiting; and Python's garbage collector can free at any time, also between the
// two launches, in the thread that makes them.
#pragma once

#include <functional>

namespace sley {

// Frees now, or after the launches that are being made. free: throws nothing.
void release(std::function<void()> free);

// Holds frees back while a call launches. The launches of one call come after all of another's, on
// each device, whatever threads make the calls: only one thread at a time has such an object.
class LaunchTurn {
public:
    LaunchTurn();
    LaunchTurn(const LaunchTurn&) = delete;
    LaunchTurn& operator=(const LaunchTurn&) = delete;
    ~LaunchTurn();
};

}  // namespace sley
