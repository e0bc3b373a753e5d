#include "simulator/sharing.hpp"

#include <algorithm>
#include <limits>

namespace sley {
namespace {

// Sums of capacities and rates have rounding errors; values that differ by less are equal.
constexpr double kNear = 1e-9;

}  // namespace

Sharing::Sharing(FlowClasses classes, std::vector<double> capacity, std::vector<double> gamma,
                 std::int32_t flows)
    : classes_(std::move(classes)),
      capacity_(std::move(capacity)),
      gamma_(std::move(gamma)),
      demand_(capacity_.size()),
      push_(capacity_.size()),
      on_(capacity_.size()),
      kind_(flows, -1),
      place_(flows),
      rate_(flows),
      fresh_(flows),
      marked_flow_(flows),
      marked_resource_(capacity_.size()),
      frozen_(flows),
      left_(capacity_.size()),
      weight_(capacity_.size()) {}

double Sharing::capacity(std::int32_t r) const {
    if (gamma_[r] == 0) return capacity_[r];
    return capacity_[r] / (1 + gamma_[r] * std::max(0.0, push_[r] / capacity_[r] - 1));
}

bool Sharing::binds(std::int32_t r) const { return demand_[r] > capacity(r) * (1 + kNear); }

void Sharing::mark_flow(std::int32_t flow) {
    if (marked_flow_[flow]) return;
    marked_flow_[flow] = 1;
    flows_.push_back(flow);
}

void Sharing::mark_resource(std::int32_t r) {
    if (marked_resource_[r]) return;
    marked_resource_[r] = 1;
    resources_.push_back(r);
}

void Sharing::start(std::int32_t flow, std::int32_t kind) {
    kind_[flow] = kind;
    rate_[flow] = 0;
    is_dirty_ = true;
    mark_flow(flow);
    auto& place = place_[flow];
    place.clear();
    for (std::int64_t k = classes_.first[kind]; k < classes_.first[kind + 1]; ++k) {
        const std::int32_t r = classes_.resource[k];
        demand_[r] += classes_.cap[kind] * classes_.weight[k];
        push_[r] += classes_.push[kind] * classes_.weight[k];
        place.push_back(static_cast<std::int32_t>(on_[r].size()));
        on_[r].push_back(flow);
        if (binds(r)) mark_resource(r);
    }
}

void Sharing::stop(std::int32_t flow) {
    const std::int32_t kind = kind_[flow];
    is_dirty_ = true;
    for (std::int64_t k = classes_.first[kind], n = 0; k < classes_.first[kind + 1]; ++k, ++n) {
        const std::int32_t r = classes_.resource[k];
        if (binds(r)) mark_resource(r);  // the others on it get more now
        demand_[r] -= classes_.cap[kind] * classes_.weight[k];
        push_[r] -= classes_.push[kind] * classes_.weight[k];
        const std::int32_t hole = place_[flow][n], last = on_[r].back();
        on_[r].pop_back();
        if (last != flow) {
            on_[r][hole] = last;
            // Finds r among the resources of the flow that moved into the hole.
            std::int64_t other = classes_.first[kind_[last]], m = 0;
            while (classes_.resource[other + m] != r) ++m;
            place_[last][m] = hole;
        }
        if (on_[r].empty()) demand_[r] = push_[r] = 0;
    }
    kind_[flow] = -1;
    rate_[flow] = 0;
}

// Marks all flows and resources that are connected with changed ones through binding resources.
void Sharing::gather() {
    std::size_t flow = 0, resource = 0;
    while (flow < flows_.size() || resource < resources_.size()) {
        for (; resource < resources_.size(); ++resource) {
            for (std::int32_t f : on_[resources_[resource]]) mark_flow(f);
        }
        for (; flow < flows_.size(); ++flow) {
            const std::int32_t kind = kind_[flows_[flow]];
            if (kind < 0) continue;
            for (std::int64_t k = classes_.first[kind]; k < classes_.first[kind + 1]; ++k) {
                if (binds(classes_.resource[k])) mark_resource(classes_.resource[k]);
            }
        }
    }
}

void Sharing::freeze(std::int32_t flow, double rate) {
    frozen_[flow] = 1;
    fresh_[flow] = rate;
    const std::int32_t kind = kind_[flow];
    for (std::int64_t k = classes_.first[kind]; k < classes_.first[kind + 1]; ++k) {
        const std::int32_t r = classes_.resource[k];
        left_[r] = std::max(0.0, left_[r] - rate * classes_.weight[k]);
        weight_[r] -= classes_.weight[k];
    }
}

// Water-filling: all rates rise together; a flow stops at its cap or when a resource is full.
void Sharing::fill() {
    std::vector<std::int32_t> open;
    for (std::int32_t r : resources_) {
        left_[r] = capacity(r);
        weight_[r] = 0;
    }
    for (std::int32_t f : flows_) {
        frozen_[f] = kind_[f] < 0;
        fresh_[f] = 0;
        if (frozen_[f]) continue;
        open.push_back(f);
        for (std::int64_t k = classes_.first[kind_[f]]; k < classes_.first[kind_[f] + 1]; ++k) {
            weight_[classes_.resource[k]] += classes_.weight[k];
        }
    }
    std::stable_sort(open.begin(), open.end(), [this](std::int32_t a, std::int32_t b) {
        return classes_.cap[kind_[a]] < classes_.cap[kind_[b]];
    });
    std::vector<std::int32_t> full = resources_;
    std::size_t next = 0;
    while (next < open.size()) {
        double share = std::numeric_limits<double>::infinity();
        for (std::int32_t r : full) {
            if (weight_[r] > kNear) share = std::min(share, left_[r] / weight_[r]);
        }
        bool capped = false;
        while (next < open.size() &&
               (frozen_[open[next]] || classes_.cap[kind_[open[next]]] <= share * (1 + kNear))) {
            if (!frozen_[open[next]]) {
                freeze(open[next], classes_.cap[kind_[open[next]]]);
                capped = true;
            }
            ++next;
        }
        if (capped || next == open.size()) continue;
        std::vector<std::int32_t> rest;
        for (std::int32_t r : full) {
            if (weight_[r] <= kNear) continue;
            if (left_[r] / weight_[r] > share * (1 + kNear)) {
                rest.push_back(r);
                continue;
            }
            for (std::int32_t f : on_[r]) {
                if (!frozen_[f]) freeze(f, share);
            }
        }
        full.swap(rest);
    }
    for (std::int32_t f : flows_) {
        for (std::int64_t k = kind_[f] < 0 ? 0 : classes_.first[kind_[f]],
                          end = kind_[f] < 0 ? 0 : classes_.first[kind_[f] + 1];
             k < end; ++k) {
            weight_[classes_.resource[k]] = 0;
        }
    }
}

}  // namespace sley
