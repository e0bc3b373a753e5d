// Builds a program from columns; checks the bounds of operands, the ends of connections, and waits.
#include "engine/program.hpp"

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <map>
#include <optional>
#include <tuple>
#include <unordered_map>

namespace sley {
namespace {

constexpr const char* kMemoryNames[kMemories] = {"input", "output", "scratch"};

class Builder {
public:
    Builder(const ProgramColumns& columns, std::int32_t rank, std::int32_t ranks,
            const std::vector<Connection>& connections)
        : c_(columns),
          rank_(rank),
          ranks_(ranks),
          connections_(connections),
          rows_(static_cast<std::int64_t>(c_.op.size())) {}

    Program build() {
        check_shape();
        describe();
        build_blocks();
        for (std::int64_t row = 0; row < rows_; ++row) build_instruction(row);
        find_payloads();
        find_final();
        return std::move(program_);
    }

private:
    void check_shape() const {
        for (const auto& c : connections_) {
            const bool fits = c.src >= 0 && c.src < ranks_ && c.dst >= 0 && c.dst < ranks_;
            if (!fits) throw ProgramFault(-1, "a connection to a rank that doesn't exist");
        }
        const auto rows = c_.op.size();
        for (const auto* column : {&c_.src_buffer, &c_.src_index, &c_.dst_buffer, &c_.dst_index,
                                   &c_.count, &c_.send, &c_.recv, &c_.pullable}) {
            if (column->size() != rows) throw ProgramFault(-1, "columns of different lengths");
        }
        check_offsets(c_.block_offset, c_.block_offset.size(), rows, "block offsets");
        check_offsets(c_.wait_offset, rows + 1, c_.wait_target.size(), "wait offsets");
        check_offsets(c_.hold_offset, rows + 1, c_.hold_target.size(), "hold offsets");
        if (c_.chunks < 1 || c_.max_count < 1) throw ProgramFault(-1, "no chunks");
        for (const auto size : c_.sizes) {
            if (size < 0) throw ProgramFault(-1, "a buffer of negative size");
        }
        for (const auto& [base, size] : {std::pair{c_.input_base, c_.sizes[kInput]},
                                        std::pair{c_.output_base, c_.sizes[kOutput]}}) {
            if (base < 0 || base > std::numeric_limits<std::int32_t>::max() - size) {
                throw ProgramFault(-1, "a buffer that begins outside the rank's data");
            }
        }
        const auto is_chunk = [this](auto home) { return home >= 0 && home < c_.chunks; };
        if (!std::all_of(c_.scratch_home.begin(), c_.scratch_home.end(), is_chunk)) {
            throw ProgramFault(-1, "scratch for a chunk that no block has");
        }
        if (static_cast<std::int64_t>(c_.divisor.size()) != c_.sizes[kOutput]) {
            throw ProgramFault(-1, "not one divisor for each output chunk");
        }
        if (std::any_of(c_.divisor.begin(), c_.divisor.end(), [](auto d) { return d < 1; })) {
            throw ProgramFault(-1, "a divisor below 1");
        }
    }

    static void check_offsets(const std::vector<std::int64_t>& offsets, std::size_t length,
                              std::size_t end, const char* name) {
        const bool fits = !offsets.empty() && offsets.size() == length && offsets.front() == 0 &&
                          offsets.back() == static_cast<std::int64_t>(end) &&
                          std::is_sorted(offsets.begin(), offsets.end());
        if (!fits) throw ProgramFault(-1, std::string(name) + " that do not cover the rows");
    }

    void describe() {
        program_.divisor = c_.divisor;
        program_.chunks = c_.chunks;
        program_.max_count = c_.max_count;
        program_.scratch_home = c_.scratch_home;
        program_.misplaced = c_.misplaced;
        program_.in_place = c_.in_place;
        program_.tile_major = c_.tile_major;
        program_.all_pullable = c_.all_pullable;
        program_.reduces = c_.reduces;
        program_.needs_all = c_.needs_all;
        program_.gains_attached = c_.gains_attached;
        program_.output_base = c_.in_place ? c_.output_base : 0;
        std::copy(std::begin(c_.sizes), std::end(c_.sizes), std::begin(program_.cells));
        if (!c_.in_place) return;
        program_.cells[kInput] =
            std::max(c_.input_base + c_.sizes[kInput], c_.output_base + c_.sizes[kOutput]);
        program_.cells[kOutput] = 0;
    }

    void build_blocks() {
        block_of_.resize(static_cast<std::size_t>(rows_));
        for (std::size_t b = 0; b + 1 < c_.block_offset.size(); ++b) {
            const auto begin = c_.block_offset[b], end = c_.block_offset[b + 1];
            program_.blocks.push_back(
                {static_cast<std::int32_t>(begin), static_cast<std::int32_t>(end)});
            std::fill(block_of_.begin() + begin, block_of_.begin() + end,
                      static_cast<std::int32_t>(b));
        }
    }

    void build_instruction(std::int64_t row) {
        if (c_.op[row] < 0 || c_.op[row] >= kOps) throw ProgramFault(row, "an unknown operation");
        Instruction in{};
        in.op = static_cast<Op>(c_.op[row]);
        in.count = c_.count[row];
        in.send = in.recv = -1;
        if (in.op != Op::kNop && in.count < 1) throw ProgramFault(row, "a count below 1");
        if (reads_source(in.op)) {
            std::tie(in.src_memory, in.src_cell) =
                operand(row, "source", c_.src_buffer[row], c_.src_index[row]);
        }
        if (writes_destination(in.op)) {
            std::tie(in.dst_memory, in.dst_cell) =
                operand(row, "destination", c_.dst_buffer[row], c_.dst_index[row]);
        }
        if (sends(in.op)) {
            in.send = end_of(row, c_.send[row], true);
            program_.messages.resize(program_.senders.size());
            in.turn = program_.messages[static_cast<std::size_t>(in.send)]++;
            in.pullable = c_.pullable[row] != 0 && in.op != Op::kRecvReduceSend;
        }
        if (receives(in.op)) in.recv = end_of(row, c_.recv[row], false);
        if ((sends(in.op) || receives(in.op)) && in.count > c_.max_count) {
            throw ProgramFault(row, "a message longer than the plan's longest");
        }
        if (reads_source(in.op) && writes_destination(in.op) && in.src_memory == in.dst_memory) {
            const auto distance = static_cast<std::int64_t>(in.dst_cell) - in.src_cell;
            in.shifted = distance != 0 && std::abs(distance) < in.count;
            in.descending = in.shifted && distance > 0;
        }
        if (reads_source(in.op) && writes_destination(in.op)) check_homes(row, in);
        build_waits(row, in);
        build_holds(row, in);
        program_.instructions.push_back(in);
    }

    // The chunks that an instruction moves must be as long at both places.
    void check_homes(std::int64_t row, const Instruction& in) const {
        if (c_.misplaced) return;
        for (std::int32_t i = 0; i < in.count; ++i) {
            const auto home = home_of(in.src_memory, in.src_cell + i);
            if (home != home_of(in.dst_memory, in.dst_cell + i)) {
                throw ProgramFault(row, "a move between places of different chunks of a block");
            }
        }
    }

    std::int32_t home_of(Memory memory, std::int32_t cell) const {
        if (memory == kScratch) return c_.scratch_home[static_cast<std::size_t>(cell)];
        return cell % c_.chunks;
    }

    std::pair<Memory, std::int32_t> operand(std::int64_t row, const char* which,
                                            std::int32_t buffer, std::int32_t index) const {
        if (buffer < 0 || buffer >= kMemories) {
            throw ProgramFault(row, std::string("no such ") + which + " buffer");
        }
        const std::int64_t end = static_cast<std::int64_t>(index) + c_.count[row];
        if (index < 0 || end > c_.sizes[buffer]) {
            throw ProgramFault(row, std::string(which) + " chunks " + std::to_string(index) +
                                        " to " + std::to_string(end - 1) + " of the " +
                                        kMemoryNames[buffer] + ", which has " +
                                        std::to_string(c_.sizes[buffer]));
        }
        if (buffer == kScratch && end > static_cast<std::int64_t>(c_.scratch_home.size())) {
            throw ProgramFault(row, "scratch for no chunk of a block");
        }
        if (!c_.in_place || buffer == kScratch) return {static_cast<Memory>(buffer), index};
        return {kInput, index + (buffer == kInput ? c_.input_base : c_.output_base)};
    }

    // The rank's own number of a connection, which must end at this rank, in a single block.
    std::int32_t end_of(std::int64_t row, std::int32_t connection, bool sending) {
        if (connection < 0 || connection >= static_cast<std::int64_t>(connections_.size())) {
            throw ProgramFault(row, "no such connection");
        }
        const auto& ends = connections_[static_cast<std::size_t>(connection)];
        if ((sending ? ends.src : ends.dst) != rank_) {
            throw ProgramFault(row, "a connection of another rank");
        }
        auto& known = sending ? send_number_ : recv_number_;
        auto& list = sending ? program_.senders : program_.receivers;
        const auto block = block_of_[static_cast<std::size_t>(row)];
        const auto [it, fresh] = known.try_emplace(
            connection, std::pair{static_cast<std::int32_t>(list.size()), block});
        if (fresh) list.push_back(connection);
        if (it->second.second != block) {
            throw ProgramFault(row, "a connection whose end two thread blocks share");
        }
        return it->second.first;
    }

    void build_waits(std::int64_t row, Instruction& in) {
        in.wait_begin = static_cast<std::int32_t>(program_.waits.size());
        for (auto w = c_.wait_offset[row]; w < c_.wait_offset[row + 1]; ++w) {
            const auto target = c_.wait_target[static_cast<std::size_t>(w)];
            if (target < 0 || target >= rows_) {
                throw ProgramFault(row, "a wait whose target is not an instruction of this rank");
            }
            program_.waits.push_back({block_of_[static_cast<std::size_t>(target)], target});
        }
        in.wait_end = static_cast<std::int32_t>(program_.waits.size());
    }

    void build_holds(std::int64_t row, Instruction& in) {
        in.hold_begin = static_cast<std::int32_t>(program_.holds.size());
        for (auto h = c_.hold_offset[row]; h < c_.hold_offset[row + 1]; ++h) {
            const auto target = c_.hold_target[static_cast<std::size_t>(h)];
            if (target < 0 || target >= rows_ || c_.op[target] < 0 || c_.op[target] >= kOps ||
                !sends(static_cast<Op>(c_.op[target]))) {
                throw ProgramFault(row, "a hold whose target is not a send of this rank");
            }
            program_.holds.push_back(target);
        }
        in.hold_end = static_cast<std::int32_t>(program_.holds.size());
    }

    // The chunks of a message: those it is read from, or has just been written to.
    struct Payload {
        Memory memory;
        std::int32_t cell, count;
        bool operator<(const Payload& other) const {
            return std::tie(memory, cell, count) < std::tie(other.memory, other.cell, other.count);
        }
    };

    static std::optional<Payload> payload_of(const Instruction& in) {
        if (!sends(in.op) || in.op == Op::kRecvReduceSend) return std::nullopt;
        if (sends_source(in.op)) return Payload{in.src_memory, in.src_cell, in.count};
        return Payload{in.dst_memory, in.dst_cell, in.count};
    }

    void find_payloads() {
        std::map<Payload, std::int32_t> messages;
        for (const auto& in : program_.instructions) {
            if (const auto payload = payload_of(in)) ++messages[*payload];
        }
        std::vector<Payload> shared;
        for (auto& [payload, number] : messages) {
            const bool several = number > 1;
            number = several ? static_cast<std::int32_t>(shared.size()) : -1;
            if (several) shared.push_back(payload);
        }
        program_.payloads = static_cast<std::int32_t>(shared.size());
        for (auto& in : program_.instructions) {
            const auto payload = payload_of(in);
            in.payload = payload ? messages.at(*payload) : -1;
            in.overwrites_begin = static_cast<std::int32_t>(program_.overwrites.size());
            if (writes_destination(in.op)) note_overwritten(in, shared);
            in.overwrites_end = static_cast<std::int32_t>(program_.overwrites.size());
        }
    }

    void find_final() {
        std::vector<bool> is_read[kMemories];
        for (std::size_t m = 0; m < kMemories; ++m) {
            is_read[m].resize(static_cast<std::size_t>(program_.cells[m]));
        }
        for (const auto& in : program_.instructions) {
            if (!reads_source(in.op)) continue;
            const auto first = is_read[in.src_memory].begin() + in.src_cell;
            std::fill(first, first + in.count, true);
        }
        for (auto& in : program_.instructions) {
            if (!writes_destination(in.op)) continue;
            const auto first = is_read[in.dst_memory].begin() + in.dst_cell;
            in.is_final = std::find(first, first + in.count, true) == first + in.count;
        }
    }

    // `shared` is ordered by memory and first cell; none is longer than the plan's longest message.
    void note_overwritten(const Instruction& in, const std::vector<Payload>& shared) {
        const Payload first{in.dst_memory, in.dst_cell - c_.max_count, 0};
        for (auto it = std::lower_bound(shared.begin(), shared.end(), first);
             it != shared.end() && it->memory == in.dst_memory &&
             it->cell < in.dst_cell + in.count;
             ++it) {
            if (it->cell + it->count > in.dst_cell) {
                program_.overwrites.push_back(static_cast<std::int32_t>(it - shared.begin()));
            }
        }
    }

    using Numbers = std::unordered_map<std::int32_t, std::pair<std::int32_t, std::int32_t>>;

    const ProgramColumns& c_;
    std::int32_t rank_, ranks_;
    const std::vector<Connection>& connections_;
    std::int64_t rows_;
    Program program_;
    std::vector<std::int32_t> block_of_;
    Numbers send_number_, recv_number_;
};

}  // namespace

Program build_program(const ProgramColumns& columns, std::int32_t rank, std::int32_t ranks,
                      const std::vector<Connection>& connections) {
    if (rank < 0 || rank >= ranks) throw ProgramFault(-1, "no such rank");
    return Builder(columns, rank, ranks, connections).build();
}

}  // namespace sley
