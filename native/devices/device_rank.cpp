#include "devices/device_rank.hpp"

#include <sys/stat.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <limits>
#include <mutex>
#include <set>
#include <utility>

#include "devices/cuda_errors.hpp"
#include "devices/kernel_files.hpp"
#include "devices/links.hpp"
#include "fabric/control.hpp"

namespace sley {
namespace {

// A rank may be late, by a checkpoint or a slow loader.
constexpr double kLateSeconds = 600;

std::string rank_of_all(int rank) { return "rank " + std::to_string(rank); }

std::string seconds(double number) {
    char text[32];
    std::snprintf(text, sizeof text, "%g s", number);
    return text;
}

// Other ranks are told the driver's errors by sley's codes, and on which rank something was found.
class CodedExchange final : public Exchange {
public:
    explicit CodedExchange(std::shared_ptr<Participant> participant)
        : participant_(std::move(participant)) {}

    std::vector<std::string> gather(const std::string& message) override {
        return participant_->gather(message);
    }
    std::string refusal(const std::exception_ptr& problem) override {
        try {
            std::rethrow_exception(problem);
        } catch (const cuda::Error& error) {
            return told(cuda::refusal_of(error));
        } catch (const Refusal& own) {
            return told(own);
        } catch (...) {
            return participant_->refusal(problem);
        }
    }

private:
    std::string told(Refusal own) {
        own.found += " (" + rank_of_all(participant_->rank()) + ")";
        return participant_->refusal(std::make_exception_ptr(own));
    }

    std::shared_ptr<Participant> participant_;
};

// With whom this thread waits.
thread_local const Participant* t_participant = nullptr;

// As long as it lives, this thread's waits end when the ranks can't meet any more.
class BoundedWaits {
public:
    explicit BoundedWaits(const Participant& participant)
        : hook_(is_interrupted), participant_(t_participant) {
        t_participant = &participant;
        is_interrupted = [] { return t_participant->end().has_value(); };
    }
    BoundedWaits(const BoundedWaits&) = delete;
    BoundedWaits& operator=(const BoundedWaits&) = delete;
    ~BoundedWaits() {
        t_participant = participant_;
        is_interrupted = hook_;
    }

private:
    bool (*hook_)();
    const Participant* participant_;
};

// The tables of a file, which ranks and communicators of this process share.
std::shared_ptr<const LinkTables> read_tables(const RankSettings& settings, const LinkKey& key) {
    static auto& lock = *new std::mutex;
    static auto& every = *new std::map<std::string, std::weak_ptr<const LinkTables>>;
    const auto path = settings.tables + "/" + key.file_name();
    struct stat file {};
    stat(path.c_str(), &file);
    // Which of the files that were there: they aren't changed, but replaced.
    const auto which = path + " " + std::to_string(file.st_ino) + " " + std::to_string(file.st_size) +
                       " " + std::to_string(file.st_mtime);
    const std::lock_guard<std::mutex> held(lock);
    auto tables = every[which].lock();
    if (tables == nullptr) {
        const auto ranks = std::to_string(key.ranks);
        const auto remedy = "`sley exec --ranks " + ranks + "` writes them.";
        const auto bytes =
            bytes_of_file(path, "tables for " + ranks + " ranks on such devices", remedy);
        try {
            tables = std::make_shared<const LinkTables>(LinkTables::from_bytes(bytes));
        } catch (const Refusal& why) {
            throw Refusal(why.rule, why.expected, why.found + " in " + path, {}, remedy);
        }
        every[which] = tables;
    }
    if (tables->version != settings.version || tables->key.file_name() != key.file_name()) {
        throw Refusal("F425", "tables of sley " + settings.version + " in " + path,
                      "those of sley " + tables->version + " in " + tables->key.file_name());
    }
    return tables;
}

std::string words_for(const PlanTables& plan, const layout::Block& block,
                      const layout::Report& report) {
    const auto of = [&](const char* what, int first, const char* end = "") {
        const auto row = static_cast<std::size_t>(first) + report.target;
        return what + rank_of_all(plan.peers.at(row).rank) + end;
    };
    switch (report.reason) {
        case layout::kInstruction:
            return "step " + std::to_string(report.target_step) + " of its block " +
                   std::to_string(report.target);
        case layout::kMessage: return of("a message from ", block.first_receiver);
        case layout::kSlot: return of("a free slot to ", block.first_sender);
        case layout::kReading: return of("", block.rank_sender, " to read what it was sent");
        case layout::kCall: return of("", block.first_receiver, " to make the same call");
        default: return "another block";
    }
}

}  // namespace

struct DeviceRank::State {
    State(std::shared_ptr<Participant> with, int number, CudaDevice& device,
          const RankSettings& settings)
        : participant(std::move(with)), exchange(std::make_shared<CodedExchange>(participant)),
          rank(number), device(device), settings(settings) {}

    // Does what the other ranks take part in. Throws Refusal.
    template <class Work>
    void together(const Work& work);
    void open(const std::vector<RankDescription>& ranks);
    LinkKey agree_on_key(const std::vector<RankDescription>& ranks);
    void agree_on_tables(const LinkKey& key);
    void fill_calls();
    void open_messages(MemoryExchange& memory);
    // Why calls were given up; `lock` is held.
    Refusal why() const;

    const std::shared_ptr<Participant> participant;
    const std::shared_ptr<Exchange> exchange;
    const int rank;
    CudaDevice& device;
    const RankSettings settings;
    std::shared_ptr<Processes> processes;
    std::vector<int> mates;  // the ranks on this one's device
    int blocks = 0;          // that all ranks may run at once
    std::shared_ptr<const LinkTables> tables;
    Resource shared;  // by all ranks, for the barrier
    std::shared_ptr<Barrier> barrier;
    std::shared_ptr<CallOrder> order;
    std::shared_ptr<MemoryIndex> index;
    std::shared_ptr<Links> links;
    std::unique_ptr<DeviceCalls> calls;
    std::unique_ptr<DeviceMessages> messages;
    std::mutex lock;
    std::optional<Refusal> failure;
    bool is_ending = false;  // then the plans' reports go
};

template <class Work>
void DeviceRank::State::together(const Work& work) {
    const BoundedWaits bounded(*participant);
    try {
        work();
    } catch (const Told& told) {
        throw read_refusal(told.refusals.at(0));
    } catch (const Interrupted&) {
        throw Refusal(participant->end().value());
    } catch (const Refusal& refusal) {
        // Of a meeting at the barrier, which ended because of it.
        const auto end = participant->end();
        if (end && (refusal.rule == "K508" || refusal.rule == "K514")) throw Refusal(*end);
        throw;
    } catch (...) {
        throw read_refusal(exchange->refusal(std::current_exception()));
    }
}

LinkKey DeviceRank::State::agree_on_key(const std::vector<RankDescription>& ranks) {
    std::map<std::string, std::vector<int>> on;  // each device
    std::set<std::string> hosts;
    for (std::size_t r = 0; r < ranks.size(); ++r) {
        on[ranks[r].offered.at("device")].push_back(static_cast<int>(r));
        hosts.insert(ranks[r].process.host);
    }
    if (hosts.size() > 1) {
        throw Refusal("K514", "all ranks on one host",
                      "ranks on " + std::to_string(hosts.size()) + " hosts");
    }
    mates = on.at(device.identity());
    LinkKey key;
    key.ranks = static_cast<int>(ranks.size());
    key.is_one_device = on.size() == 1;
    key.same_bits = settings.same_bits;
    blocks = std::numeric_limits<int>::max();
    for (const auto& one : ranks) {
        const auto shares = static_cast<int>(on.at(one.offered.at("device")).size());
        blocks = std::min(blocks, std::max(std::stoi(one.offered.at("blocks")) / shares, 1));
    }
    key.most_blocks = std::min(blocks, LinkKey::kMostBlocks);
    bool carries = true;
    processes->telling([&] {
        const auto& here = ranks[static_cast<std::size_t>(rank)].process;
        const auto launches = std::count_if(mates.begin(), mates.end(), [&](int mate) {
            return ranks[static_cast<std::size_t>(mate)].process == here;
        });
        if (launches > CudaDevice::queues()) {
            throw Refusal("K506",
                          "at most " + std::to_string(CudaDevice::queues()) +
                              " ranks of a process on " + device.name(),
                          std::to_string(launches) + " ranks", {},
                          "Use fewer ranks on a device, or set CUDA_DEVICE_MAX_CONNECTIONS=32 "
                          "before the process uses CUDA.");
        }
        for (const auto& [identity, _] : on) {
            carries = carries && (identity == device.identity() || device.carries_lines(identity));
        }
    });
    const auto said = processes->gather({{rank, carries ? "1" : "0"}});
    key.has_lines = std::count(said.begin(), said.end(), "1") == key.ranks;
    return key;
}

void DeviceRank::State::agree_on_tables(const LinkKey& key) {
    std::string own;
    processes->telling([&] {
        tables = read_tables(settings, key);
        own = key.file_name() + " of sley " + tables->version + " with digest " + tables->digest;
    });
    const auto said = processes->gather({{rank, own}});
    for (std::size_t r = 1; r < said.size(); ++r) {
        if (said[r] == said[0]) continue;
        throw Refusal("N604", "tables " + said[0] + " on all ranks, as on rank 0",
                      said[r] + " on " + rank_of_all(static_cast<int>(r)));
    }
}

void DeviceRank::State::open(const std::vector<RankDescription>& ranks) {
    const int count = static_cast<int>(ranks.size());
    processes = std::make_shared<Processes>(count, exchange);
    agree_on_tables(agree_on_key(ranks));
    const auto& plans = tables->plans;
    const bool has_lines = std::any_of(plans.begin(), plans.end(), [](const auto& plan) {
        return plan->numbers.protocol == layout::kLL128;
    });
    const auto memory = std::make_shared<MemoryExchange>(
        processes, std::map<int, sley::Device*>{{rank, &device}}, has_lines);
    shared = memory->allocate_host(Barrier::bytes(count));
    auto* const words = reinterpret_cast<Barrier::Word*>(shared.address);
    processes->telling([&] {
        order = std::make_shared<CallOrder>(words);
        index = std::make_shared<MemoryIndex>(
            count, std::vector<std::pair<int, sley::Device*>>{{rank, &device}});
    });
    barrier = std::make_shared<Barrier>(words, count, std::vector<int>{rank},
                                        std::max(settings.timeout_s, kLateSeconds));
    links = std::make_shared<Links>(memory, index, barrier, order, shared.address,
                                    tables->mailboxes, plans,
                                    std::vector<Links::Place>{{&device, {{rank}}, {}}},
                                    static_cast<std::uint64_t>(settings.timeout_s * 1e9));
    links->keep(shared.owner);
    open_messages(*memory);
    processes->telling([&] { fill_calls(); });
    processes->meet();  // a kernel that starts earlier may wait for a rank that loads
}

void DeviceRank::State::fill_calls() {
    calls = std::make_unique<DeviceCalls>(order, index, rank, mates.size() == 1);
    for (const auto& plan : links->plans()) calls->add_plan(plan.front());
    for (const auto& row : tables->rows) calls->set_table(row.call, row.ends, row.plans);
    std::vector<int> blocks;  // of each plan, that wait for one another on this device
    for (const auto& plan : tables->plans) {
        blocks.push_back(static_cast<int>(
            std::count_if(plan->blocks.begin(), plan->blocks.end(), [this](const auto& block) {
                return std::binary_search(mates.begin(), mates.end(), block.rank);
            })));
    }
    const KernelFolder folder(settings.kernels);
    for (const auto& one : tables->kernels) {
        const auto found = folder.load(device, one.file, tables->threads);
        const int needed = blocks[static_cast<std::size_t>(one.plan)];
        if (needed > found.room) {
            throw Refusal("K506",
                          "at most " + std::to_string(found.room) + " blocks of " +
                              std::to_string(tables->threads) + " threads at once on " +
                              device.name(),
                          std::to_string(needed) + " blocks of " + std::to_string(mates.size()) +
                              " ranks");
        }
        calls->set_program(one.plan, one.program, found.run, found.divide);
    }
    if (tables->scratch == 0) return;
    const auto scratch = device.allocate(tables->scratch);
    index->add_scratch(rank, scratch.address, tables->scratch, false);
    links->keep(scratch.owner);
}

void DeviceRank::State::open_messages(MemoryExchange& memory) {
    const int count = processes->ranks();
    const auto lanes = memory.allocate(std::vector<std::size_t>(
        static_cast<std::size_t>(count), DeviceMessages::bytes(count, blocks)));
    processes->telling([&] {
        const auto kernel = KernelFolder(settings.kernels)
                                .load(device, tables->messages, tables->threads, "sley_messages",
                                      nullptr)
                                .run;
        std::vector<std::shared_ptr<void>> kept{lanes.own.at(rank).owner};
        messages = std::make_unique<DeviceMessages>(
            DeviceMessages::Place{rank, count, &device, blocks, kernel, tables->threads,
                                  mates.size() == 1, shared.address,
                                  static_cast<std::uint64_t>(settings.timeout_s * 1e9)},
            order, lanes.found.at(&device), kept);
        for (auto& each : kept) links->keep(std::move(each));
    });
}

Refusal DeviceRank::State::why() const {
    if (const auto giver = barrier->why(); giver != 0) {
        if (auto end = participant->end()) return std::move(*end);
        return {"N608", "calls that all ranks make",
                rank_of_all(static_cast<int>(giver) - 1) + " gave up"};
    }
    // The block that waited too long, or else the one of the earliest call: later calls end with it.
    using Order = std::pair<std::uint64_t, std::uint64_t>;
    std::optional<std::pair<Order, Refusal>> first;
    for (std::size_t p = 0; p < tables->plans.size() && !is_ending; ++p) {
        for (const auto& [block, report] : links->plans()[p].front()->stuck()) {
            const Order order{report.status, report.ticks};
            if (first && first->first <= order) continue;
            const auto bytes = std::to_string(report.call >> layout::kPlanBits);
            first.emplace(order,
                          Refusal("K508",
                                  "no instruction to wait longer than " +
                                      seconds(settings.timeout_s) + " in a call of " + bytes +
                                      " bytes a block of " + tables->names[p],
                                  rank_of_all(block->rank) + ", block " +
                                      std::to_string(block->number) + ", step " +
                                      std::to_string(report.step) + ", tile " +
                                      std::to_string(report.tile) + " waits for " +
                                      words_for(*tables->plans[p], *block, report)));
        }
    }
    if (const auto found = is_ending ? std::nullopt : messages->stuck(seconds(settings.timeout_s));
        found && (!first || found->status < first->first.first)) {
        return found->why;
    }
    return first ? first->second : Barrier::given_up();
}

std::map<std::string, std::string> DeviceRank::offer(const CudaDevice& device) {
    return {{"device", device.identity()}, {"blocks", std::to_string(device.multiprocessors())}};
}

DeviceRank::DeviceRank(std::shared_ptr<Participant> participant, int rank,
                       const std::vector<RankDescription>& ranks, CudaDevice& device,
                       const RankSettings& settings)
    : state_(new State(std::move(participant), rank, device, settings)) {
    state_->together([&] { state_->open(ranks); });
}

DeviceRank::~DeviceRank() = default;

const LinkTables& DeviceRank::tables() const { return *state_->tables; }

DeviceCalls& DeviceRank::calls() { return *state_->calls; }

DeviceMessages& DeviceRank::messages() { return *state_->messages; }

std::optional<Refusal> DeviceRank::error() {
    auto& own = *state_;
    const std::lock_guard<std::mutex> held(own.lock);
    if (!own.failure && !own.is_ending && own.barrier->is_given_up()) own.failure = own.why();
    return own.failure;
}

void DeviceRank::give_up(const Refusal& why) {
    auto& own = *state_;
    {
        const std::lock_guard<std::mutex> held(own.lock);
        if (!own.failure) own.failure = own.barrier->is_given_up() ? own.why() : why;
    }
    own.barrier->give_up(static_cast<std::uint64_t>(own.rank) + 1);
}

void DeviceRank::wait() {
    state_->together([this] { state_->order->wait(); });
}

void DeviceRank::close(bool meet) {
    auto& own = *state_;
    if (own.links->is_closed()) return;
    own.together([&] {
        own.order->wait();
        error();
        {
            const std::lock_guard<std::mutex> held(own.lock);
            own.is_ending = true;
        }
        if (has_graphs()) {
            own.links->stay();
            new std::shared_ptr<Links>(own.links);  // which no one frees
        }
        own.links->close(meet);
    });
}

bool DeviceRank::has_graphs() const { return state_->order->calls() == CallOrder::kUncounted; }

}  // namespace sley
