#include "devices/barrier.hpp"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <string>
#include <thread>
#include <utility>

#include "fabric/control.hpp"

namespace sley {
namespace {

constexpr auto kPoll = std::chrono::microseconds(100);

std::string processes(const std::vector<int>& ranks) {
    std::string numbers;
    for (const int rank : ranks) numbers += (numbers.empty() ? "" : ", ") + std::to_string(rank);
    return "the process of " + std::to_string(ranks.size()) + " rank" +
           (ranks.size() == 1 ? " (" : "s (") + numbers + ")";
}

}  // namespace

Barrier::Barrier(void* memory, int ranks, std::vector<int> own, double patience_s)
    : abort_(*static_cast<Word*>(memory)),
      decision_(static_cast<Word*>(memory)[kAbortBytes / sizeof(Word)]),
      way_(&decision_ + 1),
      ranks_(ranks),
      own_(std::move(own)),
      patience_s_(patience_s) {}

Refusal Barrier::given_up() {
    return {"K508", "calls that all processes make", "one that another process has given up"};
}

void Barrier::give_up(std::uint64_t why) {
    std::uint64_t none = 0;
    if (!is_given_up()) (&abort_)[2].compare_exchange_strong(none, why);
    abort_ = 1;  // last: whoever sees it reads why
}

void Barrier::leave(std::uint64_t calls) {
    for (const int rank : own_) way_[ranks_ + rank] = calls;
    come(kLeft);
}

void Barrier::meet() {
    const auto before = meeting_++;
    come(meeting_);
    // The first decision is for all. Otherwise one process could give up while another goes to an
    // exchange, and waits there.
    const auto decide = [this, before](std::uint64_t number) {
        auto expected = before;
        decision_.compare_exchange_strong(expected, number);
    };
    try {
        const bool in_time = wait([this, before] {
            return decision_ != before || is_given_up() || !left().empty() || are_here(meeting_);
        });
        const bool takes_place = !is_given_up() && left().empty();
        decide(!in_time ? kLate : takes_place ? meeting_ : kLeft);
    } catch (const Interrupted&) {
        decide(kLeft);
        throw;
    }
    if (decision_ == meeting_) return;
    if (decision_ == kLate) give_up(0);
    throw refusal();
}

void Barrier::wait_for_others() {
    if (wait([this] { return are_here(kLeft) || is_given_up(); })) return;
    give_up(0);
    throw absence(kLeft);
}

// Who has left doesn't come back: others may already count on it.
void Barrier::come(std::uint64_t number) {
    for (const int rank : own_) way_[rank] = std::max(way_[rank].load(), number);
}

std::vector<int> Barrier::ranks_that(bool have_come, std::uint64_t number) const {
    std::vector<int> found;
    for (int rank = 0; rank < ranks_; ++rank) {
        if ((way_[rank] >= number) == have_come) found.push_back(rank);
    }
    return found;
}

bool Barrier::wait(const std::function<bool()>& is_over) const {
    using Clock = std::chrono::steady_clock;
    const auto begin = Clock::now();
    auto looked = begin;
    while (!is_over()) {
        const auto now = Clock::now();
        if (std::chrono::duration<double>(now - begin).count() > patience_s_) return false;
        if (now - looked > kLookInterval) {
            if (is_interrupted && is_interrupted()) throw Interrupted{};
            looked = now;
        }
        std::this_thread::sleep_for(kPoll);
    }
    return true;
}

Refusal Barrier::refusal() const {
    if (decision_ == kLate && !are_here(meeting_)) return absence(meeting_);
    const auto gone = left();
    if (is_given_up() || gone.empty()) return given_up();
    return {"K514", "the same calls in all processes",
            "an executor or communicator that " + processes(gone) + " closed"};
}

Refusal Barrier::absence(std::uint64_t number) const {
    char seconds[32];
    std::snprintf(seconds, sizeof seconds, "%g", patience_s_);
    const std::string doing = number == kLeft ? "close the executor" : "make the same calls";
    return {"K514", "all processes to " + doing + " within " + seconds + " s",
            "not " + processes(absent(number))};
}

}  // namespace sley
