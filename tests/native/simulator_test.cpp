// The simulator's event loop without Python, for the sanitizers.
//
// Runs rings in both loop orders, with parts, few slots, uneven tiles, one or two hops, shared
// links and contention; a plan of waits; a plan that hangs; and max-min sharing of random flows
// against filling from scratch. Exits with 1 at the first wrong number.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <random>
#include <utility>
#include <vector>

#include "simulator/simulator.hpp"

namespace sley::simulator_test {

void expect(bool right, const char* what) {
    if (right) return;
    std::fprintf(stderr, "wrong: %s\n", what);
    std::exit(1);
}

bool near(double a, double b) { return std::abs(a - b) <= 1e-6 * (1 + std::abs(b)); }

struct Row {
    std::int32_t send = kNone, receive = kNone;
    std::vector<std::int32_t> waits = {};
};

SimulatorPlan plan_of(const std::vector<std::vector<Row>>& blocks, bool instruction_major) {
    SimulatorPlan plan;
    plan.block_offset = {0};
    plan.wait_offset = plan.send_offset = plan.receive_offset = {0};
    for (const auto& block : blocks) {
        for (const auto& row : block) {
            if (row.send != kNone) plan.send_target.push_back(row.send);
            if (row.receive != kNone) plan.receive_target.push_back(row.receive);
            plan.send_offset.push_back(static_cast<std::int64_t>(plan.send_target.size()));
            plan.receive_offset.push_back(static_cast<std::int64_t>(plan.receive_target.size()));
            plan.messages.push_back(1);
            plan.chunks.push_back(1);
            plan.begin_us.push_back(row.waits.empty() ? 0 : 1);
            plan.kind.push_back(row.send == kNone ? 0 : 1 + row.send);
            plan.wait_target.insert(plan.wait_target.end(), row.waits.begin(), row.waits.end());
            plan.wait_offset.push_back(static_cast<std::int64_t>(plan.wait_target.size()));
        }
        plan.block_offset.push_back(static_cast<std::int64_t>(plan.kind.size()));
    }
    plan.call.assign(blocks.size(), 0);
    plan.instruction_major.assign(blocks.size(), instruction_major);
    return plan;
}

// Class 0 works within a GPU; class 1 + c sends on connection c, over link c. The classes of
// second hops follow, then those of their posts.
FlowClasses classes_of(std::int32_t connections, bool remote) {
    FlowClasses classes;
    classes.first = {0, 0};
    classes.cap = classes.push = {10};
    const auto add = [&](double cap, std::vector<std::int32_t> resources) {
        classes.cap.push_back(cap);
        classes.push.push_back(10);
        for (const auto r : resources) {
            classes.resource.push_back(r);
            classes.weight.push_back(1);
        }
        classes.first.push_back(static_cast<std::int64_t>(classes.resource.size()));
    };
    for (std::int32_t c = 0; c < connections; ++c) {
        add(10, remote ? std::vector<std::int32_t>{} : std::vector<std::int32_t>{c});
    }
    for (std::int32_t c = 0; remote && c < connections; ++c) add(1e3, {c});
    for (std::int32_t c = 0; remote && c < connections; ++c) add(1, {});
    return classes;
}

Simulator simulator_of(SimulatorPlan plan, std::int32_t connections, bool remote,
                       SimulatorSettings settings, double capacity, double gamma) {
    SimulatorConnections ends;
    for (std::int32_t c = 0; c < connections; ++c) {
        ends.fence_us.push_back(remote ? 0 : 1);
        ends.latency_us.push_back(2);
        ends.credit_us.push_back(2);
        ends.wire.push_back(remote ? 1 + connections + c : kNone);
        ends.before_us.push_back(remote ? 1 : 0);
        ends.post_us.push_back(remote ? 0.5 : 0);
        ends.post.push_back(remote ? 1 + 2 * connections + c : kNone);
    }
    settings.links = connections;
    const auto links = static_cast<std::size_t>(connections);
    return Simulator(std::move(plan), std::move(ends), classes_of(connections, remote),
                     std::vector<double>(links, capacity), std::vector<double>(links, gamma),
                     settings);
}

// Every rank sends, then forwards what it receives, `hops` times in all.
void check_rings() {
    constexpr std::int32_t ranks = 5, hops = 4;
    for (int variant = 0; variant < 64; ++variant) {
        const bool instruction_major = variant & 1, remote = variant & 2;
        std::vector<std::vector<Row>> blocks;
        for (std::int32_t r = 0; r < ranks; ++r) {
            const std::int32_t before = (r + ranks - 1) % ranks;
            std::vector<Row> block{{r}};
            for (std::int32_t k = 1; k < hops; ++k) block.push_back({r, before});
            block.push_back({kNone, before});
            blocks.push_back(block);
        }
        SimulatorSettings settings;
        settings.slices = variant & 4 ? 3 : 1;
        settings.least_slice_bytes = 16;
        settings.overhead_bytes = variant & 8 ? 5 : 0;
        const std::int64_t tiles = variant & 16 ? 7 : 1;
        settings.cuts = {{tiles, 100, 40}};
        // In instruction order all tiles of a send queue up before its receives begin; a slot more
        // lets the fused ones pass.
        settings.slots = 1 + (instruction_major ? tiles : 1);
        settings.launch_us = 3;
        auto simulator = simulator_of(plan_of(blocks, instruction_major), ranks, remote, settings,
                                      8, variant & 32 ? 0.5 : 0);
        const auto result = simulator.run();
        expect(result.stuck.empty(), "a ring hangs");
        const double bytes = hops * (100.0 * static_cast<double>(tiles - 1) + 40);
        for (std::int32_t link = 0; link < ranks; ++link) {
            double sum = 0;
            for (std::int64_t k = 0; k < kBins; ++k) {
                sum += result.load_bytes[static_cast<std::size_t>(k * ranks + link)];
            }
            expect(near(sum, result.moved_bytes[static_cast<std::size_t>(link)]), "loads");
            expect(sum >= bytes * (1 - 1e-9), "too little moved");
            expect(settings.overhead_bytes > 0 || near(sum, bytes), "too much moved");
        }
        for (std::size_t b = 0; b < ranks; ++b) {
            expect(near(result.end_us[b], result.end_us[0]), "ranks that are alike differ");
            const double spent = result.moving_us[b] + result.waiting_us[b] +
                                 result.message_us[b] + result.slot_us[b] +
                                 result.overhead_us[b];
            expect(near(spent, result.end_us[b] - settings.launch_us), "a block's times");
        }
    }
}

// Two blocks that wait for one, and a message; then a wait that never ends.
void check_waits_and_hangs() {
    SimulatorSettings settings;
    settings.cuts = {{1, 100, 100}};
    const std::vector<std::vector<Row>> blocks{{{}}, {{0, kNone, {0}}}, {{kNone, kNone, {0}}},
                                               {{kNone, 0}}};
    auto simulator = simulator_of(plan_of(blocks, false), 1, false, settings, 5, 0);
    const auto result = simulator.run();
    // The local operation takes 10; the wait 1; the message 20 over 5 bytes a us, its fence 1,
    // its latency 2; receiving it 10.
    const std::vector<double> ends{10, 10 + 1 + 20 + 1, 10 + 1 + 10, 10 + 1 + 20 + 1 + 2 + 10};
    for (std::size_t b = 0; b < ends.size(); ++b) expect(near(result.end_us[b], ends[b]), "ends");
    auto circle = simulator_of(plan_of({{{kNone, kNone, {1}}}, {{kNone, kNone, {0}}}}, false), 0,
                               false, settings, 5, 0);
    expect(circle.run().stuck == std::vector<std::int32_t>({0, 1}), "a cycle of waits");
    auto lonely = simulator_of(plan_of({{{kNone, 0}}, {}}, true), 1, true, settings, 5, 0);
    expect(lonely.run().stuck == std::vector<std::int32_t>({0}), "a message without a send");
}

// The rates of all flows rise together until each reaches its cap or a full resource.
std::vector<double> filled(const FlowClasses& classes, const std::vector<double>& capacity,
                           const std::vector<std::int32_t>& kinds) {
    std::vector<double> rate(kinds.size()), left = capacity;
    std::vector<char> open(kinds.size());
    for (std::size_t f = 0; f < kinds.size(); ++f) open[f] = kinds[f] >= 0;
    const auto each = [&](std::size_t f, auto&& use) {
        const auto kind = static_cast<std::size_t>(kinds[f]);
        for (auto k = static_cast<std::size_t>(classes.first[kind]);
             k < static_cast<std::size_t>(classes.first[kind + 1]); ++k) {
            use(static_cast<std::size_t>(classes.resource[k]), classes.weight[k]);
        }
    };
    while (true) {
        std::vector<double> weight(capacity.size());
        double step = std::numeric_limits<double>::infinity();
        for (std::size_t f = 0; f < kinds.size(); ++f) {
            if (!open[f]) continue;
            step = std::min(step, classes.cap[static_cast<std::size_t>(kinds[f])] - rate[f]);
            each(f, [&](std::size_t r, double w) { weight[r] += w; });
        }
        if (std::isinf(step)) return rate;
        for (std::size_t r = 0; r < weight.size(); ++r) {
            if (weight[r] > 0) step = std::min(step, left[r] / weight[r]);
        }
        for (std::size_t r = 0; r < weight.size(); ++r) left[r] -= step * weight[r];
        for (std::size_t f = 0; f < kinds.size(); ++f) {
            if (!open[f]) continue;
            rate[f] += step;
            const double cap = classes.cap[static_cast<std::size_t>(kinds[f])];
            if (rate[f] >= cap * (1 - 1e-12)) open[f] = 0;
            each(f, [&](std::size_t r, double) {
                if (left[r] <= 1e-9 * capacity[r]) open[f] = 0;
            });
        }
    }
}

void check_sharing() {
    std::mt19937 random(4);
    const auto below = [&](std::uint32_t n) { return static_cast<std::int32_t>(random() % n); };
    for (int round = 0; round < 60; ++round) {
        constexpr std::int32_t resources = 6, kinds = 8, flows = 12;
        FlowClasses classes;
        classes.first = {0};
        for (std::int32_t kind = 0; kind < kinds; ++kind) {
            classes.cap.push_back(1 + below(40) / 3.0);
            classes.push.push_back(classes.cap.back());
            for (std::int32_t r = 0; r < resources; ++r) {
                if (below(3)) continue;
                classes.resource.push_back(r);
                classes.weight.push_back(1 + below(3));
            }
            classes.first.push_back(static_cast<std::int64_t>(classes.resource.size()));
        }
        std::vector<double> capacity;
        for (std::int32_t r = 0; r < resources; ++r) capacity.push_back(1 + below(100) / 3.0);
        Sharing sharing(classes, capacity, std::vector<double>(resources), flows);
        std::vector<std::int32_t> kind(flows, -1);
        std::vector<double> told(flows);  // by update_rates
        for (int change = 0; change < 200; ++change) {
            for (std::int32_t some = below(3); some >= 0; --some) {
                const std::int32_t flow = below(flows);
                auto& mine = kind[static_cast<std::size_t>(flow)];
                if (mine >= 0) sharing.stop(flow);
                mine = mine >= 0 && below(2) ? -1 : below(kinds);
                if (mine >= 0) sharing.start(flow, mine);
                told[static_cast<std::size_t>(flow)] = 0;
            }
            sharing.update_rates([&](std::int32_t flow, double rate) {
                told[static_cast<std::size_t>(flow)] = rate;
            });
            const auto right = filled(classes, capacity, kind);
            for (std::int32_t f = 0; f < flows; ++f) {
                const auto at = static_cast<std::size_t>(f);
                expect(near(sharing.rate(f), right[at]), "a share");
                expect(near(told[at], right[at]), "a change is told");
            }
        }
    }
}

int test(int, char**) {
    check_rings();
    check_waits_and_hangs();
    check_sharing();
    return 0;
}

}  // namespace sley::simulator_test
