#include "graphs/matching.hpp"

#include <algorithm>
#include <functional>
#include <limits>
#include <queue>
#include <tuple>

namespace sley {

namespace {

class Matching {
public:
    explicit Matching(const Spreading& given)
        : given_(given),
          chunks_(given.root.size()),
          free_(given.time.size()),
          cost_(given.src.size()),
          sent_(given.src.size()),
          queued_(given.src.size()),
          from_(given.ranks),
          holders_(chunks_),
          held_(given.ranks),
          parent_(chunks_ * given.ranks, -1),
          depth_(chunks_ * given.ranks),
          arrival_(chunks_ * given.ranks, std::numeric_limits<double>::infinity()) {
        for (std::size_t p = 0; p < given.src.size(); ++p) {
            from_[given.src[p]].push_back(p);
            for (auto at = given.first[p]; at < given.first[p + 1]; ++at) {
                cost_[p] = std::max(cost_[p], given.time[given.path[at]]);
            }
        }
        for (std::size_t c = 0; c < chunks_; ++c) hold(c, given.root[c], 0);
    }

    std::vector<std::int32_t> run() {
        while (!queue_.empty()) {
            const auto [arrival, sent, p] = queue_.top();
            queue_.pop();
            queued_[p] = false;
            consider(p, arrival);
        }
        return std::move(parent_);
    }

private:
    // Arrival, sends of the pair, pair.
    using Item = std::tuple<double, std::int64_t, std::int64_t>;

    std::size_t cell(std::size_t chunk, std::int64_t rank) const {
        return chunk * given_.ranks + rank;
    }

    // Sends the best chunk of a pair if one can arrive by then; else the pair waits for its turn.
    void consider(std::int64_t p, double by) {
        const auto begin = ready(p);
        if (begin + cost_[p] > by) return enqueue(p, begin);
        const auto a = given_.src[p], b = given_.dst[p];
        auto best = chunks_;
        auto earliest = std::numeric_limits<double>::infinity();
        for (const auto c : held_[a]) {
            if (!may_send(c, a, b)) continue;
            const auto start = std::max(begin, arrival_[cell(c, a)]);
            // Chunks are held in the order in which they arrive.
            if (start > earliest) break;
            earliest = start;
            if (best == chunks_ || holders_[c] < holders_[best]) best = c;
        }
        if (best == chunks_) return;
        if (earliest + cost_[p] > by) return enqueue(p, earliest);
        for (auto at = given_.first[p]; at < given_.first[p + 1]; ++at) {
            const auto link = given_.path[at];
            free_[link] = earliest + given_.time[link];
        }
        ++sent_[p];
        parent_[cell(best, b)] = static_cast<std::int32_t>(a);
        depth_[cell(best, b)] = depth_[cell(best, a)] + 1;
        enqueue(p, earliest + cost_[p]);
        hold(best, b, earliest + cost_[p]);
    }

    // When the links of a pair are free.
    double ready(std::int64_t p) const {
        double begin = 0;
        for (auto at = given_.first[p]; at < given_.first[p + 1]; ++at) {
            begin = std::max(begin, free_[given_.path[at]]);
        }
        return begin;
    }

    bool may_send(std::size_t c, std::int64_t a, std::int64_t b) const {
        return arrival_[cell(c, b)] == std::numeric_limits<double>::infinity() &&
               depth_[cell(c, a)] < given_.most[given_.root[c] * given_.ranks + b];
    }

    // A rank has a chunk from a time on, and its pairs may send it.
    void hold(std::size_t c, std::int64_t rank, double time) {
        arrival_[cell(c, rank)] = time;
        held_[rank].push_back(c);
        ++holders_[c];
        for (const auto p : from_[rank]) {
            if (queued_[p] || !may_send(c, rank, given_.dst[p])) continue;
            enqueue(p, std::max(time, ready(p)));
        }
    }

    void enqueue(std::int64_t p, double begin) {
        queued_[p] = true;
        queue_.push({begin + cost_[p], sent_[p], p});
    }

    const Spreading& given_;
    std::size_t chunks_;
    // By link, when it is free. By pair: the time of a chunk, its sends, whether it is queued.
    std::vector<double> free_, cost_;
    std::vector<std::int64_t> sent_;
    std::vector<char> queued_;
    // The pairs from each rank; how many ranks have each chunk; the chunks of each rank.
    std::vector<std::vector<std::int64_t>> from_;
    std::vector<std::int64_t> holders_;
    std::vector<std::vector<std::size_t>> held_;
    // By chunk and rank.
    std::vector<std::int32_t> parent_, depth_;
    std::vector<double> arrival_;
    std::priority_queue<Item, std::vector<Item>, std::greater<Item>> queue_;
};

}  // namespace

std::vector<std::int32_t> match_chunks(const Spreading& given) {
    return Matching(given).run();
}

}  // namespace sley
