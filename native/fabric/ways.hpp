// The ways of copying a call's large messages, and the choice among them.
//
// Which way is the fastest depends on the caches between the cores, and a virtual machine may move
// to other cores while it runs. So the ways are tried, on the calls themselves, and again from time
// to time.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <unordered_map>

#include "fabric/control.hpp"

namespace sley {

// kCached: through slots, which stay in a cache; data in a heap are read there. kStreamed: through
// slots that are written past the caches, since fetching a line from another core's cache may take
// longer than from memory. kAttached: copied by the kernel (copy.hpp); data in a heap are read
// there.
enum class Way : std::uint64_t { kCached, kStreamed, kAttached };
constexpr std::size_t kWays = 3;

// Tries the ways of similar calls, and chooses that of the next one.
class Trial {
public:
    // ways: how many of the ways exist, from the first on.
    explicit Trial(std::size_t ways) : ways_(ways) {}

    Way next() const {
        for (std::size_t i = 0; i < ways_; ++i) {
            const auto way = (first_ + i) % ways_;
            if (tried_[way].calls < kCalls) return Way{way};
        }
        return Way{fastest()};
    }

    // way: of a call; maybe not `next()`, if it was chosen calls earlier. seconds: its time per
    // byte.
    void note(Way way, double seconds) {
        auto& tried = tried_[static_cast<std::size_t>(way)];
        const bool was_open = is_open();
        ++tried.calls;
        tried.best = std::min(tried.best, seconds);
        latest_ = std::min(latest_, seconds);
        ++calls_;
        if (was_open) {
            lost_ += seconds;
            if (!is_open()) lost_ -= calls_ * best();
            return;
        }
        if (calls_ % kLatest != 0) return;
        const bool is_slower = latest_ > kSlower * best();
        latest_ = kNever;
        const bool is_paid = calls_ >= kCallsBetween && calls_ * best() >= kShare * lost_;
        if (is_slower || is_paid || calls_ >= kMostBetween) *this = Trial(ways_, fastest());
    }

private:
    // kShare: a trial may cost one part in kShare of the time.
    static constexpr double kNever = std::numeric_limits<double>::infinity();
    static constexpr double kSlower = 1.5, kShare = 50;
    static constexpr int kCalls = 2, kLatest = 4, kCallsBetween = 64, kMostBetween = 4096;

    // A call is slow on any way if a rank is late for it: the best call counts.
    struct Tried {
        int calls = 0;
        double best = kNever;
    };

    Trial(std::size_t ways, std::size_t first) : ways_(ways), first_(first) {}

    bool is_open() const {
        return std::any_of(tried_.begin(), tried_.begin() + static_cast<std::ptrdiff_t>(ways_),
                           [](const auto& tried) { return tried.calls < kCalls; });
    }

    std::size_t fastest() const {
        const auto is_faster = [](const auto& a, const auto& b) { return a.best < b.best; };
        const auto end = tried_.begin() + static_cast<std::ptrdiff_t>(ways_);
        return static_cast<std::size_t>(std::min_element(tried_.begin(), end, is_faster) -
                                        tried_.begin());
    }
    double best() const { return tried_[fastest()].best; }

    std::size_t ways_, first_ = 0;
    std::array<Tried, kWays> tried_;
    double lost_ = 0;         // additional seconds of the trial, compared with the best way
    double latest_ = kNever;  // the best time of the last calls
    int calls_ = 0;
};

// All ranks of a host use the same way, without waiting to agree on it: rank 0 leads. When it
// begins a call, it publishes the way of the next one; when another rank begins that one, rank 0
// has published it, and doesn't write there again before that rank has begun. So no rank may end a
// call before all ranks have begun it, all ranks must begin calls in the same order, and each must
// begin one before it sends any of its messages. These messages order the writes and reads of the
// ways.
class Ways {
public:
    explicit Ways(Control& control) : control_(control) {}

    // The way of all calls that have it, on all ranks; without one, the ways are tried.
    std::optional<Way> only;

    // The way of a call. ways: how many it has, from the first on, the same number on all ranks.
    // alike: a number that similar calls have in common, on all ranks. Numbers share buckets, so a
    // call with two ways may be told the third one.
    Way begin(std::uint64_t alike, std::size_t ways) {
        if (only) return static_cast<std::size_t>(*only) < ways ? *only : Way::kCached;
        const auto bucket = alike % kBuckets;
        const auto shift = bucket % kPerWord * kBits;
        const auto& said = control_.state(0).ways[turn_ % 2][bucket / kPerWord];
        way_ = Way{(said.load(std::memory_order_relaxed) >> shift) & kMask};
        if (static_cast<std::size_t>(way_) >= ways) way_ = Way::kCached;
        ++turn_;
        if (control_.rank() == 0) {
            auto* next = control_.state(0).ways[turn_ % 2];
            for (std::size_t i = 0; i < kWayWords; ++i) {
                next[i].store(next_[i], std::memory_order_relaxed);
            }
            trial_ = &trials_.try_emplace(alike, ways).first->second;
            bucket_ = bucket;
        }
        return way_;
    }

    // seconds: the call's time per byte.
    void end(double seconds) {
        if (only || control_.rank() != 0) return;
        trial_->note(way_, seconds);
        const auto shift = bucket_ % kPerWord * kBits;
        auto& word = next_[bucket_ / kPerWord];
        word = (word & ~(kMask << shift)) | static_cast<std::uint64_t>(trial_->next()) << shift;
    }

private:
    static constexpr std::size_t kBits = 2, kPerWord = 64 / kBits;
    static constexpr std::size_t kBuckets = kWayWords * kPerWord;
    static constexpr std::uint64_t kMask = 3;

    Control& control_;
    std::uint64_t turn_ = 0;

    // Of rank 0.
    std::unordered_map<std::uint64_t, Trial> trials_;
    std::array<std::uint64_t, kWayWords> next_{};
    Trial* trial_ = nullptr;
    Way way_ = Way::kCached;
    std::size_t bucket_ = 0;
};

}  // namespace sley
