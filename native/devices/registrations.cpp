#include "devices/registrations.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <random>
#include <string>

#include "devices/cuda_driver.hpp"
#include "devices/kernel_layout.hpp"

namespace sley {
namespace {

using Token = std::array<std::uint32_t, 4>;

// No other process has it, whatever namespace of process ids it is in; nor has a forked child.
Token this_process() {
    static const auto drawn = [] {
        std::random_device random;
        return std::array<std::uint32_t, 3>{random(), random(), random()};
    }();
    return {drawn[0], drawn[1], drawn[2], static_cast<std::uint32_t>(getpid())};
}

}  // namespace

// What a process says of a rank's array. piece: see Key; a new one if it is the number of this
// registration. device: for ranks of the same process.
struct Registrations::Offer {
    std::uint64_t piece = 0, address = 0, bytes = 0;
    Device* device = nullptr;
    Token process = this_process();
    bool has_handle = false;
    char handle[64] = {};
};

Registration Registrations::add(const std::map<int, Span>& arrays) {
    auto& processes = memory_->processes();
    const std::uint64_t number = last_ + 1;
    Pieces added;
    const auto offers = exchange(arrays, added);
    const auto seen = find(offers, added);
    try {
        processes.telling([&] {
            for (const auto& [rank, array] : arrays) {
                const auto& offer = offers[static_cast<std::size_t>(rank)];
                if (offer.piece != number) continue;
                Processes::Numbers shifts;
                for (const auto& row : seen) {
                    const auto there = row[static_cast<std::size_t>(rank)];
                    shifts.push_back(there == layout::kHidden ? there : there - offer.address);
                }
                const auto hidden = std::count(shifts.begin(), shifts.end(), layout::kHidden);
                if (static_cast<std::size_t>(hidden) + 1 == shifts.size()) continue;
                added.at({rank, number}).row = index_->add(offer.address, offer.bytes, shifts);
            }
        });
        processes.meet();  // a kernel that starts earlier may wait for a rank that maps memory
    } catch (...) {
        for (const auto& [key, piece] : added) {
            if (piece.row != 0) index_->remove(piece.row);
        }
        throw;
    }
    last_ = number;  // only now: a refusal leaves all ranks with the same number
    pieces_.merge(added);
    for (std::size_t r = 0; r < offers.size(); ++r) {
        const Key key{static_cast<int>(r), offers[r].piece};
        of_[number].push_back(key);
        if (key.second != 0) ++pieces_.at(key).uses;
    }
    Registration made{number, {}};
    for (const auto& [rank, array] : arrays) {
        made.readers[rank] = readers_of(rank, offers[static_cast<std::size_t>(rank)].piece, array);
    }
    return made;
}

std::vector<Registrations::Offer> Registrations::exchange(const std::map<int, Span>& arrays,
                                                          Pieces& added) const {
    auto& processes = memory_->processes();
    auto said = processes.gather_files([&] {
        std::map<int, Parcel> own;
        for (const auto& [rank, array] : arrays) {
            auto* const device = memory_->devices().at(rank);
            auto shown = device->show(array.first, array.second);
            Descriptor file(shown.descriptor);
            Offer offer;
            offer.piece = piece_of(rank, array, shown);
            if (offer.piece == last_ + 1) {
                offer.address = shown.address;
                offer.bytes = shown.bytes;
                offer.device = device;
                offer.has_handle = shown.handle.copy(offer.handle, sizeof offer.handle) != 0;
                added[{rank, offer.piece}].shown = std::move(shown);
                own[rank].file = std::move(file);
            }
            own[rank].bytes.assign(reinterpret_cast<const char*>(&offer), sizeof offer);
        }
        return own;
    });
    std::vector<Offer> offers(said.size());
    processes.telling([&] {
        for (std::size_t r = 0; r < said.size(); ++r) {
            auto& [bytes, file] = said[r];
            if (bytes.size() != sizeof(Offer)) {
                throw no_exchange(std::to_string(bytes.size()) + " bytes for an array");
            }
            std::memcpy(&offers[r], bytes.data(), sizeof(Offer));
            if (file.fd() >= 0) added[{static_cast<int>(r), last_ + 1}].file = std::move(file);
        }
    });
    return offers;
}

std::vector<Processes::Numbers> Registrations::find(const std::vector<Offer>& offers,
                                                    Pieces& added) const {
    auto& processes = memory_->processes();
    std::map<Device*, Processes::Numbers> found;
    processes.telling([&] {
        for (const auto& [_, device] : memory_->devices()) found[device];
        for (auto& [device, row] : found) {
            row.assign(offers.size(), layout::kHidden);
            for (std::size_t r = 0; r < offers.size(); ++r) {
                if (offers[r].piece != last_ + 1) continue;
                row[r] = address_on(*device, offers[r], added[{static_cast<int>(r), last_ + 1}]);
            }
        }
        for (auto& [_, piece] : added) piece.file = Descriptor();
    });
    std::map<int, Processes::Numbers> own;
    for (const auto& [rank, device] : memory_->devices()) own[rank] = found[device];
    return processes.gather(own, offers.size());
}

void Registrations::remove(std::uint64_t number) {
    auto& processes = memory_->processes();
    const auto found = of_.find(number);
    std::map<int, Processes::Numbers> own;
    for (const auto& [rank, device] : memory_->devices()) {
        own[rank] = {found == of_.end() ? 0 : number};
    }
    const auto named = processes.gather(own, 1);
    const auto is_other = [&](const auto& one) { return one != named[0] || one[0] == 0; };
    const auto other = std::find_if(named.begin(), named.end(), is_other);
    if (other != named.end()) {
        throw Refusal("R503", "one registration on all ranks, which hasn't ended",
                      "number " + std::to_string((*other)[0]) + " on rank " +
                          std::to_string(other - named.begin()),
                      {}, "Give what `register` returned there, once, on all ranks together.");
    }
    processes.telling([&] {
        for (const auto& key : found->second) {
            const auto piece = pieces_.find(key);
            if (piece == pieces_.end() || --piece->second.uses > 0) continue;
            if (piece->second.row != 0) index_->remove(piece->second.row);
            pieces_.erase(piece);
        }
        of_.erase(found);
    });
    processes.meet();
}

// A piece of the same allocation that has all of the array, or a new one.
std::uint64_t Registrations::piece_of(int rank, const Span& array, const Shown& shown) const {
    const auto& [address, bytes] = array;
    const auto row = index_->number(rank, address, bytes);
    bool is_common = row > 1;
    for (const auto& [key, piece] : pieces_) {
        if (key.first != rank) continue;
        const auto& own = piece.shown;
        const bool has_all = own.address <= address && address + bytes <= own.address + own.bytes;
        if (has_all && own.id == shown.id) return key.second;
        is_common = is_common && piece.row != row;  // else freed memory, whose address is used again
    }
    return bytes == 0 || is_common ? 0 : last_ + 1;
}

// Where a device finds what a rank offers, or kHidden.
std::uint64_t Registrations::address_on(Device& device, const Offer& offer, Piece& piece) {
    auto& attached = piece.attached;
    try {
        if (offer.process == this_process()) {
            device.reach(*offer.device);
            if (&device == offer.device || offer.device->lends(offer.address, device)) {
                return offer.address;
            }
        } else if (offer.has_handle) {
            attached.push_back(device.open({offer.handle, sizeof offer.handle}));
            return attached.back().address;
        }
        if (piece.file.fd() >= 0) {
            attached.push_back(device.attach(piece.file.fd(), offer.bytes));
            return attached.back().address;
        }
    } catch (const cuda::Error&) {  // no way leads from the device to the memory
    }
    return layout::kHidden;
}

std::vector<int> Registrations::readers_of(int rank, std::uint64_t piece, const Span& array) const {
    auto found = index_->readers(piece != 0 ? pieces_.at({rank, piece}).row
                                            : index_->number(rank, array.first, array.second));
    found.erase(std::remove(found.begin(), found.end(), rank), found.end());
    return found;
}

}  // namespace sley
