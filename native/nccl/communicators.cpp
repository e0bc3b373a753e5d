// The communicators of NCCL's interface: unique ids, how communicators begin, their state, their end.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "nccl/errors.hpp"
#include "nccl/group.hpp"
#include "nccl/opening.hpp"
#include "nccl/passing.hpp"
#include "nccl/real.hpp"
#include "network/hmac.hpp"

namespace sley::nccl {
namespace {

// The real InitAll calls ncclGetUniqueId by its public name: then the id is NCCL's alone.
thread_local bool is_inside = false;

constexpr int kNoColor = -1, kShrinkAborts = 1;

// Lets the real library alone make the communicators that `call` makes at the given places. Each
// `*out` has sley's handle before the call, because another thread may abort what blocks here.
template <class Call>
Result pass(const Name& name, Handle** out, int count, const std::string& what,
            const std::string& why, Call call) {
    // The real library refuses these.
    if (out == nullptr || count < 1) return call(out);
    std::vector<Comm*> comms;
    for (int i = 0; i < count; ++i) {
        comms.push_back(Comm::make());
        if (comms.back() != nullptr) continue;
        for (int before = 0; before < i; ++before) comms[before]->end();
        return no_place();
    }
    for (int i = 0; i < count; ++i) out[i] = comms[i]->handle();
    Result result;
    if (count == 1) {
        result = call(comms.front()->place());
    } else {
        // NCCL writes the communicators of InitAll in the call itself, not later.
        std::vector<Handle*> real(count, nullptr);
        result = call(real.data());
        for (int i = 0; i < count; ++i) *comms[i]->place() = real[i];
    }
    for (int i = 0; i < count; ++i) group.add(&out[i], comms[i], result);
    if (!is_error(result) && is_logging()) {
        log(name.text + what + ": all calls go to NCCL " + real().version + ": " + why);
    }
    return result;
}

std::string place(int rank, int ranks, const OwnConfig& config) {
    const auto& name = config.name();
    return " of rank " + std::to_string(rank) + " of " + std::to_string(ranks) +
           (name.empty() ? "" : ", " + name);
}

sley::UniqueId sleys(const UniqueId& id) {
    sley::UniqueId made;
    std::memcpy(made.data(), id.bytes, made.size());
    return made;
}

// A communicator of some ids: all its ranks meet, if these have sley's words.
Result init(const Name& name, Handle** out, int ranks, int rank, UniqueId* ids, int count,
            Config* config, const Gpu* gpu, const Opening::Make& make) {
    const auto own = std::make_shared<OwnConfig>(config);
    const auto what = place(rank, ranks, *own);
    const auto settings = Settings::from_environment();
    auto why = settings.lacks.empty() ? "the unique id was made without sley" : settings.lacks;
    bool meets = false;
    try {
        meets = out != nullptr && ids != nullptr && count > 0 && has_root(sleys(*ids)) &&
                (config == nullptr || config->magic == kMagic);
    } catch (const Refusal& refusal) {
        why = line_of(refusal);
    }
    if (!meets && settings.is_only()) {
        return group.note(refuse(Result::kSystemError, "N701", "sley for a communicator",
                                 why + "; SLEY_NCCL=only", "Mend it, or unset SLEY_NCCL."));
    }
    if (!meets) {
        return pass(name, out, 1, what, why,
                    [&](Handle** real_one) { return make(real_one, ids, config); });
    }
    const auto opening = std::make_shared<Opening>();
    opening->function = name.text;
    opening->what = what;
    opening->config = own;
    opening->blocks = own->blocks();
    opening->gpu = gpu != nullptr ? *gpu : Gpu::current();
    opening->ids.assign(ids, ids + count);
    opening->rank = rank;
    opening->ranks = ranks;
    opening->make_real = make;
    return group.add(opening, out);
}

// One that some ranks of `parent` make, of which sley runs calls.
Result derive(const Name& name, Comm& parent, std::shared_ptr<Part> part, const std::string& what,
              Handle** out, Config* config, bool is_member, const Opening::Make& make,
              const std::function<void(Opening&)>& describe) {
    // In a group they are made one after the other.
    if (group.depth == 0 && !parent.blocks && parent.state() == Result::kInProgress) {
        return refuse(Result::kInvalidArgument, "N703", std::string("a parent for ") + name.text,
                      "one that makes another communicator",
                      "Make it when ncclCommGetAsyncError of the parent returns ncclSuccess.");
    }
    const auto own = std::make_shared<OwnConfig>(config);
    const auto opening = std::make_shared<Opening>();
    opening->function = name.text;
    opening->what = what;
    opening->config = own;
    opening->blocks = parent.blocks;
    opening->gpu = Gpu::with(parent.device);
    opening->parent = &parent;
    opening->parent_part = std::move(part);
    describe(*opening);
    opening->make_real = make;
    *out = nullptr;
    return group.add(opening, is_member ? out : nullptr);
}

// The part of a communicator for new ones; null if the real library makes them alone.
std::shared_ptr<Part> part_of(const Comm::Found& found, Handle** out, const Config* config) {
    const bool is_alone = unready(found) != nullptr || !found.is_sleys || out == nullptr ||
                          (config != nullptr && config->magic != kMagic);
    return is_alone ? nullptr : found.comm->part();
}

// A call of the real library, without which there is nothing to end of a null.
template <class... Values>
Result passed(const Passing<Result, Handle*, Values...>& pass, Handle* handle, Values... values) {
    if (handle == nullptr && real().*pass.member == nullptr) return Result::kSuccess;
    return pass(handle, values...);
}

// Ends a communicator that the real library has alone.
Result end(const Passing<Result, Handle*>& function, Handle* handle) {
    const auto result = passed(function, handle);
    // With an error the communicator is still there, and may be aborted; in progress it is asked
    // for its state.
    Comm* comm = Comm::find(handle).comm;
    if (result == Result::kSuccess && comm != nullptr) comm->end();
    return result;
}

// A communicator that was opened, and that no abort has ended; else null.
Comm* opened(Handle* handle) {
    Comm* comm = Comm::find(handle).comm;
    return comm != nullptr && comm->is_opened() && !comm->is_aborted() ? comm : nullptr;
}

// A number of a communicator; the real library knows it of its own.
template <class Pass>
Result number(Handle* handle, int Comm::*member, int* value, const Pass& pass) {
    Comm* comm = alone(handle);
    if (comm == nullptr || value == nullptr) return pass(handle, value);
    *value = comm->*member;
    return Result::kSuccess;
}

}  // namespace

FUNCTION(Result, GetUniqueId, (UniqueId* id)) {
    const auto settings = Settings::from_environment();
    // With NCCL_COMM_ID each rank makes an id of its own, which leads all to the same place.
    const bool is_nccls = is_inside || std::getenv("NCCL_COMM_ID") != nullptr ||
                          (!settings.lacks.empty() && !settings.is_only());
    if (is_nccls || id == nullptr) return PASS(GetUniqueId)(id);
    auto result = Result::kSuccess;
    const bool has_real = !settings.is_only() && real().GetUniqueId != nullptr;
    std::memset(id->bytes, 0, sizeof id->bytes);
    if (has_real) {
        result = PASS(GetUniqueId)(id);
    } else {
        const auto nonce = make_nonce();
        std::memcpy(id->bytes, &nonce, sizeof(std::uint64_t));
    }
    if (is_error(result)) return result;
    auto made = sleys(*id);
    try {
        add_root(made);
    } catch (const Refusal& why) {
        // Then sley runs no calls of the id's communicator.
        return has_real ? result : refuse(Result::kSystemError, why);
    }
    std::memcpy(id->bytes, made.data(), made.size());
    return result;
}

FUNCTION(Result, CommInitRank, (Handle** comm, int ranks, UniqueId id, int rank)) {
    return init(kCommInitRank, comm, ranks, rank, &id, 1, nullptr, nullptr,
                [=](Handle** real_one, UniqueId* own, Config*) {
                    return PASS(CommInitRank)(real_one, ranks, *own, rank);
                });
}

FUNCTION(Result, CommInitRankConfig,
         (Handle** comm, int ranks, UniqueId id, int rank, Config* config)) {
    return init(kCommInitRankConfig, comm, ranks, rank, &id, 1, config, nullptr,
                [=](Handle** real_one, UniqueId* own, Config* its) {
                    return PASS(CommInitRankConfig)(real_one, ranks, *own, rank, its);
                });
}

FUNCTION(Result, CommInitRankScalable,
         (Handle** comm, int ranks, int rank, int ids, UniqueId* first, Config* config)) {
    return init(kCommInitRankScalable, comm, ranks, rank, first, ids, config, nullptr,
                [=](Handle** real_one, UniqueId* own, Config* its) {
                    return PASS(CommInitRankScalable)(real_one, ranks, rank, ids, own, its);
                });
}

FUNCTION(Result, CommInitAll, (Handle** comms, int devices, const int* ordinals)) {
    std::vector<Gpu> gpus;
    auto why = Settings::from_environment().lacks;
    for (int i = 0; i < devices && why.empty(); ++i) {
        gpus.push_back(Gpu::with(ordinals != nullptr ? ordinals[i] : i));
        why = gpus.back().lacks;
    }
    UniqueId id;
    if (!why.empty() || comms == nullptr || devices < 1) {
        return pass(kCommInitAll, comms, devices, " of " + std::to_string(devices) + " ranks", why,
                    [&](Handle** real_ones) {
                        is_inside = true;
                        const auto result = PASS(CommInitAll)(real_ones, devices, ordinals);
                        is_inside = false;
                        return result;
                    });
    }
    auto result = pncclGetUniqueId(&id);
    if (is_error(result)) return result;
    result = group.start();
    if (is_error(result)) return result;
    for (int i = 0; i < devices && !is_error(result); ++i) {
        result = init(kCommInitAll, &comms[i], devices, i, &id, 1, nullptr, &gpus[i],
                      [=](Handle** real_one, UniqueId* own, Config*) {
                          return PASS(CommInitRank)(real_one, devices, *own, i);
                      });
    }
    const auto ended = group.end();
    return is_error(result) ? result : ended;
}

FUNCTION(Result, CommSplit, (Handle* comm, int color, int key, Handle** made, Config* config)) {
    const auto found = Comm::find(comm);
    const auto what = " of color " + std::to_string(color);
    const auto split = [=](Handle** real_one, UniqueId*, Config* own) {
        return PASS(CommSplit)(comm, color, key, real_one, own);
    };
    auto part = part_of(found, made, config);
    if (part != nullptr && color >= kNoColor) {
        return derive(kCommSplit, *found.comm, std::move(part), what, made, config, color != kNoColor,
                      split, [=](Opening& one) { one.color = color, one.key = key; });
    }
    // It gets a null, at once or when the others' communicators are made.
    if (color == kNoColor) return split(made, nullptr, config);
    return pass(kCommSplit, made, 1, what, "so do its parent's",
                [&](Handle** real_one) { return split(real_one, nullptr, config); });
}

FUNCTION(Result, CommShrink, (Handle* comm, int* excluded, int count, Handle** made, Config* config,
                              int flags)) {
    const auto found = Comm::find(comm);
    auto part = part_of(found, made, config);
    std::vector<int> out;
    if (excluded != nullptr && count > 0) out.assign(excluded, excluded + count);
    const auto shrink = [=](Handle** real_one, UniqueId*, Config* own) mutable {
        return PASS(CommShrink)(comm, out.data(), count, real_one, own, flags);
    };
    const auto wrong = std::find_if(out.begin(), out.end(), [&](int rank) {
        return rank < 0 || rank >= found.comm->ranks;
    });
    if (part != nullptr && wrong != out.end()) {  // the others would wait
        return group.note(refuse(Result::kInvalidArgument, "N703",
                                 "ranks of the communicator to leave out",
                                 "rank " + std::to_string(*wrong), "Give ranks that it has."));
    }
    std::vector<int> members;
    for (int rank = 0; part != nullptr && !out.empty() && rank < found.comm->ranks; ++rank) {
        if (std::find(out.begin(), out.end(), rank) == out.end()) members.push_back(rank);
    }
    if (members.empty()) {
        return pass(kCommShrink, made, 1, "", "so do its parent's", [&](Handle** real_one) {
            return PASS(CommShrink)(comm, excluded, count, real_one, config, flags);
        });
    }
    if ((flags & kShrinkAborts) != 0) {
        part->give_up({"N608", "a communicator in use", "it is shrunk"});
    }
    return derive(kCommShrink, *found.comm, std::move(part), "", made, config, true, shrink,
                  [&](Opening& one) { one.members = members; });
}

FUNCTION(Result, CommGrow, (Handle* comm, int ranks, const UniqueId* id, int rank, Handle** made,
                            Config* config)) {
    return pass(kCommGrow, made, 1, " to " + std::to_string(ranks), "sley can't grow one",
                [&](Handle** real_one) {
                    return PASS(CommGrow)(comm, ranks, id, rank, real_one, config);
                });
}

FUNCTION(Result, CommFinalize, (Handle* handle)) {
    Comm* comm = opened(handle);
    return comm != nullptr ? group.note(comm->finalize()) : passed(PASS(CommFinalize), handle);
}

FUNCTION(Result, CommDestroy, (Handle* handle)) {
    Comm* comm = opened(handle);
    return comm != nullptr ? comm->destroy() : end(PASS(CommDestroy), handle);
}

FUNCTION(Result, CommAbort, (Handle* handle)) {
    Comm* comm = opened(handle);
    return comm != nullptr ? comm->abort() : end(PASS(CommAbort), handle);
}

FUNCTION(Result, CommRevoke, (Handle* handle, int flags)) {
    Comm* comm = opened(handle);
    return comm != nullptr ? group.note(comm->revoke(flags)) : passed(PASS(CommRevoke), handle, flags);
}

FUNCTION(Result, CommGetAsyncError, (Handle* handle, Result* state)) {
    Comm* comm = Comm::find(handle).comm;
    if (comm != nullptr && comm->is_opened() && state != nullptr) {
        *state = comm->state();
        Handle* real_one = comm->real();
        // The real one of an abort in progress tells how far it is.
        if (real_one == nullptr || (*state != Result::kSuccess && !comm->is_aborted())) {
            return Result::kSuccess;
        }
        const auto result = real().CommGetAsyncError(real_one, state);
        heard(is_error(result) ? result : *state);
        return result;
    }
    const auto result = PASS(CommGetAsyncError)(handle, state);
    if (result == Result::kSuccess) heard(*state);
    return result;
}

FUNCTION(Result, CommCount, (Handle* comm, int* count)) {
    return number(comm, &Comm::ranks, count, PASS(CommCount));
}

FUNCTION(Result, CommCuDevice, (Handle* comm, int* device)) {
    return number(comm, &Comm::device, device, PASS(CommCuDevice));
}

FUNCTION(Result, CommUserRank, (Handle* comm, int* rank)) {
    return number(comm, &Comm::rank, rank, PASS(CommUserRank));
}

// Without NCCL kernels have nothing to call, so the rest is zeros. NVML's number isn't known.
FUNCTION(Result, CommQueryProperties, (Handle* handle, void* properties)) {
    Comm* comm = alone(handle);
    auto* given = static_cast<Properties*>(properties);
    if (comm == nullptr || comm->is_lazy || given == nullptr) {
        return PASS(CommQueryProperties)(handle, properties);
    }
    if (given->magic != kMagic || given->size < sizeof *given) {
        return group.note(refuse(Result::kInvalidUsage, "N705",
                                 "NCCL_COMM_PROPERTIES_INITIALIZER for ncclCommQueryProperties",
                                 "another struct", "Initialize it before."));
    }
    const auto known = *given;
    std::memset(properties, 0, known.size);
    *given = {known.size, known.magic, known.version, comm->rank, comm->ranks, comm->device, -1};
    return Result::kSuccess;
}

FUNCTION(Result, DevCommCreate, (Handle* handle, const void* requirements, void* made)) {
    const auto call = [=] { return PASS(DevCommCreate)(handle, requirements, made); };
    Comm* comm = alone(handle);
    // The requirements last for this call only.
    if (comm == nullptr || !comm->blocks || group.depth > 0) return call();
    return pass_together(*comm, kDevCommCreate.text, "", call);
}

}  // namespace sley::nccl
