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

void MemoryIndex::add(std::uint64_t address, std::uint64_t bytes,
                      const std::vector<std::uint64_t>& shifts) {
    if (shifts.size() != ranks_) throw std::invalid_argument("a shift for each rank");
    const std::size_t number = rows_.size() / ranks_;
    if (number == kMostRows) return;
    add_row(shifts);
    const std::lock_guard<std::mutex> held(lock);
    pieces_.insert(pieces_.begin() + behind(address),
                   {address, bytes, static_cast<std::uint16_t>(number)});
}

void MemoryIndex::add_scratch(int rank, std::uint64_t address, std::uint64_t bytes, bool all_read) {
    const std::lock_guard<std::mutex> held(lock);
    auto& made = own_.at(rank).scratch;
    made.insert(all_read ? made.begin() : made.end(), {address, bytes, 0});
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
    if (const auto next = behind(address); next > 0) {
        const auto& piece = pieces_[static_cast<std::size_t>(next) - 1];
        if (address + bytes <= piece.address + piece.bytes) return piece.number;
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

std::optional<std::uint64_t> MemoryIndex::scratch(int rank, std::uint64_t bytes) const {
    if (bytes == 0) return 0;
    for (const auto& piece : own_.at(rank).scratch) {
        if (piece.bytes >= bytes) return piece.address;
    }
    return {};
}

void MemoryIndex::add_row(const std::vector<std::uint64_t>& shifts) {
    std::size_t first = rows_.size();
    rows_.insert(rows_.end(), shifts.begin(), shifts.end());
    const bool is_full = rows_.size() > room_;
    if (is_full) {
        first = 0;
        room_ = std::max(2 * room_, kFirstRows * ranks_);
    }
    for (auto& place : places_) {
        Resource grown;
        if (is_full) grown = place.device->allocate(room_ * sizeof rows_[0]);
        const auto& table = is_full ? grown : place.tables.back();
        place.device->write(table.address + first * sizeof rows_[0], &rows_[first],
                            (rows_.size() - first) * sizeof rows_[0]);
        if (!is_full) continue;
        const std::lock_guard<std::mutex> held(lock);
        place.tables.push_back(std::move(grown));
    }
}

}  // namespace sley
