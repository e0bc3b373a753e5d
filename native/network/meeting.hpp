// The ranks of a communicator find one another by an id, and exchange bytes from then on.
//
// Whoever makes an id starts a root: a listener in its process, at which the ranks call. The root
// collects the ranks' words, and answers all of them alike: with the words of all, or one refusal. One
// thread of each process serves its roots and its ranks' connections.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <exception>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "devices/processes.hpp"
#include "network/process.hpp"

namespace sley {

using UniqueId = std::array<std::byte, 128>;  // the bytes of an ncclUniqueId

// Starts a root in this process, and writes its address and a new secret into bytes 40 to 127 of an
// id, which NCCL leaves zero. It serves one communicator, and those that are made of it. Refusal: N605.
void add_root(UniqueId& id);
// Whether `add_root` has written into an id. Refusal: N604 if another version of sley has.
bool has_root(const UniqueId& id);

// A rank's description for all others.
struct RankDescription {
    ProcessIdentity process;
    std::map<std::string, std::string> agreed;   // must be the same on all ranks
    std::map<std::string, std::string> offered;  // may differ
};

// A refusal as `Participant::refusal` gives it.
Refusal read_refusal(const std::string& packed);

// A rank at the meetings of its communicator. All ranks call the same functions in the same order, and
// each that waits throws Refusal: in all ranks the same if one doesn't come in time (N601), has ended
// (N620) or has left (N623), and then for ever. N623 in a child that was forked.
class Participant final : public Exchange {
public:
    // patience: the longest wait of each function for other ranks.
    explicit Participant(std::chrono::milliseconds patience);
    // Leaves.
    ~Participant() override;

    void set_patience(std::chrono::milliseconds patience);
    int rank() const;  // after it has met
    // Whether its words may have come to the root: then other ranks may go on after an N605.
    bool has_reached_root() const;

    // Meets the ranks that have the same ids, at the root of the first; returns the descriptions of
    // all. Refusal also: N603 for a wrong rank; N604 if the ids or what must agree differ; N605 if the
    // root doesn't answer, as one that has served its ranks, or the id has none.
    std::vector<RankDescription> meet(const std::vector<UniqueId>& ids, int rank, int ranks,
                                      RankDescription own);
    // The same for some ranks of another communicator, in the order of their new numbers, over its
    // connections: other ranks of it aren't asked.
    std::vector<RankDescription> meet(Participant& parent, const std::vector<int>& members,
                                      RankDescription own);
    // All ranks call it: the ranks of the same color, by key and then by rank; none for a color below 0.
    std::vector<int> members_of(int color, int key);

    std::vector<std::string> gather(const std::string& message) override;
    std::string refusal(const std::exception_ptr& problem) override;

    // Ends this rank's part: what waits throws N608. Any thread may call it at any time.
    void leave();
    // The same before communicators that are being made of this one: their ranks don't wait for it.
    void abort();
    // Why no rank can gather any more; none while they can. Never waits; for any thread.
    std::optional<Refusal> end() const;

    struct State;

private:
    std::vector<RankDescription> join(int ranks, const RankDescription& own,
                                      const std::vector<std::string>& origin);
    void end(bool aborts);

    const std::unique_ptr<State> state_;
};

}  // namespace sley
