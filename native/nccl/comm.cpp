#include "nccl/comm.hpp"

#include <algorithm>
#include <atomic>
#include <utility>

namespace sley::nccl {
namespace {

// A handle is an address in this array: whether one is sley's is a comparison, without a lock or a
// look into memory of others. Untouched pages of it cost nothing.
constexpr std::size_t kMost = 65536;
struct Place {
    std::atomic<Comm*> live;
    Comm* comm;  // also after its end
};
Place places[kMost];
std::mutex making;
std::size_t next = 0;

// One that failed after the real library had begun it stays: its caller ends it, as NCCL wants it.
void settle(const Group::Made& made, Result result) {
    if (!is_error(result) || made.comm->real() != nullptr) return;
    *made.out = nullptr;
    made.comm->end();
}

}  // namespace

Handle* Comm::handle() { return reinterpret_cast<Handle*>(&places[number_]); }

Comm* Comm::make() {
    const std::lock_guard lock(making);
    // In turn, so that a place is used again as late as possible. It ends: it tries each once.
    for (std::size_t tries = 0; tries < kMost; ++tries) {
        const auto number = next++ % kMost;
        auto& place = places[number];
        if (place.live.load(std::memory_order_relaxed) != nullptr) continue;
        if (place.comm == nullptr) place.comm = new Comm(number);
        __atomic_store_n(&place.comm->real_, nullptr, __ATOMIC_RELAXED);
        {
            const std::lock_guard lock_ops(place.comm->mutex_);
            place.comm->ops_.clear();
        }
        place.live.store(place.comm, std::memory_order_release);
        return place.comm;
    }
    return nullptr;
}

void Comm::end() { places[number_].live.store(nullptr, std::memory_order_release); }

Comm::Found Comm::find(const Handle* handle) {
    const auto at = reinterpret_cast<std::uintptr_t>(handle);
    const auto first = reinterpret_cast<std::uintptr_t>(places);
    if (at - first >= sizeof(places) || (at - first) % sizeof(Place) != 0) return {nullptr, false};
    return {places[(at - first) / sizeof(Place)].live.load(std::memory_order_acquire), true};
}

// A number says its communicator: another one doesn't take it for its own.
RedOp Comm::add_op(RedOp real) {
    const std::lock_guard lock(mutex_);
    const auto free = std::find(ops_.begin(), ops_.end(), RedOp{});
    const auto index = static_cast<std::size_t>(free - ops_.begin());
    if (index >= kMostOps) return RedOp{};
    if (free == ops_.end()) ops_.push_back(real);
    ops_[index] = real;
    return static_cast<RedOp>(kBuiltInOps + number_ + kMost * index);
}

bool Comm::find_op(RedOp& op, bool forgets) {
    if (static_cast<int>(op) < kBuiltInOps) return true;  // the real library judges negative ones
    const auto number = static_cast<std::size_t>(op) - kBuiltInOps;
    const std::lock_guard lock(mutex_);
    const auto index = number / kMost;
    if (number % kMost != number_ || index >= ops_.size() || ops_[index] == RedOp{}) return false;
    op = ops_[index];
    if (forgets) ops_[index] = RedOp{};
    return true;
}

thread_local Group group{};

void Group::add(Handle** out, Comm* comm, Result result) {
    if (depth > 0 && !is_error(result)) {
        if (made == nullptr) made = new std::vector<Made>;
        made->push_back({out, comm});
    } else {
        settle({out, comm}, result);
    }
}

void Group::end(Result result) {
    if (depth == 0 || --depth > 0 || made == nullptr) return;
    for (const auto& one : *made) settle(one, result);
    delete std::exchange(made, nullptr);
}

}  // namespace sley::nccl
