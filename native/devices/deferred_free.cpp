#include "devices/deferred_free.hpp"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <utility>

namespace sley {
namespace {

std::mutex g_lock;
std::condition_variable g_changed;
bool g_busy = false;  // a call launches, or a thread frees
// What waits at exit is the driver's, which may already be unloaded, and Python's.
auto& g_waiting = *new std::deque<std::function<void()>>;
auto& g_calls = *new std::map<const void*, std::function<bool()>>;

bool are_calls_over() {
    return std::all_of(g_calls.begin(), g_calls.end(), [](const auto& each) { return each.second(); });
}

// The thread that is busy, or this one, frees what waits: also what a free adds.
void free_all(std::unique_lock<std::mutex>& held) {
    while (!g_busy && !g_waiting.empty() && are_calls_over()) {
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

void free_released() {
    std::unique_lock<std::mutex> held(g_lock);
    free_all(held);
}

void watch(const void* key, std::function<bool()> is_over) {
    const std::lock_guard<std::mutex> held(g_lock);
    g_calls[key] = std::move(is_over);
}

void forget(const void* key) {
    const std::lock_guard<std::mutex> held(g_lock);
    g_calls.erase(key);
}

LaunchTurn::LaunchTurn() {
    std::unique_lock<std::mutex> held(g_lock);
    const auto wait = [&held] { g_changed.wait(held, [] { return !g_busy; }); };
    wait();
    free_all(held);  // now, or never while calls follow one another
    wait();
    g_busy = true;
}

LaunchTurn::~LaunchTurn() {
    std::unique_lock<std::mutex> held(g_lock);
    g_busy = false;
    g_changed.notify_one();
    free_all(held);
}

}  // namespace sley
