#include "graphs/graph.hpp"

#include <algorithm>
#include <functional>
#include <limits>
#include <queue>
#include <utility>

namespace sley {

namespace {

// Edges by source: those of vertex v are order[first[v]] to order[first[v + 1] - 1].
struct EdgesBySource {
    EdgesBySource(std::int64_t vertices, const std::vector<std::int64_t>& source)
        : first(vertices + 1), order(source.size()) {
        for (const auto v : source) ++first[v + 1];
        for (std::int64_t v = 0; v < vertices; ++v) first[v + 1] += first[v];
        auto next = first;
        for (std::size_t e = 0; e < source.size(); ++e) order[next[source[e]]++] = e;
    }

    std::vector<std::int64_t> first, order;
};

// The residual graph of a flow. Edge 2e is the graph's edge e, 2e + 1 its reverse.
class Residual {
public:
    Residual(const Graph& graph, const std::vector<std::int64_t>& capacity)
        : left_(2 * capacity.size()),
          head_(2 * capacity.size()),
          level_(graph.vertices),
          next_(graph.vertices),
          edges_(graph.vertices, tails(graph)) {
        for (std::size_t e = 0; e < capacity.size(); ++e) {
            head_[2 * e] = graph.target[e];
            head_[2 * e + 1] = graph.source[e];
        }
        clear(capacity);
    }

    // Makes the flow 0 again.
    void clear(const std::vector<std::int64_t>& capacity) {
        for (std::size_t e = 0; e < capacity.size(); ++e) {
            left_[2 * e] = capacity[e];
            left_[2 * e + 1] = 0;
        }
    }

    // The value of a flow that is as large as possible, or at least `limit`.
    std::int64_t maximise(std::int64_t from, std::int64_t to, std::int64_t limit) {
        std::int64_t value = 0;
        while (value < limit && (find_levels(from), level_[to] >= 0)) {
            next_.assign(edges_.first.begin(), edges_.first.end() - 1);
            while (const auto more = augment(from, to)) value += more;
        }
        return value;
    }

    // Whether each vertex could be reached when no more flow fitted.
    std::vector<std::uint8_t> reached() const {
        std::vector<std::uint8_t> found;
        for (const auto level : level_) found.push_back(level >= 0);
        return found;
    }

private:
    static std::vector<std::int64_t> tails(const Graph& graph) {
        std::vector<std::int64_t> found;
        for (std::size_t e = 0; e < graph.source.size(); ++e) {
            found.push_back(graph.source[e]);
            found.push_back(graph.target[e]);
        }
        return found;
    }

    // The number of edges from `from` to each vertex; below 0 for those that can't be reached.
    void find_levels(std::int64_t from) {
        std::fill(level_.begin(), level_.end(), -1);
        std::vector<std::int64_t> reached{from};
        level_[from] = 0;
        for (std::size_t k = 0; k < reached.size(); ++k) {
            const auto v = reached[k];
            for (auto at = edges_.first[v]; at < edges_.first[v + 1]; ++at) {
                const auto e = edges_.order[at];
                if (left_[e] > 0 && level_[head_[e]] < 0) {
                    level_[head_[e]] = level_[v] + 1;
                    reached.push_back(head_[e]);
                }
            }
        }
    }

    // Sends as much as fits along one path through ascending levels; 0 if there is no path left.
    std::int64_t augment(std::int64_t from, std::int64_t to) {
        std::vector<std::int64_t> path;
        auto v = from;
        while (v != to) {
            auto& at = next_[v];
            while (at < edges_.first[v + 1] && !leads_on(v, edges_.order[at])) ++at;
            if (at < edges_.first[v + 1]) {
                path.push_back(edges_.order[at]);
                v = head_[path.back()];
            } else if (path.empty()) {
                return 0;
            } else {  // a dead end: back, and past the edge that led here
                v = head_[path.back() ^ 1];
                path.pop_back();
                ++next_[v];
            }
        }
        auto most = std::numeric_limits<std::int64_t>::max();
        for (const auto e : path) most = std::min(most, left_[e]);
        for (const auto e : path) {
            left_[e] -= most;
            left_[e ^ 1] += most;
        }
        return most;
    }

    bool leads_on(std::int64_t v, std::int64_t e) const {
        return left_[e] > 0 && level_[head_[e]] == level_[v] + 1;
    }

    std::vector<std::int64_t> left_, head_, level_, next_;
    EdgesBySource edges_;
};

}  // namespace

Flow maximum_flow(const Graph& graph, const std::vector<std::int64_t>& capacity, std::int64_t from,
                  std::int64_t to) {
    Residual residual(graph, capacity);
    const auto value = residual.maximise(from, to, std::numeric_limits<std::int64_t>::max());
    return {value, residual.reached()};
}

std::vector<std::int64_t> flow_values(const Graph& graph, const std::vector<std::int64_t>& capacity,
                                      std::int64_t from, const std::vector<std::int64_t>& sinks,
                                      std::int64_t limit) {
    Residual residual(graph, capacity);
    std::vector<std::int64_t> values;
    for (const auto to : sinks) {
        residual.clear(capacity);
        values.push_back(std::min(residual.maximise(from, to, limit), limit));
    }
    return values;
}

std::vector<double> distances(const Graph& graph, const std::vector<double>& length,
                              const std::vector<std::int64_t>& origins) {
    const EdgesBySource edges(graph.vertices, graph.source);
    std::vector<double> found(origins.size() * graph.vertices,
                              std::numeric_limits<double>::infinity());
    using Item = std::pair<double, std::int64_t>;
    std::priority_queue<Item, std::vector<Item>, std::greater<Item>> queue;
    for (std::size_t k = 0; k < origins.size(); ++k) {
        double* far = found.data() + k * graph.vertices;
        far[origins[k]] = 0;
        queue.push({0.0, origins[k]});
        while (!queue.empty()) {
            const auto [distance, v] = queue.top();
            queue.pop();
            if (distance > far[v]) continue;
            for (auto at = edges.first[v]; at < edges.first[v + 1]; ++at) {
                const auto e = edges.order[at];
                const auto through = distance + length[e];
                if (through < far[graph.target[e]]) {
                    far[graph.target[e]] = through;
                    queue.push({through, graph.target[e]});
                }
            }
        }
    }
    return found;
}

std::vector<std::int64_t> strong_components(const Graph& graph) {
    const EdgesBySource edges(graph.vertices, graph.source);
    const std::int64_t none = -1;
    // low: the lowest number of a vertex on the stack that each vertex is known to reach.
    std::vector<std::int64_t> number(graph.vertices, none), low(graph.vertices),
        component(graph.vertices, none), stack, calls;
    auto next = edges.first;
    std::int64_t numbered = 0, components = 0;
    for (std::int64_t root = 0; root < graph.vertices; ++root) {
        if (number[root] != none) continue;
        calls.push_back(root);
        while (!calls.empty()) {
            const auto v = calls.back();
            if (number[v] == none) {
                number[v] = low[v] = numbered++;
                stack.push_back(v);
            }
            if (next[v] < edges.first[v + 1]) {
                const auto w = graph.target[edges.order[next[v]]];
                if (number[w] == none) {
                    calls.push_back(w);  // this edge is looked at again when w is done
                    continue;
                }
                if (component[w] == none) low[v] = std::min(low[v], low[w]);
                ++next[v];
                continue;
            }
            if (low[v] == number[v]) {
                std::int64_t w;
                do {
                    w = stack.back();
                    stack.pop_back();
                    component[w] = components;
                } while (w != v);
                ++components;
            }
            calls.pop_back();
        }
    }
    return component;
}

std::vector<std::int32_t> levels(std::size_t vertices, const std::int32_t* source,
                                 const std::int32_t* target, std::size_t edges) {
    // The targets by source: those of vertex v end at end[v], and begin where those of v - 1 end.
    std::vector<std::int64_t> end(vertices + 1);
    std::vector<std::int32_t> waiting(vertices), level(vertices, -1), next(edges), queue;
    for (std::size_t e = 0; e < edges; ++e) {
        ++end[source[e] + 1];
        ++waiting[target[e]];
    }
    for (std::size_t v = 0; v < vertices; ++v) end[v + 1] += end[v];
    for (std::size_t e = 0; e < edges; ++e) next[end[source[e]]++] = target[e];
    queue.reserve(vertices);
    for (std::size_t v = 0; v < vertices; ++v) {
        if (waiting[v]) continue;
        queue.push_back(v);
        level[v] = 0;
    }
    // The queue is in ascending order of levels, so the predecessor of a vertex that comes last is
    // one of the highest level.
    for (std::size_t k = 0; k < queue.size(); ++k) {
        const auto v = queue[k];
        for (auto at = v ? end[v - 1] : 0; at < end[v]; ++at) {
            if (--waiting[next[at]]) continue;
            level[next[at]] = level[v] + 1;
            queue.push_back(next[at]);
        }
    }
    return level;
}

}  // namespace sley
