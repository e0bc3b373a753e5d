// Engines, for Python.
#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <stdexcept>
#include <tuple>
#include <utility>
#include <vector>

#ifdef __linux__
#include <sys/prctl.h>
#endif
#include <csignal>

#include "bindings/bindings.hpp"
#include "bindings/columns.hpp"
#include "engine/engine.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace sley {
namespace {

SLEY_PYTHON_CLASS(Wiring, "sley.engine.program.Wiring");
SLEY_PYTHON_CLASS(RankProgram, "sley.engine.program.RankProgram");

std::vector<Connection> make_connections(const Wiring& wiring) {
    const auto src = column<std::int32_t>(wiring, "src");
    const auto dst = column<std::int32_t>(wiring, "dst");
    const auto index = column<std::int32_t>(wiring, "index");
    if (src.size() != dst.size() || src.size() != index.size()) {
        throw std::invalid_argument("connection columns of different lengths");
    }
    std::vector<Connection> connections;
    for (std::size_t i = 0; i < src.size(); ++i) connections.push_back({src[i], dst[i], index[i]});
    return connections;
}

ProgramColumns make_columns(const RankProgram& p) {
    ProgramColumns c;
    c.op = column<std::int32_t>(p, "op");
    c.src_buffer = column<std::int32_t>(p, "src_buffer");
    c.src_index = column<std::int32_t>(p, "src_index");
    c.dst_buffer = column<std::int32_t>(p, "dst_buffer");
    c.dst_index = column<std::int32_t>(p, "dst_index");
    c.count = column<std::int32_t>(p, "count");
    c.send = column<std::int32_t>(p, "send");
    c.recv = column<std::int32_t>(p, "recv");
    c.wait_offset = column<std::int64_t>(p, "wait_offset");
    c.wait_target = column<std::int32_t>(p, "wait_target");
    c.pullable = column<std::int32_t>(p, "pullable");
    c.hold_offset = column<std::int64_t>(p, "hold_offset");
    c.hold_target = column<std::int32_t>(p, "hold_target");
    c.block_offset = column<std::int64_t>(p, "block_offset");
    c.divisor = column<std::int32_t>(p, "divisor");
    c.chunks = attribute<std::int32_t>(p, "chunks");
    using Sizes = std::tuple<std::int32_t, std::int32_t, std::int32_t>;
    std::tie(c.sizes[kInput], c.sizes[kOutput], c.sizes[kScratch]) = attribute<Sizes>(p, "sizes");
    using Bases = std::tuple<std::int32_t, std::int32_t>;
    std::tie(c.input_base, c.output_base) = attribute<Bases>(p, "bases");
    c.max_count = attribute<std::int32_t>(p, "max_count");
    c.scratch_home = column<std::int32_t>(p, "scratch_home");
    c.misplaced = attribute<bool>(p, "misplaced");
    c.in_place = attribute<bool>(p, "in_place");
    c.tile_major = attribute<bool>(p, "tile_major");
    c.all_pullable = attribute<bool>(p, "all_pullable");
    c.reduces = attribute<bool>(p, "reduces");
    c.needs_all = attribute<bool>(p, "needs_all");
    c.gains_attached = attribute<bool>(p, "gains_attached");
    return c;
}

std::shared_ptr<Engine> make_engine(std::shared_ptr<Fabric> fabric, const Wiring& wiring,
                                    const RankProgram& program) {
    const Room room{attribute<std::int64_t>(wiring, "slots"),
                    attribute<std::int64_t>(wiring, "slot_bytes")};
    return std::make_shared<Engine>(std::move(fabric), make_columns(program),
                                    make_connections(wiring), room);
}

// Throws what the engine's constructor would, without a fabric.
void check_program(const Wiring& wiring, const RankProgram& program) {
    build_program(make_columns(program), attribute<std::int32_t>(program, "rank"),
                  attribute<std::int32_t>(wiring, "ranks"), make_connections(wiring));
}

using Places = std::vector<std::tuple<Address, std::int64_t>>;

std::vector<Part> parts_at(const Places& places) {
    std::vector<Part> parts;
    for (const auto& [address, count] : places) parts.push_back({at(address), count});
    return parts;
}

std::shared_ptr<Parts> make_parts(const Places& input, const Places& output) {
    return std::make_shared<Parts>(Parts{{parts_at(input), parts_at(output)}});
}

// Lets the kernel kill this process when the thread that forked it ends. On other systems than
// Linux, the process ends with its command socket.
void die_with_parent() {
#ifdef __linux__
    prctl(PR_SET_PDEATHSIG, SIGKILL);
#endif
}

}  // namespace

DataType to_type(std::int32_t type) {
    if (type < 0 || type >= kDataTypes) throw std::invalid_argument("an unknown type");
    return static_cast<DataType>(type);
}

ReduceOp to_op(std::int32_t op) {
    if (op < 0 || op >= kReduceOps) throw std::invalid_argument("an unknown operation");
    return static_cast<ReduceOp>(op);
}

void define_engine(nb::module_& m) {
    nb::class_<Tally>(m, "Tally", "An engine's successful calls.")
        .def_ro("calls", &Tally::calls, "Their number.")
        .def_ro("block_bytes", &Tally::block_bytes, "The sum of the bytes of one block of each.")
        .def_ro("seconds", &Tally::seconds, "The sum of their times.")
        .def_prop_ro(
            "ways",
            [](const Tally& self) {
                return std::vector<std::uint64_t>(self.ways.begin(), self.ways.end());
            },
            "Their number by way.");
    nb::class_<Parts>(m, "Parts", "The parts of a rank's input and output in a call of varying counts.")
        .def_static("create", &make_parts, "input"_a, "output"_a,
                    "The address and the elements of each part. The memory must stay.");
    nb::class_<Engine>(m, "Engine", "One rank's program of a plan, ready to be called.")
        .def_static("create", &make_engine, "fabric"_a, "wiring"_a, "program"_a,
                    "ProgramFault for an invalid program.")
        .def_prop_ro("tally", &Engine::tally, "The calls so far.");
    m.def("check_program", &check_program, "wiring"_a, "program"_a,
          "ProgramFault for an invalid program.");
    m.def("die_with_parent", &die_with_parent,
          "Lets the kernel end this process when its parent ends (on Linux).");
}

}  // namespace sley
