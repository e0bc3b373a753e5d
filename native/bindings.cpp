// The Python module `sley.engine._native`: segments, fabrics, engines.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cerrno>
#include <exception>
#include <memory>
#include <optional>
#include <stdexcept>
#include <system_error>
#include <thread>
#include <tuple>
#include <vector>

#ifdef __linux__
#include <sys/prctl.h>
#endif
#include <csignal>

#include "attach.hpp"
#include "bindings.hpp"
#include "calls.hpp"
#include "columns.hpp"
#include "engine.hpp"
#include "network/bindings.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace sley {
namespace {

using Bytes = nb::ndarray<std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

SLEY_PYTHON_CLASS(Wiring, "sley.engine.program.Wiring");
SLEY_PYTHON_CLASS(RankProgram, "sley.engine.program.RankProgram");

FabricShape make_shape(const Column<std::int32_t>& fifos, std::int64_t slots,
                       std::int64_t slot_bytes, std::int64_t envelopes) {
    FabricShape shape{to_vector(fifos), {slots, slot_bytes, envelopes}};
    shape.check();
    return shape;
}

std::vector<Connection> make_connections(const Wiring& wiring) {
    const auto src = column<std::int32_t>(wiring, "src");
    const auto dst = column<std::int32_t>(wiring, "dst");
    const auto index = column<std::int32_t>(wiring, "index");
    if (src.size() != dst.size() || src.size() != index.size()) {
        throw std::invalid_argument("connections without an end");
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
    c.in_place = attribute<bool>(p, "in_place");
    c.tile_major = attribute<bool>(p, "tile_major");
    c.all_pullable = attribute<bool>(p, "all_pullable");
    c.reduces = attribute<bool>(p, "reduces");
    c.needs_all = attribute<bool>(p, "needs_all");
    return c;
}

std::shared_ptr<Engine> make_engine(std::shared_ptr<Fabric> fabric, const Wiring& wiring,
                                    const RankProgram& program) {
    const Room room{attribute<std::int64_t>(wiring, "slots"),
                    attribute<std::int64_t>(wiring, "slot_bytes")};
    return std::make_shared<Engine>(std::move(fabric), make_columns(program),
                                    make_connections(wiring), room);
}

// Throws what the engine would, without a fabric.
void check_program(const Wiring& wiring, const RankProgram& program) {
    build_program(make_columns(program), attribute<std::int32_t>(program, "rank"),
                  attribute<std::int32_t>(wiring, "ranks"), make_connections(wiring));
}

}  // namespace

Report to_report(const Outcome& outcome) {
    std::vector<StuckRow> stuck;
    for (const auto& s : outcome.stuck) {
        stuck.emplace_back(s.instruction, s.tile, static_cast<int>(s.reason), s.target);
    }
    return {static_cast<int>(outcome.status), outcome.seconds, outcome.rank, outcome.bytes,
            std::move(stuck)};
}

Call make_call(std::int64_t count, std::int32_t type, std::int32_t op) {
    if (type < 0 || type >= kDataTypes || op < 0 || op >= kReduceOps) {
        throw std::invalid_argument("an unknown type or operation");
    }
    return {count, static_cast<DataType>(type), static_cast<ReduceOp>(op), {}, {}, {}};
}

namespace {

Call call_on(std::int64_t count, std::int32_t type, std::int32_t op, const Bytes& input,
             const Bytes& output) {
    Call call = make_call(count, type, op);
    call.memory[kInput] = reinterpret_cast<std::byte*>(input.data());
    call.memory[kOutput] = reinterpret_cast<std::byte*>(output.data());
    call.bytes[kInput] = static_cast<std::int64_t>(input.size());
    call.bytes[kOutput] = static_cast<std::int64_t>(output.size());
    return call;
}

Report run_one(Engine& engine, std::int64_t count, std::int32_t type, std::int32_t op,
               Bytes input, Bytes output, std::int64_t iterations, double timeout_s) {
    const auto call = call_on(count, type, op, input, output);
    engine.check(call);
    Outcome outcome;
    {
        nb::gil_scoped_release release;
        outcome = run_call(engine, call, iterations, timeout_s, true);
    }
    if (outcome.status == Status::kNoMemory) throw std::bad_alloc();
    return to_report(outcome);
}

// All ranks as threads of this process; a rank that throws fails the job, so nobody waits for it.
std::vector<Outcome> run_all(const std::vector<std::shared_ptr<Engine>>& engines,
                             const std::vector<Call>& calls, double timeout_s) {
    std::vector<Outcome> outcomes(engines.size());
    std::vector<std::exception_ptr> thrown(engines.size());
    std::vector<std::thread> threads;
    const auto body = [&](std::size_t i) {
        try {
            outcomes[i] = run_call(*engines[i], calls[i], 1, timeout_s, true);
        } catch (...) {
            thrown[i] = std::current_exception();
            engines[i]->fabric().control().fail(Failure::kDied, static_cast<std::int32_t>(i));
        }
    };
    std::exception_ptr no_thread;
    try {
        for (std::size_t i = 1; i < engines.size(); ++i) threads.emplace_back(body, i);
        if (!engines.empty()) body(0);
    } catch (const std::system_error&) {
        no_thread = std::current_exception();
        const auto rank = static_cast<std::int32_t>(threads.size()) + 1;
        engines[0]->fabric().control().fail(Failure::kDied, rank);
    }
    for (auto& thread : threads) thread.join();
    if (no_thread) std::rethrow_exception(no_thread);
    for (const auto& error : thrown) {
        if (error) std::rethrow_exception(error);
    }
    for (const auto& outcome : outcomes) {
        if (outcome.status == Status::kNoMemory) throw std::bad_alloc();
    }
    return outcomes;
}

std::vector<Report> run_threads(std::vector<std::shared_ptr<Engine>> engines, std::int64_t count,
                                std::int32_t type, std::int32_t op, std::vector<Bytes> inputs,
                                std::vector<Bytes> outputs, double timeout_s) {
    if (inputs.size() != engines.size() || outputs.size() != engines.size()) {
        throw std::invalid_argument("not one memory for each rank");
    }
    std::vector<Call> calls;
    for (std::size_t i = 0; i < engines.size(); ++i) {
        calls.push_back(call_on(count, type, op, inputs[i], outputs[i]));
        engines[i]->check(calls.back());
    }
    std::vector<Outcome> outcomes;
    {
        nb::gil_scoped_release release;
        outcomes = run_all(engines, calls, timeout_s);
    }
    std::vector<Report> reports;
    for (const auto& outcome : outcomes) reports.push_back(to_report(outcome));
    return reports;
}

// The kernel kills this process when the thread that forked it ends. Elsewhere than on Linux the
// end of the command socket has to do.
void die_with_parent() {
#ifdef __linux__
    prctl(PR_SET_PDEATHSIG, SIGKILL);
#endif
}

// Live as long as the process: the module may be taken down after the interpreter.
PyObject* g_program_fault = nullptr;
PyObject* g_slot_too_small = nullptr;

void define_errors(nb::module_& m) {
    g_program_fault =
        PyErr_NewException("sley.engine._native.ProgramFault", PyExc_ValueError, nullptr);
    g_slot_too_small =
        PyErr_NewException("sley.engine._native.SlotTooSmall", PyExc_ValueError, nullptr);
    m.attr("ProgramFault") = nb::handle(g_program_fault);
    m.attr("SlotTooSmall") = nb::handle(g_slot_too_small);
}

void translate(const std::exception_ptr& error, void*) {
    try {
        std::rethrow_exception(error);
    } catch (const ProgramFault& fault) {
        const nb::tuple arguments = nb::make_tuple(fault.row, fault.what());
        PyErr_SetObject(g_program_fault, arguments.ptr());
    } catch (const SlotTooSmall& fault) {
        PyErr_SetString(g_slot_too_small, fault.what());
    } catch (const std::system_error& fault) {
        const nb::tuple arguments = nb::make_tuple(fault.code().value(), fault.what());
        PyErr_SetObject(PyExc_OSError, arguments.ptr());
    }
}

void define_segment(nb::module_& m) {
    nb::class_<Segment>(m, "Segment", "Memory of this process or shared with others.")
        .def_static(
            "create",
            [](std::size_t bytes, bool shared) {
                return std::make_shared<Segment>(Segment::create(bytes, shared));
            },
            "bytes"_a, "shared"_a, "Memory, all zeros; OSError where there is not so much.")
        .def_static(
            "sparse",
            [](std::size_t bytes) {
                return std::make_shared<Segment>(Segment::sparse(bytes, true));
            },
            "bytes"_a, "Addresses to be shared; memory is behind what is reserved.")
        .def_static(
            "attach",
            [](int fd, std::size_t bytes, bool writable) {
                return std::make_shared<Segment>(Segment::attach(fd, bytes, writable));
            },
            "fd"_a, "bytes"_a, "writable"_a = true,
            "The segment that another process shares by a descriptor, which stays the caller's.")
        .def("reserve", &Segment::reserve, "offset"_a, "bytes"_a,
             "Puts memory behind a range of a sparse segment; OSError where there is none.")
        .def("release", &Segment::release, "offset"_a, "bytes"_a,
             "Gives the memory behind a range of a sparse segment back.")
        .def(
            "announce",
            [](Segment& self) { announce(*reinterpret_cast<RankState*>(self.data())); },
            "Lets other processes find this one's memory: the segment is a rank's.")
        .def_prop_ro("size", &Segment::size, "In bytes.")
        .def_prop_ro("fd", &Segment::fd, "The descriptor to share it by; -1 where it isn't shared.")
        .def_prop_ro(
            "array",
            [](Segment& self) {
                return nb::ndarray<nb::numpy, std::uint8_t, nb::ndim<1>>(
                    self.data(), {self.size()}, nb::find(self));
            },
            "The memory as a NumPy array, which keeps the segment alive.");
}

void define_fabric(nb::module_& m) {
    nb::class_<FabricShape>(m, "FabricShape", "What the memory of a job's ranks looks like.")
        .def_static("create", &make_shape, "fifos"_a, "slots"_a, "slot_bytes"_a, "envelopes"_a,
                    "fifos: the connections that each rank may send on. ValueError for a shape "
                    "without room, MemoryError for one beyond all bounds.")
        .def("bytes_of", &FabricShape::bytes_of, "rank"_a, "Of a rank's memory.")
        .def_prop_ro(
            "fifo_bytes", [](const FabricShape& self) { return self.fifo.bytes(); },
            "Of a connection.")
        .def_prop_ro("bytes", &Fabric::bytes_side_by_side,
                     "Of all ranks' memory, side by side in one segment.");

    using Segments = std::vector<std::optional<std::shared_ptr<Segment>>>;
    nb::class_<Fabric>(m, "Fabric", "The memory of all ranks and their connections, as one sees it.")
        .def_static(
            "side_by_side",
            [](const FabricShape& shape, const std::shared_ptr<Segment>& segment,
               std::int32_t rank) {
                if (segment->size() < Fabric::bytes_side_by_side(shape)) {
                    throw std::invalid_argument("a segment too small for the fabric");
                }
                return std::make_shared<Fabric>(shape, rank, Fabric::side_by_side(shape, segment),
                                                std::vector<Region>{});
            },
            "shape"_a, "segment"_a, "rank"_a, "All ranks' memory lies in one segment.")
        .def_static(
            "join",
            [](const FabricShape& shape, const Segments& memory, const Segments& heaps,
               std::int32_t rank) {
                const auto regions = [](const Segments& segments) {
                    std::vector<Region> found;
                    for (const auto& s : segments) found.push_back({s.value_or(nullptr), 0});
                    return found;
                };
                return std::make_shared<Fabric>(shape, rank, regions(memory), regions(heaps));
            },
            "shape"_a, "memory"_a, "heaps"_a, "rank"_a,
            "Every rank of this host has a segment; None for those of others.")
        .def_prop_ro(
            "ranks", [](const Fabric& self) { return self.shape().ranks(); }, "How many.")
        .def_prop_ro(
            "beats", [](Fabric& self) { return self.control().beats(); },
            "In how many rounds any rank has moved something.")
        .def_prop_ro(
            "failed", [](Fabric& self) { return self.control().failed(); }, "Whether any rank has.")
        .def(
            "fail",
            [](Fabric& self, std::int32_t rank) { self.control().fail(Failure::kDied, rank); },
            "rank"_a, "Record that `rank` died; every rank that waits then gives up.")
        .def_prop_ro(
            "failure",
            [](Fabric& self) {
                return std::tuple(static_cast<int>(self.control().failure_kind()),
                                  self.control().failure_rank());
            },
            "(kind, rank) of the first failure: `sley.communicator.failures.Failure`.")
        .def(
            "call_of",
            [](Fabric& self, std::int32_t rank) {
                const auto call = self.control().call_of(rank);
                return std::tuple(call.sequence, call.what, call.count);
            },
            "rank"_a, "What a rank is at: (number of the call, what, count).")
        .def("reads_others", &Fabric::reads_others,
             "Whether this rank can read the memory of the others' processes.")
        .def_rw("is_attached", &Fabric::is_attached, "Whether all ranks can: they have agreed.")
        .def(
            "go_only",
            [](Fabric& self, std::uint64_t way) {
                if (way >= kWays) throw std::invalid_argument("no such way");
                self.ways().only = Way{way};
            },
            "way"_a, "Calls that can go a way (by its number) all do.")
        .def(
            "close", [](Fabric& self) { self.control().close(); },
            "Tells the others that this rank has left.")
        .def(
            "abort",
            [](Fabric& self) {
                self.control().fail(Failure::kGaveUp, self.rank());
                self.progress();
            },
            "Ends every call, on all ranks.")
        .def("watch", &watch, "descriptors"_a,
             "Pairs (descriptor, rank): one that becomes readable when the rank's process ends.")
        .def(
            "settle", &settle, "timeout_s"_a, nb::call_guard<nb::gil_scoped_release>(),
            "Waits until what was sent has left this host; False if it didn't within the time.");
}

void define_engine(nb::module_& m) {
    nb::class_<Tally>(m, "Tally", "Calls that an engine has ended well.")
        .def_ro("calls", &Tally::calls, "How many.")
        .def_ro("block_bytes", &Tally::block_bytes, "Bytes of one block of each, added up.")
        .def_ro("seconds", &Tally::seconds, "How long they took, added up.")
        .def_prop_ro(
            "ways",
            [](const Tally& self) {
                return std::vector<std::uint64_t>(self.ways.begin(), self.ways.end());
            },
            "How many went each way.");
    nb::class_<Engine>(m, "Engine", "One rank's program of a plan, ready to be called.")
        .def_static("create", &make_engine, "fabric"_a, "wiring"_a, "program"_a,
                    "ProgramFault for a program that must not run.")
        .def("run", &run_one, "count"_a, "dtype"_a, "op"_a, "input"_a, "output"_a, "iterations"_a,
             "timeout_s"_a,
             "Runs it so many times back to back, after a barrier with all other ranks. count: "
             "elements of a block. dtype, op: numbers of a DataType and a ReduceOp. in place: "
             "input is the rank's data, output is empty. ValueError for memory of a wrong size, "
             "SlotTooSmall, MemoryError.")
        .def_prop_ro("tally", &Engine::tally, "Of its calls so far.");
    m.def("run_threads", &run_threads, "engines"_a, "count"_a, "dtype"_a, "op"_a, "inputs"_a,
          "outputs"_a, "timeout_s"_a,
          "Runs the engines of all ranks, each in a thread; OSError where there are too few.");
    m.def("check_program", &check_program, "wiring"_a, "program"_a,
          "ProgramFault for a program that must not run.");
    m.def("die_with_parent", &die_with_parent,
          "From now on the kernel ends this process when its parent ends (on Linux).");
}

}  // namespace
}  // namespace sley

NB_MODULE(_native, m) {
    m.doc() = "The CPU engine of sley: shared memory, connections, and the interpreter of a rank.";
    nb::set_leak_warnings(false);  // a process may end with arrays of the heap alive
    sley::define_errors(m);
    nb::register_exception_translator(&sley::translate);
    sley::define_segment(m);
    sley::define_fabric(m);
    sley::define_engine(m);
    sley::define_calls(m);
    sley::define_network(m);
}
