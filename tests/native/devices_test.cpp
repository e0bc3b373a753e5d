// Threads as a device: streams, calls in order, their abort, frees beside launches. Exits with 1 at
// the first difference.
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "devices/call_order.hpp"
#include "devices/deferred_free.hpp"
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
}

int test(int, char**) {
    check_streams();
    check_order();
    check_frees();
    return 0;
}

}  // namespace sley::devices_test
