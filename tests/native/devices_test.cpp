// Threads as a device: streams, calls in order, their abort, frees beside launches and calls, calls that
// don't fit beside one another; plans on it. Exits with 1 at the first difference.
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
#include "devices/plan_call.hpp"
#include "devices/threads_device.hpp"

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

// Calls of two starts, the first with two launches, on streams that change.
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
    for (int n = 0; n < 200; ++n) {
        if (n % 50 == 0) streams.assign(6, {});  // the caller may free a stream at once
        for (int k = 0; k < 2; ++k) {
            auto& stream = streams[2 * (random() % 3) + k];
            if (stream.address == 0) stream = devices[k].stream();
            own[k] = stream.address;
        }
        expect(call.start(own, true), "a call was given up");
    }
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

// Of which a call of one block takes more than half.
class SmallDevice : public ThreadsDevice {
    double part(const Launch&) const override { return 0.6; }
};

void check_room() {
    SmallDevice device;
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
    made->divisions = {{1, {0}, 2}};
    return made;
}

template <class Row>
std::uint64_t address_of(Row* row) {
    return reinterpret_cast<std::uint64_t>(row);
}

// What kernels were called with.
std::vector<std::pair<std::string, layout::Call>> g_calls;

class NotingCalls : public ThreadsDevice {
    void launch(const Launch& launch, Stream) const override {
        expect(launch.call.size() == sizeof(layout::Call), "an argument of another size");
        auto& call = g_calls.emplace_back(launch.name, layout::Call{}).second;
        std::memcpy(&call, launch.call.data(), sizeof call);
    }
};

void check_plans() {
    NotingCalls device;
    Word abort{0};
    const auto plan = std::make_shared<DevicePlan>(
        two_ranks(), device, std::vector<std::vector<int>>{{0}, {1}},
        std::vector<std::uint64_t>{1000, 2000}, address_of(&abort), 7);
    PlanCall call(std::make_shared<CallOrder>(&abort), {{plan, 1, 2, 5}}, 32, true, nullptr);
    std::vector<RankMemory> memories{{0, {10, 20, 0}, {}}, {1, {30, 40, 50}, {{1, 0, 0}}}};
    const auto stream = device.stream();
    const std::vector<Device::Stream> streams(2, stream.address);
    for (const std::int64_t count : {1001, 8}) {  // the second call's numbers replace the first's
        call.lay_out({4, count, &memories, 0, 0});
        expect(call.start(streams, true), "a call was given up");
    }
    expect(g_calls.size() == 6 && g_calls[2].first == "sley_divide", "other launches");
    for (std::size_t k = 0; k < g_calls.size(); ++k) {
        const auto& [setup, buffers, registered] = g_calls[k].second;
        const bool is_second = k % 3 != 0;
        const auto& block = setup.blocks[0];
        expect(block.rank == is_second && setup.blocks[is_second].number == is_second, "a block");
        expect(address_of(block.progress) == (is_second ? 2064U : 1064U), "an address in a block");
        expect(address_of(setup.peers[1].published) == 2128 && setup.peers[1].slots == nullptr,
               "an address in a peer");
        expect(setup.count == (k < 3 ? 1001 : 8) && setup.chunk == (k < 3 ? 504 : 4) &&
                   setup.tiles == 1 && setup.left_over == (k < 3 ? 1 : 0),
               "a cut");
        expect(setup.division_count == is_second && setup.ranks == 2, "a number");
        expect(address_of(buffers[1].memory[layout::kScratch]) == 50 &&
                   registered[1].number[0] == 1 && address_of(setup.shifts) == 5,
               "a memory");
    }
    auto* report = g_calls[1].second.setup.blocks[1].report;
    report->step = 3;
    report->status = 1;
    const auto stuck = plan->stuck();
    expect(stuck.size() == 1 && stuck[0].first->number == 1 && stuck[0].second.step == 3,
           "a report");
    try {
        call.lay_out({4, std::int64_t{1} << 50, &memories, 0, 0});
        expect(false, "a call of too many tiles");
    } catch (const Refusal& refusal) {
        expect(refusal.rule == std::string("R503"), "another rule");
    }
}

int test(int, char**) {
    check_streams();
    check_plans();
    check_order();
    check_frees();
    check_room();
    return 0;
}

}  // namespace sley::devices_test
