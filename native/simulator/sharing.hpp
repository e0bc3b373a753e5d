// Max-min fair sharing: flows over weighted resources, each flow with a rate of its own that it
// never exceeds. Only resources that could be exceeded couple flows, so a change touches the flows
// that are connected through such resources and no others.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

namespace sley {

// What a flow crosses. cap: its own greatest rate. push: what stands behind it and could fill a
// link, which contention is about. From first to last: rows of `resource` and `weight`, in which no
// resource comes twice.
struct FlowClasses {
    std::vector<double> cap;
    std::vector<double> push;
    std::vector<std::int64_t> first;  // one more than there are classes
    std::vector<std::int32_t> resource;
    std::vector<double> weight;
};

class Sharing {
public:
    // gamma: for each resource, by how much its capacity falls for each time that it could be
    // filled again.
    Sharing(FlowClasses classes, std::vector<double> capacity, std::vector<double> gamma,
            std::int32_t flows);

    // A flow of class `kind` begins; `rates` gives it a rate.
    void start(std::int32_t flow, std::int32_t kind);
    void stop(std::int32_t flow);

    // New rates after starts and stops: calls changed(flow, rate) for each flow whose rate changed.
    template <class Changed>
    void rates(Changed&& changed) {
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
        dirty_ = false;
    }

    bool dirty() const { return dirty_; }
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
    std::vector<double> demand_, push_;                // of each resource, by its flows
    std::vector<std::vector<std::int32_t>> on_;        // the flows on each resource
    std::vector<std::int32_t> kind_;                   // of each flow, -1 while it has none
    std::vector<std::vector<std::int32_t>> place_;     // of each flow in `on_`, by its resources
    std::vector<double> rate_, fresh_;
    std::vector<char> marked_flow_, marked_resource_, frozen_;
    std::vector<std::int32_t> flows_, resources_;      // what a change touches
    std::vector<double> left_, weight_;                // of each resource, while rates are filled
    bool dirty_ = false;
};

}  // namespace sley
