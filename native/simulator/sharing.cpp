#include "simulator/sharing.hpp"

#include <algorithm>
#include <limits>
#include <utility>

namespace sley {
namespace {

// Sums of capacities and rates have rounding errors; values that differ by less are equal.
constexpr double kNear = 1e-9;

}  // namespace

Sharing::Sharing(FlowClasses classes, const std::vector<double>& capacity,
                 const std::vector<double>& gamma, std::int32_t flows)
    : classes_(std::move(classes)), flows_(flows) {
    for (std::size_t r = 0; r < capacity.size(); ++r) {
        resources_.emplace_back(capacity[r], gamma[r]);
    }
}

double Sharing::Resource::capacity() const {
    return gamma == 0 ? most : most / (1 + gamma * std::max(0.0, push / most - 1));
}

bool Sharing::Resource::binds() const { return demand > capacity() * (1 + kNear); }

void Sharing::mark_flow(std::int32_t flow) {
    if (std::exchange(flows_[flow].marked, true)) return;
    affected_.push_back(flow);
}

void Sharing::mark_resource(std::int32_t r) {
    if (std::exchange(resources_[r].marked, true)) return;
    full_.push_back(r);
}

void Sharing::start(std::int32_t number, std::int32_t kind) {
    Flow& flow = flows_[number];
    flow.kind = kind;
    flow.rate = 0;
    is_dirty_ = true;
    mark_flow(number);
    flow.place.clear();
    each_use(kind, [&](std::int32_t r, double weight) {
        Resource& resource = resources_[r];
        resource.demand += classes_.cap[kind] * weight;
        resource.push += classes_.push[kind] * weight;
        flow.place.push_back(static_cast<std::int32_t>(resource.flows.size()));
        resource.flows.push_back(number);
        if (resource.binds()) mark_resource(r);
    });
}

void Sharing::stop(std::int32_t number) {
    Flow& flow = flows_[number];
    const std::int32_t kind = flow.kind;
    is_dirty_ = true;
    auto place = flow.place.begin();
    each_use(kind, [&](std::int32_t r, double weight) {
        Resource& resource = resources_[r];
        if (resource.binds()) mark_resource(r);  // the others on it get more now
        resource.demand -= classes_.cap[kind] * weight;
        resource.push -= classes_.push[kind] * weight;
        const std::int32_t hole = *place++, last = resource.flows.back();
        resource.flows.pop_back();
        if (last != number) {
            resource.flows[hole] = last;
            // Finds r among the resources of the flow that moved into the hole.
            Flow& moved = flows_[last];
            const auto first = classes_.resource.begin() + classes_.first[moved.kind];
            moved.place[std::find(first, classes_.resource.end(), r) - first] = hole;
        }
        // Sums of none, without the rounding errors of those that went.
        if (resource.flows.empty()) resource.demand = resource.push = 0;
    });
    flow.kind = -1;
    flow.rate = 0;
}

// Marks all flows and resources that are connected with changed ones through binding resources.
void Sharing::gather() {
    std::size_t flow = 0, resource = 0;
    // Each is looked at once; marks append to the lists behind the places that the loops reached.
    while (flow < affected_.size() || resource < full_.size()) {
        for (; resource < full_.size(); ++resource) {
            for (std::int32_t f : resources_[full_[resource]].flows) mark_flow(f);
        }
        for (; flow < affected_.size(); ++flow) {
            const std::int32_t kind = flows_[affected_[flow]].kind;
            if (kind < 0) continue;
            each_use(kind, [&](std::int32_t r, double) {
                if (resources_[r].binds()) mark_resource(r);
            });
        }
    }
}

void Sharing::freeze(Flow& flow, double rate) {
    flow.frozen = true;
    flow.fresh = rate;
    each_use(flow.kind, [&](std::int32_t r, double weight) {
        resources_[r].left = std::max(0.0, resources_[r].left - rate * weight);
        resources_[r].weight -= weight;
    });
}

// Water-filling: all rates rise together; a flow stops at its cap or when a resource is full.
void Sharing::fill() {
    std::vector<std::int32_t> open;
    for (std::int32_t r : full_) {
        resources_[r].left = resources_[r].capacity();
        resources_[r].weight = 0;
    }
    for (std::int32_t f : affected_) {
        Flow& flow = flows_[f];
        flow.frozen = flow.kind < 0;
        flow.fresh = 0;
        if (flow.frozen) continue;
        open.push_back(f);
        each_use(flow.kind, [&](std::int32_t r, double weight) { resources_[r].weight += weight; });
    }
    const auto cap = [this](std::int32_t f) { return classes_.cap[flows_[f].kind]; };
    std::stable_sort(open.begin(), open.end(),
                     [&](std::int32_t a, std::int32_t b) { return cap(a) < cap(b); });
    std::vector<std::int32_t> full = full_;
    std::size_t next = 0;
    // Ends: each round freezes a flow at its cap, or those on the resource with the least share.
    while (next < open.size()) {
        double share = std::numeric_limits<double>::infinity();
        for (std::int32_t r : full) {
            const Resource& resource = resources_[r];
            if (resource.weight > kNear) share = std::min(share, resource.left / resource.weight);
        }
        bool capped = false;
        for (; next < open.size(); ++next) {
            Flow& flow = flows_[open[next]];
            if (flow.frozen) continue;
            if (cap(open[next]) > share * (1 + kNear)) break;
            freeze(flow, cap(open[next]));
            capped = true;
        }
        if (capped || next == open.size()) continue;
        std::vector<std::int32_t> rest;
        for (std::int32_t r : full) {
            const Resource& resource = resources_[r];
            if (resource.weight <= kNear) continue;
            if (resource.left / resource.weight > share * (1 + kNear)) {
                rest.push_back(r);
                continue;
            }
            for (std::int32_t f : resource.flows) {
                if (!flows_[f].frozen) freeze(flows_[f], share);
            }
        }
        full.swap(rest);
    }
    for (std::int32_t f : affected_) {
        if (flows_[f].kind < 0) continue;
        each_use(flows_[f].kind, [&](std::int32_t r, double) { resources_[r].weight = 0; });
    }
}

}  // namespace sley
