// How sley and NVIDIA's NCCL make a communicator together, or one of them alone, as all its ranks
// decide alike.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "nccl/abi.hpp"
#include "nccl/comm.hpp"
#include "nccl/gpu.hpp"
#include "network/meeting.hpp"

namespace sley::nccl {

// A copy of a client's configuration and its texts, which last for the client's call only.
class OwnConfig {
public:
    explicit OwnConfig(const Config* given);
    // None if none was given.
    Config* get() { return bytes_.empty() ? nullptr : reinterpret_cast<Config*>(bytes_.data()); }
    const std::string& name() const { return name_; }
    // NCCL_COMM_BLOCKING goes before the field.
    bool blocks() const;

private:
    template <class Value>
    Value* field(std::size_t offset) const;

    mutable std::vector<char> bytes_;
    std::string name_, net_;
};

struct Opening {
    using Make = std::function<Result(Handle** out, UniqueId* ids, Config* config)>;

    const char* function;
    std::string what;  // for the log: " of rank 0 of 8"
    Comm* comm = nullptr;  // of a rank of no color
    Handle** out = nullptr;
    std::shared_ptr<OwnConfig> config;
    bool blocks = true;
    Gpu gpu;
    // Of an init.
    std::vector<UniqueId> ids;
    int rank = 0, ranks = 0;
    // Of a split, or of a shrink, which has its members at once.
    Comm* parent = nullptr;
    std::shared_ptr<Part> parent_part;
    int color = 0, key = 0;
    std::vector<int> members;
    Make make_real;  // calls the real library

    void begin();
    // Waits for the other ranks.
    Result run();
    // Instead of `run`, in a group that has failed.
    Result drop(Result result);

private:
    struct Decision {
        std::shared_ptr<Part> part;
        std::string why;  // if there is no part
        bool has_real;    // now, or later where the communicator is lazy
        std::shared_ptr<Participant> participant = nullptr;  // of its ranks, if these have met
    };

    Result make();
    Decision decide();
    // Whether the communicators of the parent, or of the ids, are made by the real library's own functions.
    bool has_way() const { return parent == nullptr || parent->real() != nullptr; }
    std::vector<RankDescription> meet(Participant& participant);
    std::map<std::string, std::string> offer() const;
    Result finish_real();
    void tell(const Decision& decision) const;

    Settings settings_;
};

// The making of a real communicator whose ranks are one already, for a call that sley can't run. It has
// an id of its own: whoever made the communicator's may have ended.
struct Completion {
    Comm* comm;
    std::shared_ptr<Part> part;  // of the communicator then
    std::string function;        // that needs it
    std::string lacks;           // why this rank can't have it now

    // Waits for the other ranks. All succeed, or none.
    Result run() const;
};

}  // namespace sley::nccl
