#include "devices/memory_exchange.hpp"

#include <fcntl.h>

#include <algorithm>
#include <cstring>
#include <system_error>
#include <utility>

#include "fabric/segment.hpp"

namespace sley {
namespace {

// Some devices refuse to allocate nothing.
std::size_t allocated(std::size_t bytes) { return std::max<std::size_t>(bytes, 1); }

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
    made.seen = processes_->gather(own, sizes.size());
    return made;
}

void MemoryExchange::attach_others(const std::vector<std::size_t>& sizes, Made& made) {
    // Of each rank's memory the size, and the identity of its device.
    const auto offers = processes_->gather_files([&] {
        std::map<int, Parcel> own;
        for (const auto& [rank, memory] : made.own) {
            const auto& device = *devices_.at(rank);
            const std::uint64_t bytes = sizes[static_cast<std::size_t>(rank)];
            own[rank] = {std::string(reinterpret_cast<const char*>(&bytes), sizeof bytes) +
                             device.identity(),
                         Descriptor(device.export_memory(memory))};
        }
        return own;
    });
    processes_->telling([&] {
        for (std::size_t r = 0; r < sizes.size(); ++r) {
            const int rank = static_cast<int>(r);
            if (made.own.count(rank) != 0) continue;
            const auto& [said, file] = offers[r];
            std::uint64_t bytes = 0;
            if (said.size() < sizeof bytes) {
                throw no_exchange(std::to_string(said.size()) + " bytes for the memory of a rank");
            }
            std::memcpy(&bytes, said.data(), sizeof bytes);
            if (bytes != sizes[r]) {
                throw Refusal("R503",
                              std::to_string(sizes[r]) + " bytes of rank " + std::to_string(rank) +
                                  ": the same plan, settings and calls in all processes",
                              std::to_string(bytes) + " bytes");
            }
            for (auto& [device, row] : made.found) {
                if (has_lines_ && !device->carries_lines(said.substr(sizeof bytes))) {
                    throw Refusal("K523", "a link with native atomics, for LL128",
                                  "one without, from " + device->name() + " to the device of rank " +
                                      std::to_string(rank) + ", in another process");
                }
                attached_.push_back(device->attach(file.fd(), allocated(sizes[r])));
                row[r] = attached_.back().address;
            }
        }
    });
}

Resource MemoryExchange::allocate_host(std::size_t bytes) {
    auto& device = *devices_.begin()->second;
    if (processes_->is_one()) return device.allocate_host(bytes);
    std::shared_ptr<Segment> segment;  // first of rank 0's process
    const auto said = processes_->gather_files([&] {
        std::map<int, Parcel> own;
        for (const auto& [rank, place] : devices_) own[rank];
        if (devices_.count(0) != 0) {
            segment = shared(bytes, [&] { return Segment::create(bytes, true); });
            own[0].file = Descriptor(fcntl(segment->fd(), F_DUPFD_CLOEXEC, 0));
        }
        return own;
    });
    Resource made;
    processes_->telling([&] {
        if (segment == nullptr) {
            segment = shared(bytes, [&] { return Segment::attach(said[0].file.fd(), bytes); });
        }
        made = device.register_host(segment->data(), bytes, segment);
    });
    return made;
}

}  // namespace sley
