// What calls look up of the memory of a process's ranks: which of it peers read, and scratch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "devices/device.hpp"

namespace sley {

// Memory that peers read with Direct has a number, and a row in a table of kernels
// (`layout::Setup::shifts`). Number 0 is what no peer reads, number 1 what only ranks of this process
// read, at the addresses that it has here. The others are pieces that some peers have mapped.
//
// Scratch grows: of a rank's pieces, those that all peers read come first, the largest of them before
// others. Calls on the caller's streams, and captured ones, may still use any of them.
//
// The memory is the caller's, and isn't freed before this. One thread at a time adds.
class MemoryIndex {
public:
    // own: the ranks of this process, of so many, and their devices, which outlive this.
    MemoryIndex(int ranks, const std::vector<std::pair<int, Device*>>& own);

    // Registers a piece, and returns its number. shifts: for each rank, what to add to an address of
    // it for its address there, or kHidden. Beyond the numbers that there are, it stays what it was: 0.
    std::uint16_t add(std::uint64_t address, std::uint64_t bytes,
                      const std::vector<std::uint64_t>& shifts);
    // Forgets a piece, while no call is under way. Its number isn't given again: replays of graphs
    // have it, and find from now on that no peer reads the memory.
    void remove(std::uint16_t number);
    // The ranks that read a piece.
    std::vector<int> readers(std::uint16_t number) const;
    void add_scratch(int rank, std::uint64_t address, std::uint64_t bytes, bool all_read);

    // Frees the tables, also if calls are still there, which can't be started afterwards.
    void free();

    // Calls hold it while they look up, so that a number's row is in the table that they get.
    std::mutex lock;
    // The address of the table on a device of this process.
    std::uint64_t table(const Device& device) const;
    // The number of a rank's memory; 0 for none.
    std::uint16_t number(int rank, std::uint64_t address, std::uint64_t bytes) const;
    // The address of at least so many bytes of scratch; 0 if these are none; nothing if there are
    // too few.
    std::optional<std::uint64_t> scratch(int rank, std::uint64_t bytes) const;

private:
    struct Place {
        Device* device;
        std::vector<Resource> tables;  // outgrown ones stay, since calls may read them at any time
    };
    struct Piece {
        std::uint64_t address, bytes;
        std::uint16_t number;
        std::uint64_t reach;  // where this one and those before it end at the latest
    };
    struct Own {
        Device* device;
        std::vector<Piece> scratch;
    };

    std::ptrdiff_t behind(std::uint64_t address) const;  // the number of the first piece behind it
    void measure();  // `reach` of all pieces
    // Gives the devices a row, in a larger table if the present one is full.
    void add_row(const std::vector<std::uint64_t>& shifts);

    std::size_t ranks_;
    std::map<int, Own> own_;
    std::vector<Place> places_;  // each once
    std::vector<Piece> pieces_;  // ascending
    std::vector<std::uint64_t> rows_;
    std::size_t room_ = 0;  // of a table, in numbers of `rows_`
};

}  // namespace sley
