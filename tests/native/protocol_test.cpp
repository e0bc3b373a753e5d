// Traces of the engine for the models in native/fabric, which have the same events: three ranks as
// coroutines. For connection.pml rank 0 makes calls with a message to each of the others; for
// agreement.pml each rank sends to all others, and makes some calls with varying counts.
//
// protocol FORM SEED ABORT: writes the numbers of the events. SEED: of the order of steps. ABORT: the
// step at which a thread of rank 2 gives up; 0: never. Exits with 1 if a call that has ended has other
// data, with 3 if all threads sleep, and with 4 if a call fails for another reason.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "coroutines.hpp"
#include "engine/calls.hpp"

namespace sley::protocol_test {

using namespace coroutines;

constexpr std::int32_t kRanks = 3;
constexpr int kCalls = 5;
constexpr std::size_t kItems = kCacheLine / sizeof(std::int32_t);
constexpr std::int32_t kOverwritten = 255;

// The numbers in trace.pml. kLoose: with a memory order that is too weak; no model has it.
enum class Kind {
    kLoose, kWrite, kPublish, kRelease, kLook, kRing, kRung, kWake, kHear, kEnter, kLeave, kSleep,
    kCheck, kFail, kNumber, kWhat, kCount, kSeeNumber, kSeeWhat, kSeeCount, kSayWay, kSeeWay
};

struct Form {
    Room room;
    std::int64_t slots, envelopes;
    bool pulls, agrees;
};
const std::map<std::string, Form> kForms = {{"shared", {{2, 64}, 3, 3, false, false}},
                                            {"small", {{1, 128}, 2, 4, false, false}},
                                            {"pulled", {{2, 64}, 2, 2, true, false}},
                                            {"agreement", {{2, 4096}, 2, 2, false, true}}};

// ---- What the coroutines show

struct Word {
    Kind load, store, change;
    int object;
};

struct Shown {
    std::set<std::uint64_t> loads;  // since the last other access
    bool has_given_up = false;      // its looks are for the report
};

std::vector<Shown> shown;
std::map<const void*, Word> watched_words;
std::vector<FifoMemory> fifos;
std::vector<std::int32_t> contents;
std::map<std::uint64_t, std::uint64_t> said{{0, 0}};  // the words of ways, which the model numbers
std::byte* buffers[kRanks];  // of the callers; rank 0's only if it is pulled from

void show(Kind kind, std::uint64_t object, std::uint64_t value) {
    const auto event =
        ((current * 32 + static_cast<std::uint64_t>(kind)) * 256 + object) * 256 + value % 256;
    auto& so_far = shown[current];
    if (kind == Kind::kLook || kind == Kind::kCheck) {
        if (so_far.has_given_up || !so_far.loads.insert(event).second) return;
        so_far.has_given_up = kind == Kind::kCheck && value != 0;
    } else {
        so_far.loads.clear();
    }
    std::printf("%llu\n", static_cast<unsigned long long>(event));
}

std::size_t lines() { return fifos[0].shape.slots_bytes() / kCacheLine; }

// Shows what the coroutine has written to slots, or as the caller, since its last access.
void show_writes() {
    for (std::size_t p = 0; p < contents.size(); ++p) {
        const auto c = p / lines();
        const auto* at = c < fifos.size() ? fifos[c].slots + p % lines() * kCacheLine
                                          : buffers[p - fifos.size() * lines()];
        if (!at) continue;
        std::int32_t value;
        std::memcpy(&value, at, sizeof value);
        if (value == contents[p]) continue;
        contents[p] = value;
        show(Kind::kWrite, p, static_cast<std::uint64_t>(value));
    }
}

int place_of(const Envelope& envelope) {
    for (std::size_t c = 0; c < fifos.size(); ++c) {
        const auto offset = envelope.where - fifos[c].slots_where;
        if (offset < fifos[c].shape.slots_bytes()) {
            return static_cast<int>(c * lines() + offset / kCacheLine);
        }
    }
    return static_cast<int>(fifos.size() * lines());
}

}  // namespace sley::protocol_test

namespace sley::watched {

using namespace protocol_test;

void before(const void* word) {
    if (watched_words.count(word) == 0) return;
    show_writes();
    give_way();
}

void after(const void* word, Access access, std::uint64_t value, std::memory_order order) {
    if (access == Access::kWake) wake(word);
    const auto found = watched_words.find(word);
    if (found == watched_words.end()) return;
    const auto& w = found->second;
    auto object = static_cast<std::uint64_t>(w.object);
    switch (access) {
        case Access::kLoad:
            if (order == std::memory_order_relaxed && w.load != Kind::kSeeWay && w.load != Kind::kRing) {
                return show(Kind::kLoose, object, 0);
            }
            if (w.load == Kind::kRing || w.load == Kind::kCheck) value = value != 0;
            if (w.load == Kind::kHear) value = 0;
            if (w.load == Kind::kSeeWay) value = said.emplace(value, said.size()).first->second;
            return show(w.load, object, value);
        case Access::kStore:
            if (w.store == Kind::kSayWay) {
                value = said.emplace(value, said.size()).first->second;
            } else if (order != std::memory_order_release) {
                return show(Kind::kLoose, object, value);
            }
            if (w.store == Kind::kPublish) {
                object = object * 16 + place_of(*static_cast<const Envelope*>(word));
            }
            return show(w.store, object, value);
        case Access::kSubtract: return show(Kind::kLeave, object, 0);
        case Access::kAdd:
        case Access::kExchange: return show(w.change, object, 0);
        case Access::kSleep: return show(Kind::kSleep, object, 0);
        case Access::kWake: return show(Kind::kWake, object, 0);
    }
}

void sleep_on(const void* word) { coroutines::sleep(word); }

}  // namespace sley::watched

namespace sley::protocol_test {

// ---- The ranks

ProgramColumns columns_of(std::int32_t rank, bool pulls) {
    ProgramColumns c;
    c.block_offset = {0};
    c.wait_offset = c.hold_offset = {0};
    for (std::int32_t k = 0; k < (rank == 0 ? 2 : 1); ++k) {
        c.op.push_back(static_cast<std::int32_t>(rank == 0 ? Op::kSend : Op::kRecv));
        for (auto* column : {&c.src_buffer, &c.src_index, &c.dst_index}) column->push_back(0);
        c.dst_buffer.push_back(kInput);
        c.count.push_back(1);
        c.send.push_back(rank == 0 ? k : -1);
        c.recv.push_back(rank == 0 ? -1 : rank - 1);
        c.wait_offset.push_back(0);
        c.hold_offset.push_back(0);
        c.pullable.push_back(pulls);
        c.block_offset.push_back(static_cast<std::int64_t>(c.op.size()));
    }
    c.sizes[kInput] = c.sizes[kOutput] = 1;
    c.divisor = {1};
    c.in_place = true;
    return c;
}

bool has_other_data = false, has_failed = false;

void live(const std::shared_ptr<Fabric>& fabric, const Form& form) {
    const auto rank = fabric->rank();
    Engine engine(fabric, columns_of(rank, form.pulls), {{0, 1, 0}, {0, 2, 1}}, form.room);
    std::vector<std::int32_t> own(kItems);
    auto* const watched = buffers[static_cast<std::size_t>(rank)];
    auto* const data = watched ? reinterpret_cast<std::int32_t*>(watched) : own.data();
    for (int number = 1; number <= kCalls; ++number) {
        if (rank == 0) std::fill_n(data, kItems, number);
        Call call{static_cast<std::int64_t>(kItems), DataType::kInt32, ReduceOp::kSum, {}, {}, {}, {}};
        call.memory[kInput] = reinterpret_cast<std::byte*>(data);
        call.bytes[kInput] = kCacheLine;
        call.record.sequence = static_cast<std::uint64_t>(number);
        if (run_call(engine, call, 1, 60.0, false).status != Status::kDone) break;
        has_other_data |= std::count(data, data + kItems, number) != kItems;
    }
    if (rank == 0) std::fill_n(data, kItems, kOverwritten);
}

// Blocks for each other rank, which send this rank's chunk there, and receive the other's.
ProgramColumns all_to_all(std::int32_t rank) {
    ProgramColumns c;
    c.block_offset = {0};
    c.wait_offset = c.hold_offset = {0};
    for (std::int32_t turn = 1; turn < kRanks; ++turn) {
        const std::int32_t to = (rank + turn) % kRanks, from = (rank + kRanks - turn) % kRanks;
        for (const bool sends : {true, false}) {
            c.op.push_back(static_cast<std::int32_t>(sends ? Op::kSend : Op::kRecv));
            for (auto* column : {&c.src_buffer, &c.dst_buffer}) column->push_back(kInput);
            c.src_index.push_back(rank);
            c.dst_index.push_back(from);
            c.count.push_back(1);
            c.send.push_back(sends ? rank * kRanks + to : -1);
            c.recv.push_back(sends ? -1 : from * kRanks + rank);
            c.wait_offset.push_back(0);
            c.hold_offset.push_back(0);
            c.pullable.push_back(0);
        }
        c.block_offset.push_back(static_cast<std::int64_t>(c.op.size()));
    }
    c.sizes[kInput] = c.sizes[kOutput] = kRanks;
    c.divisor.assign(kRanks, 1);
    c.in_place = c.needs_all = true;
    return c;
}

void live_agreed(const std::shared_ptr<Fabric>& fabric, const Form& form, unsigned seed) {
    constexpr std::uint64_t kEqual = 1, kVarying = 2;
    const auto rank = fabric->rank();
    std::vector<Connection> wires;
    for (std::int32_t w = 0; w < kRanks * kRanks; ++w) {
        wires.push_back({w / kRanks, w % kRanks, w % kRanks});
    }
    Engine engine(fabric, all_to_all(rank), wires, form.room);
    const auto items = static_cast<std::size_t>(form.room.slot_bytes) / sizeof(std::int32_t);
    std::vector<std::int32_t> data(kRanks * items);
    std::mt19937 random(seed * kRanks + static_cast<unsigned>(rank));
    for (std::uint64_t number = 1; number <= kCalls; ++number) {
        std::fill_n(data.begin() + rank * static_cast<std::ptrdiff_t>(items), items, number);
        Call call{static_cast<std::int64_t>(items), DataType::kInt32, ReduceOp::kSum, {}, {}, {}, {}};
        call.memory[kInput] = reinterpret_cast<std::byte*>(data.data());
        call.bytes[kInput] = static_cast<std::int64_t>(data.size() * sizeof(std::int32_t));
        auto status = Status::kVarying;
        if (random() % 4 != 0) {
            call.record = {number, kEqual, number, kVarying};
            status = run_call(engine, call, 1, 60.0, false).status;
        }
        if (status == Status::kVarying) {
            call.record = {number, kVarying, kVaryingCount};
            status = run_call(engine, call, 1, 60.0, false).status;
        }
        has_failed |= status != Status::kDone;
        if (has_failed) break;
        const auto here = static_cast<std::int32_t>(number);
        has_other_data |= std::count(data.begin(), data.end(), here) !=
                          static_cast<std::ptrdiff_t>(data.size());
    }
}

void watch_connections(const std::vector<std::shared_ptr<Fabric>>& fabrics) {
    for (std::int32_t c = 0; c < 2; ++c) fifos.push_back(fabrics[0]->fifo(0, c));
    for (std::int32_t c = 0; c < 2; ++c) {
        const auto& fifo = fifos[static_cast<std::size_t>(c)];
        watched_words[&fifo.counters->consumed] = {Kind::kLook, Kind::kRelease, Kind::kLoose, c};
        for (std::int64_t e = 0; e < fifo.shape.envelopes; ++e) {
            watched_words[&fifo.envelopes[e].sequence] = {Kind::kLook, Kind::kPublish, Kind::kLoose, c};
        }
    }
    for (std::int32_t r = 0; r < kRanks; ++r) {
        auto& state = fabrics[0]->state(r);
        auto* bell = reinterpret_cast<std::uint32_t*>(&state.bell);
        watched_words[&state.failure] = {Kind::kCheck, Kind::kLoose, Kind::kFail, r};
        watched_words[bell] = {Kind::kRing, Kind::kLoose, Kind::kEnter, r};  // sleepers
        watched_words[bell + 1] = {Kind::kHear, Kind::kLoose, Kind::kRung, r};
    }
}

void watch_agreement(const std::vector<std::shared_ptr<Fabric>>& fabrics) {
    for (std::int32_t r = 0; r < kRanks; ++r) {
        auto& state = fabrics[0]->state(r);
        watched_words[&state.call_number] = {Kind::kSeeNumber, Kind::kNumber, Kind::kLoose, r};
        watched_words[&state.call_what] = {Kind::kSeeWhat, Kind::kWhat, Kind::kLoose, r};
        watched_words[&state.call_count] = {Kind::kSeeCount, Kind::kCount, Kind::kLoose, r};
    }
    int object = 0;
    for (auto& buffer : fabrics[0]->state(0).ways) {
        for (auto& word : buffer) {
            watched_words[&word] = {Kind::kSeeWay, Kind::kSayWay, Kind::kLoose, object++};
        }
    }
}

int test(int count, char** arguments) {
    if (count != 4) return 2;
    const auto& form = kForms.at(arguments[1]);
    const auto seed = static_cast<unsigned>(std::atoi(arguments[2]));
    std::vector<std::int32_t> connections{2, 0, 0};
    if (form.agrees) connections.assign(kRanks, kRanks);
    const FabricShape shape{connections, {form.slots, form.room.slot_bytes, form.envelopes}};
    const std::vector<std::int32_t> all{0, 1, 2};
    const auto segment = Segment::create(shape.bytes_of(all), false);
    const auto regions = Fabric::side_by_side(shape, segment, all);
    const auto heap = std::make_shared<Heap>();
    auto* const memory = heap->at(heap->grow(1 << 16), 1 << 16);
    for (const auto r : all) {
        const auto place = static_cast<std::size_t>(r);
        if (r != 0 || form.pulls) buffers[place] = memory + place * kCacheLine;
    }
    std::vector<std::shared_ptr<Fabric>> fabrics;
    for (const auto r : all) {
        fabrics.push_back(std::make_shared<Fabric>(shape, r, regions, Heaps(kRanks, heap)));
    }
    if (form.agrees) {
        watch_agreement(fabrics);
    } else {
        watch_connections(fabrics);
        contents.resize(fifos.size() * lines() + kRanks);
    }
    routines.resize(kRanks + 1);
    shown.resize(routines.size());
    for (const auto r : all) {
        const auto& fabric = fabrics[static_cast<std::size_t>(r)];
        routines[static_cast<std::size_t>(r)].body = [&form, fabric, seed] {
            form.agrees ? live_agreed(fabric, form, seed) : live(fabric, form);
            show_writes();
        };
    }
    routines[kRanks].body = [&] { fabrics[2]->control().fail(Failure::kGaveUp, 2); };
    std::mt19937 random(seed);
    if (!coroutines::run(random, std::atoi(arguments[3]), form.agrees)) return 3;
    return has_other_data ? 1 : has_failed ? 4 : 0;
}

}  // namespace sley::protocol_test
