#include "devices/memory_index.hpp"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "devices/kernel_layout.hpp"

namespace sley {
namespace {

constexpr std::size_t kMostRows = std::size_t{1} << 16;  // layout::Registrations has 16 bits
constexpr std::size_t kFirstRows = 4;

}  // namespace

MemoryIndex::MemoryIndex(int ranks, const std::vector<std::pair<int, Device*>>& own)
    : ranks_(static_cast<std::size_t>(ranks)) {
    std::vector<std::uint64_t> here(ranks_, layout::kHidden);
    for (const auto& [rank, device] : own) {
        here.at(static_cast<std::size_t>(rank)) = 0;
        own_[rank] = {device, {}};
        const auto is_it = [device = device](const Place& place) { return place.device == device; };
        if (std::none_of(places_.begin(), places_.end(), is_it)) places_.push_back({device, {}});
    }
    add_row(std::vector<std::uint64_t>(ranks_, layout::kHidden));
    add_row(here);
}

std::uint16_t MemoryIndex::add(std::uint64_t address, std::uint64_t bytes,
                               const std::vector<std::uint64_t>& shifts) {
    if (shifts.size() != ranks_) throw std::invalid_argument("a shift for each rank");
    if (rows_.size() / ranks_ == kMostRows) return 0;
    const auto number = static_cast<std::uint16_t>(rows_.size() / ranks_);
    add_row(shifts);
    const std::lock_guard<std::mutex> held(lock);
    pieces_.insert(pieces_.begin() + behind(address), {address, bytes, number, 0});
    measure();
    return number;
}

void MemoryIndex::remove(std::uint16_t number) {
    {
        const std::lock_guard<std::mutex> held(lock);
        const auto is_it = [number](const Piece& piece) { return piece.number == number; };
        pieces_.erase(std::remove_if(pieces_.begin(), pieces_.end(), is_it), pieces_.end());
        measure();
    }
    const std::size_t first = number * ranks_;
    std::fill_n(rows_.begin() + static_cast<std::ptrdiff_t>(first), ranks_, layout::kHidden);
    for (const auto& place : places_) {
        std::size_t room = kFirstRows * ranks_;  // doubled from table to table
        for (const auto& table : place.tables) {
            if (first < room) {
                place.device->write(table.address + first * sizeof rows_[0], &rows_[first],
                                    ranks_ * sizeof rows_[0]);
            }
            room *= 2;
        }
    }
}

std::vector<int> MemoryIndex::readers(std::uint16_t number) const {
    std::vector<int> found;
    for (std::size_t rank = 0; rank < ranks_; ++rank) {
        if (rows_[number * ranks_ + rank] != layout::kHidden) found.push_back(static_cast<int>(rank));
    }
    return found;
}

void MemoryIndex::add_scratch(int rank, std::uint64_t address, std::uint64_t bytes, bool all_read) {
    const std::lock_guard<std::mutex> held(lock);
    auto& made = own_.at(rank).scratch;
    made.insert(all_read ? made.begin() : made.end(), {address, bytes, 0, 0});
}

void MemoryIndex::free() {
    const std::lock_guard<std::mutex> held(lock);
    places_.clear();
}

std::uint64_t MemoryIndex::table(const Device& device) const {
    const auto is_it = [&device](const Place& place) { return place.device == &device; };
    const auto found = std::find_if(places_.begin(), places_.end(), is_it);
    if (found == places_.end()) throw std::invalid_argument("a device without ranks");
    return found->tables.back().address;
}

std::uint16_t MemoryIndex::number(int rank, std::uint64_t address, std::uint64_t bytes) const {
    if (bytes == 0) return 0;
    // Mostly pieces don't overlap, and the search ends with the first one.
    for (auto k = static_cast<std::size_t>(behind(address)); k > 0; --k) {
        const auto& piece = pieces_[k - 1];
        if (address + bytes <= piece.address + piece.bytes) return piece.number;
        if (address + bytes > piece.reach) break;
    }
    const auto* own = own_.at(rank).device;
    return std::all_of(places_.begin(), places_.end(), [&](const Place& place) {
        return place.device == own || own->lends(address, *place.device);
    });
}

std::ptrdiff_t MemoryIndex::behind(std::uint64_t address) const {
    const auto is_behind = [](std::uint64_t at, const Piece& piece) { return at < piece.address; };
    return std::upper_bound(pieces_.begin(), pieces_.end(), address, is_behind) - pieces_.begin();
}

void MemoryIndex::measure() {
    std::uint64_t reach = 0;
    for (auto& piece : pieces_) {
        piece.reach = reach = std::max(reach, piece.address + piece.bytes);
    }
}

std::optional<std::uint64_t> MemoryIndex::scratch(int rank, std::uint64_t bytes) const {
    if (bytes == 0) return 0;
    for (const auto& piece : own_.at(rank).scratch) {
        if (piece.bytes >= bytes) return piece.address;
    }
    return {};
}

void MemoryIndex::add_row(const std::vector<std::uint64_t>& shifts) {
    const bool is_full = rows_.size() + ranks_ > room_;
    const std::size_t room = is_full ? std::max(2 * room_, kFirstRows * ranks_) : room_;
    std::vector<Resource> grown;  // all before anything changes: a device may have too little memory
    for (std::size_t k = 0; is_full && k < places_.size(); ++k) {
        grown.push_back(places_[k].device->allocate(room * sizeof rows_[0]));
    }
    room_ = room;
    const std::size_t first = is_full ? 0 : rows_.size();
    rows_.insert(rows_.end(), shifts.begin(), shifts.end());
    for (std::size_t k = 0; k < places_.size(); ++k) {
        auto& [device, tables] = places_[k];
        const auto& table = is_full ? grown[k] : tables.back();
        device->write(table.address + first * sizeof rows_[0], &rows_[first],
                      (rows_.size() - first) * sizeof rows_[0]);
        if (!is_full) continue;
        const std::lock_guard<std::mutex> held(lock);
        tables.push_back(std::move(grown[k]));
    }
}

}  // namespace sley
