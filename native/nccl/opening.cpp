#include "nccl/opening.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <thread>
#include <utility>

#include "nccl/errors.hpp"
#include "nccl/real.hpp"
#include "network/hmac.hpp"
#include "network/own_thread.hpp"

namespace sley::nccl {
namespace {

// As bytes of a configuration, of which NCCL 2.32 has 120: more are a mistake, and not all there.
constexpr std::size_t kMostConfig = 256;
constexpr auto kStatePause = std::chrono::milliseconds(1);

// What ranks tell of themselves, beside what DeviceRank wants to know. All decide by the same texts.
constexpr char kRules[] = "nccl rules";  // by which they decide
constexpr char kOwnRules[] = "3";
constexpr char kSetting[] = "nccl setting";
constexpr char kSameBits[] = "nccl same bits";
constexpr char kLacks[] = "nccl lacks";    // why the rank can't have sley
constexpr char kReal[] = "nccl version";   // of its NCCL; "" without one
constexpr char kNumber[] = "nccl number";  // rank 0's is the communicator's
constexpr char kId[] = "nccl id";          // rank 0's is that of a real communicator made later

std::string digits(const Nonce& nonce) {
    std::string text;
    for (const auto byte : nonce) text += std::to_string(static_cast<int>(byte)) + ".";
    return text;
}

std::string setting(const std::string& which) {
    return which.empty() ? "no SLEY_NCCL" : "SLEY_NCCL=" + which;
}

// Why sley can't run the calls of these ranks, before it is tried; "" if nothing is known. Throws Refusal
// if only some want the same bits, and so refuse what the others would wait for in NCCL.
std::string obstacle(const std::vector<RankDescription>& ranks) {
    const auto& first = ranks[0].offered;
    for (std::size_t r = 0; r < ranks.size(); ++r) {
        const auto& its = ranks[r].offered;
        const auto of_rank = " on rank " + std::to_string(r);
        if (its.at(kRules) != first.at(kRules)) return "another version of sley" + of_rank;
        if (its.at(kSameBits) != first.at(kSameBits)) {
            throw Refusal("N604", "SLEY_SAME_BITS on all ranks, or on none", "it differs" + of_rank);
        }
        if (its.at(kSetting) != first.at(kSetting)) {
            return setting(first.at(kSetting)) + " on rank 0, " + setting(its.at(kSetting)) + of_rank;
        }
        if (!its.at(kLacks).empty()) return its.at(kLacks) + of_rank;
    }
    return "";
}

std::chrono::milliseconds patience_of(const Settings& settings) {
    return std::chrono::milliseconds(static_cast<std::int64_t>(1000 * settings.rank.timeout_s));
}

std::string told(const char* function, Result result) {
    const auto text = real().GetLastError;
    return std::string(function) + " returned " + std::to_string(static_cast<int>(result)) +
           (text == nullptr ? "" : std::string(", ") + text(nullptr));
}

// What comes of a real communicator that all ranks of one make. is_over: no later try will do.
struct Completed {
    Handle* real = nullptr;
    Result result = Result::kSuccess;
    std::string why = "";
    bool is_over = true;
};

Completed not_completed(const Refusal& why) { return {nullptr, result_of(why), line_of(why)}; }

// Rank 0's id is told at a meeting of the ranks, and what keeps a rank from it. A rank that fails leaves
// the meeting, which ends the others' wait: NCCL would wait for it.
Completed make_together(Comm& comm, Participant& parent, const Gpu& gpu, std::string lacks) try {
    const auto participant = std::make_shared<Participant>(patience_of(comm.settings));
    const std::shared_ptr<void> leaves(nullptr, [&](void*) { participant->leave(); });
    comm.wait_on(participant);
    UniqueId id{};
    if (lacks.empty() && comm.rank == 0) {
        const auto found = real().GetUniqueId(&id);
        if (is_error(found)) lacks = told("ncclGetUniqueId", found);
    }
    RankDescription own{ProcessIdentity::here(), {}, {{kLacks, lacks}}};
    own.offered[kId] = std::string(id.bytes, sizeof id.bytes);
    std::vector<int> ranks(comm.ranks);
    std::iota(ranks.begin(), ranks.end(), 0);
    const auto all = participant->meet(parent, ranks, std::move(own));
    for (const int rank : ranks) {
        const auto& found = all[rank].offered.at(kLacks);
        if (found.empty()) continue;
        return {nullptr, Result::kInvalidUsage, found + " on rank " + std::to_string(rank), false};
    }
    std::memcpy(id.bytes, all[0].offered.at(kId).data(), sizeof id.bytes);

    Handle* made = nullptr;
    auto result = Result::kSuccess;
    std::atomic<bool> has_returned{false};
    Config* config = comm.config->get();
    auto worker = own_thread([&] {
        std::optional<cuda::Current> current;
        if (gpu.context != 0) current.emplace(gpu.context);
        result = config == nullptr
                     ? real().CommInitRank(&made, comm.ranks, id, comm.rank)
                     : real().CommInitRankConfig(&made, comm.ranks, id, comm.rank, config);
        has_returned = true;
    });
    bool is_aborted = false;
    const auto abort = [&] {
        Handle* begun = __atomic_load_n(&made, __ATOMIC_ACQUIRE);
        if (begun != nullptr && !std::exchange(is_aborted, true)) real().CommAbort(begun);
    };
    while (!has_returned) {
        if (participant->end()) abort();
        std::this_thread::sleep_for(kStatePause);
    }
    worker.join();
    while (result == Result::kInProgress && !participant->end()) {
        std::this_thread::sleep_for(kStatePause);
        const auto answer = real().CommGetAsyncError(made, &result);
        if (is_error(answer)) result = answer;
    }
    if (is_error(result) && !is_aborted) {
        auto why = told("ncclCommInitRank", result);
        abort();
        return {nullptr, result, std::move(why)};
    }
    try {
        participant->gather("");
        return {made};
    } catch (const Refusal& why) {
        abort();
        return not_completed(why);
    }
} catch (const Refusal& why) {
    return not_completed(why);
} catch (const std::exception& why) {
    return {nullptr, Result::kSystemError, why.what()};
}

Result refuse_making(const std::string& function, const Completed& making) {
    return refuse(making.result, "N701", "NVIDIA's NCCL for " + function, making.why,
                  "Mend it, or set SLEY_NCCL=eager on all ranks: NCCL is made with a communicator then.");
}

}  // namespace

template <class Value>
Value* OwnConfig::field(std::size_t offset) const {
    if (bytes_.size() < offset + sizeof(Value)) return nullptr;
    return reinterpret_cast<Value*>(bytes_.data() + offset);
}

OwnConfig::OwnConfig(const Config* given) {
    if (given == nullptr) return;
    // The real library refuses one without the magic number, by its first fields.
    const auto size =
        given->magic == kMagic ? std::min(given->size, kMostConfig) : offsetof(Config, blocking);
    bytes_.assign(reinterpret_cast<const char*>(given), reinterpret_cast<const char*>(given) + size);
    const auto keep = [this](std::size_t offset, std::string& text) {
        auto* place = field<const char*>(offset);
        if (place == nullptr || *place == nullptr) return;
        text = *place;
        *place = text.c_str();
    };
    keep(offsetof(Config, netName), net_);
    keep(offsetof(Config, commName), name_);
}

bool OwnConfig::blocks() const {
    if (const char* text = std::getenv("NCCL_COMM_BLOCKING")) {
        if (std::strcmp(text, "0") == 0) return false;
        if (std::strcmp(text, "1") == 0) return true;
    }
    const auto* given = field<int>(offsetof(Config, blocking));
    return given == nullptr || *given != 0;
}

void Opening::begin() {
    settings_ = parent != nullptr ? parent->settings : Settings::from_environment();
    if (parent != nullptr) parent->add_child(this);
    if (comm == nullptr) return;
    // A parent's own decides how its children are made, their own what they do afterwards.
    const bool inherits = parent != nullptr && config->get() == nullptr;
    comm->blocks = inherits ? parent->blocks : config->blocks();
    comm->config = inherits ? parent->config : config;
    comm->title = function + what;
    comm->settings = settings_;
    if (gpu.device != nullptr) comm->device = gpu.device->ordinal();
    comm->begin();
}

Result Opening::drop(Result result) {
    if (comm != nullptr) result = comm->finish(result, out);
    if (parent != nullptr) parent->remove_child(this);
    return result;
}

Result Opening::run() {
    Result result;
    try {
        result = make();
    } catch (const Refusal& why) {
        result = refuse(result_of(why), why);
    } catch (const std::exception& why) {
        result = refuse(Result::kSystemError, {"N608", "a rank that can continue", why.what()});
    }
    if (comm != nullptr) result = comm->finish(result, blocks ? out : nullptr);
    if (parent != nullptr) parent->remove_child(this);
    return result;
}

Result Opening::make() {
    std::optional<cuda::Current> current;
    if (gpu.context != 0) current.emplace(gpu.context);
    const auto decision = decide();
    if (decision.part != nullptr) comm->start(decision.part);
    auto result = Result::kSuccess;
    if (decision.has_real && !has_way() && !comm->is_lazy) {
        const auto making = make_together(*comm, *decision.participant, gpu, "");
        *comm->place() = making.real;
        if (making.real == nullptr) result = refuse_making(function, making);
    } else if (decision.has_real && (comm == nullptr || !comm->is_lazy)) {
        result = finish_real();
    } else if (comm != nullptr && decision.part == nullptr) {
        result = refuse(Result::kSystemError, "N701", "sley or NCCL for all ranks of a communicator",
                        decision.why + "; " + comm->lacks_real,
                        "Mend what keeps sley from it, or install nvidia-nccl-cu13 for all ranks.");
    }
    if (!is_error(result)) tell(decision);
    return result;
}

std::map<std::string, std::string> Opening::offer() const {
    auto all = gpu.device != nullptr ? DeviceRank::offer(*gpu.device)
                                     : std::map<std::string, std::string>{};
    const auto& s = settings_;
    all[kRules] = kOwnRules;
    all[kSetting] = s.which;
    all[kSameBits] = s.rank.same_bits ? "1" : "0";
    all[kLacks] = s.lacks.empty() ? gpu.lacks : s.lacks;
    all[kReal] = s.is_only() ? "" : real().version;
    all[kNumber] = digits(make_nonce());
    return all;
}

std::vector<RankDescription> Opening::meet(Participant& participant) {
    RankDescription own{ProcessIdentity::here(), {}, offer()};
    if (parent == nullptr) {
        std::vector<sley::UniqueId> all(ids.size());
        std::memcpy(all.data(), ids.data(), ids.size() * sizeof(UniqueId));
        return participant.meet(all, rank, ranks, std::move(own));
    }
    return participant.meet(parent_part->participant(), members, std::move(own));
}

// All ranks find the same, or refuse: by what they were told of one another at the meeting, then by
// what each says of its opening. Nobody goes to the real library before, where ranks that know
// nothing of sley would be waited for without end.
Opening::Decision Opening::decide() {
    if (parent != nullptr && members.empty()) {
        members = parent_part->participant().members_of(color, key);
    }
    if (comm == nullptr) return {nullptr, "", parent->real() != nullptr};
    const auto patience = patience_of(settings_);
    // Only before an init may ranks be missing that know nothing of sley.
    const auto wait = parent == nullptr ? settings_.wait : patience;
    const auto participant = std::make_shared<Participant>(wait);
    comm->wait_on(participant);
    std::vector<RankDescription> all;
    try {
        all = meet(*participant);
    } catch (const Refusal& why) {
        // All ranks go to the real library where they learn alike that one is missing: from the root,
        // or since this one never reached the root. Another end only this rank may have seen.
        const bool is_alike =
            why.rule == "N601" || (why.rule == "N605" && !participant->has_reached_root());
        if (parent != nullptr || !is_alike) throw;
        const bool has_real = !settings_.is_only() && !real().path.empty();
        if (!has_real) comm->lacks_real = "there is no NCCL";
        return {nullptr, line_of(why), has_real};
    }
    participant->set_patience(patience);
    comm->ranks = static_cast<int>(all.size());
    comm->rank = parent == nullptr ? rank : participant->rank();
    bool has_real = has_way() || parent->awaits_real();
    if (!has_real) comm->lacks_real = parent->lacks_real;
    const auto lacks = [](const auto& one) { return one.offered.at(kReal).empty(); };
    const auto first = std::find_if(all.begin(), all.end(), lacks);
    if (parent == nullptr && first != all.end()) {
        has_real = false;
        comm->lacks_real = settings_.is_only() ? setting(settings_.which)
                           : std::all_of(all.begin(), all.end(), lacks)
                               ? "no rank has NCCL"
                               : "rank " + std::to_string(first - all.begin()) + " has no NCCL";
    }
    auto why = obstacle(all);
    if (!why.empty()) return {nullptr, std::move(why), has_real, participant};
    std::unique_ptr<DeviceRank> engine;
    std::string said;
    try {
        engine = std::make_unique<DeviceRank>(participant, comm->rank, all, *gpu.device,
                                              settings_.rank);
    } catch (const Refusal& refusal) {
        said = line_of(refusal);
    } catch (const std::exception& problem) {
        said = problem.what();
    }
    // The last word: no rank runs what another one couldn't open.
    for (auto& each : participant->gather(said)) {
        if (why.empty()) why = std::move(each);
    }
    if (!why.empty()) return {nullptr, std::move(why), has_real, participant};
    comm->is_lazy = has_real && (parent == nullptr ? !settings_.is_eager() : !has_way());
    std::vector<ProcessIdentity> processes;
    for (const auto& one : all) processes.push_back(one.process);
    return {Part::make(participant, std::move(engine), all[0].offered.at(kNumber),
                       std::move(processes)),
            "", has_real};
}

Result Opening::finish_real() {
    Handle* none = nullptr;
    if (comm != nullptr) {
        // Before the look: who aborts it does these in the other order. Of a split there is nothing to
        // abort but the parent, until it is made.
        comm->make_real(blocks && parent == nullptr);
        if (comm->is_aborted()) return Result::kInternalError;
    }
    auto result = make_real(comm != nullptr ? comm->place() : &none, ids.data(), config->get());
    if (comm != nullptr) comm->make_real(false);
    // The state of a split is its parent's. Another rank's end ends the wait, because NCCL would
    // wait for that rank.
    while (result == Result::kInProgress) {
        Handle* asked = parent != nullptr ? parent->real() : comm->real();
        const auto own = (comm != nullptr ? comm : parent)->state();
        if (is_error(own)) return own;
        std::this_thread::sleep_for(kStatePause);
        const auto answer = real().CommGetAsyncError(asked, &result);
        if (is_error(answer)) result = answer;
        heard(result);
    }
    return result;
}

void Opening::tell(const Decision& decision) const {
    if (comm == nullptr || !is_logging()) return;
    const auto nccl = "NCCL " + real().version;
    log(function + what + ": " +
        (decision.part == nullptr ? "all calls go to " + nccl + ": " + decision.why
         : "sley runs " + (settings_.kinds.empty() ? "its collectives, sends and receives"
                                                     : settings_.which) +
               (!decision.has_real ? "; other calls are refused: " + comm->lacks_real
                : ", " + nccl + " other calls" +
                      (comm->is_lazy ? ", and is made when all ranks need it" : ""))));
}

Result Completion::run() const {
    if (part == nullptr || part != comm->part()) {
        return refuse(Result::kInvalidArgument, "N703", "a communicator for " + function,
                      "one that has ended", "Make calls before the communicator's end.");
    }
    auto making = make_together(*comm, part->participant(), Gpu::with(comm->device), lacks);
    if (making.real != nullptr && !comm->take_real(making.real)) {
        real().CommAbort(making.real);
        making = not_completed({"N608", "a communicator in use", "it was aborted"});
    }
    if (!is_error(making.result)) {
        if (is_logging()) log(comm->title + ": NCCL " + real().version + " is made for " + function);
        return Result::kSuccess;
    }
    if (making.is_over) comm->give_up_real(making.why);
    return refuse_making(function, making);
}

}  // namespace sley::nccl
