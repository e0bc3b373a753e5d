#include "devices/deferred_free.hpp"

#include <condition_variable>
#include <deque>
#include <mutex>
#include <utility>

namespace sley {
namespace {

std::mutex g_lock;
std::condition_variable g_changed;
bool g_busy = false;  // a call launches, or a thread frees
std::deque<std::function<void()>> g_waiting;

// The thread that is busy, or this one, frees what waits: also what a free adds.
void free_all(std::unique_lock<std::mutex>& held) {
    while (!g_busy && !g_waiting.empty()) {
        auto free = std::move(g_waiting.front());
        g_waiting.pop_front();
        g_busy = true;
        held.unlock();
        free();
        free = nullptr;  // what it holds may be released with it
        held.lock();
        g_busy = false;
        g_changed.notify_one();
    }
}

}  // namespace

void release(std::function<void()> free) {
    std::unique_lock<std::mutex> held(g_lock);
    g_waiting.push_back(std::move(free));
    free_all(held);
}

LaunchTurn::LaunchTurn() {
    std::unique_lock<std::mutex> held(g_lock);
    g_changed.wait(held, [] { return !g_busy; });
    g_busy = true;
}

LaunchTurn::~LaunchTurn() {
    std::unique_lock<std::mutex> held(g_lock);
    g_busy = false;
    g_changed.notify_one();
    free_all(held);
}

}  // namespace sley
