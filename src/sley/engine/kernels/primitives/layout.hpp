// Layout: the structures that the host passes to a kernel. The host's code includes them, too
// (`native/devices/kernel_layout.hpp`): every field has its natural alignment, so that all compilers
// lay them out alike.
#pragma once

namespace sley::layout {

constexpr int kRanks = 128;  // at most

constexpr int kPlanBits = 16;

constexpr int kSimple = 0, kLL = 1, kLL128 = 2, kDirect = 3;

enum Memory : u32 { kData = 0, kOutput = 1, kScratch = 2, kNowhere = 3 };

// A rank's number of calls so far, in `ticks`, which are the same on all ranks: the numbers of a
// call's events follow it. A rank has a copy for each block, since its blocks begin and end at
// different times: each copy has one reader and one writer in a call.
struct Cell {
    u64 ticks;
    u64 unused[7];
};

// Addresses of a rank's memories. If the plan keeps chunks at the places of others, a unit for each
// chunk of data and output precedes the scratch.
struct Buffers {
    char* memory[3];
};

// A counter of a connection, written by the other end, and what this end keeps between calls: the
// numbers of the last message of earlier calls, and of the last one with flags of LL. With Direct the
// sender writes into `published`, at the begin of a call, where the receiver finds its memories:
// null for those that it can't read; and `Setup::call` and the ticks, which the receiver must have, too.
struct Counter {
    u64 value;
    u64 last, last_flagged;
    Buffers lent;
    u64 call, ticks;
};

// Why a block waits or fails; `sley.engine.outcomes.Reason` has the same numbers. kCall: the other end
// makes another call. kBytes: a message's sender sends other bytes than its receiver takes.
enum Reason : u32 {
    kInstruction = 1, kMessage = 2, kSlot = 3, kReading = 4, kCall = 5, kBytes = 6
};

// A block's report to the host when it gives up; `status` is written last.
struct Report {
    u64 status;  // 0 nothing to report, 1 it waited too long, 2 another gave up
    u32 step;
    u32 reason;
    i64 tile;
    u32 target, target_step;  // by reason: a block of the rank and its step; the block's receiver;
                              // the block's sender; the rank's sender and its message; the receiver
    u64 ticks;  // at the begin of the call
    u64 call, other;  // `Setup::call`, and of a rank that makes another call; 0: it isn't Direct
};  // of a message: target, the other rank; call, its bytes; ticks, for kBytes, the bytes sent

// One end of a connection. `published` and `slots` are in the receiver's memory, `consumed` is in
// the sender's: each polls its own. Slots from which a switch reads are in the sender's memory.
struct Peer {
    Counter* published;  // the number of the last message sent, in a slot or pulled
    Counter* consumed;   // the number of the last message received
    char* slots;
    const char* switched;  // the slots of all connections of its bundle, for the switch; or null
    i32 rank;      // at the other end
    i32 messages;  // a tile
};

struct Block {
    i32 rank, number;  // of the block within the rank
    i32 kind, member;  // generated code: the function, and the number among blocks that share it
    i32 first_sender, senders;        // its connections: rows of the peers
    i32 first_receiver, receivers;
    i32 rank_sender;                  // the row of the rank's first sender
    i32 first_step, steps;            // interpreter: rows of the instructions
    i32 first_condition, conditions;  // and rows of the conditions
    i32 first_home;                   // of the rank's scratch, a row of the homes
    i32 cell, stride, cells;  // its number among the rank's blocks of the launch, their number, and
                              // the number of the rank's cells
    i32 place;  // the rank's number among the launch's ranks
    u64* progress;  // of each block of the rank: the number of the last execution
    Cell* first_cell;
    Report* report;
};

// The position of a chunk: two bits for the memory, thirty for the chunk's number in it.
struct Place {
    u32 bits;
};

// Whether other blocks wait for the instruction; and in a call that multiplies inputs by a factor,
// whether it does so with its source and its destination, and whether the message that it sends, or
// receives, is in a slot because of that. In a run: whether its first operand, or the second one, is
// the result of the instruction before, and whether its own result isn't stored.
enum InstructionFlag : u32 {
    kPosts = 1, kScalesSource = 2, kScalesDestination = 4, kSendsScaled = 8, kReceivesScaled = 16,
    kFirst = 32, kSecond = 64, kKept = 128
};

// Interpreter: a row for each instruction.
struct alignas(16) Instruction {
    u8 op;     // sley.ir.words.Op
    u8 flags;  // of InstructionFlag
    u16 waits;
    i32 count;
    Place src, dst;
    i32 from, from_message;
    i32 to, to_message;  // -1 - number for a message that stays in the buffer
    Place pulled;        // the received message's place at the sender; kNowhere: in a slot
    i32 first_wait;
    u16 divisor;  // of the results, for AVG; 1: none
    u16 run;      // instructions of the run that begins here; 0 behind the first of one
    u16 from_members, to_members;  // connections: those of a group, one, or none
};

// Interpreter: step `number` of block `target`, or, if `held`, the receiver's read of message
// `number` that the rank sent on its connection `target`.
struct Condition {
    i32 target;
    i32 number : 31;
    u32 held : 1;
};

// An output chunk that AVG divides at the end.
struct Division {
    i32 rank;  // in launches its number among the launch's ranks
    Place chunk;
    i32 divisor;
};

// When a block did an execution, if its text has stamps: when its turn came, when what it waits for was
// there (words of LL and LL128 are taken as they come), and when it was done, in cycles. Before a block's
// executions are two rows of the call: when it began, had its row, and ended, in cycles, with the number
// of executions as `step`; and when it began and ended in nanoseconds.
struct Stamp {
    u64 turn, start, end;
    i32 step, tile;
};
constexpr i32 kStampRows = 1024;  // of a block; later executions have none

// The numbers of a rank's memories in the table `Setup::shifts`.
struct Registrations {
    u16 number[3];
};

// In that table: a rank can't read the memory.
constexpr u64 kHidden = ~0ull;

// The part of a call's arguments that all ranks share.
struct Setup {
    const char* rows;  // of each block: a Block, and its peers, senders first; `row_peers` at most
    const Peer* peers;
    const Instruction* instructions;
    const Condition* conditions;
    const Division* divisions;
    const i32* homes;  // of each chunk of scratch: the chunk of a block that it holds
    u64* abort;  // of the process: not 0 once a block has given up
    Stamp* stamps;  // of the launch's blocks; null without
    struct Own* owns;  // of the launch's ranks, if the call has no room for them; else null
    u64 timeout_ns;
    u64 factor;             // an element by which the call multiplies inputs
    const char* factor_at;  // or its address, if not null
    const u64* shifts;  // Direct: of each registered memory, for each rank: what to add to an address
                        // of it for its address there; or kHidden
    u64 call;    // bytes of a block of the collective; the least kPlanBits are the plan's number
    i64 count;   // elements of a block of the collective
    i64 chunk;   // elements of the longest chunk, in whole units
    i64 least;   // elements in the whole units that all chunks have
    i64 tile;    // elements of a tile
    i64 slot_bytes;
    i64 slots_bytes;  // of all slots of a connection, in any plan
    u64 left_over;  // units of a block beyond `least` of each chunk, over `chunks`, times 2^64
    u64 share;      // 1 over `chunks`, times 2^63; both rounded up
    i32 tiles;
    i32 chunks;     // of a block of the collective
    i32 slots;      // a power of two
    i32 steps;      // of the longest block: no connection has more messages a tile
    i32 division_count;
    i32 slices;  // tiles that an instruction runs one after another before the next one begins
    i32 is_even;  // whether all chunks have `chunk` elements
    i32 ranks;
    i32 row_peers;
};

// A rank's memories in a call.
struct Own {
    Buffers buffers;
    Registrations registered;
};

// The argument of every kernel of a plan, by value: a captured launch keeps it. A launch takes longer
// with more than 512 bytes of arguments. So the call of more ranks, which only ranks of one process on
// one device have, brings them by the kernel `sley_place`, so many at a time.
constexpr int kOwns = 8;
struct Call {
    Setup setup;
    Own own[kOwns];
};

// A lane moves tiles from one rank to another, through slots in the receiver's memory. Each counter's
// `value` is the number of the last tile that was published, or consumed, and only grows. `last` of the
// counter at this end is the same number at the launch's begin.
struct Lane {
    Counter* published;
    Counter* consumed;
    char* slots;
    i32 rank;  // at the other end
    i32 sends;
};

// Slots of a lane, and the bytes of a message in each. They begin where the sender's address is between
// two multiples of 16, so that it moves whole vectors. Behind them is the slot's label.
constexpr int kLaneSlots = 8;
constexpr i64 kLaneTile = 64 << 10, kLaneSlot = kLaneTile + 128, kLaneLabel = kLaneTile + 16;
struct Label {
    i64 bytes;  // of the message
    i64 shift;  // of its first byte in the slot
};

// A message, in `parts` parts, one in each lane from `lane` on. most_parts: of the launch's messages to
// this rank, or from it; next: the first message after these.
struct Message {
    char* address;
    i64 bytes;
    u16 parts, lane, most_parts, next;
};

// The argument of the kernel of messages, which are ordered by peer and direction.
constexpr int kMessages = 159;
struct Messages {
    Setup setup;  // only who gives up, and when
    const Lane* lanes;
    Report* reports;  // of the blocks
    u64 count;
    Message messages[kMessages];
};

static_assert(sizeof(Cell) == 64 && sizeof(Counter) == 64 && sizeof(Report) == 56, "layout");
static_assert(sizeof(Peer) == 40 && sizeof(Block) == 96 && sizeof(Instruction) == 48, "layout");
static_assert(sizeof(Condition) == 8 && sizeof(Division) == 12, "layout");
static_assert(sizeof(Call) == 472 && sizeof(Stamp) == 32, "layout");
static_assert(sizeof(Messages) <= 4096 && kLaneTile % 128 == 0, "layout");

}  // namespace sley::layout
