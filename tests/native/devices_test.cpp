// Threads as a device: streams, calls in order, their abort, frees beside launches and calls, calls that
// don't fit beside one another; plans on it. Exits with 1 at the first difference.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "devices/call_order.hpp"
#include "devices/deferred_free.hpp"
#include "devices/device_calls.hpp"
#include "devices/link_tables.hpp"
#include "devices/table_bytes.hpp"
#include "devices/threads_device.hpp"
#include "engine/borders.hpp"

namespace sley::devices_test {

void expect(bool holds, const char* what) {
    if (holds) return;
    std::fprintf(stderr, "%s\n", what);
    std::exit(1);
}

// The names and the threads of all launches, which a LaunchTurn keeps apart.
std::vector<std::pair<std::string, std::thread::id>> g_launched;

class NotingDevice : public ThreadsDevice {
    void launch(const Launch& launch, Stream stream) const override {
        g_launched.emplace_back(launch.name, std::this_thread::get_id());
        ThreadsDevice::launch(launch, stream);
    }
};

// A launch of `void work(T&)`.
template <class T, void (*work)(T&)>
Launch run(T& what, std::string name = "", std::shared_ptr<void> keeps = nullptr) {
    int (*const kernel)(const void*, int) = [](const void* call, int blocks) {
        work(**static_cast<T* const*>(call));
        return blocks;
    };
    T* const argument = &what;
    std::string call(reinterpret_cast<const char*>(&argument), sizeof argument);
    return {reinterpret_cast<std::uintptr_t>(kernel), name, call, 1, 1, true, keeps};
}

// Not atomic: the sanitizer sees whether the device orders the kernels.
void add_one(int& sum) { ++sum; }

using Word = std::atomic<std::uint64_t>;

void wait_for(Word& gate) {
    while (gate == 0) std::this_thread::yield();
}

void check_streams() {
    ThreadsDevice device;
    auto stream = device.stream();
    int sum = 0;
    Word gate{0};
    const auto kept = std::make_shared<int>();
    device.launch(run<Word, wait_for>(gate), stream.address);
    device.launch(run<int, add_one>(sum), stream.address);
    device.launch(run<int, add_one>(sum, "", kept), stream.address);
    std::vector<std::thread> waiting;
    for (int k = 0; k < 2; ++k) {
        waiting.emplace_back([&] {
            device.synchronize(stream.address);
            expect(sum == 2, "two wait for a stream, and one goes");
        });
    }
    expect(kept.use_count() == 2, "a kernel lost what it uses");
    gate = 1;
    for (auto& each : waiting) each.join();
    expect(kept.use_count() == 1, "what a kernel used outlives it");

    auto launch = run<int, add_one>(sum);
    launch.function = reinterpret_cast<std::uintptr_t>(+[](const void*, int) { return 0; });
    device.launch(launch, stream.address);
    int told = 0;
    for (int k = 0; k < 2; ++k) {
        try {
            device.synchronize({});
        } catch (const TooFewThreads&) {
            ++told;
        }
    }
    expect(told == 1, "a problem isn't told once");

    gate = 0;
    device.launch(run<Word, wait_for>(gate), stream.address);
    device.launch(run<int, add_one>(sum), stream.address);
    stream.owner.reset();
    gate = 1;
    device.synchronize({});
    expect(sum == 3, "a freed stream lost a kernel, or wasn't waited for");
}

// Calls of two starts, the first with two launches, on streams that change; another thread waits.
void call_in_order(std::vector<NotingDevice>& devices, unsigned seed) {
    std::mt19937 random(seed);
    Word abort{0};
    const auto order = std::make_shared<CallOrder>(&abort);
    std::vector<Resource> streams;
    std::vector<Device::Stream> own(2);
    int sums[2] = {};
    OrderedCall call(order, {{&devices[0], {run<int, add_one>(sums[0]),
                                            run<int, add_one>(sums[0], "divide")}},
                             {&devices[1], {run<int, add_one>(sums[1])}}});
    Word done{0};
    std::thread waiting([&] {
        while (done == 0) order->wait();
    });
    for (int n = 0; n < 200; ++n) {
        if (n % 50 == 0) streams.assign(6, {});  // the caller may free a stream at once
        for (int k = 0; k < 2; ++k) {
            auto& stream = streams[2 * (random() % 3) + k];
            if (stream.address == 0) stream = devices[k].stream();
            own[k] = stream.address;
        }
        expect(call.start(own, true), "a call was given up");
    }
    done = 1;
    waiting.join();
    OrderedCall last(order, {{&devices[0], {run<Word, wait_for>(abort),
                                            run<Word, wait_for>(abort, "divide")}},
                             {&devices[1], {run<Word, wait_for>(abort)}}});
    expect(last.start(own, true), "a call was given up");
    abort = 1;
    expect(!last.start(own, true) && !call.start(own, true), "a call starts behind the abort");
    for (int k = 0; k < 2; ++k) devices[k].synchronize(own[k]);
    expect(sums[0] == 400 && sums[1] == 200, "a launch was lost");
}

void check_order() {
    std::vector<NotingDevice> devices(2);
    std::vector<std::thread> callers;
    for (unsigned seed = 0; seed < 2; ++seed) {
        callers.emplace_back(call_in_order, std::ref(devices), seed);
    }
    for (auto& each : callers) each.join();
    expect(g_launched.size() == 2 * 201 * 3, "a launch too many or too few");
    for (std::size_t k = 0; k < g_launched.size(); ++k) {
        const auto& [name, thread] = g_launched[k];
        expect(thread == g_launched[k - k % 3].second, "two calls are launched at once");
        expect((name == "divide") == (k % 3 == 2), "a division is launched before a run");
    }
}

// A caller that runs ahead of its device waits, without the turn, which other ranks' launches need.
void check_milestones() {
    struct CountingDevice : ThreadsDevice {
        void launch(const Launch& launch, Stream stream) const override {
            ++launched;
            ThreadsDevice::launch(launch, stream);
        }
        mutable std::atomic<int> launched{0};
    } device;
    Word abort{0}, gate{0};
    const auto stream = device.stream();
    OrderedCall call(std::make_shared<CallOrder>(&abort), {{&device, {run<Word, wait_for>(gate)}}});
    std::thread caller([&] {
        for (int k = 0; k < 1000; ++k) call.start({stream.address}, true);
    });
    while (device.launched < 127) std::this_thread::yield();
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    expect(device.launched == 127, "a caller runs ahead without an end");
    gate = 1;
    caller.join();
    device.synchronize({});
    expect(device.launched == 1000, "a call is lost behind a milestone");
}

void check_frees() {
    std::string said;
    {
        const LaunchTurn turn;
        std::thread([&] { release([&] { said += "freed "; }); }).join();
        said += "launched ";
    }
    release([&] { release([&] { said += "by a free"; }); });
    expect(said == "launched freed by a free", "a free doesn't wait, or is lost");

    ThreadsDevice device;
    Word abort{0}, gate{0};
    const auto order = std::make_shared<CallOrder>(&abort);
    const auto stream = device.stream();
    OrderedCall call(order, {{&device, {run<Word, wait_for>(gate)}}});
    for (const bool recorded : {false, true}) {
        gate = 0;
        call.start({stream.address}, recorded);
        int freed = 0;
        release([&] { ++freed; });
        expect(freed == 0, "memory is freed while a call is under way");
        gate = 1;
        order->wait();
        expect(freed == 1, "memory isn't freed behind a call");
    }
}

// Of which a call of one block takes a part.
class SmallDevice : public ThreadsDevice {
public:
    explicit SmallDevice(double part) : part_(part) {}
    double part(const Launch&) const override { return part_; }

private:
    double part_;
};

void check_room() {
    SmallDevice device(0.6);
    Word abort{0}, gate{0};
    int sum = 0;
    std::vector<Resource> streams;
    std::vector<OrderedCall> calls;
    for (const auto& launch : {run<Word, wait_for>(gate), run<int, add_one>(sum)}) {
        streams.push_back(device.stream());
        calls.emplace_back(std::make_shared<CallOrder>(&abort),
                           std::vector<Start>{{&device, {launch}}});
        calls.back().start({streams.back().address}, false);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    expect(sum == 0, "two calls that don't fit run beside one another");
    gate = 1;
    device.synchronize({});
    expect(sum == 1, "a call that waited is lost");
}

void open_gate(Word& gate) { gate = 1; }

// Two communicators of two ranks: each fits, but not both. A rank of the first one comes last, for
// which the other waits; the next call of the first communicator waits for the second one's. Calls of one
// rank may wait for one another likewise.
void check_room_for_ranks(OrderedCall::Kind kind) {
    SmallDevice device(0.3);
    Word abort{0}, gates[2] = {0, 0};
    int sum = 0;
    Word crowds[2] = {0, 0};
    std::vector<Resource> streams;
    std::vector<std::vector<OrderedCall>> calls(2);
    for (const int of : {0, 1}) {
        for (const auto& launch :
             {run<Word, wait_for>(gates[of]), run<Word, open_gate>(gates[of])}) {
            const auto order = std::make_shared<CallOrder>(&abort);
            order->join(crowds[of], {{device.context(), 1}});
            streams.push_back(device.stream());
            calls[of].emplace_back(order, std::vector<Start>{{&device, {launch}}}, kind);
        }
    }
    const auto start = [&](int of, int rank) {
        calls[of][rank].start({streams[2 * of + rank].address}, true);
    };
    for (int turn = 0; turn < 20; ++turn) {
        for (auto& gate : gates) gate = 0;
        for (const auto& [of, rank] : {std::pair{0, 0}, {1, 0}, {1, 1}, {0, 1}}) start(of, rank);
        device.synchronize({});
    }
    expect(crowds[0] != 0 && crowds[0] != crowds[1], "communicators share their room");
    // Others wait for a call of which a rank is still to come, and for those that wait for it.
    gates[0] = 0;
    start(0, 0);
    const auto stream = device.stream(), beside = device.stream();
    const Start one{&device, {run<int, add_one>(sum)}}, none{&device, {run<Word, wait_for>(gates[1])}};
    OrderedCall other(std::make_shared<CallOrder>(&abort), {one, none});
    OrderedCall more(std::make_shared<CallOrder>(&abort), {one});
    other.start({stream.address, beside.address}, true);
    more.start({stream.address}, true);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    expect(sum == 0, "a call beside one that will fill the device");
    start(0, 1);
    device.synchronize({});
    expect(sum == 2, "a call that waited for ranks is lost");
}

std::uint64_t symbol(int segment, std::uint64_t offset) {
    return static_cast<std::uint64_t>(segment + 1) << kOffsetBits | offset;
}

// A plan of two ranks, of which the second has two blocks, a chunk that is divided and scratch; its
// one connection is from the first to the second.
std::shared_ptr<PlanTables> two_ranks() {
    auto made = std::make_shared<PlanTables>();
    auto& n = made->numbers;
    n.tile_major = true;
    n.chunks = n.slots = n.slices = 2;
    n.max_count = 1;
    n.steps = 3;
    n.slot_bytes = 1 << 16;
    n.most_threads = 32;
    n.scratch_chunks = {0, 1};
    for (const int rank : {0, 1, 1}) {
        layout::Block block{};
        block.rank = rank;
        block.number = static_cast<int>(made->blocks.size()) - rank;
        block.progress = reinterpret_cast<layout::u64*>(symbol(rank, 64));
        made->blocks.push_back(block);
    }
    layout::Peer peer{};
    peer.published = reinterpret_cast<layout::Counter*>(symbol(1, 128));
    made->peers = {peer, peer};
    made->peers[1].rank = 1;
    auto& last = made->blocks.back();
    last.senders = last.receivers = last.first_receiver = 1;
    made->divisions = {{1, {0}, 2}};
    return made;
}

// Damage is refused; what has its digest, but was never written, is refused or is whole.
void check_link_tables() {
    LinkTables made;
    made.key = {2, true, false, 32};
    made.version = "1";
    made.threads = 512;
    made.names = {"a plan"};
    made.plans = {two_ranks()};
    made.mailboxes = {1 << 20, 1 << 21};
    const Kind kind{3, true, true, false, false};
    for (const int root : {0, 1}) made.rows.push_back({"reduce", kind, {3, false, root}, {8}, {0, 0}});
    made.kernels = {{0, {2, 0, true}, "code.fatbin"}};
    made.messages = "messages.fatbin";
    made.check();
    const auto written = made.to_bytes();
    const auto read = LinkTables::from_bytes(written);
    expect(read.to_bytes() == written, "tables that are read aren't those that were written");
    expect(read.digest.size() == 16 && read.rows[1].call.root == 1 &&
               read.kernels[0].program.scales && read.messages == made.messages,
           "tables that are read have other values");
    expect(made.key.file_name() == "2-ranks-lines-32-blocks.tables", "the name of a file");

    const auto is_refused = [](const std::string& bytes) {
        try {
            LinkTables::from_bytes(bytes).check();
        } catch (const Refusal& refusal) {
            expect(refusal.rule == "F425", "damage is refused by another rule");
            return true;
        }
        return false;
    };
    std::mt19937 random(1);
    const std::size_t head = written.find('\n') + 1, body = head + sizeof(std::uint64_t);
    for (int k = 0; k < 2000; ++k) {
        auto damaged = written;
        damaged[random() % damaged.size()] ^= static_cast<char>(1 + random() % 255);
        expect(is_refused(damaged), "a changed byte isn't noticed");
        expect(is_refused(written.substr(0, random() % written.size())), "a cut isn't noticed");
        damaged = written.substr(body, random() % 4 == 0 ? random() % written.size() : written.npos);
        for (int n = 0; n < 3 && !damaged.empty(); ++n) {
            damaged[random() % damaged.size()] = static_cast<char>(random() % 256);
        }
        is_refused(sealed(written.substr(0, head), damaged));
    }
}

template <class Row>
std::uint64_t address_of(Row* row) {
    return reinterpret_cast<std::uint64_t>(row);
}

const layout::Block& block_of(const layout::Setup& setup, int number) {
    const auto bytes = sizeof(layout::Block) +
                       static_cast<std::size_t>(setup.row_peers) * sizeof(layout::Peer);
    return *reinterpret_cast<const layout::Block*>(setup.rows +
                                                   static_cast<std::size_t>(number) * bytes);
}

// What kernels were called with.
struct NotedCall {
    std::string name;
    layout::Call call;
    bool keeps;  // whether the kernel keeps something
};
std::vector<NotedCall> g_calls;

// Lends no memory at odd addresses.
class NotingCalls : public ThreadsDevice {
    void launch(const Launch& launch, Stream) const override {
        expect(launch.call.size() == sizeof(layout::Call), "an argument of another size");
        auto& call = g_calls.emplace_back(
            NotedCall{launch.name, layout::Call{}, launch.keeps != nullptr}).call;
        std::memcpy(&call, launch.call.data(), sizeof call);
    }
    bool lends(std::uintptr_t address, const Device&) const override { return address % 2 == 0; }
};

void check_plans() {
    NotingCalls device;
    Word abort{0};
    const auto plan =
        DevicePlan::all({two_ranks()}, device, {{0}, {1}}, {1000, 2000}, address_of(&abort), 7)[0];
    const auto memory = std::make_shared<MemoryIndex>(
        2, std::vector<std::pair<int, Device*>>{{0, &device}, {1, &device}});
    PlanCall call(std::make_shared<CallOrder>(&abort), memory, {{plan, 1, 2}}, 32, true);
    const std::vector<RankBuffers> buffers{{0, {10, 20}, {}}, {1, {30, 40}, {}}};
    expect(!call.lay_out({4, 8, &buffers, 0, 0}), "a call without its scratch");
    memory->add_scratch(1, 60, 2016, false);
    const auto stream = device.stream();
    const std::vector<Device::Stream> streams(2, stream.address);
    for (const std::int64_t count : {1001, 8}) {  // the second call's numbers replace the first's
        expect(call.lay_out({4, count, &buffers, 0, 0}), "a call lacks what is there");
        expect(call.start(streams, true), "a call was given up");
    }
    expect(g_calls.size() == 6 && g_calls[2].name == "sley_divide", "other launches");
    for (std::size_t k = 0; k < g_calls.size(); ++k) {
        const auto& [setup, own] = g_calls[k].call;
        const bool is_second = k % 3 != 0;
        const auto& block = block_of(setup, 0);
        expect(block.rank == is_second && block_of(setup, is_second).number == is_second &&
                   block.place == 0,
               "a block");
        expect(address_of(block.progress) == (is_second ? 2064U : 1064U), "an address in a block");
        expect(address_of(setup.peers[1].published) == 2128 && setup.peers[1].slots == nullptr,
               "an address in a peer");
        const auto& last = block_of(setup, is_second);
        const auto* peers = reinterpret_cast<const layout::Peer*>(&last + 1);
        expect(last.senders == is_second && peers[0].rank == 0 && peers[1].rank == is_second &&
                   peers[0].published == (is_second ? setup.peers[0].published : nullptr),
               "the peers in a row");
        expect(setup.count == (k < 3 ? 1001 : 8) && setup.chunk == (k < 3 ? 504 : 4) &&
                   setup.tiles == 1 && setup.left_over == (k < 3 ? std::uint64_t{1} << 63 : 0),
               "a cut");
        expect(setup.division_count == is_second && setup.ranks == 2, "a number");
        const auto& memories = own[0].buffers.memory;
        expect(address_of(memories[layout::kScratch]) == (is_second ? 60U : 0U) &&
                   address_of(memories[layout::kOutput]) == (is_second ? 40U : 20U) &&
                   address_of(setup.shifts) == memory->table(device) && setup.owns == nullptr,
               "a memory");
    }
    auto* report = block_of(g_calls[1].call.setup, 1).report;
    report->step = 3;
    report->status = 1;
    const auto stuck = plan->stuck();
    expect(stuck.size() == 1 && stuck[0].first->number == 1 && stuck[0].second.step == 3,
           "a report");
    try {
        call.lay_out({4, std::int64_t{1} << 50, &buffers, 0, 0});
        expect(false, "a call of too many tiles");
    } catch (const Refusal& refusal) {
        expect(refusal.rule == std::string("R503"), "another rule");
    }
}

// Chunks begin for kernels, which multiply, where they do for the CPU runtime, which divides.
void check_borders() {
    std::mt19937_64 random(1);
    const auto upper = [](std::uint64_t a, std::uint64_t b) {
        return static_cast<std::int64_t>(static_cast<unsigned __int128>(a) * b >> 64);
    };
    PlanNumbers numbers;
    numbers.max_count = numbers.steps = numbers.slices = 1;
    numbers.slot_bytes = 1 << 30;
    for (int k = 0; k < 3000; ++k) {
        numbers.chunks = 1 + static_cast<std::int32_t>(random() >> (35 + random() % 28));
        const auto count = static_cast<std::int64_t>(random() >> (26 + random() % 37));
        layout::Setup c{};
        numbers.cut(4, count, c);
        const auto chunks = static_cast<std::uint64_t>(numbers.chunks);
        for (const auto at : {std::uint64_t{0}, random() % chunks, random() % chunks, chunks}) {
            const auto within = static_cast<std::int64_t>(at);
            const auto first = within * c.least + upper(at, c.left_over) * 4;
            expect(std::min<std::int64_t>(first, count) == border(within, numbers.chunks, count, 4),
                   "a border");
            const std::uint64_t chunk = random() >> 34;
            expect(upper(2 * chunk, c.share) == static_cast<std::int64_t>(chunk / chunks),
                   "a chunk's block");
        }
    }
}

// Pieces, tables that grow, and what devices lend.
void check_memory() {
    NotingCalls devices[2];
    MemoryIndex memory(3, {{0, &devices[0]}, {2, &devices[1]}});
    const auto first = memory.table(devices[1]);
    const auto row = [&memory](const Device& device, int number) {
        return reinterpret_cast<const std::uint64_t*>(memory.table(device)) + 3 * number;
    };
    expect(row(devices[0], 0)[0] == layout::kHidden, "number 0 is read");
    for (int rank = 0; rank < 3; ++rank) {
        expect(row(devices[1], 1)[rank] == (rank == 1 ? layout::kHidden : 0), "number 1");
    }
    for (std::uint64_t at : {300, 100, 200}) memory.add(at, 64, {at, at + 1, at + 2});
    const std::uint64_t expected[][3] = {  // address, bytes, number
        {100, 64, 3}, {99, 1, 0}, {163, 1, 3}, {164, 1, 1}, {163, 2, 0}, {200, 64, 4}, {264, 64, 1},
        {363, 1, 2}, {301, 64, 0}, {302, 64, 1}, {100, 0, 0}};
    for (const auto& [address, bytes, number] : expected) {
        for (const int rank : {0, 2}) {
            expect(memory.number(rank, address, bytes) == number, "the number of a piece");
        }
    }
    expect(memory.table(devices[1]) != first, "a full table has room");
    for (const auto& device : devices) {
        expect(row(device, 2)[0] == 300 && row(device, 4)[2] == 202, "rows move into a larger table");
    }

    memory.add_scratch(2, 1000, 50, false);
    memory.add_scratch(2, 2000, 40, true);
    memory.add_scratch(2, 3000, 90, true);
    const auto scratch = [&memory](std::uint64_t bytes) { return memory.scratch(2, bytes); };
    expect(scratch(0) == 0 && scratch(1) == 3000 && scratch(90) == 3000 && !scratch(91) &&
               !memory.scratch(0, 1),
           "scratch that all read comes first");
}

// Two plans, of which the second has no scratch, by size.
void check_calls() {
    constexpr int kAverage = static_cast<int>(ReduceOp::kAverage);  // calls that divide
    NotingCalls device;
    Word abort{0};
    const auto order = std::make_shared<CallOrder>(&abort);
    const auto memory = std::make_shared<MemoryIndex>(
        2, std::vector<std::pair<int, Device*>>{{1, &device}});
    DeviceCalls calls(order, memory, 1, true);
    for (const int chunks : {2, 4}) {
        const auto tables = two_ranks();
        tables->numbers.chunks = chunks;
        tables->numbers.protocol = layout::kDirect;
        if (chunks == 4) tables->numbers.scratch_chunks = {0, 0};
        const auto plan =
            DevicePlan::all({tables}, device, {{1}}, {1000, 2000}, address_of(&abort), 7)[0];
        expect(calls.add_plan(plan) == chunks / 2 - 1, "a plan's number");
    }
    const auto largest = ~std::uint64_t{0};
    const CallKind kind{3, true, 1}, other{3, true, 0};
    calls.set_table(kind, {7, 100}, {1, 0, 1});
    calls.set_table(other, {}, {0});
    const std::pair<std::uint64_t, int> expected[] = {{0, 1}, {7, 1}, {8, 0}, {100, 0}, {101, 1},
                                                      {largest, 1}};
    for (const auto& [bytes, plan] : expected) {
        expect(calls.plan_of(kind, bytes) == plan, "a plan by size");
    }
    expect(calls.plan_of(other, 7) == 0, "a plan by root");

    const auto stream = device.stream();
    const auto kept = std::make_shared<int>();
    const auto start = [&](std::uint64_t bytes, int dtype = 0, bool scales = false) {
        const auto count = static_cast<std::int64_t>(bytes);
        return calls.start(kind, {dtype, kAverage, scales}, bytes, {1, count, nullptr, 9, 0},
                           {0, {64, 128}, {bytes, bytes}}, stream.address, kept);
    };
    g_calls.clear();
    expect(start(0) == StartOutcome::kStarted, "a call of nothing");
    expect(start(50) == StartOutcome::kLacksProgram, "a program that isn't there");
    for (const int plan : {0, 1}) calls.set_program(plan, {0, kAverage, false}, 1, 2);
    calls.set_program(1, {0, kAverage, true}, 3, 0);
    expect(start(50) == StartOutcome::kLacksScratch, "scratch that isn't there");
    expect(start(50, 1) == StartOutcome::kLacksProgram, "the program of another type");
    expect(start(50, 0, true) == StartOutcome::kLacksProgram, "a program without a factor");
    expect(g_calls.empty(), "a launch of what can't be started");
    memory->add_scratch(1, 256, 1000, false);
    memory->add(120, 80, {1, 2});
    constexpr std::int64_t kLarge = std::int64_t{5} << 30;
    for (const std::uint64_t bytes : {std::int64_t{50}, std::int64_t{7}, kLarge, std::int64_t{200}}) {
        expect(start(bytes) == StartOutcome::kStarted, "a call that lacks nothing");
    }
    expect(start(200, 0, true) == StartOutcome::kStarted, "a call with a factor");
    expect(g_calls.size() == 9 && g_calls[1].name == "sley_divide" && g_calls[8].name == "sley_run",
           "other launches");
    const auto tallies = calls.tallies(kind);
    const std::uint64_t calls_of[] = {1, 1, 3}, bytes_of[] = {7, 50, kLarge + 400};
    for (std::size_t k = 0; k < 3; ++k) {
        expect(tallies[k].calls == calls_of[k] && tallies[k].bytes == bytes_of[k], "a tally");
    }
    for (std::size_t k = 0; k < g_calls.size(); ++k) {
        const auto& setup = g_calls[k].call.setup;
        const std::int64_t counts[] = {50, 50, 7, 7, kLarge, kLarge, 200, 200, 200};
        const auto& own = g_calls[k].call.own[0].buffers.memory;
        const auto& numbers = g_calls[k].call.own[0].registered.number;
        expect(setup.count == counts[k] && setup.chunk * setup.chunks >= counts[k] &&
                   setup.tiles * setup.tile >= setup.chunk && setup.chunks == (k < 2 ? 2 : 4) &&
                   setup.factor == 9 && g_calls[k].keeps,
               "a call of another plan or size");
        expect(address_of(own[0]) == 64 && address_of(own[1]) == 128 && numbers[0] == 1 &&
                   address_of(own[2]) == (k < 2 ? 256 : 0) && numbers[2] == (k < 2 ? 1 : 0) &&
                   numbers[1] == (k < 4 ? 2 : 1),
               "a memory of a call");
    }
    expect(kept.use_count() == 1, "a call keeps what it used");
    std::vector<std::thread> callers;
    for (int caller = 0; caller < 2; ++caller) {
        callers.emplace_back([&] {
            for (std::uint64_t bytes = 1; bytes < 200; ++bytes) {
                expect(start(bytes) == StartOutcome::kStarted, "a call of one of two threads");
            }
        });
    }
    for (std::uint64_t at = 1000; at < 2000; at += 10) {  // meanwhile tables grow
        memory->add(at, 10, {0, 0});
        memory->add_scratch(1, at, at, true);
    }
    for (auto& caller : callers) caller.join();
    expect(g_calls.size() == 9 + 2 * 2 * 199, "a call of one of two threads is lost");

    const auto array = [](std::uintptr_t address, std::int64_t count) {
        return Elements{reinterpret_cast<std::byte*>(address), count, DataType::kFloat16, 2, 0};
    };
    const auto started = [&](const Kind& what, const Elements& input, const Elements& output,
                             int root) {
        return calls.start(what, input, output, ReduceOp::kAverage, root, stream.address, nullptr);
    };
    const Kind reduce{3, true, true, false, false}, gather{3, false, false, false, true};
    expect(started(reduce, array(64, 25), array(64, 25), 1) == StartOutcome::kStarted &&
               g_calls.back().call.setup.count == 25,
           "a call of an array");
    expect(started(gather, array(66, 1), array(64, 2), 1) == StartOutcome::kStarted &&
               address_of(g_calls.back().call.own[0].buffers.memory[0]) == 64,
           "a part in its place");
    const auto unfit = started(reduce, array(64, 25), array(164, 25), 1) ||  // only the root has one
                       started(reduce, array(64, 25), array(64, 25), 2) ||   // no rank
                       started(reduce, array(65, 25), array(65, 25), 1) ||
                       started(gather, array(64, 1), array(64, 2), 1) ||     // another rank's place
                       started(gather, array(10, 1), array(64, 3), 1);
    expect(!unfit, "a call of arrays that need a closer look");
    g_calls.resize(9 + 2 * 2 * 199);
    abort = 1;
    expect(start(50) == StartOutcome::kGivenUp && start(0) == StartOutcome::kGivenUp,
           "a call behind the abort");
    expect(g_calls.size() == 9 + 2 * 2 * 199, "a launch behind the abort");
}

int test(int, char**) {
    check_streams();
    check_plans();
    check_borders();
    check_link_tables();
    check_memory();
    check_calls();
    check_order();
    check_milestones();
    check_frees();
    check_room();
    check_room_for_ranks(OrderedCall::Kind::kOfAllRanks);
    check_room_for_ranks(OrderedCall::Kind::kOfOneRank);
    return 0;
}

}  // namespace sley::devices_test
