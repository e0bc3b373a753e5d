// Plans on devices, for Python: the structures of tables, and a plan's tables on a device.
#include <nanobind/nanobind.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <cstddef>
#include <cstring>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "bindings/bindings.hpp"
#include "devices/plan_call.hpp"

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
            .SLEY_FIELD(first_wait).SLEY_FIELD(divisor).SLEY_FIELD(from_members)
            .SLEY_FIELD(to_members);
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

Numbers cut(const PlanTables& self, std::int64_t item_bytes, std::int64_t count) {
    layout::Setup cut{};
    self.numbers.cut(item_bytes, count, cut);
    return {{"chunk", cut.chunk}, {"tile", cut.tile}, {"tiles", cut.tiles}, {"slices", cut.slices}};
}

std::shared_ptr<DevicePlan> make_plan(std::shared_ptr<const PlanTables> tables,
                                      nb::typed<nb::object, Device> device,
                                      const std::vector<std::vector<int>>& launches,
                                      const std::vector<std::uint64_t>& segments, Address abort,
                                      std::uint64_t timeout_ns) {
    auto& own = nb::cast<Device&>(device);
    const auto made = [&] {
        const Unlocked unlocked;  // the device may make it wait
        return new DevicePlan(std::move(tables), own, launches, segments, abort, timeout_ns);
    };
    return {made(), [kept = std::make_shared<Function>(std::move(device))](DevicePlan* plan) {
                if (is_python_ending()) return;  // as all memory of devices
                const Unlocked unlocked;
                delete plan;
            }};
}

// A plan on a device, the kernels that run and divide, and the table of registered memory.
using PlaceRow = std::tuple<std::shared_ptr<DevicePlan>, Address, Address, Address>;

void make_call(PlanCall* self, std::shared_ptr<CallOrder> order, const std::vector<PlaceRow>& rows,
               unsigned threads, bool together, nb::object keeps) {
    std::vector<PlanCall::Place> places;
    for (const auto& [plan, run, divide, shifts] : rows) {
        places.push_back({plan, run, divide, shifts});
    }
    const auto kept = for_streams(std::move(keeps));
    const Unlocked unlocked;  // who has the turn may need Python's lock to end it
    new (self) PlanCall(std::move(order), std::move(places), threads, together, kept);
}

// A rank, and of its input, output and scratch the address, and the number for peers.
using MemoryRow = std::pair<int, std::array<std::pair<Address, std::uint16_t>, 3>>;

void lay_out(PlanCall& self, std::int64_t item_bytes, std::int64_t count,
             const std::vector<MemoryRow>& rows, std::uint64_t factor, Address factor_at) {
    std::vector<RankMemory> memories;
    for (const auto& [rank, pieces] : rows) {
        auto& own = memories.emplace_back(RankMemory{rank, {}, {}});
        for (std::size_t m = 0; m < pieces.size(); ++m) {
            std::tie(own.addresses[m], own.registered.number[m]) = pieces[m];
        }
    }
    self.lay_out({item_bytes, count, &memories, factor, factor_at});
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
        found.append(row);
    }
    return found;
}

}  // namespace

void define_device_plans(nb::module_& m) {
    m.attr("RANKS") = layout::kRanks;
    m.attr("HIDDEN") = layout::kHidden;
    m.attr("OFFSET_BITS") = kOffsetBits;
    m.def("structure", &describe, "name"_a,
          nb::sig("def structure(name: str) -> typing.Any"),
          "A structure of `kernels/primitives/layout.hpp`, as NumPy describes types.");
    nb::class_<PlanTables>(m, "PlanTables", "A plan as kernels read it, for any devices.")
        .def(nb::new_(&make_tables), "tables"_a, "numbers"_a)
        .def("to_bytes",
             [](const PlanTables& self) {
                 const std::string bytes = self.to_bytes();
                 return nb::bytes(bytes.data(), bytes.size());
             },
             "The tables as a file, for a runtime of the same version.")
        .def_static("from_bytes",
                    [](const nb::bytes& bytes) {
                        return PlanTables::from_bytes({bytes.c_str(), bytes.size()});
                    },
                    "bytes"_a, "F425 for bytes that `to_bytes` of this version didn't write.")
        .def("cut", &cut, "item_bytes"_a, "count"_a,
             "How a call of `count` elements a block is cut into tiles. R503, R506.")
        .def("scratch_bytes",
             [](const PlanTables& self, std::int64_t item_bytes, std::int64_t count) {
                 return self.numbers.scratch_bytes(item_bytes, count);
             },
             "item_bytes"_a, "count"_a, "The bytes that a call needs of each rank's scratch.");
    nb::class_<DevicePlan>(m, "DevicePlan", "A plan on a device of this process.")
        .def(nb::new_(&make_plan), "tables"_a, "device"_a, "launches"_a, "segments"_a, "abort"_a,
             "timeout_ns"_a)
        .def_prop_ro("blocks", &DevicePlan::blocks, "The number of blocks that run at once.")
        .def("free", &DevicePlan::free, nb::call_guard<Unlocked>(),
             "Frees its memory, also if calls are still there, which can't be started afterwards.")
        .def("stuck", &stuck, nb::sig("def stuck(self) -> list[dict[str, int]]"),
             "The reports of the blocks that have given up.");
    nb::class_<PlanCall>(m, "PlanCall", "A call of a plan, which can be started many times.")
        .def("__init__", &make_call, "order"_a, "places"_a, "threads"_a, "together"_a, "keeps"_a,
             "places: a plan on a device, its kernels there, and the table of registered memory.")
        .def("lay_out", &lay_out, "item_bytes"_a, "count"_a, "memories"_a, "factor"_a = 0,
             "factor_at"_a = 0,
             "memories: of a rank, the addresses of input, output and scratch, and their numbers "
             "for peers. R503, R506.")
        .def("start", &PlanCall::start, "streams"_a, "recorded"_a, nb::call_guard<Unlocked>(),
             "Starts the call on a stream for each launch of each place. recorded: whether the next "
             "call has to wait for this one. False, without a launch, if a call was given up.");
}

}  // namespace sley
