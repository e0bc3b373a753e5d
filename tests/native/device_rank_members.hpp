// Ranks on GPUs without Python, over the stand-in for the driver: ranks are threads or processes of this
// program, which exits with 1 at the first difference.
#pragma once

#include <dlfcn.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "devices/device_rank.hpp"

namespace sley::device_rank_test {

using Clock = std::chrono::steady_clock;

constexpr auto kPatience = std::chrono::seconds(60);  // beyond any wait that ends well
constexpr auto kSoon = std::chrono::seconds(20);      // for what mustn't take so long
constexpr int kFloat32 = 2, kInt32 = 6, kSum = 0;     // numbers of engine/reduce.hpp

constexpr std::size_t kMostCount = 40000;  // of floats of a part

inline RankSettings g_settings;
inline std::vector<std::string> g_arguments;
inline std::function<void()> g_met;  // called behind the ranks' first meeting

inline void expect(bool holds, const std::string& what) {
    if (holds) return;
    std::fprintf(stderr, "%s\n", what.c_str());
    std::_Exit(1);
}

// A function by which tests steer the stand-in.
template <class Function>
Function* fake(const char* name) {
    static void* const driver = dlopen("libcuda.so.1", RTLD_NOW);
    return reinterpret_cast<Function*>(dlsym(driver, name));
}

inline long long set(const char* name, long long value) {
    return fake<long long(const char*, long long)>("fake_set")(name, value);
}

// The bytes that a device has given away; -1 is the host.
inline long long used(int device) { return fake<long long(int)>("fake_used")(device); }

// "K506: expected ..., found ...", or "" if nothing is refused.
inline std::string refused(const std::function<void()>& what) {
    try {
        what();
    } catch (const Refusal& refusal) {
        return refusal.what();
    }
    return "";
}

inline void expect_in(const std::string& words, const std::string& text) {
    expect(text.find(words) != std::string::npos, "'" + words + "' isn't in '" + text + "'");
}

inline CudaDevice& device_of(int ordinal) {
    static std::vector<std::unique_ptr<CudaDevice>> devices = [] {
        std::vector<std::unique_ptr<CudaDevice>> made;
        for (int k = 0; k < CudaDevice::count(); ++k) made.emplace_back(new CudaDevice(k));
        return made;
    }();
    return *devices.at(static_cast<std::size_t>(ordinal));
}

// A rank with data of its own.
struct Member {
    Member(const UniqueId& id, int rank, int ranks, CudaDevice& device, const RankSettings& settings,
           std::shared_ptr<Participant> by = std::make_shared<Participant>(kPatience))
        : rank(rank), ranks(ranks), device(device), participant(std::move(by)) {
        // Before any kernel runs: an allocation waits for kernels, which may wait for this rank's.
        for (auto* const each : {&input, &output}) {
            *each = device.allocate(kMostCount * static_cast<std::size_t>(ranks) * sizeof(float));
        }
        stream = device.stream();
        const auto all = participant->meet({id}, rank, ranks,
                                           {ProcessIdentity::here(), {}, DeviceRank::offer(device)});
        if (g_met) g_met();
        opened = std::make_unique<DeviceRank>(participant, rank, all, device, settings);
    }

    // Which of the floats it has.
    static float value(int rank, std::size_t at) { return static_cast<float>(rank + 1 + at % 5); }

    StartOutcome start(const std::string& name, int root, std::size_t count) {
        for (const auto& row : opened->tables().rows) {
            if (row.name != name || row.call.root != root) continue;
            const auto parts = [&](int has) { return has ? static_cast<std::size_t>(ranks) : 1; };
            const auto from = count * parts(row.kind.input_parts);
            const auto to = count * parts(row.kind.output_parts);
            std::vector<float> data(from);
            for (std::size_t k = 0; k < from; ++k) data[k] = value(rank, k);
            device.write(input.address, data.data(), from * sizeof(float));
            RankBuffers buffers{rank, {input.address, output.address},
                                {from * sizeof(float), to * sizeof(float)}};
            CallValues values;
            values.item_bytes = sizeof(float);
            values.count = static_cast<std::int64_t>(count);
            const int type = row.kind.reduces ? kFloat32 : kInt32;
            return opened->calls().start(row.call, {type, kSum, false}, std::max(from, to) * sizeof(float),
                                         values, buffers, stream.address, nullptr);
        }
        expect(false, "no row " + name);
        return {};
    }

    std::vector<float> outcome(std::size_t count) {
        device.synchronize(stream.address);
        std::vector<float> found(count);
        device.read(found.data(), output.address, count * sizeof(float));
        return found;
    }

    // Calls of several kinds and sizes.
    void check_calls() {
        for (const std::size_t count : {std::size_t{3}, std::size_t{2000}, kMostCount}) {
            expect(start("all_reduce", 0, count) == StartOutcome::kStarted, "no all_reduce");
            auto found = outcome(count);
            for (std::size_t k = 0; k < count; ++k) expect(found[k] == sum(k), "a wrong sum");
            expect(start("reduce_scatter", 0, count) == StartOutcome::kStarted, "no reduce_scatter");
            found = outcome(count);
            const auto first = static_cast<std::size_t>(rank) * count;
            for (std::size_t k = 0; k < count; ++k) {
                expect(found[k] == sum(first + k), "a wrong part of a sum");
            }
            expect(start("broadcast", 1, count) == StartOutcome::kStarted, "no broadcast");
            found = outcome(count);
            for (std::size_t k = 0; k < count; ++k) expect(found[k] == value(1, k), "wrong data");
        }
        expect(!opened->error(), "an error of calls that are right");
    }

    float sum(std::size_t at) const {
        float all = 0;
        for (int r = 0; r < ranks; ++r) all += value(r, at);
        return all;
    }

    int rank, ranks;
    CudaDevice& device;
    std::shared_ptr<Participant> participant;
    std::unique_ptr<DeviceRank> opened;
    Resource stream, input, output;
};

inline UniqueId new_id() {
    UniqueId id{};
    add_root(id);
    return id;
}

// Each rank is a thread.
inline void in_ranks(int ranks, const std::function<void(int)>& what) {
    std::vector<std::thread> threads;
    for (int rank = 0; rank < ranks; ++rank) threads.emplace_back(what, rank);
    for (auto& each : threads) each.join();
}

inline void soon(const std::string& what, const std::function<bool()>& holds) {
    for (const auto until = Clock::now() + kSoon; !holds();) {
        expect(Clock::now() < until, what);
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
}

// A process of this program with a rank; it meets the others by an id.
class Child {
public:
    Child(const std::string& scenario, const UniqueId& id, int rank, int ranks,
          const std::string& further = {}) {
        std::string hex;
        for (const auto byte : id) {
            char digits[3];
            std::snprintf(digits, sizeof digits, "%02x", static_cast<unsigned>(byte));
            hex += digits;
        }
        std::vector<std::string> words{"device_rank", "device_rank", scenario, g_settings.tables,
                                       g_settings.version, hex, std::to_string(rank),
                                       std::to_string(ranks), further};
        std::vector<char*> arguments;
        for (auto& word : words) arguments.push_back(word.data());
        arguments.push_back(nullptr);
        pid_ = fork();
        if (pid_ == 0) {
            execv("/proc/self/exe", arguments.data());
            _exit(3);
        }
    }

    // Its status, as of waitpid.
    int end() const {
        int status = 0;
        waitpid(pid_, &status, 0);
        return status;
    }

private:
    pid_t pid_;
};

// A rank of a child, or of this process beside its children.
struct Joined {
    static Joined of_arguments() {
        Joined joined{{}, std::stoi(g_arguments.at(1)), std::stoi(g_arguments.at(2))};
        for (std::size_t k = 0; k < joined.id.size(); ++k) {
            joined.id[k] = std::byte(std::stoi(g_arguments[0].substr(2 * k, 2), nullptr, 16));
        }
        return joined;
    }
    CudaDevice& device() const { return device_of(rank % CudaDevice::count()); }

    UniqueId id;
    int rank, ranks;
};

// Gives calls up when the ranks can't meet any more, as the library does; returns then.
inline void watched(Member& member, const std::function<void()>& what) {
    std::thread watch([&] {
        soon("the end of the others", [&] { return member.participant->end().has_value(); });
        member.opened->give_up(*member.participant->end());
    });
    what();
    watch.join();
}

// Scenarios of messages.
void check_messages();
void run_message_child();
void check_captured_messages();
void check_many_messages();
void check_refused_messages();
void check_stuck_messages();

}  // namespace sley::device_rank_test
