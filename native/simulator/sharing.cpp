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
    : classes_(std::move(classes)), kinds_(classes_.cap.size()), flows_(flows) {
    for (std::size_t r = 0; r < capacity.size(); ++r) {
        resources_.emplace_back(capacity[r], gamma[r]);
    }
}

double Sharing::Resource::capacity() const {
    return gamma == 0 ? most : most / (1 + gamma * std::max(0.0, push / most - 1));
}

bool Sharing::Resource::binds() const { return demand > capacity() * (1 + kNear); }

void Sharing::mark_class(std::int32_t kind) {
    if (std::exchange(kinds_[kind].marked, true)) return;
    affected_.push_back(kind);
}

void Sharing::mark_resource(std::int32_t r) {
    if (std::exchange(resources_[r].marked, true)) return;
    full_.push_back(r);
}

void Sharing::start(std::int32_t number, std::int32_t kind) {
    Class& one = kinds_[kind];
    flows_[number] = {kind, static_cast<std::int32_t>(one.flows.size()), 0};
    const bool first = one.flows.empty();
    one.flows.push_back(number);
    one.joined = is_dirty_ = true;
    mark_class(kind);
    if (first) one.place.clear();
    each_use(kind, [&](std::int32_t r, double weight) {
        Resource& resource = resources_[r];
        resource.demand += classes_.cap[kind] * weight;
        resource.push += classes_.push[kind] * weight;
        if (first) {
            one.place.push_back(static_cast<std::int32_t>(resource.kinds.size()));
            resource.kinds.push_back(kind);
        }
        if ((resource.bound = resource.binds())) mark_resource(r);
    });
}

void Sharing::stop(std::int32_t number) {
    const std::int32_t kind = flows_[number].kind;
    Class& one = kinds_[kind];
    const std::int32_t hole = flows_[number].place;
    one.flows[hole] = one.flows.back();
    flows_[one.flows[hole]].place = hole;
    one.flows.pop_back();
    flows_[number] = {};
    is_dirty_ = true;
    auto place = one.place.begin();
    each_use(kind, [&](std::int32_t r, double weight) {
        Resource& resource = resources_[r];
        if (resource.bound) mark_resource(r);  // the others on it get more now
        resource.demand -= classes_.cap[kind] * weight;
        resource.push -= classes_.push[kind] * weight;
        resource.bound = resource.binds();
        if (!one.flows.empty()) return;
        const std::int32_t hole = *place++, last = resource.kinds.back();
        resource.kinds.pop_back();
        if (last != kind) {
            resource.kinds[hole] = last;
            // Finds r among the resources of the class that moved into the hole.
            const auto first = classes_.resource.begin() + classes_.first[last];
            kinds_[last].place[std::find(first, classes_.resource.end(), r) - first] = hole;
        }
        // Sums of none, without the rounding errors of those that went.
        if (resource.kinds.empty()) resource.demand = resource.push = resource.bound = 0;
    });
}

// Marks all classes and resources that are connected with changed ones through binding resources.
void Sharing::gather() {
    std::size_t kind = 0, resource = 0;
    // Each is looked at once; marks append to the lists behind the places that the loops reached.
    while (kind < affected_.size() || resource < full_.size()) {
        for (; resource < full_.size(); ++resource) {
            for (std::int32_t k : resources_[full_[resource]].kinds) mark_class(k);
        }
        for (; kind < affected_.size(); ++kind) {
            if (kinds_[affected_[kind]].flows.empty()) continue;
            each_use(affected_[kind], [&](std::int32_t r, double) {
                if (resources_[r].bound) mark_resource(r);
            });
        }
    }
}

void Sharing::freeze(std::int32_t kind, double rate) {
    Class& one = kinds_[kind];
    one.frozen = true;
    one.fresh = rate;
    const auto flows = static_cast<double>(one.flows.size());
    each_use(kind, [&](std::int32_t r, double weight) {
        resources_[r].left = std::max(0.0, resources_[r].left - rate * weight * flows);
        resources_[r].weight -= weight * flows;
    });
}

// Water-filling: all rates rise together; a flow stops at its cap or when a resource is full.
void Sharing::fill() {
    open_.clear();
    for (std::int32_t r : full_) {
        resources_[r].left = resources_[r].capacity();
        resources_[r].weight = 0;
    }
    for (std::int32_t kind : affected_) {
        Class& one = kinds_[kind];
        one.frozen = one.flows.empty();
        one.fresh = 0;
        if (one.frozen) continue;
        open_.push_back(kind);
        const auto flows = static_cast<double>(one.flows.size());
        each_use(kind, [&](std::int32_t r, double w) { resources_[r].weight += w * flows; });
    }
    const auto& cap = classes_.cap;
    const auto slower = [&](std::int32_t a, std::int32_t b) { return cap[a] < cap[b]; };
    // Most of the time all have the same cap, and a stable sort takes memory.
    if (!std::is_sorted(open_.begin(), open_.end(), slower)) {
        std::stable_sort(open_.begin(), open_.end(), slower);
    }
    filling_ = full_;
    std::size_t next = 0;
    // Ends: each round freezes a class at its cap, or those on the resource with the least share.
    while (next < open_.size()) {
        double share = std::numeric_limits<double>::infinity();
        for (std::int32_t r : filling_) {
            const Resource& resource = resources_[r];
            if (resource.weight > kNear) share = std::min(share, resource.left / resource.weight);
        }
        bool capped = false;
        for (; next < open_.size(); ++next) {
            const std::int32_t kind = open_[next];
            if (kinds_[kind].frozen) continue;
            if (cap[kind] > share * (1 + kNear)) break;
            freeze(kind, cap[kind]);
            capped = true;
        }
        if (capped || next == open_.size()) continue;
        std::size_t rest = 0;
        for (std::int32_t r : filling_) {
            const Resource& resource = resources_[r];
            if (resource.weight <= kNear) continue;
            if (resource.left / resource.weight > share * (1 + kNear)) {
                filling_[rest++] = r;
                continue;
            }
            for (std::int32_t kind : resource.kinds) {
                if (!kinds_[kind].frozen) freeze(kind, share);
            }
        }
        filling_.resize(rest);
    }
    for (std::int32_t kind : affected_) {
        each_use(kind, [&](std::int32_t r, double) { resources_[r].weight = 0; });
    }
}

}  // namespace sley
