// The ways of a call's large messages, and which one it goes.
//
// Which one is the fastest depends on the caches between the cores, of which a virtual machine may
// get others while it runs. So they are tried, on the calls themselves and again from time to time.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <optional>
#include <unordered_map>

#include "control.hpp"

namespace sley {

// kCached: through slots, which stay in a cache; what lies in a heap is read there. kStreamed:
// through slots that are written past the caches, since to get a line that another core has written
// may take longer than to get it from memory. kAttached: copied by the kernel (attach.hpp); what
// lies in a heap is read there.
enum class Way : std::uint64_t { kCached, kStreamed, kAttached };
constexpr std::size_t kWays = 3;

// Tries the ways of calls that are alike, and says how the next one goes.
class Trial {
public:
    // ways: the number of those that there are, from the first on.
    explicit Trial(std::size_t ways) : ways_(ways) {}

    Way next() const {
        for (std::size_t i = 0; i < ways_; ++i) {
            const auto way = (first_ + i) % ways_;
            const auto& tried = tried_[way];
            // A way that is far behind isn't worth another call.
            if (tried.calls < kCalls && tried.best < kFarBehind * best()) return Way{way};
            if (tried.calls == 0) return Way{way};
        }
        return Way{fastest()};
    }

    // seconds: that a call took, for as many bytes as any other.
    void note(Way way, double seconds) {
        auto& tried = tried_[static_cast<std::size_t>(way)];
        ++tried.calls;
        tried.best = std::min(tried.best, seconds);
        latest_ = std::min(latest_, seconds);
        ++calls_;
        if (calls_ % kLatest == 0) {
            const bool is_slower = latest_ > kSlower * best();
            latest_ = kNever;
            if (is_slower || calls_ >= kCallsBetween) *this = Trial(ways_, fastest());
        }
    }

private:
    static constexpr double kNever = std::numeric_limits<double>::infinity();
    static constexpr double kFarBehind = 2, kSlower = 1.5;
    static constexpr int kCalls = 3, kLatest = 8, kCallsBetween = 256;

    // Calls that a rank is late for are slow whichever way they go: the best one counts.
    struct Tried {
        int calls = 0;
        double best = kNever;
    };

    Trial(std::size_t ways, std::size_t first) : ways_(ways), first_(first) {}

    std::size_t fastest() const {
        const auto is_faster = [](const auto& a, const auto& b) { return a.best < b.best; };
        return static_cast<std::size_t>(
            std::min_element(tried_.begin(), tried_.end(), is_faster) - tried_.begin());
    }
    double best() const { return tried_[fastest()].best; }

    std::size_t ways_, first_ = 0;
    std::array<Tried, kWays> tried_;
    double latest_ = kNever;  // the best of the last calls
    int calls_ = 0;
};

// All ranks of a host go the same way, and don't wait to agree on it: rank 0 leads. When it begins
// a call, it says how the next one goes; when another rank begins that one, rank 0 has said so, and
// doesn't write there again before that rank has begun. So the calls must be such that nobody ends
// one before everybody has begun it, and all ranks must begin them in the same order.
class Ways {
public:
    explicit Ways(Control& control) : control_(control) {}

    // The way of all calls that can go it, on all ranks; none to try.
    std::optional<Way> only;

    // Which way a call goes, of so many that there are. `alike`: a number that calls which are
    // alike have in common, on all ranks.
    Way begin(std::uint64_t alike, std::size_t ways) {
        if (only) return static_cast<std::size_t>(*only) < ways ? *only : Way::kCached;
        const auto bucket = alike % kBuckets;
        auto* said = control_.state(0).ways[turn_ % 2];
        const auto word = said[bucket / kPerWord].load(std::memory_order_acquire);
        way_ = Way{word >> bucket % kPerWord * kBits & kMask};
        ++turn_;
        if (control_.rank() == 0) {
            auto* next = control_.state(0).ways[turn_ % 2];
            for (std::size_t i = 0; i < kWayWords; ++i) {
                next[i].store(next_[i], std::memory_order_release);
            }
            trial_ = &trials_.try_emplace(alike, ways).first->second;
            bucket_ = bucket;
        }
        return way_;
    }

    // How long it took, for as many bytes as any other.
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
