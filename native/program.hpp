// One rank's program: what the engine interprets, checked so that it cannot touch memory that is
// not its own, whatever the plan says.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "fabric.hpp"

namespace sley {

// The numbers are those of `sley.ir.words.Op`.
enum class Op : std::int32_t {
    kNop, kSend, kRecv, kCopy, kReduce, kRecvReduceCopy, kRecvCopySend, kRecvReduceSend,
    kRecvReduceCopySend
};
constexpr std::int32_t kOps = 9;

constexpr bool sends(Op op) {
    return op == Op::kSend || op == Op::kRecvCopySend || op == Op::kRecvReduceSend ||
           op == Op::kRecvReduceCopySend;
}
constexpr bool receives(Op op) {
    return op == Op::kRecv || op == Op::kRecvReduceCopy || op == Op::kRecvCopySend ||
           op == Op::kRecvReduceSend || op == Op::kRecvReduceCopySend;
}
constexpr bool reads_source(Op op) {
    return op == Op::kSend || op == Op::kCopy || op == Op::kReduce || op == Op::kRecvReduceCopy ||
           op == Op::kRecvReduceSend || op == Op::kRecvReduceCopySend;
}
constexpr bool writes_destination(Op op) {
    return op == Op::kRecv || op == Op::kCopy || op == Op::kReduce || op == Op::kRecvReduceCopy ||
           op == Op::kRecvCopySend || op == Op::kRecvReduceCopySend;
}

// The numbers of the first three are those of `sley.ir.words.Buffer`; they say which memory a
// cell lies in. In place the output is the memory kInput (the rank's data) too.
enum Memory : std::int32_t { kInput = 0, kOutput = 1, kScratch = 2, kMemories = 3 };

// A rank's part of a plan, as columns. `send` and `recv` are indices of the fabric's connections;
// waits name instructions of this rank.
struct ProgramColumns {
    std::vector<std::int32_t> op, src_buffer, src_index, dst_buffer, dst_index, count, send, recv;
    std::vector<std::int64_t> wait_offset;
    std::vector<std::int32_t> wait_target;
    std::vector<std::int64_t> block_offset;
    std::vector<std::int32_t> divisor;  // per output chunk: what AVERAGE divides by; 1 without
    std::int32_t chunks = 1;            // chunks a block of the collective has
    std::int32_t sizes[kMemories] = {};
    std::int32_t input_base = 0, output_base = 0;
    std::int32_t max_count = 1;  // the longest message of the whole plan, in chunks
    bool in_place = false;
    bool tile_major = true;
};

struct Instruction {
    Op op;
    std::int32_t count;
    Memory src_memory, dst_memory;
    std::int32_t src_cell, dst_cell;
    std::int32_t send, recv;  // index among the rank's own senders, receivers; -1 without
    std::int32_t wait_begin, wait_end;
    // Source and destination are different but overlapping chunks: never merged into one piece,
    // and done from the end that keeps what is still to be read.
    bool shifted;
    bool descending;
};

struct Wait {
    std::int32_t block;
    std::int32_t instruction;
};

struct Block {
    std::int32_t begin, end;
};

// An instruction that must not run; `row` counts the rank's instructions.
class ProgramFault : public std::runtime_error {
public:
    ProgramFault(std::int64_t at, const std::string& what) : std::runtime_error(what), row(at) {}
    std::int64_t row;
};

struct Program {
    std::vector<Instruction> instructions;
    std::vector<Wait> waits;
    std::vector<Block> blocks;
    std::vector<std::int32_t> senders, receivers;  // the fabric's connections that the rank uses
    std::vector<std::int32_t> divisor;
    std::int32_t chunks;
    std::int32_t cells[kMemories];  // sizes in chunks; in place the output has none of its own
    std::int32_t output_base;
    std::int32_t max_count;
    bool in_place;
    bool tile_major;
    bool writes_input = false;  // out of place
};

// Builds the program of `rank`; throws ProgramFault.
Program build_program(const ProgramColumns& columns, std::int32_t rank, const FabricShape& shape);

}  // namespace sley
