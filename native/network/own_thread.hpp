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
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);  // a thread inherits it
    try {
        std::thread made(std::move(work));
        pthread_sigmask(SIG_SETMASK, &before, nullptr);
        return made;
    } catch (const std::system_error& why) {
        pthread_sigmask(SIG_SETMASK, &before, nullptr);
        throw Refusal("N610", "a thread for a communicator", why.code().message(), {},
                      "Raise the limits of threads (ulimit -u, pids.max) and of memory.");
    }
}

}  // namespace sley
