// Barrier: how far each process of a communicator has come, in memory that the processes share.
//
// The exchange of a communicator is its caller's function, which may wait for ever for a process that
// doesn't come to it: one that has failed, has ended, or does something else. So the processes meet
// here before each exchange, and wait here at the end, never without a limit.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "devices/refusal.hpp"

namespace sley {

// The processes come to its meetings in one order. Any thread may give up, or leave.
class Barrier {
public:
    using Word = std::atomic<std::uint64_t>;

    static constexpr std::size_t bytes(int ranks) {
        return kAbortBytes + sizeof(Word) * (1 + 2 * static_cast<std::size_t>(ranks));
    }

    // memory: `bytes(ranks)`, zeroed; its first word is not 0 once a call or a meeting was given up.
    // own: the ranks of this process. patience_s: the longest wait for another process.
    Barrier(void* memory, int ranks, std::vector<int> own, double patience_s);

    // A word for those who share the memory, 0 at first.
    Word& free_word() { return (&abort_)[1]; }

    // why: its giver's, or 0; kept unless calls were given up before.
    void give_up(std::uint64_t why);
    bool is_given_up() const { return abort_ != 0; }
    // Why calls were given up; 0 if nobody said so, as when a kernel's wait was too long.
    std::uint64_t why() const { return (&abort_)[2]; }
    // What a process is told of a call of which it has no report.
    static Refusal given_up();

    // Waits until all processes have come here as often as this one. Throws Refusal in all of them if
    // one can't come any more: K508 if a call was given up, else K514; also if one doesn't come in
    // time, and then all give up, as after a failed call.
    void meet();
    // Says that this process makes no call beyond the first `calls`, and comes no more.
    void leave(std::uint64_t calls);
    bool has_left(int rank) const { return way_[rank] == kLeft; }
    // Of a rank that has left.
    std::uint64_t calls(int rank) const { return way_[ranks_ + rank]; }
    // Waits until all processes have left or one has given up; K514 if one does neither in time.
    void wait_for_others();

private:
    static constexpr std::size_t kAbortBytes = 64;  // a cache line: kernels poll its word
    // Numbers of no meeting: a process has left or given up, or hasn't come in time.
    static constexpr std::uint64_t kLeft = ~std::uint64_t{0}, kLate = kLeft - 1;

    void come(std::uint64_t number);
    bool are_here(std::uint64_t number) const { return absent(number).empty(); }
    std::vector<int> ranks_that(bool have_come, std::uint64_t number) const;
    std::vector<int> absent(std::uint64_t number) const { return ranks_that(false, number); }
    std::vector<int> left() const { return ranks_that(true, kLeft); }
    // Whether it is over in time.
    bool wait(const std::function<bool()>& is_over) const;
    Refusal refusal() const;
    Refusal absence(std::uint64_t number) const;

    Word& abort_;
    Word& decision_;  // the last meeting that takes place
    Word* way_;       // of each rank; behind them the calls of each that has left
    int ranks_;
    std::vector<int> own_;
    double patience_s_;
    std::uint64_t meeting_ = 0;
};

}  // namespace sley
