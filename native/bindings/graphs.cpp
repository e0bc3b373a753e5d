// The Python module `sley.ir._graphs`.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>
#include <limits>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "bindings/arrays.hpp"
#include "bindings/columns.hpp"
#include "bindings/python_lock.hpp"
#include "graphs/graph.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace sley {
namespace {

using Numbers = Column<std::int64_t>;

void check_vertices(const std::vector<std::int64_t>& numbers, std::int64_t vertices) {
    for (const auto v : numbers) {
        if (v < 0 || v >= vertices) {
            throw std::invalid_argument("there is no vertex " + std::to_string(v));
        }
    }
}

void check_length(std::size_t length, std::size_t expected) {
    if (length != expected) throw std::invalid_argument("columns of different lengths");
}

void check_capacities(const Graph& graph, const std::vector<std::int64_t>& capacity,
                      std::int64_t from) {
    auto left = std::numeric_limits<std::int64_t>::max();
    for (std::size_t e = 0; e < capacity.size(); ++e) {
        if (capacity[e] < 0) throw std::invalid_argument("a capacity below 0");
        if (graph.source[e] != from) continue;
        if (capacity[e] > left) {
            throw std::invalid_argument("capacities out of the source of 2^63 or more in sum");
        }
        left -= capacity[e];
    }
}

void check_lengths(const std::vector<double>& lengths) {
    for (const auto length : lengths) {
        if (!(length >= 0)) throw std::invalid_argument("a length below 0, or NaN");
    }
}

Graph make_graph(std::int64_t vertices, const Numbers& source, const Numbers& target) {
    Graph graph{vertices, to_vector(source), to_vector(target)};
    check_length(graph.target.size(), graph.source.size());
    check_vertices(graph.source, vertices);
    check_vertices(graph.target, vertices);
    return graph;
}

nb::tuple maximum_flow_of(std::int64_t vertices, const Numbers& source, const Numbers& target,
                          const Numbers& capacity, std::int64_t from, std::int64_t to) {
    const auto graph = make_graph(vertices, source, target);
    const auto room = to_vector(capacity);
    check_length(room.size(), graph.source.size());
    check_vertices({from, to}, vertices);
    if (from == to) throw std::invalid_argument("a flow from a vertex to itself");
    check_capacities(graph, room, from);
    Flow flow;
    {
        const Unlocked unlocked;
        flow = maximum_flow(graph, room, from, to);
    }
    return nb::make_tuple(flow.value, array(std::move(flow.reached)));
}

Matrix<double> distances_of(std::int64_t vertices, const Numbers& source, const Numbers& target,
                            const Column<double>& length, const Numbers& origins) {
    const auto graph = make_graph(vertices, source, target);
    const auto lengths = to_vector(length);
    check_length(lengths.size(), graph.source.size());
    check_lengths(lengths);
    const auto from = to_vector(origins);
    check_vertices(from, vertices);
    std::vector<double> found;
    {
        const Unlocked unlocked;
        found = distances(graph, lengths, from);
    }
    return matrix(std::move(found), from.size(), vertices);
}

Array<std::int64_t> strong_components_of(std::int64_t vertices, const Numbers& source,
                                         const Numbers& target) {
    return array(strong_components(make_graph(vertices, source, target)));
}

}  // namespace
}  // namespace sley

NB_MODULE(_graphs, m) {
    m.doc() = "Flows, shortest paths and strong components of directed graphs.";
    m.def("maximum_flow", &sley::maximum_flow_of, "vertices"_a, "src"_a, "dst"_a, "capacity"_a,
          "source"_a, "sink"_a,
          nb::sig("def maximum_flow(vertices: int, src: NDArray[numpy.int64], "
                  "dst: NDArray[numpy.int64], capacity: NDArray[numpy.int64], source: int, "
                  "sink: int) -> tuple[int, NDArray[numpy.uint8]]"),  // else the type is `tuple`
          "The value of a maximum flow, and (vertices,) whether each vertex can be reached from the "
          "source over edges with capacity left. capacity: of each edge, from 0.");
    m.def("distances", &sley::distances_of, "vertices"_a, "src"_a, "dst"_a, "length"_a, "origins"_a,
          "(origins, vertices), the length of the shortest path from each origin to each vertex; "
          "infinity where there is none. length: of each edge, from 0.");
    m.def("strong_components", &sley::strong_components_of, "vertices"_a, "src"_a, "dst"_a,
          "(vertices,), the number of each vertex's strong component, from 0.");
}
