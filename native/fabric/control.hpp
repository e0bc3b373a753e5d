// The state that the ranks of a job share beside messages: the first failure, arrivals at the
// barrier, each rank's call and heartbeat; and `Patience`, which limits how long a rank waits.
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

// kMismatched: the rank's call differs from that of the rank that noticed. kLeft: it has closed its
// communicator. kCut: the network no longer reaches it. kNoMemory: it has none for a call. kGaveUp:
// it was interrupted or aborted. kUnreadable: memory of its call can't be read. kMisfit: a chunk came
// there to a place of another count. kStalled: it gave up, since no rank moved. kStill: others gave
// up, since it neither moved nor waited. kNoThread: it has none for asynchronous calls.
enum class Failure : std::int32_t {
    kNone, kStalled, kDied, kMismatched, kLeft, kCut, kNoMemory, kGaveUp, kUnreadable, kMisfit, kStill,
    kNoThread
};

// `CallRecord::count` of a call of varying counts.
constexpr auto kVaryingCount = ~std::uint64_t{0};

// A rank's current call: its number, from 1 on, and two words that must be equal on all ranks (the
// engine doesn't interpret them).
struct CallRecord {
    std::uint64_t sequence = 0, what = 0, count = 0;
    // `what` of the AllToAllV that may replace this call; 0: none may. Other ranks don't see it.
    std::uint64_t varying = 0;

    bool same_as(const CallRecord& other) const {
        return what == other.what && count == other.count;
    }

    bool varies() const { return count == kVaryingCount; }
    bool allows(const CallRecord& other) const { return varying != 0 && other.what == varying; }

    // The signature of the call's messages; not 0 for a call with a number.
    std::uint32_t signature() const {
        if (sequence == 0) return 0;
        std::uint64_t h = sequence * 0x9e3779b97f4a7c15u ^ what * 0xc2b2ae3d27d4eb4fu ^
                          count * 0x165667b19e3779f9u;
        h ^= h >> 29;
        h *= 0xbf58476d1ce4e5b9u;
        return static_cast<std::uint32_t>(h >> 32) | 1u;
    }
};

// Words in which rank 0 publishes the ways of a call: two calls share a cache line.
constexpr std::size_t kWayWords = 4;

// The head of a rank's memory, which starts zeroed. Any rank writes `failure`; only the rank writes
// the rest (or the pump, in the copy of a rank of another host). `beat` counts the rounds in which
// the rank moved something: a waiting rank reads the others' beats, since a plan in which any rank
// moves is slow, not stuck. `looks` counts its looks around while it waits: a rank that neither moves
// nor looks is stopped, or elsewhere. (In the copy of a rank of another host: the states received.)
struct alignas(kCacheLine) RankState {
    std::atomic<std::uint64_t> failure;  // 0, or kind << 32 | rank
    alignas(kCacheLine) std::atomic<std::uint64_t> arrived;
    std::atomic<std::uint64_t> beat;
    std::atomic<std::uint64_t> looks;
    std::atomic<std::uint64_t> closed;
    CoreOfRank core;
    // call_number: twice the call's number, plus one if it varies; 0 while the record changes.
    alignas(kCacheLine) std::atomic<std::uint64_t> call_number;
    std::atomic<std::uint64_t> call_what, call_count;
    std::atomic<std::uint64_t> call_ended;  // the number of the last call that the rank has ended
    // How others find the rank's memory (copy.hpp): its process (0: they can't), and a random word
    // with its address there.
    alignas(kCacheLine) std::atomic<std::uint64_t> process;
    std::atomic<std::uint64_t> word, word_at;
    alignas(kCacheLine) Bell bell;  // any rank rings it
    // Of rank 0: the ways of calls, in two buffers by turns (ways.hpp).
    alignas(kCacheLine) std::atomic<std::uint64_t> ways[2][kWayWords];

    // A rank that joins a call of varying counts changes the record of the same call: then its number
    // differs, too, so that nobody takes words of both for one record.
    void set_call(const CallRecord& call) {
        call_number.store(0, std::memory_order_release);
        call_what.store(call.what, std::memory_order_release);
        call_count.store(call.count, std::memory_order_release);
        call_number.store(call.sequence << 1 | call.varies(), std::memory_order_release);
    }
};

// A thread that waits for other ranks asks this now and then: whether to give up (Ctrl-C). The
// caller of such a thread sets it.
inline thread_local bool (*is_interrupted)() = nullptr;

// How often a waiting rank makes checks that cost more than reads of memory: signals, deaths.
constexpr auto kLookInterval = std::chrono::milliseconds(20);

// A rank of another host that waits sends its state at least this often.
constexpr auto kHeartbeat = std::chrono::milliseconds(500);

// A waiting thread sleeps when no rank has moved for kQuiet, or when it has itself waited for
// kLongWait; one that the kernel wakes when another host sends (`Control::doze`), after
// kQuietNetwork. Beside busy programs an AllReduce of 8 bytes between two hosts took 0.25 ms with
// it, and 0.45 ms with kQuiet.
constexpr auto kQuiet = std::chrono::microseconds(200);
constexpr auto kQuietNetwork = std::chrono::microseconds(50);
constexpr auto kLongWait = std::chrono::milliseconds(2);

// A waiting thread looks around at least every kLookInterval. After a pause of kStopped between two
// looks it was stopped itself (a debugger, a sleeping machine).
constexpr auto kStopped = std::chrono::seconds(1);

class Control {
public:
    // has_remote: whether some ranks are on other hosts; their states are copies.
    Control(std::int32_t rank, std::vector<RankState*> states, bool has_remote)
        : rank_(rank),
          states_(std::move(states)),
          has_remote_(has_remote),
          crowd_(own().core, cores_of(states_)) {}

    std::int32_t rank() const { return rank_; }
    std::int32_t ranks() const { return static_cast<std::int32_t>(states_.size()); }
    bool has_remote() const { return has_remote_; }
    Bell& bell() const { return own().bell; }
    Crowd& crowd() { return crowd_; }

    // Records a failure for every rank of this host (a pump tells the others). A rank keeps the
    // first one.
    void fail(Failure kind, std::int32_t rank) {
        const auto value = pack(kind, rank);
        for (auto* state : states_) {
            std::uint64_t none = 0;
            state->failure.compare_exchange_strong(none, value, std::memory_order_acq_rel);
        }
        for (auto* state : states_) state->bell.ring();
    }

    // Fails for a rank that is gone: by the failure that it knew, if any, since that made it go.
    // (The rank that records a failure may not have reached this one yet.)
    void fail_for_gone(Failure kind, std::int32_t rank) {
        const auto known = state(rank).failure.load(std::memory_order_acquire);
        if (known == 0) return fail(kind, rank);
        fail(static_cast<Failure>(known >> 32), static_cast<std::int32_t>(known));
    }

    // Records a failure for this rank alone.
    void fail_here(Failure kind, std::int32_t rank) {
        std::uint64_t none = 0;
        own().failure.compare_exchange_strong(none, pack(kind, rank), std::memory_order_acq_rel);
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

    // Several threads of the rank may wait.
    void look() { own().looks.fetch_add(1, std::memory_order_relaxed); }

    std::uint64_t looks(std::int32_t rank) const {
        return state(rank).looks.load(std::memory_order_relaxed);
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
    std::int32_t find_absent(std::uint64_t epoch) const {
        for (std::int32_t r = 0; r < ranks(); ++r) {
            if (state(r).arrived.load(std::memory_order_acquire) < epoch) return r;
        }
        return -1;
    }

    void enter(const CallRecord& call) {
        own().set_call(call);
        crowd_.show();
    }

    void leave(const CallRecord& call) {
        own().call_ended.store(call.sequence, std::memory_order_release);
    }

    // The call that a rank is at; all zero while it changes.
    CallRecord call_of(std::int32_t rank) const {
        const auto& s = state(rank);
        CallRecord call;
        const auto number = s.call_number.load(std::memory_order_acquire);
        call.sequence = number >> 1;
        call.what = s.call_what.load(std::memory_order_acquire);
        call.count = s.call_count.load(std::memory_order_acquire);
        if (s.call_number.load(std::memory_order_acquire) != number) return {};
        return call;
    }

    // A rank whose call has the same number but differs; or -1. A call of varying counts doesn't
    // look: another rank may have begun it as one of equal counts, and if not, that one looks.
    std::int32_t find_mismatch(const CallRecord& call) const {
        if (call.sequence == 0) return -1;
        for (std::int32_t r = 0; r < ranks(); ++r) {
            const auto other = call_of(r);
            if (other.sequence != call.sequence || other.same_as(call)) continue;
            if (call.varies() && !other.varies()) continue;  // that rank looks: it joins, or fails
            if (!call.allows(other)) return r;
        }
        return -1;
    }

    bool has_left(std::int32_t rank) const {
        return state(rank).closed.load(std::memory_order_acquire) != 0;
    }

    void close() { own().closed.store(1, std::memory_order_release); }

    // Whether a rank's process has ended, as far as this rank can see.
    std::function<bool(std::int32_t rank)> is_dead;

    // Sleeps until another host sends something. Set if no other rank of this host can ring.
    Rest::Sleep doze;

    // Fails for a rank, if any, that left or died before it ended call `sequence`. (After that it
    // may go: its messages stay.)
    void fail_for_missing(std::uint64_t sequence) {
        for (std::int32_t r = 0; r < ranks(); ++r) {
            if (r == rank_) continue;
            const bool left = has_left(r), dead = is_dead && is_dead(r);
            if (!left && !dead) continue;
            if (state(r).call_ended.load(std::memory_order_acquire) >= sequence) continue;
            return fail_for_gone(left ? Failure::kLeft : Failure::kDied, r);
        }
    }

    RankState& state(std::int32_t rank) const { return *states_[static_cast<std::size_t>(rank)]; }

private:
    static std::uint64_t pack(Failure kind, std::int32_t rank) {
        return static_cast<std::uint64_t>(kind) << 32 | static_cast<std::uint32_t>(rank);
    }

    static std::vector<const CoreOfRank*> cores_of(const std::vector<RankState*>& states) {
        std::vector<const CoreOfRank*> cores;
        for (const auto* state : states) cores.push_back(&state->core);
        return cores;
    }

    RankState& own() const { return state(rank_); }

    std::int32_t rank_;
    std::vector<RankState*> states_;
    bool has_remote_;
    Crowd crowd_;
};

// When the other ranks were last seen to look, by a rank that waits for them.
class Signs {
public:
    using Clock = std::chrono::steady_clock;

    explicit Signs(Control& control) : control_(control) {}

    // Looks, and sees who has looked; from time to time while the rank waits. Begins anew after a
    // pause in which this rank may have been stopped itself.
    void look(Clock::time_point now) {
        control_.look();
        const bool is_new = seen_.empty() || now - looked_ >= kStopped;
        looked_ = now;
        seen_.resize(static_cast<std::size_t>(control_.ranks()));
        for (std::size_t r = 0; r < seen_.size(); ++r) {
            const auto looks = control_.looks(static_cast<std::int32_t>(r));
            if (is_new || looks != seen_[r].looks) seen_[r] = {looks, now};
        }
    }

    // Whether a rank has not looked for half of a timeout that has passed without a move. Not for
    // timeouts in which a waiting rank of another host might send nothing.
    bool is_still(std::int32_t rank, Clock::duration timeout, Clock::time_point now) const {
        if (seen_.empty() || rank == control_.rank()) return false;
        if (control_.has_remote() && timeout < 4 * kHeartbeat) return false;
        return now - seen_[static_cast<std::size_t>(rank)].at >= timeout / 2;
    }

private:
    struct Seen {
        std::uint64_t looks;
        Clock::time_point at;
    };

    Control& control_;
    Clock::time_point looked_;
    std::vector<Seen> seen_;  // empty before the first look: most waits are shorter
};

// The limit of a rank's wait when none of its blocks can move: until a rank fails, or no rank has
// moved for `timeout_s`. It stays awake for some time after any rank has moved: its turn is near.
class Patience {
public:
    enum class Verdict { kWait, kAborted, kTimedOut };

    Patience(Control& control, double timeout_s, const CallRecord& call = {})
        : control_(control),
          call_(call),
          rest_(control.bell(), control.crowd(), control.has_remote(), control.doze),
          signs_(control),
          timeout_(to_duration<Clock::duration>(timeout_s)),
          glances_(std::min<Clock::duration>(kLookInterval, timeout_ / 8)) {}

    void reset() { rest_.reset(); }

    Verdict wait() {
        if (rest_.pause()) return Verdict::kWait;
        const auto verdict = look();
        if (verdict == Verdict::kWait) rest_.wait(is_quiet_, glances_);
        return verdict;
    }

    // Records why the wait has timed out: a rank that stands still in this call or before it, the one
    // that has ended the fewest calls; or nothing but that this rank gives up.
    void fail() {
        const auto ended = [this](std::int32_t rank) {
            return control_.state(rank).call_ended.load(std::memory_order_acquire);
        };
        std::int32_t still = -1;
        for (std::int32_t r = 0; r < control_.ranks(); ++r) {
            if (ended(r) >= call_.sequence || !signs_.is_still(r, timeout_, looked_)) continue;
            if (still < 0 || ended(r) < ended(still)) still = r;
        }
        if (still >= 0) return control_.fail(Failure::kStill, still);
        control_.fail(Failure::kStalled, control_.rank());
    }

private:
    using Clock = Rest::Clock;

    Verdict look() {
        if (control_.failed()) return Verdict::kAborted;
        const auto now = Clock::now();
        const auto beats = control_.beats();
        if (rest_.is_first_wait()) began_ = glanced_ = looked_ = now;
        // If this thread was stopped, others that were stopped with it need time to go on.
        const bool was_stopped = now - looked_ >= kStopped;
        if (rest_.is_first_wait() || beats != beats_ || was_stopped) moved_ = now;
        looked_ = now;
        const auto quiet = control_.doze ? kQuietNetwork : kQuiet;
        is_quiet_ = now - moved_ >= quiet || now - began_ >= kLongWait;
        beats_ = beats;
        if (now - glanced_ >= glances_) {
            glanced_ = now;
            signs_.look(now);
            glance();
            if (control_.failed()) return Verdict::kAborted;
        }
        return now - moved_ >= timeout_ ? Verdict::kTimedOut : Verdict::kWait;
    }

    // The checks that cost more: interrupts, other calls, ranks that are gone.
    void glance() {
        control_.fail_if_interrupted();
        const auto other = control_.find_mismatch(call_);
        if (other >= 0) control_.fail(Failure::kMismatched, other);
        control_.fail_for_missing(call_.sequence);
    }

    Control& control_;
    CallRecord call_;
    Rest rest_;
    Signs signs_;
    Clock::duration timeout_, glances_;
    std::uint64_t beats_ = 0;
    bool is_quiet_ = false;
    // This wait; the last move of a rank, `look` and `glance`.
    Clock::time_point began_, moved_, looked_, glanced_;
};

}  // namespace sley
