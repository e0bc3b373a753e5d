// A stand-in for NVIDIA's NCCL. It notes each call in a journal, and gives handles of its own: rank
// r of a communicator is a Handle with this number. As NCCL does, it calls a function of its own by
// the public name, which a preloaded library has, too; and a split of a communicator that doesn't
// block is made by a thread of its own.
#include <condition_variable>
#include <map>
#include <mutex>
#include <sstream>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "nccl/abi.hpp"

namespace sley::nccl {
struct Handle {
    int number;
    bool blocks;
    Result state;
    bool is_aborted = false;
};
}  // namespace sley::nccl

using namespace sley::nccl;

#define EXPORT extern "C" __attribute__((visibility("default")))
#define OWN(result, name, since, parameters, arguments) \
    EXPORT result pnccl##name parameters;               \
    EXPORT result nccl##name parameters __attribute__((weak, alias("pnccl" #name)));
#define PASSED OWN
#include "nccl/functions.def"

namespace {

std::mutex mutex;
std::condition_variable changed;
// A function that waits until its communicator is aborted; of one rank: "CommInitRankConfig0".
std::string held;
int waiting = 0;
std::string journal;
std::map<std::string, Result> failures;
// All that were given out, by their numbers. Never destroyed: nobody else may know them.
auto& handles = *new std::map<const void*, int>;
thread_local int depth = 0;
thread_local Result group_error{};
thread_local std::vector<std::pair<Handle**, Handle*>> splits;

void write(std::ostream& out, Handle* handle) {
    const auto found = handles.find(handle);
    if (handle == nullptr) {
        out << "null";
    } else if (found == handles.end()) {
        out << "foreign";
    } else {
        out << "comm" << found->second;
    }
}
void write(std::ostream& out, RedOp op) { out << "op" << static_cast<int>(op); }
void write(std::ostream& out, Result result) { out << static_cast<int>(result); }
void write(std::ostream& out, UniqueId id) {
    out << "id" << int{id.bytes[0]} << int{id.bytes[127]};
}
void write(std::ostream& out, Team team) {
    out << team.ranks << ":" << team.rank << ":" << team.stride;
}
void write(std::ostream& out, MultimemHandle handle) { out << handle.base; }
void write(std::ostream& out, Handle**) { out << "out"; }
template <class Value>
void write(std::ostream& out, Value value) {
    if constexpr (std::is_pointer_v<Value>) {
        out << reinterpret_cast<std::uintptr_t>(value);
    } else {
        out << value;
    }
}

template <class... Values>
void note(const char* name, Values... values) {
    const std::lock_guard lock(mutex);
    std::ostringstream line;
    line << name;
    ((line << " ", write(line, values)), ...);
    journal += line.str() + "\n";
}

Result failure(const std::string& name) {
    const std::lock_guard lock(mutex);
    const auto found = failures.find(name);
    return found == failures.end() ? Result::kSuccess : found->second;
}

Handle* made(int number, bool blocks = true) {
    const std::lock_guard lock(mutex);
    auto* handle = new Handle{number, blocks, Result::kSuccess};
    handles[handle] = number;
    return handle;
}

// Of a new communicator, which `*out` has by now.
Result finish(const char* name, Handle* comm) {
    std::unique_lock lock(mutex);
    if (held != name && held != name + std::to_string(comm->number)) return comm->blocks ? Result::kSuccess : Result::kInProgress;
    ++waiting;
    changed.wait(lock, [&] { return comm->is_aborted; });
    --waiting;
    return Result::kInternalError;
}

Result finish_splits() {
    for (const auto& [out, child] : splits) __atomic_store_n(out, child, __ATOMIC_RELEASE);
    splits.clear();
    return Result::kSuccess;
}

struct Anything {
    template <class Value>
    operator Value() const { return Value(); }
};
#define OWN(result, name, since, parameters, arguments) struct name##Call {};
#define PASSED OWN
#include "nccl/functions.def"

template <class Call, class... Values>
Anything reply(Call, Values...) { return {}; }

Result reply(GetVersionCall, int* version) {
    *version = VERSION;
    return Result::kSuccess;
}
const char* reply(GetErrorStringCall, Result) { return "the stand-in's name"; }
const char* reply(GetLastErrorCall, Handle*) { return "the stand-in's error"; }
Result reply(CommInitRankCall, Handle** out, int, UniqueId, int rank) {
    Handle* comm = made(rank);
    __atomic_store_n(out, comm, __ATOMIC_RELEASE);
    return finish("CommInitRank", comm);
}
Result reply(CommInitRankConfigCall, Handle** out, int, UniqueId, int rank, Config* config) {
    const auto failed = failure("CommInitRankConfig" + std::to_string(rank));
    if (failed != Result::kSuccess) return failed;
    Handle* comm = made(rank, config == nullptr || config->blocking != 0);
    __atomic_store_n(out, comm, __ATOMIC_RELEASE);
    return finish("CommInitRankConfig", comm);
}
Result reply(CommAbortCall, Handle* comm) {
    const std::lock_guard lock(mutex);
    if (handles.count(comm) > 0) comm->is_aborted = true;
    changed.notify_all();
    return Result::kSuccess;
}
// What a group refuses keeps it from launching the rest.
Result reply(AllReduceCall, const void*, void*, size_t, int, RedOp, Handle* comm, void*) {
    if (comm != nullptr) return Result::kSuccess;
    if (depth > 0) group_error = Result::kInvalidArgument;
    return Result::kInvalidArgument;
}
Result reply(CommInitRankScalableCall, Handle** out, int, int rank, int, UniqueId*, Config*) {
    *out = made(rank);
    return Result::kSuccess;
}
Result reply(CommInitAllCall, Handle** out, int devices, const int*) {
    for (int i = 0; i < devices; ++i) out[i] = made(i);
    return Result::kSuccess;
}
Result reply(CommSplitCall, Handle* comm, int color, int key, Handle** out, Config*) {
    *out = nullptr;
    if (comm == nullptr) return Result::kInvalidArgument;
    if (color < 0) return Result::kSuccess;
    Handle* child = made(100 + key, comm->blocks);
    splits.emplace_back(out, child);
    if (depth > 0) return Result::kSuccess;
    if (comm->blocks) return finish_splits();
    splits.clear();
    comm->state = Result::kInProgress;
    std::thread([=] {
        __atomic_store_n(out, child, __ATOMIC_RELEASE);
        __atomic_store_n(&comm->state, Result::kSuccess, __ATOMIC_RELEASE);
    }).detach();
    return Result::kSuccess;
}
Result reply(CommShrinkCall, Handle* comm, int*, int, Handle** out, Config* config, int) {
    return reply(CommSplitCall{}, comm, 0, 0, out, config);
}
Result reply(CommGrowCall, Handle*, int, const UniqueId*, int rank, Handle** out, Config*) {
    *out = made(rank);
    return Result::kSuccess;
}
Result reply(CommGetAsyncErrorCall, Handle* comm, Result* state) {
    if (comm == nullptr) return Result::kInvalidArgument;
    *state = __atomic_load_n(&comm->state, __ATOMIC_ACQUIRE);
    return Result::kSuccess;
}
Result reply(CommCountCall, Handle* comm, int* count) {
    *count = comm->number;
    return Result::kSuccess;
}
Result reply(RedOpCreatePreMulSumCall, RedOp* op, void*, int type, int, Handle*) {
    *op = static_cast<RedOp>(1000 + type);
    return Result::kSuccess;
}
// NCCL calls this one of its own by its public name.
Result reply(BcastCall, void* buffer, size_t count, int type, int root, Handle* comm,
             void* stream) {
    return ncclBroadcast(buffer, buffer, count, type, root, comm, stream);
}
Result reply(GroupStartCall) {
    ++depth;
    return Result::kSuccess;
}
Result reply(GroupEndCall) {
    if (depth == 0) return Result::kInvalidUsage;
    if (--depth > 0) return Result::kSuccess;
    const auto made = finish_splits();
    const auto error = std::exchange(group_error, Result::kSuccess);
    return error != Result::kSuccess ? error : made;
}
Result reply(GroupSimulateEndCall, void*) {
    if (depth > 0) reply(GroupEndCall{});
    return Result::kSuccess;
}

template <class Value, class Call>
struct Answer {
    const char* name;

    template <class... Values>
    Value operator()(Values... values) const {
        note(name, values...);
        if constexpr (std::is_same_v<Value, Result>) {
            if (const auto failed = failure(name); failed != Result::kSuccess) {
                if (std::is_same_v<Call, GroupEndCall>) depth = 0, splits.clear();
                return failed;
            }
        }
        return static_cast<Value>(reply(Call{}, values...));
    }
};

}  // namespace

#define OWN(result, name, since, parameters, arguments) \
    EXPORT result pnccl##name parameters { return Answer<result, name##Call>{#name} arguments; }
#define PASSED OWN
#include "nccl/functions.def"

// The journal up to now, which is empty afterwards. The text lasts until the next call.
EXPORT const char* stand_in_journal() {
    static std::string taken;
    const std::lock_guard lock(mutex);
    taken = std::exchange(journal, {});
    return taken.c_str();
}
// Lets a function return an error, or, with 0, no more; of one rank: "CommInitRankConfig0".
EXPORT void stand_in_fail(const char* name, Result result) {
    const std::lock_guard lock(mutex);
    failures[name] = result;
}
// Lets a function wait until its communicator is aborted; "" none.
EXPORT void stand_in_hold(const char* name) {
    const std::lock_guard lock(mutex);
    held = name;
}
EXPORT int stand_in_waiting() {
    const std::lock_guard lock(mutex);
    return waiting;
}
