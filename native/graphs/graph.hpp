// Directed graphs: levels, flows, shortest paths, strong components.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace sley {

// The edges of a graph; vertices are numbers below `vertices`.
struct Graph {
    std::int64_t vertices;
    std::vector<std::int64_t> source, target;
};

struct Flow {
    std::int64_t value;
    // Whether each vertex can be reached from the flow's source over edges with capacity left: the
    // smallest side of a smallest cut.
    std::vector<std::uint8_t> reached;
};

// A maximum flow between two different vertices (Dinic 1970). capacity: of each edge, from 0. The
// capacities out of `from` add up to less than 2^63.
Flow maximum_flow(const Graph& graph, const std::vector<std::int64_t>& capacity, std::int64_t from,
                  std::int64_t to);

// The values of the maximum flows from one vertex to each of `sinks`, other vertices; a flow ends at
// `limit`. capacity: as for `maximum_flow`.
std::vector<std::int64_t> flow_values(const Graph& graph, const std::vector<std::int64_t>& capacity,
                                      std::int64_t from, const std::vector<std::int64_t>& sinks,
                                      std::int64_t limit);

// The lengths of the shortest paths from each of `origins` to all vertices, row after row; infinity
// where there is none (Dijkstra 1959). length: of each edge, from 0.
std::vector<double> distances(const Graph& graph, const std::vector<double>& length,
                              const std::vector<std::int64_t>& origins);

// The number of each vertex's strong component, from 0 (Tarjan 1972).
std::vector<std::int64_t> strong_components(const Graph& graph);

// The number of edges of the longest path from a root to each vertex; -1 for vertices on a cycle or
// behind one (Kahn 1962). The edges, from `source` to `target`, may repeat.
std::vector<std::int32_t> levels(std::size_t vertices, const std::int32_t* source,
                                 const std::int32_t* target, std::size_t edges);

}  // namespace sley
