#include "graphs/hazards.hpp"

#include <algorithm>
#include <unordered_map>

namespace sley {

namespace {

constexpr std::int32_t NONE = -1;

// The latest instruction of each block for which each other block has waited so far.
class Waited {
public:
    explicit Waited(const Blocks* blocks) : blocks_(blocks) {}

    // Adds the waits of an instruction, which comes after those before it in its block.
    void add(std::int32_t row) {
        if (blocks_ == nullptr) return;
        for (auto at = blocks_->wait_offset[row]; at < blocks_->wait_offset[row + 1]; ++at) {
            const auto target = blocks_->wait_target[at];
            auto& latest = latest_.try_emplace(key(row, target), NONE).first->second;
            latest = std::max(latest, target);
        }
    }

    bool orders(std::int32_t first, std::int32_t second) const {
        if (blocks_ == nullptr) return false;
        if (blocks_->block[first] == blocks_->block[second]) return true;
        const auto found = latest_.find(key(second, first));
        return found != latest_.end() && found->second >= first;
    }

private:
    std::int64_t key(std::int32_t waits, std::int32_t target) const {
        return blocks_->block[waits] * blocks_->blocks + blocks_->block[target];
    }

    const Blocks* blocks_;
    std::unordered_map<std::int64_t, std::int32_t> latest_;
};

// The reads of each cell since its last write: lists whose nodes are used again.
class Readers {
public:
    explicit Readers(std::int64_t cells) : head_(cells, NONE) {}

    void add(std::int64_t cell, std::int32_t row) {
        auto node = free_;
        if (node == NONE) {
            node = static_cast<std::int32_t>(nodes_.size());
            nodes_.push_back({});
        } else {
            free_ = nodes_[node].next;
        }
        nodes_[node] = {row, head_[cell]};
        head_[cell] = node;
    }

    template <class Use>
    void take_all(std::int64_t cell, Use&& use) {
        while (head_[cell] != NONE) {
            const auto node = head_[cell];
            use(nodes_[node].row);
            head_[cell] = nodes_[node].next;
            nodes_[node].next = free_;
            free_ = node;
        }
    }

private:
    struct Node {
        std::int32_t row, next;
    };

    std::vector<std::int32_t> head_;
    std::vector<Node> nodes_;
    std::int32_t free_ = NONE;
};

}  // namespace

Conflicts find_conflicts(const Accesses& a, const Blocks* blocks) {
    Conflicts found;
    Waited waited(blocks);
    Readers readers(a.cells);
    std::vector<std::int32_t> writer(a.cells, NONE);
    // begin: the first cell of the access of `first`.
    const auto meet = [&](std::int32_t first, const std::int64_t* begin, std::int32_t second,
                          std::int64_t cell, std::int32_t place) {
        if (first == second || waited.orders(first, second)) return;
        found.first.push_back(first);
        found.second.push_back(second);
        found.cell.push_back(cell);
        found.aligned.push_back(cell - begin[first] == place);
    };
    for (std::int64_t k = 0; k < a.instructions; ++k) {
        const auto row = a.order[k], count = a.count[row];
        waited.add(row);
        for (std::int32_t place = 0; a.read[row] >= 0 && place < count; ++place) {
            const auto cell = a.read[row] + place;
            if (writer[cell] != NONE) meet(writer[cell], a.write, row, cell, place);
            readers.add(cell, row);
        }
        for (std::int32_t place = 0; a.write[row] >= 0 && place < count; ++place) {
            const auto cell = a.write[row] + place;
            if (writer[cell] != NONE) meet(writer[cell], a.write, row, cell, place);
            readers.take_all(cell, [&](auto reader) { meet(reader, a.read, row, cell, place); });
            writer[cell] = row;
        }
    }
    return found;
}

}  // namespace sley
