// The Python module `sley.ir._graphs`.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <algorithm>
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
#include "graphs/hazards.hpp"
#include "graphs/matching.hpp"
#include "graphs/order.hpp"
#include "graphs/waits.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace sley {
namespace {

using Numbers = Column<std::int64_t>;
using Rows = Column<std::int32_t>;

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

Array<std::int64_t> flow_values_of(std::int64_t vertices, const Numbers& source,
                                   const Numbers& target, const Numbers& capacity,
                                   std::int64_t from, const Numbers& sinks, std::int64_t limit) {
    const auto graph = make_graph(vertices, source, target);
    const auto room = to_vector(capacity);
    check_length(room.size(), graph.source.size());
    const auto to = to_vector(sinks);
    check_vertices({from}, vertices);
    check_vertices(to, vertices);
    if (std::count(to.begin(), to.end(), from)) {
        throw std::invalid_argument("a flow from a vertex to itself");
    }
    check_capacities(graph, room, from);
    std::vector<std::int64_t> values;
    {
        const Unlocked unlocked;
        values = flow_values(graph, room, from, to, limit);
    }
    return array(std::move(values));
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

// More than eight parameters: the columns of `Spreading`, each given by its name.
Matrix<std::int32_t> match_chunks_of(std::int64_t ranks, const Numbers& src, const Numbers& dst,
                                     const Numbers& first, const Numbers& path,
                                     const Column<double>& time, const Numbers& root,
                                     const Numbers& most) {
    const Spreading given{ranks,           to_vector(src),  to_vector(dst),  to_vector(first),
                          to_vector(path), to_vector(time), to_vector(root), to_vector(most)};
    check_vertices(given.src, ranks);
    check_vertices(given.dst, ranks);
    check_vertices(given.root, ranks);
    check_vertices(given.path, static_cast<std::int64_t>(given.time.size()));
    check_vertices(given.first, static_cast<std::int64_t>(given.path.size()) + 1);
    check_length(given.dst.size(), given.src.size());
    check_length(given.first.size(), given.src.size() + 1);
    check_length(given.most.size(), ranks * ranks);
    check_lengths(given.time);
    std::vector<std::int32_t> parent;
    {
        const Unlocked unlocked;
        parent = match_chunks(given);
    }
    return matrix(std::move(parent), given.root.size(), ranks);
}

Array<std::int32_t> levels_of(std::int64_t vertices, const Rows& source, const Rows& target) {
    check_length(target.size(), source.size());
    for (const auto* column : {&source, &target}) {
        for (std::size_t e = 0; e < column->size(); ++e) {
            if (column->data()[e] < 0 || column->data()[e] >= vertices) {
                throw std::invalid_argument("an edge of a vertex that doesn't exist");
            }
        }
    }
    std::vector<std::int32_t> found;
    {
        const Unlocked unlocked;
        found = levels(vertices, source.data(), target.data(), source.size());
    }
    return array(std::move(found));
}

// More than eight parameters: the columns of `OrderInputs`, each given by its name.
nb::tuple order_of(std::int64_t slots, const Rows& width, const Rows& forward, const Rows& copied,
                   const Rows& connection, const Rows& leader, const Rows& sender,
                   const Rows& receiver, const Numbers& row_offset, const Rows& row,
                   const Column<std::uint8_t>& reduces, const Rows& priority,
                   const Rows& first_alike, const Numbers& offset, const Rows& successor) {
    const OrderInputs inputs{slots,
                             to_vector(width),
                             to_vector(forward),
                             to_vector(copied),
                             to_vector(connection),
                             to_vector(leader),
                             to_vector(sender),
                             to_vector(receiver),
                             to_vector(row_offset),
                             to_vector(row),
                             to_vector(reduces),
                             to_vector(priority),
                             to_vector(first_alike),
                             to_vector(offset),
                             to_vector(successor)};
    Ordered ordered;
    {
        const Unlocked unlocked;
        ordered = order_instructions(inputs);
    }
    return nb::make_tuple(array(std::move(ordered.receive)), array(std::move(ordered.send)));
}

nb::tuple conflicts_of(std::int64_t cells, const Rows& order, const Rows& count, const Numbers& read,
                       const Numbers& write, const Rows& block, const Numbers& wait_offset,
                       const Rows& wait_target, bool unordered) {
    const Accesses accesses{cells,        order.data(), count.data(),
                            read.data(),  write.data(), static_cast<std::int64_t>(order.size())};
    std::int64_t blocks = 0;
    for (std::size_t row = 0; row < block.size(); ++row) {
        blocks = std::max<std::int64_t>(blocks, block.data()[row] + 1);
    }
    const Blocks direct{block.data(), blocks, wait_offset.data(), wait_target.data()};
    Conflicts found;
    {
        const Unlocked unlocked;
        found = find_conflicts(accesses, unordered ? &direct : nullptr);
    }
    return nb::make_tuple(array(std::move(found.first)), array(std::move(found.second)),
                          array(std::move(found.cell)), array(std::move(found.aligned)));
}

Array<std::uint8_t> needed_waits_of(std::int32_t search, const Rows& before, const Rows& after,
                                    const Column<bool>& aligned, const Rows& block,
                                    const Rows& sender) {
    const PossibleWaits possible{before.size(),  block.size(), before.data(), after.data(),
                                 aligned.data(), block.data(), sender.data()};
    return array(needed_waits(possible, search));
}

}  // namespace
}  // namespace sley

NB_MODULE(_graphs, m) {
    m.doc() = "Levels, flows, shortest paths and components of directed graphs.";
    m.def("maximum_flow", &sley::maximum_flow_of, "vertices"_a, "src"_a, "dst"_a, "capacity"_a,
          "source"_a, "sink"_a,
          nb::sig("def maximum_flow(vertices: int, src: NDArray[numpy.int64], "
                  "dst: NDArray[numpy.int64], capacity: NDArray[numpy.int64], source: int, "
                  "sink: int) -> tuple[int, NDArray[numpy.uint8]]"),  // else the type is `tuple`
          "The value of a maximum flow, and (vertices,) whether each vertex can be reached from the "
          "source over edges with capacity left. capacity: of each edge, from 0.");
    m.def("flow_values", &sley::flow_values_of, "vertices"_a, "src"_a, "dst"_a, "capacity"_a,
          "source"_a, "sinks"_a, "limit"_a,
          "(sinks,), the values of the maximum flows from the source to each sink, `limit` at most. "
          "capacity: of each edge, from 0.");
    m.def("distances", &sley::distances_of, "vertices"_a, "src"_a, "dst"_a, "length"_a, "origins"_a,
          "(origins, vertices), the length of the shortest path from each origin to each vertex; "
          "infinity where there is none. length: of each edge, from 0.");
    m.def("strong_components", &sley::strong_components_of, "vertices"_a, "src"_a, "dst"_a,
          "(vertices,), the number of each vertex's strong component, from 0.");
    m.def("levels", &sley::levels_of, "vertices"_a, "src"_a, "dst"_a,
          "(vertices,), the number of edges of the longest path from a root to each vertex; -1 for "
          "vertices on a cycle or behind one. Linear in the edges, which may repeat.");
    m.def("match_chunks", &sley::match_chunks_of, "ranks"_a, nb::kw_only(), "src"_a, "dst"_a,
          "first"_a, "path"_a, "time"_a, "root"_a, "most"_a,
          nb::sig("def match_chunks(ranks: int, **columns: NDArray[typing.Any]) -> "
                  "NDArray[numpy.int32]"),
          "(chunks, ranks), the rank that sends each chunk to each rank, -1 for the root; the columns "
          "are those of `Spreading` (native/graphs/matching.hpp).");
    m.def("conflicts", &sley::conflicts_of, "cells"_a, nb::kw_only(), "order"_a, "count"_a, "read"_a,
          "write"_a, "block"_a, "wait_offset"_a, "wait_target"_a, "unordered"_a,
          nb::sig("def conflicts(cells: int, *, unordered: bool, **columns: NDArray[typing.Any]) -> "
                  "tuple[NDArray[numpy.int32], NDArray[numpy.int32], NDArray[numpy.int64], "
                  "NDArray[numpy.uint8]]"),
          "The columns of `sley.ir.happens_before.Hazards`; those given are named as in "
          "native/graphs/hazards.hpp.");
    m.def("order_instructions", &sley::order_of, "slots"_a, nb::kw_only(), "width"_a, "forward"_a,
          "copied"_a, "connection"_a, "leader"_a, "sender"_a, "receiver"_a, "row_offset"_a, "row"_a,
          "reduces"_a, "priority"_a, "first_alike"_a, "offset"_a, "successor"_a,
          nb::sig("def order_instructions(slots: int, **columns: NDArray[typing.Any]) -> "
                  "tuple[NDArray[numpy.int32], NDArray[numpy.int32]]"),
          "The transfers that each instruction receives and sends, in order; the columns are those "
          "of `OrderInputs` (native/graphs/order.hpp).");
    m.def("needed_waits", &sley::needed_waits_of, "search"_a, nb::kw_only(), "before"_a, "after"_a,
          "aligned"_a, "block"_a, "sender"_a,
          nb::sig("def needed_waits(search: int, **columns: NDArray[typing.Any]) -> "
                  "NDArray[numpy.uint8]"),
          "(waits,), whether each is needed; the columns are those of `PossibleWaits` "
          "(native/graphs/waits.hpp).");
}
