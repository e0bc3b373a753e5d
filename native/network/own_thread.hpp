// Threads of sley's own in a program's process.
#pragma once

#include <pthread.h>
#include <signal.h>

#include <system_error>
#include <thread>
#include <utility>

#include "devices/refusal.hpp"

namespace sley {

// A thread that blocks all signals: the program's handlers don't run in a thread that it doesn't know.
// Throws Refusal (N610) if the system has none left.
template <class Work>
std::thread own_thread(Work work) {
    struct Blocked {
        sigset_t all, before;
        Blocked() {
            sigfillset(&all);
            pthread_sigmask(SIG_SETMASK, &all, &before);  // a thread inherits it
        }
        ~Blocked() { pthread_sigmask(SIG_SETMASK, &before, nullptr); }
    } blocked;
    try {
        return std::thread(std::move(work));
    } catch (const std::system_error& why) {
        throw Refusal("N610", "a thread for a communicator", why.code().message(), {},
                      "Raise the limits of threads (ulimit -u, pids.max) and of memory.");
    }
}

}  // namespace sley
