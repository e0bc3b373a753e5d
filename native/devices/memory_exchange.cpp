#include "devices/memory_exchange.hpp"

#include <algorithm>
#include <cstring>
#include <optional>
#include <set>
#include <system_error>
#include <utility>

#include "devices/descriptor_box.hpp"
#include "fabric/segment.hpp"

namespace sley {
namespace {

// Some devices refuse to allocate nothing.
std::size_t allocated(std::size_t bytes) { return std::max<std::size_t>(bytes, 1); }

// What a process says of a rank's memory: its size, the path of the process's box, and the identity of
// its device.
struct Offer {
    std::uint64_t bytes = 0;
    std::string path, identity;

    std::string to_bytes() const {
        return std::string(reinterpret_cast<const char*>(&bytes), sizeof bytes) + path + '\0' +
               identity;
    }

    static Offer from_bytes(const std::string& said) {
        Offer offer;
        const auto end = said.find('\0', std::min(said.size(), sizeof offer.bytes));
        if (end == std::string::npos) {
            throw no_exchange(std::to_string(said.size()) + " bytes for the memory of a rank");
        }
        std::memcpy(&offer.bytes, said.data(), sizeof offer.bytes);
        offer.path = said.substr(sizeof offer.bytes, end - sizeof offer.bytes);
        offer.identity = said.substr(end + 1);
        return offer;
    }
};

template <class Make>
std::shared_ptr<Segment> shared(std::size_t bytes, const Make& make) {
    try {
        return make();
    } catch (const std::system_error& problem) {
        throw Refusal("K514", std::to_string(bytes) + " bytes that processes share", problem.what());
    }
}

}  // namespace

MemoryExchange::MemoryExchange(std::shared_ptr<Processes> processes,
                               std::map<int, Device*> devices, bool has_lines)
    : processes_(std::move(processes)), devices_(std::move(devices)), has_lines_(has_lines) {}

MemoryExchange::Made MemoryExchange::allocate(const std::vector<std::size_t>& sizes) {
    Made made;
    processes_->telling([&] {
        for (const auto& [rank, device] : devices_) {
            const auto bytes = allocated(sizes.at(static_cast<std::size_t>(rank)));
            made.own[rank] =
                processes_->is_one() ? device->allocate(bytes) : device->allocate_shared(bytes);
        }
    });
    for (const auto& [rank, device] : devices_) {
        auto& row = made.found.try_emplace(device, sizes.size()).first->second;
        for (const auto& [other, memory] : made.own) {
            row[static_cast<std::size_t>(other)] = memory.address;
        }
    }
    if (!processes_->is_one()) attach_others(sizes, made);
    std::map<int, Processes::Numbers> own;
    for (const auto& [rank, device] : devices_) own[rank] = made.found[device];
    if (processes_->is_one()) {
        for (auto& [rank, row] : own) made.seen.push_back(std::move(row));
    } else {
        made.seen = processes_->gather(own, sizes.size());
    }
    return made;
}

void MemoryExchange::attach_others(const std::vector<std::size_t>& sizes, Made& made) {
    std::optional<DescriptorBox> box;
    std::vector<Descriptor> files;
    std::map<int, int> own;
    std::map<int, std::string> said;
    processes_->telling([&] {
        box.emplace();
        for (const auto& [rank, memory] : made.own) {
            const auto& device = *devices_.at(rank);
            own[rank] = files.emplace_back(device.export_memory(memory)).fd();
            const auto bytes = sizes[static_cast<std::size_t>(rank)];
            said[rank] = Offer{bytes, box->path(), device.identity()}.to_bytes();
        }
    });
    const auto gathered = processes_->gather(said);
    processes_->telling([&] {
        std::map<int, Offer> offers;
        std::set<std::string> paths;
        std::set<int> others;
        for (std::size_t r = 0; r < sizes.size(); ++r) {
            const int rank = static_cast<int>(r);
            if (made.own.count(rank) != 0) continue;
            others.insert(rank);
            paths.insert((offers[rank] = Offer::from_bytes(gathered[r])).path);
        }
        const auto found = box->pass(own, paths, others);
        for (const auto& [rank, offer] : offers) {
            const auto r = static_cast<std::size_t>(rank);
            if (offer.bytes != sizes[r]) {
                throw Refusal("R503",
                              std::to_string(sizes[r]) + " bytes of rank " + std::to_string(rank) +
                                  ": the same plan, settings and calls in all processes",
                              std::to_string(offer.bytes) + " bytes");
            }
            for (auto& [device, row] : made.found) {
                if (has_lines_ && !device->carries_lines(offer.identity)) {
                    throw Refusal("K523", "a link with native atomics, for LL128",
                                  "one without, from " + device->name() + " to the device of rank " +
                                      std::to_string(rank) + ", in another process");
                }
                attached_.push_back(device->attach(found.at(rank).fd(), allocated(sizes[r])));
                row[r] = attached_.back().address;
            }
        }
    });
}

Resource MemoryExchange::allocate_host(std::size_t bytes) {
    auto& device = *devices_.begin()->second;
    if (processes_->is_one()) return device.allocate_host(bytes);
    std::optional<DescriptorBox> box;
    std::shared_ptr<Segment> segment;  // first of rank 0's process
    std::map<int, int> file;
    std::map<int, std::string> said;
    processes_->telling([&] {
        box.emplace();
        for (const auto& [rank, place] : devices_) said[rank] = box->path();
        if (devices_.count(0) == 0) return;
        segment = shared(bytes, [&] { return Segment::create(bytes, true); });
        file[0] = segment->fd();
    });
    const auto gathered = processes_->gather(said);
    Resource made;
    processes_->telling([&] {
        std::set<std::string> paths(gathered.begin(), gathered.end());
        paths.erase(box->path());
        const auto found = box->pass(file, paths, file.empty() ? std::set<int>{0} : std::set<int>{});
        if (file.empty()) {
            segment = shared(bytes, [&] { return Segment::attach(found.at(0).fd(), bytes); });
        }
        made = device.register_host(segment->data(), bytes, segment);
    });
    return made;
}

}  // namespace sley
