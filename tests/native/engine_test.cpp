// The engine without Python, for the sanitizers: ranks as threads over one fabric.
//
// Runs a fused ring and a plan of waits over scratch, in both loop orders, in and out of place,
// with few and tiny slots and counts that chunks do not divide, many calls back to back; an AllToAll
// of varying counts, one half of which goes by way of scratch; then a plan that stalls. Exits with 1
// at the first wrong element.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <thread>
#include <vector>

#include "engine/calls.hpp"

namespace sley::engine_test {

struct Row {
    Op op;
    std::int32_t src_buffer, src_index, dst_buffer, dst_index;
    std::int32_t send = -1, recv = -1;
    std::vector<std::int32_t> waits = {};
};

ProgramColumns columns_of(const std::vector<std::vector<Row>>& blocks, std::int32_t chunks,
                          bool in_place, std::int32_t scratch, bool tile_major) {
    ProgramColumns c;
    c.block_offset = {0};
    c.wait_offset = {0};
    for (const auto& block : blocks) {
        for (const auto& row : block) {
            c.op.push_back(static_cast<std::int32_t>(row.op));
            c.src_buffer.push_back(row.src_buffer);
            c.src_index.push_back(row.src_index);
            c.dst_buffer.push_back(row.dst_buffer);
            c.dst_index.push_back(row.dst_index);
            c.count.push_back(1);
            c.send.push_back(row.send);
            c.recv.push_back(row.recv);
            c.wait_target.insert(c.wait_target.end(), row.waits.begin(), row.waits.end());
            c.wait_offset.push_back(static_cast<std::int64_t>(c.wait_target.size()));
            c.pullable.push_back(0);
        }
        c.block_offset.push_back(static_cast<std::int64_t>(c.op.size()));
    }
    c.hold_offset.assign(c.wait_offset.size(), 0);
    c.chunks = chunks;
    c.sizes[kInput] = c.sizes[kOutput] = chunks;
    c.sizes[kScratch] = scratch;
    c.scratch_home.resize(static_cast<std::size_t>(scratch));
    c.divisor.assign(static_cast<std::size_t>(chunks), 1);
    c.in_place = in_place;
    c.tile_major = tile_major;
    return c;
}

// Connection r goes from rank r to the next.
ProgramColumns ring(std::int32_t rank, std::int32_t ranks, bool tile_major) {
    std::vector<Row> block;
    const std::int32_t before = (rank + ranks - 1) % ranks;
    block.push_back({Op::kSend, kInput, rank, 0, 0, rank});
    for (std::int32_t step = 1; step < 2 * ranks - 1; ++step) {
        const std::int32_t chunk = (rank + 2 * ranks - step) % ranks;
        Op op = step < ranks - 1 ? Op::kRecvReduceSend : Op::kRecvCopySend;
        if (step == ranks - 1) op = Op::kRecvReduceCopySend;
        const bool last = step == 2 * ranks - 2;
        if (last) op = ranks == 1 ? Op::kNop : Op::kRecv;
        block.push_back({op, kInput, chunk, kInput, chunk, last ? -1 : rank, before});
    }
    return columns_of({block}, ranks, true, 0, tile_major);
}

// Connection src * ranks + dst; block p > 0 serves the p-th peer, block 0 waits and reduces.
ProgramColumns scratch(std::int32_t rank, std::int32_t ranks, bool tile_major) {
    std::vector<std::vector<Row>> blocks(1);
    const std::int32_t peers = ranks - 1;
    blocks[0].push_back({Op::kCopy, kInput, 0, kOutput, 0});
    for (std::int32_t i = 0; i < peers; ++i) {
        const std::int32_t peer = i < rank ? i : i + 1;
        const std::int32_t receive = 1 + peers + 2 * i + 1;  // after block 0, two rows a block
        blocks[0].push_back({Op::kReduce, kScratch, i, kOutput, 0, -1, -1, {receive}});
        blocks.push_back({{Op::kSend, kInput, 0, 0, 0, rank * ranks + peer},
                          {Op::kRecv, 0, 0, kScratch, i, -1, peer * ranks + rank}});
    }
    return columns_of(blocks, 1, false, peers, tile_major);
}

std::vector<Connection> ring_wires(std::int32_t ranks) {
    std::vector<Connection> wires;
    for (std::int32_t r = 0; r < ranks; ++r) wires.push_back({r, (r + 1) % ranks, 0});
    return wires;
}

std::vector<Connection> all_wires(std::int32_t ranks) {
    std::vector<Connection> wires;
    for (std::int32_t s = 0; s < ranks; ++s) {
        for (std::int32_t d = 0; d < ranks; ++d) wires.push_back({s, d, d});
    }
    return wires;
}

// Every rank's view of a fabric whose ranks have `fifos` each.
std::vector<std::shared_ptr<Fabric>> views(std::int32_t ranks, std::int32_t fifos, Room room) {
    FabricShape shape{std::vector<std::int32_t>(static_cast<std::size_t>(ranks), fifos),
                      {room.slots, room.slot_bytes, room.slots}};
    std::vector<std::int32_t> all(static_cast<std::size_t>(ranks));
    std::iota(all.begin(), all.end(), 0);
    const auto segment = Segment::create(shape.bytes_of(all), false);
    const auto regions = Fabric::side_by_side(shape, segment, all);
    std::vector<std::shared_ptr<Fabric>> fabrics;
    for (const auto r : all) {
        fabrics.push_back(std::make_shared<Fabric>(shape, r, regions, Heaps{}));
    }
    return fabrics;
}

// One rank's life: `calls` calls of growing counts; returns the number of wrong elements.
std::int64_t live(const std::shared_ptr<Fabric>& fabric, const std::vector<Connection>& wires,
                  Room room, const ProgramColumns& columns, int calls) {
    Engine engine(fabric, columns, wires, room);
    const std::int32_t rank = fabric->rank(), ranks = fabric->shape().ranks();
    std::int64_t wrong = 0;
    for (int number = 0; number < calls; ++number) {
        const std::int64_t count = number * 7 % 83;
        const auto size = static_cast<std::size_t>(count);
        std::vector<std::int32_t> in(size), out(columns.in_place ? 0 : size);
        for (std::size_t i = 0; i < size; ++i) {
            in[i] = rank * 1000 + static_cast<std::int32_t>(i) + number;
        }
        Call call{count, DataType::kInt32, ReduceOp::kSum, {}, {}, {}, {}};
        call.memory[kInput] = reinterpret_cast<std::byte*>(in.data());
        call.memory[kOutput] = reinterpret_cast<std::byte*>(out.data());
        call.bytes[kInput] = static_cast<std::int64_t>(in.size() * sizeof in[0]);
        call.bytes[kOutput] = static_cast<std::int64_t>(out.size() * sizeof in[0]);
        engine.check(call);
        if (run_call(engine, call, 1, 60.0, true).status != Status::kDone) return 1;
        const auto& result = columns.in_place ? in : out;
        for (std::size_t i = 0; i < size; ++i) {
            const std::int32_t expected =
                1000 * (ranks * (ranks - 1) / 2) + ranks * (static_cast<std::int32_t>(i) + number);
            wrong += result[i] != expected;
        }
    }
    return wrong;
}

using Life = std::int64_t (*)(const std::shared_ptr<Fabric>&, const std::vector<Connection>&, Room,
                              const ProgramColumns&, int);

template <class Make>
void check(const char* name, std::int32_t ranks, std::vector<Connection> wires, Room room,
           Make make, Life live_of = live) {
    const auto fabrics = views(ranks, ranks, room);
    std::vector<std::int64_t> wrong(static_cast<std::size_t>(ranks));
    std::vector<std::thread> threads;
    for (std::int32_t r = 0; r < ranks; ++r) {
        threads.emplace_back([&, r] {
            const auto& fabric = fabrics[static_cast<std::size_t>(r)];
            wrong[static_cast<std::size_t>(r)] = live_of(fabric, wires, room, make(r), 60);
        });
    }
    for (auto& thread : threads) thread.join();
    for (const auto w : wrong) {
        if (w == 0) continue;
        std::fprintf(stderr, "%s: %lld wrong elements\n", name, static_cast<long long>(w));
        std::exit(1);
    }
}

// Block p serves the p-th peer; the part of the next rank goes by way of the rank's scratch.
// Connection src * ranks + dst.
ProgramColumns pairs(std::int32_t rank, std::int32_t ranks, bool tile_major) {
    std::vector<std::vector<Row>> blocks{{{Op::kCopy, kInput, rank, kOutput, rank},
                                          {Op::kCopy, kInput, (rank + 1) % ranks, kScratch, 0}}};
    for (std::int32_t turn = 1; turn < ranks; ++turn) {
        const std::int32_t to = (rank + turn) % ranks, from = (rank + ranks - turn) % ranks;
        Row send{Op::kSend, kInput, to, 0, 0, rank * ranks + to};
        if (turn == 1) send = {Op::kSend, kScratch, 0, 0, 0, rank * ranks + to, -1, {1}};
        blocks.push_back({send, {Op::kRecv, 0, 0, kOutput, from, -1, from * ranks + rank}});
    }
    auto columns = columns_of(blocks, 1, false, 1, tile_major);
    columns.sizes[kInput] = columns.sizes[kOutput] = ranks;
    columns.divisor.assign(static_cast<std::size_t>(ranks), 1);
    return columns;
}

// What rank `from` sends to rank `to` in a call.
std::int64_t varying_count(std::int32_t from, std::int32_t to, int number) {
    const auto mixed = (from * 7 + to * 3 + number) * 2654435761u;
    return number % 5 == 0 ? 0 : static_cast<std::int64_t>((mixed >> 16) % 23);
}

std::int64_t live_varying(const std::shared_ptr<Fabric>& fabric,
                          const std::vector<Connection>& wires, Room room,
                          const ProgramColumns& columns, int calls) {
    Engine engine(fabric, columns, wires, room);
    const std::int32_t rank = fabric->rank(), ranks = fabric->shape().ranks();
    std::int64_t wrong = 0;
    for (int number = 0; number < calls; ++number) {
        auto parts = std::make_shared<Parts>();
        std::vector<std::vector<std::int32_t>> data[2];
        for (std::int32_t other = 0; other < ranks; ++other) {
            const auto out = varying_count(rank, other, number);
            const auto in = varying_count(other, rank, number);
            data[kInput].emplace_back(static_cast<std::size_t>(out),
                                      rank * 1000 + other * 100 + number);
            data[kOutput].emplace_back(static_cast<std::size_t>(in), -1);
        }
        for (const auto memory : {kInput, kOutput}) {
            for (auto& part : data[memory]) {
                parts->of[memory].push_back({reinterpret_cast<std::byte*>(part.data()),
                                             static_cast<std::int64_t>(part.size())});
            }
        }
        Call call{0, DataType::kInt32, ReduceOp::kSum, {}, {}, {}, parts};
        engine.check(call);
        if (run_call(engine, call, 1, 60.0, true).status != Status::kDone) return 1;
        for (std::int32_t other = 0; other < ranks; ++other) {
            for (const auto value : data[kOutput][static_cast<std::size_t>(other)]) {
                wrong += value != other * 1000 + rank * 100 + number;
            }
        }
    }
    return wrong;
}

// Both ranks receive first; both must give up and say where they stand.
void check_stall() {
    const Room room{1, 64};
    const auto fabrics = views(2, 1, room);
    Outcome outcomes[2];
    std::vector<std::thread> threads;
    for (std::int32_t r = 0; r < 2; ++r) {
        threads.emplace_back([&, r] {
            const auto columns = columns_of({{{Op::kRecv, 0, 0, kOutput, 0, -1, 1 - r},
                                              {Op::kSend, kInput, 0, 0, 0, r, -1}}},
                                            1, false, 0, true);
            Engine engine(fabrics[static_cast<std::size_t>(r)], columns, ring_wires(2), room);
            float in = 1, out = 0;
            Call call{1, DataType::kFloat32, ReduceOp::kSum, {}, {}, {}, {}};
            call.memory[kInput] = reinterpret_cast<std::byte*>(&in);
            call.memory[kOutput] = reinterpret_cast<std::byte*>(&out);
            call.bytes[kInput] = call.bytes[kOutput] = sizeof in;
            outcomes[r] = run_call(engine, call, 1, 0.2, true);
        });
    }
    for (auto& thread : threads) thread.join();
    for (const auto& outcome : outcomes) {
        const bool stuck = outcome.stuck.size() == 1 && outcome.stuck[0].instruction == 0 &&
                           outcome.stuck[0].reason == Reason::kMessage;
        if (outcome.status == Status::kDone || !stuck) {
            std::fprintf(stderr, "a stall was not reported\n");
            std::exit(1);
        }
    }
}

int test(int, char**) {
    for (const bool tile_major : {true, false}) {
        for (const std::int64_t slot_bytes : {4, 24, 4096}) {
            // In instruction order all tiles of a send queue up before its receives begin.
            const Room room{tile_major ? 2 : 96, slot_bytes};
            check("ring", 4, ring_wires(4), room,
                  [&](std::int32_t r) { return ring(r, 4, tile_major); });
            check("scratch", 3, all_wires(3), room,
                  [&](std::int32_t r) { return scratch(r, 3, tile_major); });
            if (slot_bytes < 8) continue;  // a count has 8 bytes
            check("pairs", 3, all_wires(3), room,
                  [&](std::int32_t r) { return pairs(r, 3, tile_major); }, live_varying);
        }
    }
    check_stall();
    return 0;
}

}  // namespace sley::engine_test
