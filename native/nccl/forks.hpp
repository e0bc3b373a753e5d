// What a forked child doesn't share with its parent.
#pragma once

#include <pthread.h>

#include <atomic>
#include <memory>

namespace sley::nccl {

// How many forks lie between the process that loaded this library and this one, from the first call on.
inline unsigned forks() {
    static std::atomic<unsigned> count{0};
    static const int counted = pthread_atfork(nullptr, nullptr, [] { ++count; });
    (void)counted;  // it fails without memory only
    return count;
}

// A value of this process; a child gets a new one, since another thread of the parent may have held the
// value's lock. Never destroyed: clients call until the process ends.
template <class Value>
class OfProcess {
public:
    Value* operator->() {
        const auto now = forks();
        auto* found = made_.load(std::memory_order_acquire);
        if (found != nullptr && found->forks == now) return &found->value;
        auto fresh = std::make_unique<Made>();
        fresh->forks = now;
        if (made_.compare_exchange_strong(found, fresh.get())) found = fresh.release();
        return &found->value;
    }
    Value& operator*() { return *operator->(); }

private:
    struct Made {
        unsigned forks = 0;
        Value value{};
    };
    std::atomic<Made*> made_{nullptr};
};

}  // namespace sley::nccl
