// Choice: several engines that can run the same calls, in turns that all ranks agree on.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <limits>
#include <memory>
#include <stdexcept>
#include <utility>
#include <vector>

#include "engine/engine.hpp"

namespace sley {

// An engine, and `CallRecord::what` of the calls that it runs.
struct Option {
    std::shared_ptr<Engine> engine;
    std::uint64_t what = 0;
};

// The next calls of a choice: which of its engines runs them.
struct Turn {
    std::int32_t option;
    std::int64_t calls;
};

// Engines that run equal calls in turns. After the last turn the ranks add up the times of each
// turn, and every rank derives the next turns from these sums. It does so where it runs the calls,
// not where it is asked for them: there all ranks have made the same calls before, even if some
// are asked for many calls in advance. So all ranks change the engine at the same call.
class Choice {
public:
    // A signal has ended the decision of this rank, in whose thread it ran.
    class Interrupted : public std::exception {};

    static constexpr std::size_t kMostTurns = 32;
    using Times = std::array<double, kMostTurns>;
    // Makes the next turns from the sums over all ranks of the mean seconds of a call, by turn.
    using Decide = std::function<std::vector<Turn>(const std::vector<double>&)>;

    // sum: an AllReduce in place, which adds up the times.
    // Throws std::invalid_argument for turns that are not of these engines.
    Choice(std::vector<Option> options, Option sum, std::vector<Turn> turns, Decide decide)
        : options_(std::move(options)), sum_(std::move(sum)), decide_(std::move(decide)) {
        begin(std::move(turns));
    }
    Choice(const Choice&) = delete;
    Choice& operator=(const Choice&) = delete;

    // Throws what `Engine::check` does.
    void check(const Call& call) const {
        for (const auto& option : options_) option.engine->check(call);
    }

    // The engine of the next calls, and their number; `note` counts some of them, and returns
    // whether these were the last ones.
    const Option& next() const { return options_[static_cast<std::size_t>(current_.load())]; }
    std::int64_t left() const { return left_; }
    bool note(std::int64_t calls, double seconds) {
        times_[turn_] += seconds / static_cast<double>(turns_[turn_].calls);
        left_ -= calls;
        if (left_ > 0) return false;
        if (turn_ + 1 == turns_.size()) return true;
        start(turn_ + 1);
        return false;
    }

    const Option& sum() const { return sum_; }
    // The call that adds up the times, without a record.
    Call sum_call() {
        return {kMostTurns, DataType::kFloat64, ReduceOp::kSum,
                {reinterpret_cast<std::byte*>(times_.data()), nullptr},
                {static_cast<std::int64_t>(sizeof(Times)), 0}, {}, nullptr};
    }
    // After that call: begins the next turns. For impossible ones, the first engine runs all
    // further calls: on all ranks, since they decide the same. Throws Interrupted.
    void decide() {
        const auto end = times_.begin() + static_cast<std::ptrdiff_t>(turns_.size());
        try {
            begin(decide_({times_.begin(), end}));
        } catch (const std::invalid_argument&) {
            begin({{0, std::numeric_limits<std::int64_t>::max()}});
        }
    }

    // The number of the engine that runs the next call, or the one that failed. Any thread may ask.
    std::int32_t current() const { return current_; }

private:
    void begin(std::vector<Turn> turns) {
        if (turns.empty() || turns.size() > kMostTurns) {
            throw std::invalid_argument("not a possible number of turns");
        }
        for (const auto& turn : turns) {
            const auto options = static_cast<std::int32_t>(options_.size());
            if (turn.option < 0 || turn.option >= options || turn.calls < 1) {
                throw std::invalid_argument("not a turn of these engines");
            }
        }
        turns_ = std::move(turns);
        times_ = {};
        start(0);
    }

    void start(std::size_t turn) {
        turn_ = turn;
        current_ = turns_[turn].option;
        left_ = turns_[turn].calls;
    }

    std::vector<Option> options_;
    Option sum_;
    Decide decide_;
    std::vector<Turn> turns_;
    std::size_t turn_ = 0;
    std::int64_t left_ = 0;
    Times times_{};
    std::atomic<std::int32_t> current_{0};
};

}  // namespace sley
