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
    Sharing(FlowClasses classes, const std::vector<double>& capacity,
            const std::vector<double>& gamma, std::int32_t flows);

    // Starts a flow of class `kind`; `update_rates` gives it a rate.
    void start(std::int32_t flow, std::int32_t kind);
    void stop(std::int32_t flow);

    // Computes rates after starts and stops; calls changed(flow, rate) for each one that changed.
    template <class Changed>
    void update_rates(Changed&& changed) {
        gather();
        fill();
        for (std::int32_t number : affected_) {
            Flow& flow = flows_[number];
            if (std::abs(flow.fresh - flow.rate) > 1e-12 * flow.rate) {
                changed(number, flow.fresh);
                flow.rate = flow.fresh;
            }
            flow.marked = false;
        }
        for (std::int32_t r : full_) resources_[r].marked = false;
        affected_.clear();
        full_.clear();
        is_dirty_ = false;
    }

    bool is_dirty() const { return is_dirty_; }
    double rate(std::int32_t flow) const { return flows_[flow].rate; }
    std::int32_t kind(std::int32_t flow) const { return flows_[flow].kind; }
    const FlowClasses& classes() const { return classes_; }

private:
    // A row each, not a column each: a start or stop reads and writes nearly all of a resource.
    struct Resource {
        Resource(double most, double gamma) : most(most), gamma(gamma) {}

        double most, gamma;
        double demand = 0, push = 0;      // the sums of its flows
        double left = 0, weight = 0;      // while rates are filled
        std::vector<std::int32_t> flows;  // those on it
        bool marked = false;

        double capacity() const;
        bool binds() const;
    };

    struct Flow {
        std::int32_t kind = -1;           // -1 while it is stopped
        bool marked = false, frozen = false;
        double rate = 0, fresh = 0;
        std::vector<std::int32_t> place;  // among the flows of each of its resources
    };

    void mark_flow(std::int32_t flow);
    void mark_resource(std::int32_t resource);
    void gather();
    void fill();
    void freeze(Flow& flow, double rate);

    // Calls use(resource, weight) for the resources of a class.
    template <class Use>
    void each_use(std::int32_t kind, Use&& use) {
        for (std::int64_t k = classes_.first[kind]; k < classes_.first[kind + 1]; ++k) {
            use(classes_.resource[k], classes_.weight[k]);
        }
    }

    FlowClasses classes_;
    std::vector<Resource> resources_;
    std::vector<Flow> flows_;
    std::vector<std::int32_t> affected_, full_;  // flows and resources, by changes
    bool is_dirty_ = false;
};

}  // namespace sley
