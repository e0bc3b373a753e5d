#include "graphs/waits.hpp"

#include <algorithm>

namespace sley {

namespace {

constexpr std::int32_t NONE = -1;

struct Edge {
    std::int32_t row, source;
};

// waits, messages: how many edges there are into the row's block, up to the row.
struct Row {
    std::int32_t block, sender, waits, messages;
};

class Reduction {
public:
    Reduction(const PossibleWaits& possible, std::int32_t limit)
        : in_(possible), limit_(limit), rows_(possible.rows) {
        if (rows_.empty()) return;
        const auto blocks = *std::max_element(in_.block, in_.block + in_.rows) + 1;
        waits_.resize(blocks);
        messages_.resize(blocks);
        passed_.resize(blocks);
    }

    std::vector<std::uint8_t> run() {
        std::vector<std::uint8_t> needed(in_.waits);
        std::int32_t row = 0;
        for (std::size_t k = 0; k < in_.waits; ++k) {
            const auto goal = in_.before[k], start = in_.after[k];
            // They ascend by `after`: all edges that a path into `start` can use are known by now.
            for (; row <= start; ++row) enter(row);
            // The rank's own waits imply most redundant waits, so these are searched first.
            if (implied(goal, start, false)) continue;
            const bool by_messages = in_.aligned[k] || !passed_on(goal, start);
            if (by_messages && implied(goal, start, true)) continue;
            needed[k] = true;
            waits_[rows_[start].block].push_back({start, goal});
            ++rows_[start].waits;
        }
        return needed;
    }

private:
    // Adds a row, and the message that it receives.
    void enter(std::int32_t row) {
        const auto block = in_.block[row], sender = in_.sender[row];
        auto& messages = messages_[block];
        if (sender != NONE) messages.push_back({row, sender});
        rows_[row] = {block, sender, static_cast<std::int32_t>(waits_[block].size()),
                      static_cast<std::int32_t>(messages.size())};
    }

    // Whether the order in blocks and the waits, and if `by_messages` the messages, imply that row
    // `start` comes after row `goal`.
    bool implied(std::int32_t goal, std::int32_t start, bool by_messages) {
        ++search_;
        left_ = limit_;
        stack_.assign(1, start);
        const auto goal_block = rows_[goal].block;
        // Rows before the goal can't come after it, so the search stays between `goal` and `start`.
        while (!stack_.empty() && left_ > 0) {
            const auto at = stack_.back();
            stack_.pop_back();
            const auto& row = rows_[at];
            if (row.block == goal_block) return true;
            auto& [search, highest] = passed_[row.block];
            const auto low = search == search_ ? std::max(highest, goal) : goal;
            if (at <= low) continue;
            search = search_;
            highest = at;
            follow(waits_[row.block], row.waits, low, goal);
            if (by_messages) follow(messages_[row.block], row.messages, low, goal);
        }
        return false;
    }

    // Pushes the sources, from the goal on, of those of the first `end` edges into a block that
    // lead into rows after `low`.
    void follow(const std::vector<Edge>& edges, std::int32_t end, std::int32_t low,
                std::int32_t goal) {
        auto first = end;
        // Edges into `low` and before were searched. An early end only keeps a redundant wait.
        for (; first > 0 && left_ > 0 && edges[first - 1].row > low; --first) --left_;
        for (; first < end; ++first) {
            if (edges[first].source >= goal) stack_.push_back(edges[first].source);
        }
    }

    // Whether row `goal` sent the message that row `start` receives, and other ranks passed it on.
    bool passed_on(std::int32_t goal, std::int32_t start) const {
        auto at = start;
        while (at > goal) at = rows_[at].sender;  // a message is sent by an earlier row
        return at == goal;
    }

    // The latest search that visited a block, and the highest row that it visited there.
    struct Passed {
        std::int64_t search = 0;
        std::int32_t highest = 0;
    };

    const PossibleWaits& in_;
    const std::int32_t limit_;
    std::vector<Row> rows_;
    // The edges into each block, by ascending row.
    std::vector<std::vector<Edge>> waits_, messages_;
    std::vector<Passed> passed_;
    // Of the present search: its number from 1, the edges that it may still follow, and the rows
    // that it still has to visit.
    std::int64_t search_ = 0;
    std::int32_t left_ = 0;
    std::vector<std::int32_t> stack_;
};

}  // namespace

std::vector<std::uint8_t> needed_waits(const PossibleWaits& possible, std::int32_t limit) {
    return Reduction(possible, limit).run();
}

}  // namespace sley
