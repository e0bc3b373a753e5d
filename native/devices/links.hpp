// Links: what persists between the calls of a communicator, for this process, whatever plans they run.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "devices/call_order.hpp"
#include "devices/device_plan.hpp"
#include "devices/memory_exchange.hpp"
#include "devices/memory_index.hpp"
#include "devices/registrations.hpp"

namespace sley {

// One thread at a time may use it, but any may give up calls. Freed, its memory lasts until no call is
// under way: kernels on one device write into the memory of another.
class Links {
public:
    // A device of this process. launches: the ranks of each launch of a call. behind: the bases of the
    // segments behind the mailboxes, as the device sees them.
    struct Place {
        Device* device;
        std::vector<std::vector<int>> launches;
        std::vector<std::uint64_t> behind;
    };
    using Plans = std::vector<std::shared_ptr<DevicePlan>>;  // a plan on each place
    using Tables = std::vector<std::shared_ptr<const PlanTables>>;

    // All processes call this together. abort: the memory of the barrier, which has to last as long as
    // this one's memory (`keep`). mailboxes: the bytes of each rank's.
    Links(std::shared_ptr<MemoryExchange> memory, std::shared_ptr<MemoryIndex> index,
          std::shared_ptr<Barrier> barrier, std::shared_ptr<CallOrder> order, std::uint64_t abort,
          const std::vector<std::size_t>& mailboxes, const Tables& tables,
          const std::vector<Place>& places, std::uint64_t timeout_ns);
    Links(const Links&) = delete;
    Links& operator=(const Links&) = delete;
    ~Links();

    // Of the ranks of this process.
    const std::map<int, Resource>& mailboxes() const { return mailboxes_; }
    const std::vector<Plans>& plans() const { return plans_; }
    // Of the callers' memory.
    Registrations& registrations() const { return *registrations_; }
    // Frees it with the other memory.
    void keep(std::shared_ptr<void> memory) { kept_.push_back(std::move(memory)); }

    bool is_closed() const { return is_closed_; }
    // Throws Refusal (R508) if they are closed.
    void check_open() const;
    // The same if a call has failed. False if one was given up: then the caller ends the calls, and
    // says why one has failed.
    bool check() const;
    // Waits until all blocks have reported; this process comes to no further meeting.
    void end();
    void fail(std::string why) { failed_ = std::move(why); }
    // Ends all calls that are under way, in all processes; see Barrier.
    void give_up(std::uint64_t why) { barrier_->give_up(why); }
    std::uint64_t why() const { return barrier_->why(); }
    // Comes to no further meeting: processes that wait for this one fail, but for those that close.
    void leave() { barrier_->leave(order_->calls()); }
    bool has_left(int rank) const { return barrier_->has_left(rank); }
    // Whether this process has started a call that a rank which has left doesn't make. Nothing if the
    // rank hasn't left, or if calls in graphs aren't counted.
    std::optional<bool> lacks(int rank) const;

    // Waits for calls, and, if it meets others, until all processes have left; then frees the memory.
    // K514, after that, if one doesn't in time. A second call does nothing.
    void close(bool meet);
    // Closed links, too, have their memory from now on.
    void stay() { stays_ = true; }

private:
    void free();

    std::shared_ptr<MemoryExchange> memory_;
    std::shared_ptr<MemoryIndex> index_;
    std::shared_ptr<Registrations> registrations_;
    std::shared_ptr<Barrier> barrier_;
    std::shared_ptr<CallOrder> order_;
    std::map<int, Resource> mailboxes_;
    std::vector<Plans> plans_;
    std::vector<std::shared_ptr<void>> kept_;
    std::string failed_;
    bool stays_ = false;
    std::atomic<bool> is_closed_ = false;
};

}  // namespace sley
