// The roots of meetings, and the connections of their ranks.
#pragma once

#include <poll.h>

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "devices/refusal.hpp"
#include "network/introduction.hpp"

namespace sley {

using Texts = std::vector<std::string>;

// Texts as bytes, each behind its length: all that is said at meetings.
std::string pack(const Texts& texts);
// Throws std::invalid_argument for other bytes.
Texts unpack(std::string_view packed);
std::string pack(const Refusal& refusal);
Refusal refusal_of(const Texts& texts);

// "rank 3", "ranks 0, 2"; of many only the first, and how many more.
std::string name_ranks(const std::vector<int>& ranks);

// The refusal of ranks that get no answer of a root.
Refusal no_root(std::string found);

// kJoin: rank, ranks, patience in ms, its process for messages, a description; and of a communicator that
// is made of another one, the number of that, and the members' ranks in the id's. kSay: patience, a
// message. kLeave: a word if the rank comes to no communicator any more that is made of this one. The
// root answers kJoin and kSay with kAll, the words of all ranks; or with kRefuse, which it sends as soon
// as it knows that a rank can't come any more.
enum class Said : std::uint64_t { kJoin, kSay, kLeave, kAll, kRefuse };

// What has come for a rank of a communicator.
struct MeetingInbox {
    std::optional<Texts> answer;
    std::optional<Refusal> end;  // for ever
};

// One end of a connection between a root and a rank of its communicator, and of those made of that.
struct MeetingLine {
    Introduction introduction;
    Secret secret;
    std::shared_ptr<struct MeetingRoot> root;        // at its end
    std::map<std::uint64_t, MeetingInbox*> inboxes;  // at the rank's end, by communicator
    std::string in, out;
    std::optional<Refusal> lost;  // why it is closed
    bool is_left = false;         // no communicator needs it any more

    bool is_proven() const { return introduction.step() == Introduction::Step::kDone; }
    bool is_new() const { return root != nullptr && !is_proven(); }
    pollfd waits_for() const;
    void post(Said said, std::uint64_t communicator, const std::string& packed);
    // Moves what can be moved without waiting.
    void serve();
    void lose(const std::string& found);
    void leave(std::uint64_t communicator, bool aborts);

private:
    void introduce();
    void flush();
    void receive();
};

// The root of an id, while it listens or has connections.
struct MeetingRoot {
    using Clock = std::chrono::steady_clock;

    struct Seat {
        MeetingLine* line;
        std::string who;
        std::optional<std::string> said;
    };

    struct Reason {
        const char *rule, *found;  // of a refusal
    };

    // A communicator: what its ranks have said since the last answer.
    struct Table {
        int ranks = 0;
        std::map<int, Seat> seats;  // of the ranks that have come
        Clock::time_point deadline = Clock::time_point::max();  // for the others
        std::chrono::milliseconds longest{0};                   // of the ranks' patience
        std::optional<Refusal> end;
        std::uint64_t parent = 0;
        std::vector<int> members;  // as kJoin gives them
        // Of the id's ranks, those that come to no communicator any more that is made of this one.
        std::map<int, Reason> gone;

        std::string name(int rank) const;
        void finish(std::uint64_t communicator, Refusal why);
    };

    Secret secret{};
    Socket listener;  // until the ranks of the id have met
    Clock::time_point closing = Clock::time_point::max();  // of the listener, if they don't
    std::map<std::uint64_t, Table> tables;                 // 0: the id's communicator
    std::map<const MeetingLine*, int> ranks;               // the id's, by their connections

    void take(MeetingLine& line, Said said, std::uint64_t communicator, const Texts& texts);
    void lose(const MeetingLine& line);
    // Ends what is late; returns when to look again.
    Clock::time_point look(Clock::time_point now);

private:
    void join(MeetingLine& line, std::uint64_t communicator, const Texts& texts);
    // Ends the meeting of a communicator to which a member can't come any more.
    void check(std::uint64_t communicator);
    void say(std::uint64_t communicator, Seat& seat, const std::string& patience,
             const std::string& message);
};

}  // namespace sley
