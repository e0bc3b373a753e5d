// One rank's program, which the engine interprets. It is checked, so that no plan can make the
// engine access memory that isn't the rank's.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

namespace sley {

// The numbers are those of `sley.ir.words.Op`.
enum class Op : std::int32_t {
    kNop, kSend, kRecv, kCopy, kReduce, kRecvReduceCopy, kRecvCopySend, kRecvReduceSend,
    kRecvReduceCopySend, kCopySend
};
constexpr std::int32_t kOps = 10;

constexpr bool sends(Op op) {
    return op == Op::kSend || op == Op::kRecvCopySend || op == Op::kRecvReduceSend ||
           op == Op::kRecvReduceCopySend || op == Op::kCopySend;
}
constexpr bool sends_source(Op op) { return op == Op::kSend || op == Op::kCopySend; }
constexpr bool receives(Op op) {
    return op == Op::kRecv || op == Op::kRecvReduceCopy || op == Op::kRecvCopySend ||
           op == Op::kRecvReduceSend || op == Op::kRecvReduceCopySend;
}
constexpr bool reads_source(Op op) {
    return op == Op::kSend || op == Op::kCopy || op == Op::kReduce || op == Op::kRecvReduceCopy ||
           op == Op::kRecvReduceSend || op == Op::kRecvReduceCopySend || op == Op::kCopySend;
}
constexpr bool writes_destination(Op op) {
    return op == Op::kRecv || op == Op::kCopy || op == Op::kReduce || op == Op::kRecvReduceCopy ||
           op == Op::kRecvCopySend || op == Op::kRecvReduceCopySend || op == Op::kCopySend;
}

// The memory of a cell; the first three numbers are those of `sley.ir.words.Buffer`. In place, the
// output is in kInput (the rank's data) too.
enum Memory : std::int32_t { kInput = 0, kOutput = 1, kScratch = 2, kMemories = 3 };

// The connections of a plan; `index` is the connection's number among the FIFOs of its `src`.
struct Connection {
    std::int32_t src, dst, index;
};

// A rank's part of a plan, as columns. `send` and `recv` are numbers of the plan's connections;
// waits name instructions of this rank, holds its sends. pullable: 0 or 1, whether the receiver may
// read the message in this rank's memory. holds: the sends whose messages must then have been
// consumed before an instruction starts (machine.md, "Protocols and slots").
struct ProgramColumns {
    std::vector<std::int32_t> op, src_buffer, src_index, dst_buffer, dst_index, count, send, recv;
    std::vector<std::int64_t> wait_offset;
    std::vector<std::int32_t> wait_target;
    std::vector<std::int32_t> pullable;
    std::vector<std::int64_t> hold_offset;
    std::vector<std::int32_t> hold_target;
    std::vector<std::int64_t> block_offset;
    std::vector<std::int32_t> divisor;  // of each output chunk, for AVG; 1: none
    std::int32_t chunks = 1;            // of a block of the collective
    std::int32_t sizes[kMemories] = {};
    std::int32_t input_base = 0, output_base = 0;
    std::int32_t max_count = 1;  // the longest message of the whole plan, in chunks
    // The chunk of a block that each chunk of scratch is for, up to the last one that is used.
    // misplaced: the plan keeps chunks at the places of others, and these mean nothing.
    std::vector<std::int32_t> scratch_home;
    bool misplaced = false;
    bool in_place = false;
    bool tile_major = true;
    // Of all ranks together: whether each message is pullable, and a single chunk; whether any
    // instruction reduces; whether each rank needs data of every other rank before it ends; whether
    // copies by the kernel spare the busiest rank work.
    bool all_pullable = false;
    bool reduces = false;
    bool needs_all = false;
    bool gains_attached = false;
};

struct Instruction {
    Op op;
    std::int32_t count;
    Memory src_memory, dst_memory;
    std::int32_t src_cell, dst_cell;
    std::int32_t send, recv;  // index among the rank's own senders, receivers; -1: none
    std::int32_t wait_begin, wait_end;
    std::int32_t hold_begin, hold_end;
    std::int32_t turn;  // its number among the instructions that send on its connection
    bool pullable;
    // A payload that several of the rank's messages have in common is staged once. payload: its
    // number, or -1; overwrites: the payloads that overlap the destination, a range of
    // `Program::overwrites`.
    std::int32_t payload;
    std::int32_t overwrites_begin, overwrites_end;
    // Source and destination overlap, but aren't the same: the chunks are not merged into one
    // piece, and copied in the order (descending?) that overwrites none before it is read.
    bool shifted;
    bool descending;
    bool is_final;  // no instruction of the rank reads what it writes
};

struct Wait {
    std::int32_t block;
    std::int32_t instruction;
};

struct Block {
    std::int32_t begin, end;
};

// An invalid instruction: its row among the rank's, or -1 for a fault of the whole program.
class ProgramFault : public std::runtime_error {
public:
    ProgramFault(std::int64_t at, const std::string& what) : std::runtime_error(what), row(at) {}
    std::int64_t row;
};

struct Program {
    std::vector<Instruction> instructions;
    std::vector<Wait> waits;
    std::vector<Block> blocks;
    std::vector<std::int32_t> holds;  // instructions
    std::vector<std::int32_t> senders, receivers;  // the connections of the plan that the rank uses
    std::vector<std::int32_t> messages;  // of each sender: the number of instructions that use it
    std::int32_t payloads = 0;
    std::vector<std::int32_t> overwrites;  // payloads
    std::vector<std::int32_t> divisor;
    std::int32_t chunks;
    std::int32_t cells[kMemories];  // sizes in chunks; in place, 0 for the output
    std::int32_t output_base;
    std::int32_t max_count;
    bool in_place;
    bool tile_major;
    bool all_pullable, reduces, needs_all, gains_attached;
    std::vector<std::int32_t> scratch_home;
    bool misplaced;

    std::size_t row_of(const Instruction& in) const {
        return static_cast<std::size_t>(&in - instructions.data());
    }
    // The elements of a memory (kInput or kOutput) in a call of `count`.
    std::int64_t elements(Memory memory, std::int64_t count) const {
        return (static_cast<std::int64_t>(cells[memory]) + chunks - 1) / chunks * count;
    }
};

// Builds the program of `rank` (of `ranks`); throws ProgramFault.
Program build_program(const ProgramColumns& columns, std::int32_t rank, std::int32_t ranks,
                      const std::vector<Connection>& connections);

}  // namespace sley
