#include "network/meeting_root.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <utility>

namespace sley {
namespace {

struct MeetingHead {
    Said said;
    std::uint64_t communicator;
    std::uint64_t bytes;  // of the packed texts behind it
};

}  // namespace

std::string pack(const Texts& texts) {
    std::string packed;
    for (const auto& text : texts) (packed += bytes_of(std::uint64_t{text.size()})) += text;
    return packed;
}

Texts unpack(std::string_view packed) {
    Texts texts;
    while (!packed.empty()) {
        std::uint64_t size = packed.size();
        if (packed.size() >= sizeof size) std::memcpy(&size, packed.data(), sizeof size);
        if (packed.size() < sizeof size || packed.size() - sizeof size < size) {
            throw std::invalid_argument("a text that is cut off");
        }
        texts.emplace_back(packed.substr(sizeof size, size));
        packed.remove_prefix(sizeof size + size);
    }
    return texts;
}

std::string pack(const Refusal& refusal) {
    return pack(Texts{refusal.rule, refusal.expected, refusal.found, refusal.place, refusal.remedy});
}

Refusal refusal_of(const Texts& texts) {
    return {texts.at(0), texts.at(1), texts.at(2), texts.at(3), texts.at(4)};
}

std::string name_ranks(const std::vector<int>& ranks) {
    constexpr std::size_t kNamed = 16;
    std::string names = ranks.size() == 1 ? "rank" : "ranks";
    for (std::size_t i = 0; i < std::min(ranks.size(), kNamed); ++i) {
        names += (i == 0 ? " " : ", ") + std::to_string(ranks[i]);
    }
    if (ranks.size() > kNamed) names += " and " + std::to_string(ranks.size() - kNamed) + " more";
    return names;
}

Refusal no_root(std::string found) {
    return {"N605", "an answer of the root of the unique id", std::move(found), "",
            "Check that the process that made the id still runs; make an id for each communicator."};
}

pollfd MeetingLine::waits_for() const {
    auto waits = introduction.waits_for();
    if (is_proven() && !out.empty()) waits.events |= POLLOUT;
    return waits;
}

void MeetingLine::post(Said said, std::uint64_t communicator, const std::string& packed) {
    (out += bytes_of(MeetingHead{said, communicator, packed.size()})) += packed;
    flush();
}

// An error shows when the socket is read.
void MeetingLine::flush() {
    if (!is_proven() || out.empty() || lost) return;
    const auto sent = send(introduction.socket().fd(), out.data(), out.size(), kSendFlags);
    if (sent > 0) out.erase(0, static_cast<std::size_t>(sent));
}

void MeetingLine::serve() {
    if (lost) return;
    try {
        if (!is_proven()) return introduce();
        flush();
        receive();
    } catch (const std::exception& problem) {
        lose(problem.what());
    }
}

void MeetingLine::introduce() {
    introduction.advance(secret, [](const Hello&) { return true; });
    if (introduction.step() == Introduction::Step::kRefused) {
        const int error = introduction.error();
        return lose(error != 0 ? std::strerror(error) : "another answer or none");
    }
    if (!is_proven()) return;
    introduction.socket().tune();
    flush();
}

void MeetingLine::receive() {
    char buffer[1 << 16];
    ssize_t more = 0;
    do {
        more = recv(introduction.socket().fd(), buffer, sizeof buffer, 0);
        if (more > 0) in.append(buffer, static_cast<std::size_t>(more));
    } while (more > 0 || (more < 0 && errno == EINTR));
    const bool is_over = more == 0 || !would_block(errno);
    std::size_t at = 0;
    for (MeetingHead head; in.size() - at >= sizeof head;) {
        std::memcpy(&head, &in[at], sizeof head);
        if (in.size() - at - sizeof head < head.bytes) break;
        auto texts = unpack(std::string_view(in).substr(at + sizeof head, head.bytes));
        at += sizeof head + head.bytes;
        if (root != nullptr) {
            root->take(*this, head.said, head.communicator, texts);
            continue;
        }
        const auto found = inboxes.find(head.communicator);
        if (found == inboxes.end()) continue;  // it has left
        auto& inbox = *found->second;
        if (head.said == Said::kAll) inbox.answer = std::move(texts);
        if (head.said == Said::kRefuse && !inbox.end) inbox.end = refusal_of(texts);
    }
    in.erase(0, at);
    if (is_over) lose("its connection has ended");
}

void MeetingLine::lose(const std::string& found) {
    if (lost) return;
    lost = no_root(found);
    if (root != nullptr) root->lose(*this);
    for (const auto& [_, inbox] : inboxes) {
        if (!inbox->end) inbox->end = lost;
    }
    introduction.take_socket();
}

void MeetingLine::leave(std::uint64_t communicator, bool aborts) {
    const auto why = aborts ? pack(Texts{"it was aborted"}) : "";
    if (inboxes.erase(communicator) > 0) post(Said::kLeave, communicator, why);
    is_left = inboxes.empty();
}

std::string MeetingRoot::Table::name(int rank) const {
    return "rank " + std::to_string(rank) + " (" + seats.at(rank).who + ")";
}

void MeetingRoot::Table::finish(std::uint64_t communicator, Refusal why) {
    for (const auto& [_, seat] : seats) seat.line->post(Said::kRefuse, communicator, pack(why));
    seats.clear();
    deadline = Clock::time_point::max();
    end = std::move(why);
}

void MeetingRoot::take(MeetingLine& line, Said said, std::uint64_t communicator,
                       const Texts& texts) {
    if (said == Said::kJoin) return join(line, communicator, texts);
    auto& table = tables[communicator];
    const auto rank = ranks.find(&line);
    if (said == Said::kLeave && !texts.empty() && rank != ranks.end()) {
        const Reason why{"N623", "it has aborted what that is made of"};
        table.gone.emplace(rank->second, why);
        for (const auto& [number, each] : tables) {
            if (each.parent == communicator) check(number);
        }
    }
    const auto seat = std::find_if(table.seats.begin(), table.seats.end(),
                                   [&](const auto& each) { return each.second.line == &line; });
    if (seat == table.seats.end()) return;  // it has been told the end
    if (said == Said::kSay) return say(communicator, seat->second, texts.at(0), texts.at(1));
    table.finish(communicator, {"N623", table.name(seat->first) + " to stay in the communicator",
                                "it has left"});
}

void MeetingRoot::join(MeetingLine& line, std::uint64_t communicator, const Texts& texts) {
    const int rank = std::stoi(texts.at(0)), ranks = std::stoi(texts.at(1));
    const auto& who = texts.at(3);
    auto& table = tables[communicator];
    if (table.ranks == 0) table.ranks = ranks;
    if (communicator == 0) this->ranks[&line] = rank;
    if (table.members.empty() && texts.size() > 5) {
        table.parent = std::stoull(texts[5]);
        for (std::size_t i = 6; i < texts.size(); ++i) table.members.push_back(std::stoi(texts[i]));
    }
    const auto taken = table.seats.find(rank);
    if (!table.end && table.ranks != ranks) {
        const auto first = table.seats.begin()->first;
        table.finish(communicator,
                     {"N603", std::to_string(table.ranks) + " ranks, as on " + table.name(first),
                      std::to_string(ranks) + " ranks on rank " + std::to_string(rank) + " (" + who +
                          ")"});
    } else if (taken != table.seats.end()) {
        table.finish(communicator, {"N603", "one process with rank " + std::to_string(rank),
                                    taken->second.who + " has that rank, and so has " + who});
    }
    if (table.end) return line.post(Said::kRefuse, communicator, pack(*table.end));
    auto& seat = table.seats[rank] = {&line, who, {}};
    say(communicator, seat, texts.at(2), texts.at(4));
    check(communicator);
}

void MeetingRoot::check(std::uint64_t communicator) {
    auto& table = tables[communicator];
    const auto& gone = tables[table.parent].gone;
    for (std::size_t i = 0; i < table.members.size() && !table.end; ++i) {
        const auto why = gone.find(table.members[i]);
        const int rank = static_cast<int>(i);
        if (why == gone.end() || table.seats.count(rank) > 0) continue;
        table.finish(communicator, {why->second.rule,
                                    "rank " + std::to_string(rank) + " to come to the communicator",
                                    why->second.found});
    }
}

void MeetingRoot::say(std::uint64_t communicator, Seat& seat, const std::string& patience,
                      const std::string& message) {
    auto& table = tables[communicator];
    const std::chrono::milliseconds longest(std::stoll(patience));
    seat.said = message;
    table.longest = std::max(table.longest, longest);
    table.deadline = std::min(table.deadline, Clock::now() + longest);
    Texts all;
    for (const auto& [_, each] : table.seats) {
        if (each.said) all.push_back(*each.said);
    }
    if (all.size() < static_cast<std::size_t>(table.ranks)) return;
    const auto answer = pack(all);
    table.deadline = Clock::time_point::max();
    for (auto& [_, each] : table.seats) {
        each.said.reset();
        each.line->post(Said::kAll, communicator, answer);
    }
    listener = {};  // whoever comes now is refused by the system
}

void MeetingRoot::lose(const MeetingLine& line) {
    for (auto& [communicator, table] : tables) {
        for (const auto& [rank, seat] : table.seats) {
            if (seat.line != &line) continue;
            table.finish(communicator,
                         {"N620", table.name(rank) + " to run", "its connection has ended"});
            break;  // a connection has one seat, and all seats are gone
        }
    }
    const auto rank = ranks.find(&line);
    if (rank == ranks.end()) return;
    for (auto& [_, table] : tables) {  // a reason before is kept
        table.gone.emplace(rank->second, Reason{"N620", "its connection has ended"});
    }
    for (const auto& [communicator, _] : tables) check(communicator);
    ranks.erase(rank);
}

MeetingRoot::Clock::time_point MeetingRoot::look(Clock::time_point now) {
    auto next = Clock::time_point::max();
    for (auto& [communicator, table] : tables) {
        if (table.deadline <= now) {
            std::vector<int> missing;
            for (int rank = 0; rank < table.ranks; ++rank) {
                const auto seat = table.seats.find(rank);
                if (seat == table.seats.end() || !seat->second.said) missing.push_back(rank);
            }
            table.finish(communicator, {"N601", std::to_string(table.ranks) + " ranks in time",
                                        "no sign of " + name_ranks(missing)});
        }
        // Ranks that come too late are told, too, as long as they would have waited.
        if (table.end && listener.is_open()) closing = std::min(closing, now + table.longest);
        next = std::min(next, table.deadline);
    }
    if (closing <= now) listener = {};
    return listener.is_open() ? std::min(next, closing) : next;
}

}  // namespace sley
