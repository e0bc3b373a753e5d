// Max-min fair sharing of weighted resources by flows, each with a greatest rate of its own. Only
// resources whose capacity could be exceeded couple flows, so a change affects only the flows that
// are connected through such resources.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

namespace sley {

// The classes of flows. cap: a flow's greatest rate. push: the rate that its source could offer a
// link, by which contention is computed. first: the first row of each class in `resource` and
// `weight`, the resources that it crosses, each once.
struct FlowClasses {
    std::vector<double> cap;
    std::vector<double> push;
    std::vector<std::int64_t> first;  // one more than there are classes
    std::vector<std::int32_t> resource;
    std::vector<double> weight;
};

class Sharing {
public:
    // gamma: of each resource, how much its capacity falls: to 1 / (1 + gamma * x) of it when the
    // flows offer (1 + x) times the capacity.
    Sharing(FlowClasses classes, std::vector<double> capacity, std::vector<double> gamma,
            std::int32_t flows);

    // Starts a flow of class `kind`; `update_rates` gives it a rate.
    void start(std::int32_t flow, std::int32_t kind);
    void stop(std::int32_t flow);

    // Computes rates after starts and stops; calls changed(flow, rate) for each one that changed.
    template <class Changed>
    void update_rates(Changed&& changed) {
        gather();
        fill();
        for (std::int32_t flow : flows_) {
            const double before = rate_[flow], now = fresh_[flow];
            if (std::abs(now - before) > 1e-12 * before) {
                changed(flow, now);
                rate_[flow] = now;
            }
            marked_flow_[flow] = 0;
        }
        for (std::int32_t resource : resources_) marked_resource_[resource] = 0;
        flows_.clear();
        resources_.clear();
        is_dirty_ = false;
    }

    bool is_dirty() const { return is_dirty_; }
    double rate(std::int32_t flow) const { return rate_[flow]; }
    std::int32_t kind(std::int32_t flow) const { return kind_[flow]; }
    const FlowClasses& classes() const { return classes_; }

private:
    double capacity(std::int32_t resource) const;
    bool binds(std::int32_t resource) const;
    void mark_flow(std::int32_t flow);
    void mark_resource(std::int32_t resource);
    void gather();
    void fill();
    void freeze(std::int32_t flow, double rate);

    FlowClasses classes_;
    std::vector<double> capacity_, gamma_;
    std::vector<double> demand_, push_;                // the sums of each resource's flows
    std::vector<std::vector<std::int32_t>> on_;        // the flows on each resource
    std::vector<std::int32_t> kind_;                   // of each flow, -1 while it is stopped
    std::vector<std::vector<std::int32_t>> place_;     // of each flow in `on_` of its resources
    std::vector<double> rate_, fresh_;
    std::vector<char> marked_flow_, marked_resource_, frozen_;
    std::vector<std::int32_t> flows_, resources_;      // affected by changes
    std::vector<double> left_, weight_;                // of each resource, while rates are filled
    bool is_dirty_ = false;
};

}  // namespace sley
