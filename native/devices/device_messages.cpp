#include "devices/device_messages.hpp"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>

namespace sley {
namespace {

// Of a pair in each direction, at most: so many blocks fill a link. Of a rank, if it has several.
constexpr int kMostChannels = 8, kMostLanes = 64;
// A message has a part in a lane for each so many bytes.
constexpr std::uint64_t kPart = 64 << 10;

// Of a launch, at most; even, since messages of a rank to itself come in pairs.
constexpr std::ptrdiff_t kLaunch = layout::kMessages / 2 * 2;

// What a rank has of a lane from another, and to another. Slots are behind the counters of all.
constexpr std::size_t kCounters = 2 * sizeof(layout::Counter);
constexpr std::size_t kSlots = layout::kLaneSlots * layout::kLaneSlot;

std::string bytes_text(std::uint64_t bytes) { return std::to_string(bytes) + " bytes"; }
std::string rank_text(int rank) { return "rank " + std::to_string(rank); }

}  // namespace

// A message, and which it is of its peer and direction.
struct DeviceMessages::Row {
    DeviceMessage message;
    std::size_t number;
};

int DeviceMessages::channels(int ranks, int blocks) {
    const int others = std::max(2 * (ranks - 1), 1);
    return std::clamp(std::min(blocks, kMostLanes) / others, 1, kMostChannels);
}

std::size_t DeviceMessages::bytes(int ranks, int blocks) {
    return static_cast<std::size_t>(ranks * channels(ranks, blocks)) * (kCounters + kSlots);
}

DeviceMessages::DeviceMessages(const Place& place, std::shared_ptr<CallOrder> order,
                               const std::vector<std::uint64_t>& memory,
                               std::vector<std::shared_ptr<void>>& kept)
    : place_(place), channels_(channels(place.ranks, place.blocks)) {
    const auto lanes = static_cast<std::uint64_t>(place.ranks * channels_);
    std::vector<layout::Lane> table;
    for (int peer = 0; peer < place.ranks; ++peer) {
        for (const bool sends : {false, true}) {
            for (int channel = 0; channel < channels_; ++channel) {
                const int from = sends ? place.rank : peer, to = sends ? peer : place.rank;
                const auto at = [&](int of, int other) {
                    return memory[static_cast<std::size_t>(of)] +
                           static_cast<std::uint64_t>(other * channels_ + channel) * kCounters;
                };
                const auto row = static_cast<std::uint64_t>(from * channels_ + channel);
                const auto slots =
                    memory[static_cast<std::size_t>(to)] + lanes * kCounters + row * kSlots;
                table.push_back({reinterpret_cast<layout::Counter*>(at(to, from)),
                                 reinterpret_cast<layout::Counter*>(at(from, to)) + 1,
                                 reinterpret_cast<char*>(slots), peer, sends});
            }
        }
    }
    auto& device = *place.device;
    const auto bytes = table.size() * sizeof table[0];
    const auto rows = device.allocate(bytes);
    device.write(rows.address, table.data(), bytes);
    const auto most = static_cast<unsigned>(std::min<std::uint64_t>(
        2 * lanes, static_cast<std::uint64_t>(place.blocks)));
    const auto reports = device.allocate_host(most * sizeof(layout::Report));
    reports_ = reports.address;
    kept.insert(kept.end(), {rows.owner, reports.owner});
    argument_.setup.abort = reinterpret_cast<layout::u64*>(place.abort);
    argument_.setup.timeout_ns = place.timeout_ns;
    argument_.lanes = reinterpret_cast<const layout::Lane*>(rows.address);
    argument_.reports = reinterpret_cast<layout::Report*>(reports.address);
    place_.blocks = static_cast<int>(most);
    call_.emplace(std::move(order),
                  std::vector<Start>{{&device,
                                      {{place.kernel, "sley_messages",
                                        std::string(sizeof argument_, '\0'), most, place.threads,
                                        place.together, nullptr}}}},
                  OrderedCall::Kind::kOfOneRank);
}

std::vector<DeviceMessages::Row> DeviceMessages::rows_of(
    const std::vector<DeviceMessage>& messages) const {
    std::vector<Row> rows;
    std::map<std::pair<int, bool>, std::vector<std::uint64_t>> bytes;  // of each peer and direction
    for (const auto& each : messages) {
        if (each.peer < 0 || each.peer >= place_.ranks) throw std::invalid_argument("no such rank");
        if (each.bytes == 0) continue;
        auto& before = bytes[{each.peer, each.sends}];
        rows.push_back({each, before.size()});
        before.push_back(each.bytes);
    }
    const auto& sent = bytes[{place_.rank, true}];
    const auto& taken = bytes[{place_.rank, false}];
    if (sent != taken) {
        const auto text = [](const std::vector<std::uint64_t>& all) {
            std::uint64_t sum = 0;
            for (const auto each : all) sum += each;
            return std::to_string(all.size()) + " of " + bytes_text(sum);
        };
        throw Refusal("N705",
                      "sends of " + rank_text(place_.rank) +
                          " to itself that are, in order, its receives",
                      text(sent) + ", and receives: " + text(taken));
    }
    if (rows.size() <= kLaunch) return rows;
    // An order of all messages of all ranks, of which each rank has its part: so the earliest one that
    // isn't over is in the launches that both ends are at. What a rank sends itself is in one launch.
    std::stable_sort(rows.begin(), rows.end(), [this](const Row& one, const Row& other) {
        const auto key = [this](const Row& row) {
            const auto& [peer, sends, address, _] = row.message;
            return std::tuple(peer != place_.rank, row.number, sends ? place_.rank : peer,
                              sends ? peer : place_.rank);
        };
        return key(one) < key(other);
    });
    return rows;
}

StartOutcome DeviceMessages::start(const std::vector<DeviceMessage>& messages,
                                   Device::Stream stream) {
    const auto rows = rows_of(messages);
    const std::lock_guard<std::mutex> held(lock_);
    auto outcome = StartOutcome::kStarted;
    for (auto first = rows.begin(); first != rows.end() && outcome == StartOutcome::kStarted;) {
        const auto end = first + std::min(kLaunch, rows.end() - first);
        outcome = launch({first, end}, stream);
        first = end;
    }
    return outcome;
}

StartOutcome DeviceMessages::launch(std::vector<Row> rows, Device::Stream stream) {
    const auto route = [](const Row& row) { return std::pair(row.message.peer, row.message.sends); };
    std::stable_sort(rows.begin(), rows.end(), [&](const Row& one, const Row& other) {
        return route(one) < route(other);
    });
    std::size_t lanes = 0;
    for (std::size_t first = 0, next = 0; first < rows.size(); first = next) {
        layout::u16 most = 0;
        for (; next < rows.size() && route(rows[next]) == route(rows[first]); ++next) {
            const auto& [peer, sends, address, bytes] = rows[next].message;
            const auto parts = std::min<std::uint64_t>((bytes - 1) / kPart + 1,
                                                       static_cast<std::uint64_t>(channels_));
            auto& row = argument_.messages[next];
            row.address = reinterpret_cast<char*>(address);
            row.bytes = static_cast<layout::i64>(bytes);
            row.parts = static_cast<layout::u16>(parts);
            row.lane = static_cast<layout::u16>((2 * peer + sends) * channels_);
            most = std::max(most, row.parts);
        }
        for (auto row = first; row < next; ++row) {
            argument_.messages[row].most_parts = most;
            argument_.messages[row].next = static_cast<layout::u16>(next);
        }
        lanes += most;
    }
    argument_.count = rows.size();
    auto& only = call_->starts().front().launches.front();
    const auto blocks = std::min(lanes, static_cast<std::size_t>(place_.blocks));
    only.blocks = static_cast<unsigned>(blocks);
    std::memcpy(only.call.data(), &argument_, sizeof argument_);
    return call_->start({stream}, true) ? StartOutcome::kStarted : StartOutcome::kGivenUp;
}

std::optional<DeviceMessages::Stuck> DeviceMessages::stuck(const std::string& limit) const {
    std::optional<Stuck> found;
    const auto* reports = reinterpret_cast<const layout::Report*>(reports_);
    for (int b = 0; b < place_.blocks; ++b) {
        const auto& report = reports[b];
        // A kernel writes the status last.
        const auto* word = reinterpret_cast<const std::atomic<std::uint64_t>*>(&report.status);
        const auto status = word->load(std::memory_order_acquire);
        if (status == 0 || (found && found->status <= status)) continue;
        const auto own = rank_text(place_.rank), peer = rank_text(static_cast<int>(report.target));
        if (report.reason == layout::kBytes) {
            found = {status, {"K508", "a send and its receive of equal bytes",
                              own + " takes " + bytes_text(report.call) + " from " + peer +
                                  ", which sends " + bytes_text(report.ticks)}};
            continue;
        }
        const bool sends = report.reason == layout::kSlot;
        found = {status, {"K508", "no message to wait longer than " + limit,
                          own + " waits to " + (sends ? "send " : "take ") + bytes_text(report.call) +
                              (sends ? " to " : " from ") + peer}};
    }
    return found;
}

}  // namespace sley
