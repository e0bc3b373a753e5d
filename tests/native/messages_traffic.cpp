// Random messages of many sizes and tags, posted in random orders from private memory and from the
// heap, with every way of waiting. Each is checked byte by byte.
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "messages_world.hpp"

namespace sley::messages_test {
namespace {

// The k-th message of a flow; both ends can compute its bytes. All messages of a tag that is
// received from any source have one size.
struct Flow {
    std::int32_t src, dst;
    std::int64_t tag;
    bool any;

    auto key() const { return std::tuple(src, dst, tag); }
    std::uint32_t hash(std::int64_t k) const {
        auto h = static_cast<std::uint64_t>(src * 1009 + dst * 31 + tag * 7 + k * 131 + 1);
        h *= 0x9e3779b97f4a7c15u;
        return static_cast<std::uint32_t>(h >> 32);
    }
    std::int64_t bytes(std::int64_t k, std::int64_t slot) const {
        const std::int64_t sizes[] = {0, 1, 8, slot - 17, slot - 16, slot - 15, slot, 3 * slot,
                                      5 * slot + 3, 8191, 8192, 40000};
        const auto h = any ? static_cast<std::uint32_t>(tag) * 2654435761u : hash(k);
        return sizes[(h >> 8) % (sizeof sizes / sizeof sizes[0])];
    }
    std::byte content(std::int64_t k, std::int64_t i) const {
        return static_cast<std::byte>(hash(k) + static_cast<std::uint32_t>(i) * 151u);
    }
};

// Random traffic, the same for all ranks.
struct Traffic {
    std::vector<Flow> flows;
    std::vector<int> counts;
    bool receives_first;  // then the sends may block
    std::int64_t slot_bytes;

    Traffic(std::mt19937& random, std::int32_t ranks, std::int64_t slot) : slot_bytes(slot) {
        receives_first = random() % 2 == 0;
        const auto number = 1 + random() % 12;
        const auto rank = [&] { return static_cast<std::int32_t>(random()) & 0xffff; };
        std::map<std::tuple<std::int32_t, std::int32_t, std::int64_t>, bool> known;
        for (std::uint32_t i = 0; i < number; ++i) {
            const bool any = random() % 4 == 0;
            Flow flow{rank() % ranks, rank() % ranks, static_cast<std::int64_t>(random() % 3), any};
            flow.tag += any ? 10 : -1;
            if (!known.emplace(flow.key(), true).second) continue;
            flows.push_back(flow);
            counts.push_back(static_cast<int>(1 + random() % 6));
        }
    }
};

struct Posted {
    const Flow* flow;
    std::int64_t k = 0;
    std::vector<std::byte> own;
    std::byte* data = nullptr;
    std::int64_t bytes = 0;
    std::shared_ptr<Ticket> ticket;
    Outcome outcome;
};

void fill(const Posted& post) {
    for (std::int64_t i = 0; i < post.bytes; ++i) post.data[i] = post.flow->content(post.k, i);
}

// A rank's part of the traffic.
class Life {
public:
    Life(World& world, std::int32_t rank, const Traffic& traffic, unsigned seed)
        : world_(world), rank_(rank), traffic_(traffic), random_(seed) {}

    void live() {
        std::vector<std::pair<const Flow*, bool>> posts;  // and whether it is a send
        for (std::size_t f = 0; f < traffic_.flows.size(); ++f) {
            const auto& flow = traffic_.flows[f];
            for (int k = 0; k < traffic_.counts[f]; ++k) {
                if (flow.src == rank_) posts.emplace_back(&flow, true);
                if (flow.dst == rank_) posts.emplace_back(&flow, false);
            }
        }
        std::shuffle(posts.begin(), posts.end(), random_);
        if (traffic_.receives_first) {
            std::stable_partition(posts.begin(), posts.end(), [](auto& p) { return !p.second; });
        }
        for (const auto& [flow, is_send] : posts) is_send ? send(*flow) : receive(*flow);
        finish();
    }

private:
    void memory_for(Posted& post) {
        const bool in_heap = random_() % 2 == 0;
        if (in_heap && heap_used_ + static_cast<std::size_t>(post.bytes) <= kHeapBytes) {
            post.data = world_.heap[static_cast<std::size_t>(rank_)] + heap_used_;
            heap_used_ += static_cast<std::size_t>(post.bytes);
        } else {
            post.own.resize(static_cast<std::size_t>(post.bytes));
            post.data = post.own.data();
        }
    }

    void watch(Posted& post) {
        if (random_() % 4 == 0) {
            ++callbacks_;
            post.ticket->on_done([this] { --callbacks_; });
        }
        if (random_() % 8 == 0) std::this_thread::yield();
    }

    void send(const Flow& flow) {
        auto& post = *posts_.emplace_back(std::make_unique<Posted>());
        post.flow = &flow;
        post.k = sent_[flow.key()]++;
        post.bytes = flow.bytes(post.k, traffic_.slot_bytes);
        memory_for(post);
        fill(post);
        auto& messages = world_.of(rank_);
        if (traffic_.receives_first && random_() % 2 == 0) {
            post.outcome = messages.send_now(post.data, post.bytes, flow.dst, flow.tag, kLong);
            require(post.outcome.status == Status::kDone, "a send in the caller's thread is done");
            for (std::int64_t i = 0; i < post.bytes; ++i) post.data[i] = std::byte{0xee};
            return;
        }
        post.ticket = messages.send(post.data, post.bytes, flow.dst, flow.tag, kLong);
        watch(post);
    }

    void receive(const Flow& flow) {
        auto& post = *posts_.emplace_back(std::make_unique<Posted>());
        receives_.push_back(&post);
        post.flow = &flow;
        if (!flow.any) post.k = received_[flow.key()]++;
        post.bytes = flow.bytes(post.k, traffic_.slot_bytes);
        memory_for(post);
        const auto src = flow.any ? kAnySource : flow.src;
        post.ticket = world_.of(rank_).recv(post.data, post.bytes, src, flow.tag, kLong);
        watch(post);
    }

    void await(Posted& post) {
        switch (random_() % 3) {
            case 0: require(post.ticket->wait(kLong), "an operation ends"); break;
            case 1: require(world_.of(rank_).wait(*post.ticket, kLong), "an operation ends"); break;
            default:
                while (!post.ticket->is_done()) std::this_thread::yield();
        }
        post.outcome = post.ticket->outcome();
        require(post.outcome.status == Status::kDone, "an operation is done");
    }

    void finish() {
        std::vector<Posted*> open;
        for (auto& post : posts_) {
            if (post->ticket) open.push_back(post.get());
        }
        std::shuffle(open.begin(), open.end(), random_);
        for (auto* post : open) await(*post);
        while (callbacks_ > 0) std::this_thread::yield();
        for (auto* post : receives_) check(*post);
    }

    // Receives from any source take messages in the order of posting.
    void check(Posted& post) {
        auto flow = *post.flow;
        if (flow.any) {
            flow.src = post.outcome.rank;
            post.k = received_[flow.key()]++;
        }
        require(post.outcome.rank == flow.src, "a receive knows its source");
        require(post.outcome.bytes == post.bytes, "a receive knows its size");
        for (std::int64_t i = 0; i < post.bytes; ++i) {
            require(post.data[i] == flow.content(post.k, i), "what was sent is what came");
        }
    }

    World& world_;
    std::int32_t rank_;
    const Traffic& traffic_;
    std::mt19937 random_;
    std::atomic<int> callbacks_{0};
    std::size_t heap_used_ = 0;
    std::map<std::tuple<std::int32_t, std::int32_t, std::int64_t>, std::int64_t> sent_, received_;
    std::vector<std::unique_ptr<Posted>> posts_;
    std::vector<Posted*> receives_;
};

}  // namespace

void test_random_traffic(unsigned seed) {
    std::mt19937 random(seed);
    const auto ranks = static_cast<std::int32_t>(1 + random() % 5);
    const std::int64_t slot_sizes[] = {64, 100, 1024, 16384};
    const FifoShape fifo{static_cast<std::int64_t>(1 + random() % 4), slot_sizes[random() % 4],
                         static_cast<std::int64_t>(1 + random() % 8)};
    World world(ranks, fifo, random() % 4 == 0);
    for (int round = 0; round < 4; ++round) {
        const Traffic traffic(random, ranks, fifo.slot_bytes);
        const auto lives = random();
        world.run([&](std::int32_t rank) {
            Life(world, rank, traffic, static_cast<unsigned>(lives) + static_cast<unsigned>(rank))
                .live();
        });
    }
}

}  // namespace sley::messages_test
