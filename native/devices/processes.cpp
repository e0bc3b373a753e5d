#include "devices/processes.hpp"

#include <cstring>
#include <optional>
#include <set>

namespace sley {
namespace {

// Begins each message, so that bytes of others are noticed.
constexpr char kMark[] = "sley:";
constexpr std::size_t kHeadBytes = sizeof kMark;  // with the letter of a kind

struct ValueHead {
    std::uint32_t rank, bytes;
};

std::string of_rank(int rank) { return "rank " + std::to_string(rank); }

}  // namespace

Refusal no_exchange(std::string found) {
    return {"K514", "the bytes that each process gave to `exchange`", std::move(found)};
}

std::vector<std::string> Processes::gather(const std::map<int, std::string>& own) {
    std::string said;
    for (const auto& [rank, value] : own) {
        const ValueHead head{static_cast<std::uint32_t>(rank),
                             static_cast<std::uint32_t>(value.size())};
        said.append(reinterpret_cast<const char*>(&head), sizeof head) += value;
    }
    std::vector<std::optional<std::string>> found(static_cast<std::size_t>(ranks_));
    for (const auto& message : exchange(Kind::kValues, said)) {
        for (std::size_t at = 0; at < message.size();) {
            ValueHead head{};
            const auto rest = message.size() - at;
            if (rest >= sizeof head) std::memcpy(&head, &message[at], sizeof head);
            if (rest < sizeof head || rest - sizeof head < head.bytes || head.rank >= found.size()) {
                throw no_exchange("a message of " + std::to_string(message.size()) + " bytes");
            }
            auto& value = found[head.rank];
            if (value) {
                throw Refusal("R503", "each rank in one process",
                              of_rank(static_cast<int>(head.rank)) + " in two of them");
            }
            value = message.substr(at + sizeof head, head.bytes);
            at += sizeof head + head.bytes;
        }
    }
    std::vector<std::string> values;
    for (int rank = 0; rank < ranks_; ++rank) {
        auto& value = found[static_cast<std::size_t>(rank)];
        if (!value) throw Refusal("K514", "an answer for every rank", "none of " + of_rank(rank));
        const auto mine = own.find(rank);
        if (mine != own.end() && mine->second != *value) {
            throw Refusal("K514", "this process's value for " + of_rank(rank), "another value");
        }
        values.push_back(std::move(*value));
    }
    return values;
}

std::vector<Processes::Numbers> Processes::gather(const std::map<int, Numbers>& own,
                                                  std::size_t each) {
    std::map<int, std::string> said;
    for (const auto& [rank, numbers] : own) {
        const auto* first = reinterpret_cast<const char*>(numbers.data());
        said[rank].assign(first, numbers.size() * sizeof numbers[0]);
    }
    std::vector<Numbers> found;
    for (const auto& value : gather(said)) {
        auto& numbers = found.emplace_back(each);
        if (value.size() != each * sizeof numbers[0]) {
            throw no_exchange(std::to_string(value.size()) + " bytes for " + std::to_string(each) +
                              " numbers");
        }
        std::memcpy(numbers.data(), value.data(), value.size());
    }
    return found;
}

std::vector<Parcel> Processes::gather_files(const std::function<std::map<int, Parcel>()>& make) {
    std::optional<DescriptorBox> box;
    std::map<int, Parcel> own;
    std::map<int, int> files;
    std::map<int, std::string> said;
    telling([&] {
        if (!is_one()) box.emplace();
        own = make();
        for (const auto& [rank, parcel] : own) {
            if (parcel.file.fd() >= 0) files[rank] = parcel.file.fd();
            said[rank] = std::to_string(files.count(rank)) + (box ? box->path() : "") + '\0' +
                         parcel.bytes;
        }
    });
    const auto gathered = gather(said);
    std::vector<Parcel> found(gathered.size());
    telling([&] {
        std::set<std::string> paths;
        std::set<int> others;
        for (int rank = 0; rank < ranks_; ++rank) {
            const auto& text = gathered[static_cast<std::size_t>(rank)];
            const auto end = text.find('\0');
            if (end == std::string::npos) throw no_exchange("no path from " + of_rank(rank));
            found[static_cast<std::size_t>(rank)].bytes = text.substr(end + 1);
            if (own.count(rank) != 0) continue;
            paths.insert(text.substr(1, end - 1));
            if (text[0] == '1') others.insert(rank);
        }
        if (!box) return;
        for (auto& [rank, file] : box->pass(files, paths, others)) {
            found[static_cast<std::size_t>(rank)].file = std::move(file);
        }
    });
    return found;
}

void Processes::meet() {
    exchange(Kind::kMeeting, "");
}

void Processes::tell(const std::string& refusal) {
    if (is_one() || refusal.empty()) return;
    try {
        exchange(Kind::kRefusal, refusal);
    } catch (const Interrupted&) {
        throw;
    } catch (...) {  // this process has a problem anyway
    }
}

std::vector<std::string> Processes::exchange(Kind kind, const std::string& message) {
    if (is_one()) return {message};
    if (barrier_ != nullptr) barrier_->meet();
    std::vector<std::string> found;
    Told told;
    for (const auto& said : exchange_->gather(kMark + (static_cast<char>(kind) + message))) {
        const auto is = [&said](Kind other) {
            return said.size() >= kHeadBytes && said.compare(0, kHeadBytes - 1, kMark) == 0 &&
                   said[kHeadBytes - 1] == static_cast<char>(other);
        };
        if (is(Kind::kRefusal)) {
            told.refusals.push_back(said.substr(kHeadBytes));
        } else if (is(kind)) {
            found.push_back(said.substr(kHeadBytes));
        } else if (kind != Kind::kRefusal) {
            throw no_exchange("another message, of " + std::to_string(said.size()) + " bytes");
        }
    }
    if (!told.refusals.empty()) throw told;
    return found;
}

}  // namespace sley
