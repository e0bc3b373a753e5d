// Sends and receives of ranks on GPUs, over the stand-in for the driver.
#include <algorithm>
#include <atomic>
#include <random>
#include <utility>

#include "device_rank_members.hpp"

namespace sley::device_rank_test {
namespace {

using Random = std::mt19937;

std::size_t draw(Random& random, std::size_t below) { return random() % below; }

// A message, and how far the addresses at its ends are from multiples of 16. If `joins`, all ranks make a
// collective instead.
struct Item {
    int from, to;
    std::size_t bytes, shifts[2];
    bool joins;
};

// A job of ranks that all know its messages, in an order which each rank keeps. However the ranks group
// theirs, all begin: the earliest one that isn't over can.
std::vector<Item> job_of(unsigned seed, int ranks, int count) {
    constexpr std::size_t kSizes[] = {0,      1,      15,      16,     17,     1000,   4096,
                                      65537,  131071, 131072,  131073, 300000, 3 << 20};
    Random random(seed);
    std::vector<Item> items;
    const auto all = static_cast<std::size_t>(ranks);
    for (int k = 0; k < count; ++k) {
        Item item{};
        item.from = static_cast<int>(draw(random, all));
        item.to = static_cast<int>(draw(random, all));
        item.bytes = kSizes[draw(random, std::size(kSizes) - (k % 16 != 0))];
        const bool is_even = draw(random, 2) == 0;
        for (auto& shift : item.shifts) shift = is_even ? 0 : draw(random, 16);
        item.joins = k % 20 == 19;
        if (item.joins) item.bytes = 0;
        items.push_back(item);
    }
    return items;
}

unsigned char byte_of(std::size_t message, std::size_t at) {
    return static_cast<unsigned char>(message * 37 + at * 11 + at / 251);
}

// The buffers of a rank for its messages, with bytes between them that stay as they are.
class Buffers {
public:
    static constexpr std::size_t kGuard = 64;
    static constexpr unsigned char kUntouched = 0xA5;

    // Before the rank opens, since an allocation waits for kernels, which may wait for this rank's.
    Buffers(CudaDevice& device, int rank, const std::vector<Item>& items) : device_(device) {
        std::size_t end = 0;
        const auto place = [&end](std::size_t bytes, std::size_t shift) {
            const auto at = (end + kGuard + 15) / 16 * 16 + shift;
            end = at + bytes;
            return at;
        };
        for (const auto& item : items) {
            sent_.push_back(item.from == rank ? place(item.bytes, item.shifts[0]) : 0);
            taken_.push_back(item.to == rank ? place(item.bytes, item.shifts[1]) : 0);
        }
        wanted_.assign(end + kGuard, kUntouched);
        for (std::size_t k = 0; k < items.size(); ++k) {
            if (items[k].from == rank) fill(k, sent_[k], items[k].bytes);
        }
        memory_ = device.allocate(wanted_.size());
        clear();
        for (std::size_t k = 0; k < items.size(); ++k) {
            if (items[k].to == rank) fill(k, taken_[k], items[k].bytes);
        }
        whole_ = std::exchange(wanted_, begin_);
    }

    // What `check` undoes.
    void clear() {
        if (begin_.empty()) begin_ = wanted_;
        device_.write(memory_.address, begin_.data(), begin_.size());
    }
    void check() {
        std::vector<unsigned char> found(whole_.size());
        device_.read(found.data(), memory_.address, found.size());
        const auto [one, other] = std::mismatch(found.begin(), found.end(), whole_.begin());
        expect(one == found.end(), "byte " + std::to_string(one - found.begin()) + " is " +
                                       std::to_string(one == found.end() ? 0 : *one));
    }

    DeviceMessage send(const Item& item, std::size_t k) const {
        return {item.to, true, memory_.address + sent_[k], item.bytes};
    }
    DeviceMessage receive(const Item& item, std::size_t k) const {
        return {item.from, false, memory_.address + taken_[k], item.bytes};
    }

private:
    void fill(std::size_t message, std::size_t at, std::size_t bytes) {
        for (std::size_t k = 0; k < bytes; ++k) wanted_[at + k] = byte_of(message, k);
    }

    CudaDevice& device_;
    std::vector<std::size_t> sent_, taken_;
    std::vector<unsigned char> wanted_, begin_, whole_;
    Resource memory_;
};

void start(DeviceRank& opened, const std::vector<DeviceMessage>& messages, std::uintptr_t stream) {
    expect(opened.messages().start(messages, stream) == StartOutcome::kStarted, "no start");
}

// Runs a rank's part of a job. The rank draws which of its messages it starts together, and where.
void run_job(const UniqueId& id, int rank, int ranks, unsigned seed, int count) {
    auto& device = device_of(rank % CudaDevice::count());
    const auto items = job_of(seed, ranks, count);
    Buffers buffers(device, rank, items);
    Random random(seed + 1000 * static_cast<unsigned>(rank) + 1);
    std::vector<Resource> streams;
    for (int k = 0; k < 2; ++k) streams.push_back(device.stream());
    Member member(id, rank, ranks, device, g_settings);
    std::vector<DeviceMessage> together;
    const auto flush = [&] {
        start(*member.opened, together, streams[draw(random, 2)].address);
        together.clear();
    };
    for (std::size_t k = 0; k < items.size(); ++k) {
        const auto& item = items[k];
        if (item.joins) {
            flush();
            expect(member.start("all_reduce", 0, 2000) == StartOutcome::kStarted, "no all_reduce");
            const auto found = member.outcome(2000);
            expect(found[1999] == member.sum(1999), "a wrong sum");
            continue;
        }
        if (item.from == rank) together.push_back(buffers.send(item, k));
        if (item.to == rank) together.push_back(buffers.receive(item, k));
        if (draw(random, 4) == 0) flush();
    }
    flush();
    for (const auto& stream : streams) device.synchronize(stream.address);
    expect(!member.opened->error(), "an error of messages that are right");
    buffers.check();
    member.opened->close(true);
}

constexpr int kJob = 100;  // messages

template <class Function>
Function* entry(const char* name) {
    void* found = nullptr;
    const auto get = fake<int(const char*, void**, int, std::uint64_t, int*)>("cuGetProcAddress_v2");
    expect(get(name, &found, 12000, 0, nullptr) == 0, "no entry point");
    return reinterpret_cast<Function*>(found);
}

// Two ranks of threads. `what` gets a rank, and memory and a stream of its device.
void in_pairs(double timeout_s, const std::function<void(Member&, const Resource&)>& what) {
    const auto id = new_id();
    in_ranks(2, [&](int rank) {
        auto settings = g_settings;
        settings.timeout_s = timeout_s;
        const auto memory = device_of(rank % CudaDevice::count()).allocate(4 << 20);
        Member member(id, rank, 2, device_of(rank % CudaDevice::count()), settings);
        what(member, memory);
        member.opened->close(true);
    });
}

}  // namespace

// The number of ranks, how many of them are threads of this process, and of jobs.
void check_messages() {
    const int ranks = std::stoi(g_arguments.at(0)), threads = std::stoi(g_arguments.at(1));
    for (int seed = 0; seed < std::stoi(g_arguments.at(2)); ++seed) {
        const auto id = new_id();
        std::vector<Child> children;
        for (int rank = threads; rank < ranks; ++rank) {
            children.emplace_back("message_child", id, rank, ranks, std::to_string(seed));
        }
        in_ranks(threads, [&](int rank) {
            run_job(id, rank, ranks, static_cast<unsigned>(seed), kJob);
        });
        for (const auto& each : children) expect(each.end() == 0, "a process failed");
    }
    for (int device = -1; device < CudaDevice::count(); ++device) {
        expect(used(device) == 0, "closed ranks keep memory");
    }
}

void run_message_child() {
    const auto joined = Joined::of_arguments();
    run_job(joined.id, joined.rank, joined.ranks,
            static_cast<unsigned>(std::stoi(g_arguments.at(3))), kJob);
}

// Two ranks whose messages are in a graph, on two streams that are captured side by side. It runs again
// and again, and beside it some that aren't.
void check_captured_messages() {
    constexpr std::size_t kBytes[] = {16, 1000, 140000};
    const auto id = new_id();
    in_ranks(2, [&](int rank) {
        auto& device = device_of(rank);
        std::vector<Item> items;
        for (const auto bytes : kBytes) {
            items.push_back({0, 1, bytes, {0, bytes % 16}, false});
            items.push_back({1, 0, bytes, {0, 0}, false});
        }
        items.push_back({rank, rank, 5000, {1, 1}, false});
        Buffers buffers(device, rank, items);
        Member member(id, rank, 2, device, g_settings);
        std::vector<DeviceMessage> messages;
        for (std::size_t k = 0; k < items.size(); ++k) {
            if (items[k].from == rank) messages.push_back(buffers.send(items[k], k));
            if (items[k].to == rank) messages.push_back(buffers.receive(items[k], k));
        }
        const auto stream = member.stream.address;
        const auto run = [&] {
            start(*member.opened, messages, stream);
            device.synchronize(stream);
            buffers.check();
        };
        run();
        std::uintptr_t graph = 0, ready = 0;
        const cuda::Current current(device.context());
        expect(entry<int(std::uintptr_t, int)>("cuStreamBeginCapture")(stream, 2) == 0, "no capture");
        const auto branch = device.stream(), begin = device.event(), end = device.event();
        device.record(begin.address, stream, false);
        device.wait(branch.address, begin.address, false);
        for (const auto on : {stream, branch.address, stream}) start(*member.opened, messages, on);
        device.record(end.address, branch.address, false);
        device.wait(stream, end.address, false);
        entry<int(std::uintptr_t, std::uintptr_t*)>("cuStreamEndCapture")(stream, &graph);
        entry<int(std::uintptr_t*, std::uintptr_t, unsigned long long)>(
            "cuGraphInstantiateWithFlags")(&ready, graph, 0);
        for (int time = 0; time < 40; ++time) {
            if (time % 10 == 0) {
                device.synchronize(stream);
                buffers.clear();
            }
            expect(entry<int(std::uintptr_t, std::uintptr_t)>("cuGraphLaunch")(ready, stream) == 0,
                   "no replay");
            if (time % 10 == 5) start(*member.opened, messages, stream);
        }
        run();
        entry<int(std::uintptr_t)>("cuGraphExecDestroy")(ready);
        entry<int(std::uintptr_t)>("cuGraphDestroy")(graph);
        member.opened->close(true);
    });
}

// More in each direction than a launch's argument has room for, and than slots hold. Then as many as slots
// hold, one by one: both ranks send before either receives, as programs do that rely on NCCL's buffers.
void check_many_messages() {
    const auto id = new_id();
    std::vector<Item> items;
    for (std::size_t k = 0; k < 300; ++k) {
        for (const int from : {0, 1}) items.push_back({from, 1 - from, 1000 + k, {0, 0}, false});
        for (const int from : {0, 1}) items.push_back({from, from, 10 + k, {0, 0}, false});
    }
    in_ranks(2, [&](int rank) {
        auto& device = device_of(rank);
        Buffers buffers(device, rank, items);
        Member member(id, rank, 2, device, g_settings);
        std::vector<DeviceMessage> messages;  // first all sends
        for (std::size_t k = 0; k < items.size(); ++k) {
            if (items[k].from == rank) messages.push_back(buffers.send(items[k], k));
        }
        for (std::size_t k = 0; k < items.size(); ++k) {
            if (items[k].to == rank) messages.push_back(buffers.receive(items[k], k));
        }
        start(*member.opened, messages, member.stream.address);
        device.synchronize(member.stream.address);
        buffers.check();
        for (const bool sends : {true, false}) {
            for (int k = 0; k < 8; ++k) {
                const auto at = sends ? messages[0].address : messages[300].address;
                start(*member.opened, {{1 - rank, sends, at, 1}}, member.stream.address);
            }
        }
        member.opened->close(true);
    });
}

// What a rank is refused; and that nothing is launched without bytes.
void check_refused_messages() {
    in_pairs(20, [](Member& member, const Resource& memory) {
        auto& messages = member.opened->messages();
        const int rank = member.rank;
        const auto refusal = [&](const std::vector<DeviceMessage>& all) {
            return refused([&] { messages.start(all, member.stream.address); });
        };
        const auto own = std::to_string(rank);
        for (const std::uint64_t bytes : {0, 30}) {
            expect_in("N705: expected sends of rank " + own + " to itself that are, in order, its "
                                                              "receives, found 1 of 40 bytes",
                      refusal({{rank, true, memory.address, 40},
                               {rank, false, memory.address + 64, bytes}}));
        }
        expect(refusal({{rank, true, 0, 0}, {1 - rank, false, 0, 0}}).empty(), "a refusal");
        expect(messages.start({}, member.stream.address) == StartOutcome::kStarted, "no start");
        member.device.synchronize(member.stream.address);
    });
}

// What messages tell that have no partner, or one of another size; an abort and a rank's end.
void check_stuck_messages() {
    struct Case {
        DeviceMessage rank0, rank1;
        std::string words[2];
    };
    const Case cases[] = {
        {{1, true, 0, 80}, {0, false, 0, 100}, {"K508", "rank 1 takes 100 bytes from rank 0, which "
                                                        "sends 80 bytes"}},
        {{1, true, 0, 3 << 20}, {0, false, 0, 1 << 20}, {"K508", "rank 1 takes 1048576 bytes from "
                                                                 "rank 0, which sends 3145728"}},
        {{1, false, 0, 4}, {0, false, 0, 0}, {"K508: expected no message to wait longer than 0.1 s, "
                                              "found rank 0 waits to take 4 bytes from rank 1",
                                              "K508"}},
        {{1, true, 0, 4 << 20}, {0, true, 0, 0}, {"found rank 0 waits to send 4194304 bytes to rank 1",
                                                  "K508"}}};
    for (const auto& each : cases) {
        std::atomic<int> told{0};
        in_pairs(each.rank1.bytes == 0 ? 0.1 : 600, [&](Member& member, const Resource& memory) {
            auto message = member.rank == 0 ? each.rank0 : each.rank1;
            message.address = memory.address;
            start(*member.opened, {message}, member.stream.address);
            soon("an error", [&] { return member.opened->error().has_value(); });
            expect_in(each.words[member.rank], member.opened->error()->what());
            ++told;
            soon("the other's error", [&] { return told == 2; });
            expect(member.opened->messages().start({message}, member.stream.address) ==
                           StartOutcome::kGivenUp || message.bytes == 0,
                   "later messages");
        });
    }
    std::atomic<bool> is_started{false};
    std::atomic<int> told{0};
    in_pairs(600, [&](Member& member, const Resource& memory) {
        if (member.rank == 0) {
            start(*member.opened, {{1, false, memory.address, 1000}}, member.stream.address);
            is_started = true;
        } else {
            soon("the start", [&] { return is_started.load(); });
            member.opened->give_up(Refusal("N608", "a communicator in use", "it was aborted"));
        }
        member.device.synchronize(member.stream.address);
        expect_in("N608", member.opened->error()->what());
        ++told;
        soon("the other's error", [&] { return told == 2; });
    });
    const auto id = new_id();
    const Child child("die", id, 1, 2);
    const auto memory = device_of(0).allocate(1000);
    Member member(id, 0, 2, device_of(0), g_settings);
    member.check_calls();
    watched(member, [&] {
        // Whether or not the watch has given up already.
        member.opened->messages().start({{1, false, memory.address, 1000}}, member.stream.address);
        refused([&] { member.opened->close(true); });
    });
    expect_in("N620: ", member.opened->error()->what());
    child.end();
}

}  // namespace sley::device_rank_test
