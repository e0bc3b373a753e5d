// Registrations: the callers' memory that peers read with Direct.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "devices/descriptor_box.hpp"
#include "devices/memory_exchange.hpp"
#include "devices/memory_index.hpp"

namespace sley {

// number: by which it ends; equal in all processes. readers: of each rank of this process, the other
// ranks that read its memory; to the rest its messages go through slots.
struct Registration {
    std::uint64_t number;
    std::map<int, std::vector<int>> readers;
};

// All processes call the same functions in the same order, when none of their calls is under way;
// what a process refuses, it tells the others. What a peer can't map, it doesn't read.
class Registrations {
public:
    // The address and the bytes of an array.
    using Span = std::pair<std::uintptr_t, std::size_t>;

    Registrations(std::shared_ptr<MemoryExchange> memory, std::shared_ptr<MemoryIndex> index)
        : memory_(std::move(memory)), index_(std::move(index)) {}

    // arrays: of each rank of this process, anywhere in its memory. Peers map the allocation behind
    // an array, once for all arrays in it, until the last registration of them ends: before that it
    // may not be freed. In the own process they use its address.
    Registration add(const std::map<int, Span>& arrays);
    // Throws Refusal (R503) in all processes if they name different registrations, or none.
    void remove(std::uint64_t number);
    // Releases the memory of other processes.
    void detach() { pieces_.clear(); }

private:
    // An allocation: of a rank of this process with its number in the index, if peers read it; of
    // other ranks what has mapped it.
    struct Piece {
        Shown shown{};
        Descriptor file;  // until it is mapped
        std::uint16_t row = 0;
        std::vector<Resource> attached;
        int uses = 0;
    };
    // A rank, and the number of the registration that was the piece's first; 0 for none: no memory, or
    // what all ranks made together.
    using Key = std::pair<int, std::uint64_t>;
    using Pieces = std::map<Key, Piece>;
    struct Offer;

    // The offers of all ranks; `added` gets the new pieces of this process's.
    std::vector<Offer> exchange(const std::map<int, Span>& arrays, Pieces& added) const;
    std::uint64_t piece_of(int rank, const Span& array, const Shown& shown) const;
    // For each rank, where its device finds the new pieces of all ranks; `added` gets them.
    std::vector<Processes::Numbers> find(const std::vector<Offer>& offers, Pieces& added) const;
    static std::uint64_t address_on(Device& device, const Offer& offer, Piece& piece);
    std::vector<int> readers_of(int rank, std::uint64_t piece, const Span& array) const;

    std::shared_ptr<MemoryExchange> memory_;
    std::shared_ptr<MemoryIndex> index_;
    Pieces pieces_;
    std::map<std::uint64_t, std::vector<Key>> of_;  // each registration's, by rank
    std::uint64_t last_ = 0;
};

}  // namespace sley
