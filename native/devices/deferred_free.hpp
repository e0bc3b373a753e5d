// Deferred free: frees devices' memory, but not while the launches of a call are half done, nor
// while a call is under way.
//
// A free waits until the device is idle, as loads and allocations may. A kernel that waits for
// another one, which isn't launched yet, would keep it waiting: the next launch of the same call,
// or the launch of another rank, by a thread or process that waits for this one. And Python's
// garbage collector can free at any time, in any thread.
#pragma once

#include <functional>

namespace sley {

// Frees now, or later: when no launches are being made, and no call is under way. free: throws
// nothing.
void release(std::function<void()> free);

// Frees what waits, if it can be freed now.
void free_released();

// Calls that may be under way: `is_over` says whether none is, at any time when no launches are being
// made; until `forget`. key: identifies them.
void watch(const void* key, std::function<bool()> is_over);
void forget(const void* key);

// Holds frees back while a call launches, or while memory or code is made, for which the driver may
// wait, too. The launches of one call come after all of another's, on each device, whatever threads
// make the calls: only one thread at a time has such an object.
class LaunchTurn {
public:
    LaunchTurn();
    LaunchTurn(const LaunchTurn&) = delete;
    LaunchTurn& operator=(const LaunchTurn&) = delete;
    ~LaunchTurn();
};

}  // namespace sley
