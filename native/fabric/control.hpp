// What the ranks of a job tell one another beside messages: who failed first, who has arrived at
// the barrier, what each is at, and its heartbeat; and `Patience`, which says how long one waits.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "fabric/bell.hpp"
#include "fabric/fifo.hpp"

namespace sley {

// kMismatched: the rank calls something else than the rank that noticed. kLeft: it has closed its
// communicator. kCut: the network doesn't reach it any more. kNoMemory: it has none for a call.
// kGaveUp: it was told to. kUnreadable: memory of its call isn't there.
enum class Failure : std::int32_t {
    kNone, kStalled, kDied, kMismatched, kLeft, kCut, kNoMemory, kGaveUp, kUnreadable
};

// What a rank is at: the number of its call, from 1 on, and two words that must be the same on all
// ranks (for the engine they mean nothing).
struct CallRecord {
    std::uint64_t sequence = 0, what = 0, count = 0;
    // What the record of a rank says that does this call without a plan; 0: none does. Others don't
    // see it.
    std::uint64_t unplanned = 0;

    bool same_as(const CallRecord& other) const {
        return what == other.what && count == other.count;
    }

    bool allows(const CallRecord& other) const {
        return unplanned != 0 && other.what == unplanned;
    }

    // A message carries this, never 0 for a call with a number.
    std::uint32_t signature() const {
        if (sequence == 0) return 0;
        std::uint64_t h = sequence * 0x9e3779b97f4a7c15u ^ what * 0xc2b2ae3d27d4eb4fu ^
                          count * 0x165667b19e3779f9u;
        h ^= h >> 29;
        h *= 0xbf58476d1ce4e5b9u;
        return static_cast<std::uint32_t>(h >> 32) | 1u;
    }
};

// Words in which rank 0 says how calls go: a cache line for two calls.
constexpr std::size_t kWayWords = 4;

// The head of a rank's memory, zeroed at the start. `failure` is written by anybody, the rest by
// the rank alone (or by what pumps its news from another host). `beat` counts the rounds in which
// the rank moved something: a rank that waits looks at the others' beats, since a plan in which
// anybody moves is slow but not stuck.
struct alignas(kCacheLine) RankState {
    std::atomic<std::uint64_t> failure;  // 0, or kind << 32 | rank
    alignas(kCacheLine) std::atomic<std::uint64_t> arrived;
    std::atomic<std::uint64_t> beat;
    std::atomic<std::uint64_t> closed;
    alignas(kCacheLine) std::atomic<std::uint64_t> call_sequence;
    std::atomic<std::uint64_t> call_what, call_count;
    std::atomic<std::uint64_t> call_ended;  // number of the last call that the rank has ended
    // Where others find the rank's memory (attach.hpp): its process, 0 if they don't, and a word at
    // an address there.
    alignas(kCacheLine) std::atomic<std::uint64_t> process;
    std::atomic<std::uint64_t> word, word_at;
    alignas(kCacheLine) Bell bell;  // rung by anybody
    // Of rank 0: which way calls go, said in turns (ways.hpp).
    alignas(kCacheLine) std::atomic<std::uint64_t> ways[2][kWayWords];
};

// Asked now and then by a thread that waits for other ranks: whether it is to give up, because
// somebody wants something else of it (Ctrl-C). Set by who calls from such a thread.
inline thread_local bool (*is_interrupted)() = nullptr;

// How often a rank that waits looks at what costs more than memory: signals, deaths.
constexpr auto kLookInterval = std::chrono::milliseconds(20);

// A thread that waits sleeps when nothing has moved for so long; be it that others still move, when
// it has itself waited for so long.
constexpr auto kQuiet = std::chrono::microseconds(200);
constexpr auto kLongWait = std::chrono::milliseconds(2);

class Control {
public:
    // has_remote: whether some ranks are on other hosts; their states are copies.
    Control(std::int32_t rank, std::vector<RankState*> states, bool has_remote)
        : rank_(rank), states_(std::move(states)), has_remote_(has_remote) {}

    std::int32_t rank() const { return rank_; }
    std::int32_t ranks() const { return static_cast<std::int32_t>(states_.size()); }
    bool has_remote() const { return has_remote_; }
    Bell& bell() const { return own().bell; }

    // Tells every rank whose memory is within reach; the first failure that a rank hears of stays.
    void fail(Failure kind, std::int32_t rank) {
        const auto value = packed(kind, rank);
        for (auto* state : states_) {
            std::uint64_t none = 0;
            state->failure.compare_exchange_strong(none, value, std::memory_order_acq_rel);
            state->bell.ring();
        }
    }

    // Tells nobody else.
    void fail_here(Failure kind, std::int32_t rank) {
        std::uint64_t none = 0;
        own().failure.compare_exchange_strong(none, packed(kind, rank), std::memory_order_acq_rel);
        bell().ring();
    }

    void fail_if_interrupted() {
        if (is_interrupted && is_interrupted()) fail(Failure::kGaveUp, rank_);
    }

    std::uint64_t failure() const { return own().failure.load(std::memory_order_acquire); }
    bool failed() const { return failure() != 0; }
    Failure failure_kind() const { return static_cast<Failure>(failure() >> 32); }
    std::int32_t failure_rank() const { return static_cast<std::int32_t>(failure()); }

    // Counts a round in which this rank moved something.
    void beat() {
        auto& beat = own().beat;
        beat.store(beat.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
    }

    std::uint64_t beats() const {
        std::uint64_t sum = 0;
        for (const auto* state : states_) sum += state->beat.load(std::memory_order_relaxed);
        return sum;
    }

    std::uint64_t arrive() {
        const auto epoch = own().arrived.fetch_add(1, std::memory_order_acq_rel) + 1;
        for (auto* state : states_) state->bell.ring();
        return epoch;
    }

    // The first rank that has not arrived `epoch` times, or -1.
    std::int32_t absent(std::uint64_t epoch) const {
        for (std::int32_t r = 0; r < ranks(); ++r) {
            if (state(r).arrived.load(std::memory_order_acquire) < epoch) return r;
        }
        return -1;
    }

    void enter(const CallRecord& call) {
        auto& s = own();
        s.call_sequence.store(0, std::memory_order_release);
        s.call_what.store(call.what, std::memory_order_release);
        s.call_count.store(call.count, std::memory_order_release);
        s.call_sequence.store(call.sequence, std::memory_order_release);
    }

    void leave(const CallRecord& call) {
        own().call_ended.store(call.sequence, std::memory_order_release);
    }

    // What a rank is at; all zero where it is just changing.
    CallRecord call_of(std::int32_t rank) const {
        const auto& s = state(rank);
        CallRecord call;
        call.sequence = s.call_sequence.load(std::memory_order_acquire);
        call.what = s.call_what.load(std::memory_order_acquire);
        call.count = s.call_count.load(std::memory_order_acquire);
        if (s.call_sequence.load(std::memory_order_acquire) != call.sequence) return {};
        return call;
    }

    // A rank that is at the call of this number, but at another one; or -1.
    std::int32_t mismatched(const CallRecord& call) const {
        if (call.sequence == 0) return -1;
        for (std::int32_t r = 0; r < ranks(); ++r) {
            const auto other = call_of(r);
            if (other.sequence != call.sequence || other.same_as(call)) continue;
            if (!call.allows(other)) return r;
        }
        return -1;
    }

    bool has_left(std::int32_t rank) const {
        return state(rank).closed.load(std::memory_order_acquire) != 0;
    }

    void close() { own().closed.store(1, std::memory_order_release); }

    // Whether a rank's process has ended, as far as that can be seen from here.
    std::function<bool(std::int32_t rank)> is_dead;

    // Records the failure of a rank that is gone without having ended call `sequence`, if there is
    // one. (Who has done his part may go: his messages stay.)
    void fail_for_missing(std::uint64_t sequence) {
        for (std::int32_t r = 0; r < ranks(); ++r) {
            if (r == rank_) continue;
            const bool left = has_left(r), dead = is_dead && is_dead(r);
            if (!left && !dead) continue;
            if (state(r).call_ended.load(std::memory_order_acquire) >= sequence) continue;
            fail(left ? Failure::kLeft : Failure::kDied, r);
            return;
        }
    }

    RankState& state(std::int32_t rank) const { return *states_[static_cast<std::size_t>(rank)]; }

private:
    static std::uint64_t packed(Failure kind, std::int32_t rank) {
        return static_cast<std::uint64_t>(kind) << 32 | static_cast<std::uint32_t>(rank);
    }

    RankState& own() const { return state(rank_); }

    std::int32_t rank_;
    std::vector<RankState*> states_;
    bool has_remote_;
};

// How long a rank waits when nothing of its own can move: until somebody fails, or no rank has
// moved for `timeout_s`. It stays awake for some time after any rank has moved: its turn is near.
class Patience {
public:
    enum class Verdict { kWait, kAborted, kTimedOut };

    Patience(Control& control, double timeout_s, const CallRecord& call = {})
        : control_(control),
          call_(call),
          rest_(control.bell(), control.ranks(), control.has_remote()),
          timeout_(std::chrono::duration_cast<Clock::duration>(
              std::chrono::duration<double>(timeout_s))),
          glances_(std::min<Clock::duration>(kLookInterval, timeout_ / 8)) {}

    void moved() { rest_.moved(); }

    Verdict wait() {
        if (rest_.pause()) return Verdict::kWait;
        const auto verdict = look();
        if (verdict == Verdict::kWait) rest_.wait(is_quiet_, glances_);
        return verdict;
    }

private:
    using Clock = Rest::Clock;

    Verdict look() {
        if (control_.failed()) return Verdict::kAborted;
        const auto now = Clock::now();
        const auto beats = control_.beats();
        if (rest_.is_first_wait()) began_ = glanced_ = now;
        if (rest_.is_first_wait() || beats != beats_) moved_ = now;
        is_quiet_ = now - moved_ >= kQuiet || now - began_ >= kLongWait;
        beats_ = beats;
        if (now - glanced_ >= glances_) {
            glanced_ = now;
            glance();
            if (control_.failed()) return Verdict::kAborted;
        }
        return now - moved_ >= timeout_ ? Verdict::kTimedOut : Verdict::kWait;
    }

    // What costs more than a look: has anybody gone, or called something else?
    void glance() {
        control_.fail_if_interrupted();
        const auto other = control_.mismatched(call_);
        if (other >= 0) control_.fail(Failure::kMismatched, other);
        control_.fail_for_missing(call_.sequence);
    }

    Control& control_;
    CallRecord call_;
    Rest rest_;
    Clock::duration timeout_, glances_;
    std::uint64_t beats_ = 0;
    bool is_quiet_ = false;
    Clock::time_point began_, moved_, glanced_;  // this wait; any rank; the last glance
};

}  // namespace sley
