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
        bool has_real;
    };

    Result make();
    Decision decide();
    std::vector<RankDescription> meet(Participant& participant);
    std::map<std::string, std::string> offer() const;
    Result finish_real();
    void tell(const Decision& decision) const;

    Settings settings_;
};

}  // namespace sley::nccl
