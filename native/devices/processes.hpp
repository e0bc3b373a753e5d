// The processes of a communicator's ranks, and what they say to one another.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "devices/barrier.hpp"
#include "devices/descriptor_box.hpp"

namespace sley {

// An all-gather of bytes among the processes, in the same order in each; its owner's function.
class Exchange {
public:
    virtual ~Exchange() = default;
    // The messages of all processes.
    virtual std::vector<std::string> gather(const std::string& message) = 0;
    // What the other processes are told of a problem of this one; "" if they aren't.
    virtual std::string refusal(const std::exception_ptr& problem) = 0;
};

// Thrown in a process that others have told their refusals.
struct Told {
    std::vector<std::string> refusals;
};

// What a process says of a rank, and a file that others get with it, or none.
struct Parcel {
    std::string bytes;
    Descriptor file;
};

// The bytes of `exchange` are none that a process gave to it.
Refusal no_exchange(std::string found);

// All processes call the same functions in the same order. Each exchange throws Told for refusals of
// other processes, and Refusal (K514) if one has ended or what the exchange returned is invalid.
class Processes {
public:
    using Numbers = std::vector<std::uint64_t>;

    // exchange: none if all ranks are in this process.
    Processes(int ranks, std::shared_ptr<Exchange> exchange)
        : ranks_(ranks), exchange_(std::move(exchange)) {}

    int ranks() const { return ranks_; }
    bool is_one() const { return exchange_ == nullptr; }
    // They meet at the barrier before each later exchange.
    void use(std::shared_ptr<Barrier> barrier) { barrier_ = std::move(barrier); }

    // Gathers bytes for each rank; own: those of this process's ranks. R503 for a rank in two
    // processes.
    std::vector<std::string> gather(const std::map<int, std::string>& own);
    // The same for `each` numbers for each rank.
    std::vector<Numbers> gather(const std::map<int, Numbers>& own, std::size_t each);
    // The same with files, which come to other processes. make: returns the parcels of this
    // process's ranks; it is `telling`.
    std::vector<Parcel> gather_files(const std::function<std::map<int, Parcel>()>& make);
    // Waits until all processes call this.
    void meet();

    // Does local work just before an exchange: the other processes throw its problem in that exchange,
    // too, instead of waiting.
    template <class Work>
    void telling(const Work& work) {
        try {
            work();
        } catch (const Interrupted&) {
            throw;
        } catch (...) {
            if (!is_one()) tell(exchange_->refusal(std::current_exception()));
            throw;
        }
    }
    // Instead of an exchange, for a problem that this process throws anyway.
    void tell(const std::string& refusal);

private:
    enum class Kind : char { kMeeting = 'm', kValues = 'v', kRefusal = 'r' };

    // The messages of the processes, without their heads.
    std::vector<std::string> exchange(Kind kind, const std::string& message);

    int ranks_;
    std::shared_ptr<Exchange> exchange_;
    std::shared_ptr<Barrier> barrier_;
};

}  // namespace sley
