// Plans on devices, for Python: the structures of tables, and a plan's tables on a device.
#include <nanobind/nanobind.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/set.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstddef>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "bindings/bindings.hpp"
#include "bindings/lease.hpp"
#include "devices/device_calls.hpp"
#include "devices/link_tables.hpp"
#include "devices/memory_index.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace sley {
namespace {

// A structure as NumPy describes it.
struct Structure {
    explicit Structure(std::size_t bytes) : bytes(bytes) {}

    template <class T>
    Structure& field(const char* name, std::size_t offset) {
        const bool is_signed = std::is_signed_v<T>;  // addresses and places aren't
        return field(name, offset, (is_signed ? "i" : "u") + std::to_string(sizeof(T)));
    }
    Structure& field(const char* name, std::size_t offset, const std::string& format) {
        names.append(name);
        formats.append(format);
        offsets.append(offset);
        return *this;
    }

    std::size_t bytes;
    nb::list names, formats, offsets;
};

#define SLEY_FIELD(name) field<decltype(Row::name)>(#name, offsetof(Row, name))

Structure structure_of(const std::string& name) {
    if (name == "Call") return Structure(sizeof(layout::Call));
    if (name == "Messages") return Structure(sizeof(layout::Messages));
    if (name == "Stamp") {
        using Row = layout::Stamp;
        return Structure(sizeof(Row)).SLEY_FIELD(turn).SLEY_FIELD(start).SLEY_FIELD(end)
            .SLEY_FIELD(step).SLEY_FIELD(tile);
    }
    if (name == "Counter") return Structure(sizeof(layout::Counter));
    if (name == "Cell") {
        using Row = layout::Cell;
        return Structure(sizeof(Row)).SLEY_FIELD(ticks);
    }
    if (name == "Peer") {
        using Row = layout::Peer;
        return Structure(sizeof(Row)).SLEY_FIELD(published).SLEY_FIELD(consumed)
            .SLEY_FIELD(slots).SLEY_FIELD(switched).SLEY_FIELD(rank).SLEY_FIELD(messages);
    }
    if (name == "Block") {
        using Row = layout::Block;
        return Structure(sizeof(Row)).SLEY_FIELD(rank).SLEY_FIELD(number).SLEY_FIELD(kind)
            .SLEY_FIELD(member).SLEY_FIELD(first_sender).SLEY_FIELD(senders)
            .SLEY_FIELD(first_receiver).SLEY_FIELD(receivers).SLEY_FIELD(rank_sender)
            .SLEY_FIELD(first_step).SLEY_FIELD(steps).SLEY_FIELD(first_condition)
            .SLEY_FIELD(conditions).SLEY_FIELD(first_home).SLEY_FIELD(cell).SLEY_FIELD(stride)
            .SLEY_FIELD(cells).SLEY_FIELD(progress).SLEY_FIELD(first_cell);
    }
    if (name == "Instruction") {
        using Row = layout::Instruction;
        return Structure(sizeof(Row)).SLEY_FIELD(op).SLEY_FIELD(flags).SLEY_FIELD(waits)
            .SLEY_FIELD(count).SLEY_FIELD(src).SLEY_FIELD(dst).SLEY_FIELD(from)
            .SLEY_FIELD(from_message).SLEY_FIELD(to).SLEY_FIELD(to_message).SLEY_FIELD(pulled)
            .SLEY_FIELD(first_wait).SLEY_FIELD(divisor).SLEY_FIELD(run)
            .SLEY_FIELD(from_members).SLEY_FIELD(to_members);
    }
    if (name == "Condition") {
        using Row = layout::Condition;  // with two fields of bits, which have no address
        return Structure(sizeof(Row)).SLEY_FIELD(target)
            .field("number_held", sizeof(Row::target), "u4");
    }
    if (name == "Division") {
        using Row = layout::Division;
        return Structure(sizeof(Row)).SLEY_FIELD(rank).SLEY_FIELD(chunk).SLEY_FIELD(divisor);
    }
    throw std::invalid_argument("an unknown structure");
}

#undef SLEY_FIELD

nb::dict describe(const std::string& name) {
    const Structure found = structure_of(name);
    nb::dict described;
    described["names"] = found.names;
    described["formats"] = found.formats;
    described["offsets"] = found.offsets;
    described["itemsize"] = found.bytes;
    return described;
}

using Tables = std::map<std::string, nb::bytes>;
using Numbers = std::map<std::string, std::int64_t>;

std::shared_ptr<PlanTables> make_tables(const Tables& tables, const Numbers& numbers) {
    auto made = std::make_shared<PlanTables>();
    const auto number = [&numbers](const char* name, auto& value) {
        value = static_cast<std::remove_reference_t<decltype(value)>>(numbers.at(name));
    };
    PlanTables::visit(*made, number, [&tables](const char* name, auto& rows) {
        const auto& bytes = tables.at(name);
        if (bytes.size() % sizeof rows[0] != 0) throw std::invalid_argument("a part of a row");
        rows.resize(bytes.size() / sizeof rows[0]);
        if (!rows.empty()) std::memcpy(rows.data(), bytes.c_str(), bytes.size());
    });
    made->check();
    return made;
}

template <class Tables>
nb::bytes write(const Tables& self) {
    const std::string bytes = self.to_bytes();
    return nb::bytes(bytes.data(), bytes.size());
}

template <class Tables>
Tables read(const nb::bytes& bytes) {
    return Tables::from_bytes({bytes.c_str(), bytes.size()});
}

Numbers cut(const PlanTables& self, std::int64_t item_bytes, std::int64_t count) {
    layout::Setup cut{};
    self.numbers.cut(item_bytes, count, cut);
    return {{"chunk", cut.chunk}, {"tile", cut.tile}, {"tiles", cut.tiles}, {"slices", cut.slices}};
}

std::shared_ptr<MemoryIndex> make_index(
    int ranks, nb::typed<nb::object, std::vector<std::pair<int, Device*>>> devices) {
    const auto own = nb::cast<std::vector<std::pair<int, Device*>>>(devices);
    const auto made = [&] {
        const Unlocked unlocked;  // a device may make it wait
        return new MemoryIndex(ranks, own);
    };
    return on_devices(made(), std::make_shared<Function>(std::move(devices)));
}

// See PlanCall::Place.
using PlaceRow = std::tuple<std::shared_ptr<DevicePlan>, Address, Address, Address, Address>;

void make_call(PlanCall* self, std::shared_ptr<CallOrder> order, std::shared_ptr<MemoryIndex> memory,
               const std::vector<PlaceRow>& rows, unsigned threads, bool together,
               nb::object keeps) {
    std::vector<PlanCall::Place> places;
    for (const auto& [plan, run, divide, place, stamps] : rows) {
        places.push_back({plan, run, divide, place, stamps});
    }
    const auto kept = for_streams(std::move(keeps));
    const Unlocked unlocked;  // who has the turn may need Python's lock to end it
    new (self) PlanCall(std::move(order), std::move(memory), std::move(places), threads, together);
    self->keep(kept);
}

// A rank, and of its input and output the address and the bytes.
using BuffersRow = std::tuple<int, Address, std::uint64_t, Address, std::uint64_t>;

bool lay_out(PlanCall& self, std::int64_t item_bytes, std::int64_t count,
             const std::vector<BuffersRow>& rows, std::uint64_t factor, Address factor_at) {
    std::vector<RankBuffers> buffers;
    for (const auto& [rank, input, input_bytes, output, output_bytes] : rows) {
        buffers.push_back({rank, {input, output}, {input_bytes, output_bytes}});
    }
    const Unlocked unlocked;  // a device may make it wait
    return self.lay_out({item_bytes, count, &buffers, factor, factor_at});
}

StartOutcome start(DeviceCalls& self, int kind, bool in_place, int root, int dtype, int op,
                   std::uint64_t size_bytes, std::int64_t item_bytes, std::int64_t count,
                   Address input, std::uint64_t input_bytes, Address output,
                   std::uint64_t output_bytes, Address stream, std::optional<std::uint64_t> factor,
                   Address factor_at, nb::object keeps) {
    std::shared_ptr<void> kept;
    if (!keeps.is_none()) kept = for_streams(std::move(keeps));
    // A device may make it wait for another thread's launch, which needs Python's lock.
    const Unlocked unlocked;
    return self.start({kind, in_place, root}, {dtype, op, factor || factor_at != 0}, size_bytes,
                      {item_bytes, count, nullptr, factor.value_or(0), factor_at},
                      {0, {input, output}, {input_bytes, output_bytes}}, stream, kept);
}

// What doesn't reduce moves elements as integers of their size: the bytes are all that counts.
std::optional<DataType> moved_as(const Kind& kind, const ElementType& type) {
    constexpr int integers = 0;  // DLPack's code
    const auto* moved = kind.reduces ? &type : element_type(integers, type.bits);
    const auto number = moved - kElementTypes;
    return number < kDataTypes ? std::optional(static_cast<DataType>(number)) : std::nullopt;
}

std::optional<StartOutcome> start_usual(DeviceCalls& self, const Kind& kind, nb::object data,
                                        nb::object out, std::int32_t op, int root, Address stream,
                                        bool keeps) {
    const auto input = usual_view(data, self.device());
    const auto output = out.is(data) ? input : usual_view(out, self.device());
    if (!input || !output || !output->writable || input->type != output->type) return {};
    const auto type = moved_as(kind, *input->type);
    if (!type) return {};
    std::shared_ptr<void> kept;
    if (keeps) kept = for_streams(nb::make_tuple(data, out));
    const auto elements = [&type](const ArrayView& view) {
        return Elements{at(view.address), view.elements, *type, view.type->bits / 8, 0};
    };
    const Unlocked unlocked;  // as in `start`
    return self.start(kind, elements(*input), elements(*output), to_op(op), root, stream, kept);
}

using PlanRow = std::pair<std::string, std::shared_ptr<PlanTables>>;
using RangesRow =
    std::tuple<std::string, Kind, int, std::vector<std::uint64_t>, std::vector<int>>;
using KernelsRow = std::tuple<int, int, int, bool, std::string>;

LinkTables make_link_tables(const LinkKey& key, std::string version, unsigned threads,
                            const std::vector<PlanRow>& plans, std::vector<std::size_t> mailboxes,
                            std::size_t scratch, const std::vector<RangesRow>& rows,
                            const std::vector<KernelsRow>& kernels, std::string messages) {
    LinkTables made;
    made.key = key;
    made.version = std::move(version);
    made.threads = threads;
    for (const auto& [name, plan] : plans) {
        made.names.push_back(name);
        made.plans.push_back(plan);
    }
    made.mailboxes = std::move(mailboxes);
    made.scratch = scratch;
    for (const auto& [name, kind, root, ends, of] : rows) {
        made.rows.push_back({name, kind, {kind.number, false, root}, ends, of});
    }
    for (const auto& [plan, dtype, op, scales, file] : kernels) {
        made.kernels.push_back({plan, {dtype, op, scales}, file});
    }
    made.messages = std::move(messages);
    made.check();
    return made;
}

nb::list stuck(const DevicePlan& self) {
    nb::list found;
    for (const auto& [block, report] : self.stuck()) {
        nb::dict row;
        row["rank"] = block->rank;
        row["block"] = block->number;
        row["status"] = report.status;
        row["step"] = report.step;
        row["reason"] = report.reason;
        row["tile"] = report.tile;
        row["target"] = report.target;
        row["number"] = report.target_step;
        row["ticks"] = report.ticks;
        row["call"] = report.call;
        row["other"] = report.other;
        found.append(row);
    }
    return found;
}

}  // namespace

void define_device_plans(nb::module_& m) {
    m.attr("RANKS") = layout::kRanks;
    m.attr("HIDDEN") = layout::kHidden;
    m.attr("STAMP_ROWS") = layout::kStampRows;
    m.attr("OFFSET_BITS") = kOffsetBits;
    m.attr("PLAN_BITS") = layout::kPlanBits;
    m.def("structure", &describe, "name"_a,
          nb::sig("def structure(name: str) -> typing.Any"),
          "A structure of `kernels/primitives/layout.hpp`, as NumPy describes types.");
    nb::class_<PlanTables>(m, "PlanTables", "A plan as kernels read it, for any devices.")
        .def(nb::new_(&make_tables), "tables"_a, "numbers"_a)
        .def("to_bytes", &write<PlanTables>,
             "The tables as a file, for a runtime of the same version.")
        .def_static("from_bytes", &read<PlanTables>, "bytes"_a,
                    "F425 for bytes that `to_bytes` of this version didn't write.")
        .def("cut", &cut, "item_bytes"_a, "count"_a,
             "How a call of `count` elements a block is cut into tiles. R503, R506.")
        .def("threads",
             [](const PlanTables& self, std::int64_t item_bytes, std::int64_t count) {
                 return self.numbers.threads(item_bytes, count);
             },
             "item_bytes"_a, "count"_a, "The threads of a block in such a call.")
        .def("scratch_bytes",
             [](const PlanTables& self, std::int64_t item_bytes, std::int64_t count) {
                 std::vector<std::int64_t> bytes;
                 for (std::size_t rank = 0; rank < self.numbers.scratch_chunks.size(); ++rank) {
                     bytes.push_back(self.numbers.scratch_bytes(static_cast<int>(rank), item_bytes,
                                                                count));
                 }
                 return bytes;
             },
             "item_bytes"_a, "count"_a, "The bytes that a call needs of each rank's scratch.");
    nb::class_<LinkKey>(m, "LinkKey", "What decides the plans of a communicator on devices.")
        .def(nb::init<int, bool, bool, int, bool>(), "ranks"_a, "has_lines"_a, "is_one_device"_a,
             "most_blocks"_a, "same_bits"_a = false)
        .def_ro("ranks", &LinkKey::ranks)
        .def_ro("has_lines", &LinkKey::has_lines)
        .def_ro("is_one_device", &LinkKey::is_one_device)
        .def_ro("most_blocks", &LinkKey::most_blocks)
        .def_ro("same_bits", &LinkKey::same_bits)
        .def("file_name", &LinkKey::file_name, "The name of the file with its tables.");
    nb::class_<LinkTables>(m, "LinkTables",
                           "All that is derived ahead for a communicator on devices, as a file.")
        .def(nb::new_(&make_link_tables), "key"_a, "version"_a, "threads"_a, "plans"_a,
             "mailboxes"_a, "scratch"_a, "rows"_a, "kernels"_a, "messages"_a,
             "plans: names and tables. mailboxes: the bytes of each rank's. scratch: the bytes that "
             "a rank needs. rows: for each kind of calls its name, itself, the root, and the plans "
             "by size, as of `DeviceCalls.set_table`. kernels: the plan, type, operation, whether "
             "inputs are multiplied, and the name of the file. "
             "messages: the name of the file with the kernel of sends and receives. "
             "F425 for parts that don't fit one another.")
        .def_ro("digest", &LinkTables::digest)
        .def_ro("scratch", &LinkTables::scratch)
        .def_prop_ro("files",
                     [](const LinkTables& self) {
                         std::set<std::string> names{self.messages};
                         for (const auto& one : self.kernels) names.insert(one.file);
                         return names;
                     },
                     "The names of the kernels' files.")
        .def("to_bytes", &write<LinkTables>, "A file for a runtime of the same version.")
        .def_static("from_bytes", &read<LinkTables>, "bytes"_a,
                    "F425 for bytes that `to_bytes` of this version didn't write.");
    nb::class_<DevicePlan>(m, "DevicePlan", "A plan on a device of this process.")
        .def_prop_ro("blocks", &DevicePlan::blocks, "The number of blocks that run at once.")
        .def("stuck", &stuck, nb::sig("def stuck(self) -> list[dict[str, int]]"),
             "The reports of the blocks that have given up.");
    const nb::call_guard<Unlocked> unlocked;
    nb::class_<MemoryIndex>(m, "MemoryIndex",
                            "What calls look up of the memory of this process's ranks.")
        .def(nb::new_(&make_index), "ranks"_a, "devices"_a, "devices: of this process's ranks.")
        .def("add", &MemoryIndex::add, "address"_a, "size_bytes"_a, "shifts"_a, unlocked,
             "Registers memory that all ranks have mapped. shifts: for each rank, what to add to an "
             "address of it for its address there.")
        .def("add_scratch", &MemoryIndex::add_scratch, "rank"_a, "address"_a, "size_bytes"_a,
             "all_read"_a, unlocked, "Those that all ranks read are larger than those before.")
        .def("number", &MemoryIndex::number, "rank"_a, "address"_a, "size_bytes"_a, unlocked,
             "By which peers read a rank's memory; 0: none does, 1: those of this process.");
    nb::class_<PlanCall>(m, "PlanCall", "A call of a plan, which can be started many times.")
        .def("__init__", &make_call, "order"_a, "memory"_a, "places"_a, "threads"_a, "together"_a,
             "keeps"_a, "places: a plan on a device, and its kernels there.")
        .def("lay_out", &lay_out, "item_bytes"_a, "count"_a, "buffers"_a, "factor"_a = 0,
             "factor_at"_a = 0,
             "buffers: of a rank, the address and the bytes of its input, and of its output. False "
             "if a rank has too little scratch. R503, R506.")
        .def("start", &PlanCall::start, "streams"_a, "recorded"_a, nb::call_guard<Unlocked>(),
             "Starts the call on a stream for each launch of each place. recorded: whether the next "
             "call has to wait for this one. False, without a launch, if a call was given up.");
    nb::enum_<StartOutcome>(m, "StartOutcome", nb::is_arithmetic(),
                            "What became of a call. STARTED: 0; otherwise nothing was started.")
        .value("STARTED", StartOutcome::kStarted)
        .value("GIVEN_UP", StartOutcome::kGivenUp)
        .value("LACKS_PROGRAM", StartOutcome::kLacksProgram)
        .value("LACKS_SCRATCH", StartOutcome::kLacksScratch);
    nb::class_<DeviceCalls>(m, "DeviceCalls",
                            "The calls of a rank of a communicator on a device, for any threads. "
                            "Kinds, types and operations are any numbers; `root` is 0 if there is "
                            "none.")
        .def(nb::init<std::shared_ptr<CallOrder>, std::shared_ptr<MemoryIndex>, int, bool>(),
             "order"_a, "memory"_a, "rank"_a, "together"_a, unlocked)
        .def("add_plan", &DeviceCalls::add_plan, "plan"_a, unlocked,
             "Returns its number: 0, 1 and so on.")
        .def("set_table",
             [](DeviceCalls& self, int kind, bool in_place, int root,
                std::vector<std::uint64_t> ends, std::vector<int> plans) {
                 self.set_table({kind, in_place, root}, std::move(ends), std::move(plans));
             },
             "kind"_a, "in_place"_a, "root"_a, "ends"_a, "plans"_a, unlocked,
             "The calls of a kind run plans[k] up to ends[k] bytes of the largest buffer of any "
             "rank, and larger ones the last plan.")
        .def("set_program",
             [](DeviceCalls& self, int plan, int dtype, int op, bool scales, Address run,
                Address divide) { self.set_program(plan, {dtype, op, scales}, run, divide); },
             "plan"_a, "dtype"_a, "op"_a, "scales"_a, "run"_a, "divide"_a, unlocked,
             "The addresses of a plan's kernels; divide: 0 without one.")
        .def("plan_of",
             [](const DeviceCalls& self, int kind, bool in_place, int root,
                std::uint64_t size_bytes) {
                 return self.plan_of({kind, in_place, root}, size_bytes);
             },
             "kind"_a, "in_place"_a, "root"_a, "size_bytes"_a, unlocked,
             "The number of the plan that runs a call.")
        .def("tallies",
             [](const DeviceCalls& self, int kind, bool in_place, int root) {
                 std::vector<std::pair<std::uint64_t, std::uint64_t>> found;
                 for (const auto& own : self.tallies({kind, in_place, root})) {
                     found.emplace_back(own.calls, own.bytes);
                 }
                 return found;
             },
             "kind"_a, "in_place"_a, "root"_a, unlocked,
             "Of each range of sizes of a kind: the calls that were started, and their bytes.")
        .def("start", &start, "kind"_a, "in_place"_a, "root"_a, "dtype"_a, "op"_a, "size_bytes"_a,
             "item_bytes"_a, "count"_a, "input"_a, "input_bytes"_a, "output"_a, "output_bytes"_a,
             "stream"_a, "factor"_a.none() = nb::none(), "factor_at"_a = 0,
             "keeps"_a.none() = nb::none(),
             "Starts a call; of 0 bytes without a launch. size_bytes: of the largest buffer of any "
             "rank. count: elements of a block. input, output: addresses, or 0. factor: the bits of "
             "a number, or the address of one, by which inputs are multiplied. keeps: what must "
             "live until the kernel has ended. R503, R506.")
        .def("start_usual", &start_usual, "kind"_a, "data"_a.none(), "out"_a.none(), "op"_a,
             "root"_a, "stream"_a, "keeps"_a,
             "Starts a call of arrays as callers usually give them; None, and nothing is started, if "
             "they need a closer look. keeps: whether they live until the kernel has ended. "
             "Otherwise as `start`.");
}

}  // namespace sley
