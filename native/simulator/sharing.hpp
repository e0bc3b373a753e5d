// Max-min fair sharing of weighted resources by flows, each with a greatest rate of its own. Only
// resources whose capacity could be exceeded couple flows, so a change affects only the flows that
// are connected through such resources. All flows of a class have the same rate, so a change costs
// as much as there are classes, of which large plans have far fewer.
#pragma once

#include <cmath>
#include <cstdint>
#include <utility>
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
        for (std::int32_t kind : affected_) {
            Class& one = kinds_[kind];
            one.marked = false;
            const bool same = std::abs(one.fresh - one.rate) <= 1e-12 * one.rate;
            if (same && !std::exchange(one.joined, false)) continue;
            one.rate = one.fresh;
            for (std::int32_t number : one.flows) {
                Flow& flow = flows_[number];
                if (std::abs(one.rate - flow.rate) <= 1e-12 * flow.rate) continue;
                changed(number, one.rate);
                flow.rate = one.rate;
            }
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
        std::vector<std::int32_t> kinds;  // of its flows
        bool bound = false, marked = false;  // bound: whether it binds

        double capacity() const;
        bool binds() const;
    };

    struct Class {
        std::vector<std::int32_t> flows, place;  // place: among the classes of each resource
        double rate = 0, fresh = 0;
        bool joined = false;  // whether flows without a rate are among them
        bool marked = false, frozen = false;
    };

    struct Flow {
        std::int32_t kind = -1;  // -1 while it is stopped
        std::int32_t place = 0;  // among the flows of its class
        double rate = 0;
    };

    void mark_class(std::int32_t kind);
    void mark_resource(std::int32_t resource);
    void gather();
    void fill();
    void freeze(std::int32_t kind, double rate);

    // Calls use(resource, weight) for the resources of a class.
    template <class Use>
    void each_use(std::int32_t kind, Use&& use) {
        for (std::int64_t k = classes_.first[kind]; k < classes_.first[kind + 1]; ++k) {
            use(classes_.resource[k], classes_.weight[k]);
        }
    }

    FlowClasses classes_;
    std::vector<Resource> resources_;
    std::vector<Class> kinds_;
    std::vector<Flow> flows_;
    std::vector<std::int32_t> affected_, full_;  // classes and resources, by changes
    std::vector<std::int32_t> open_, filling_;   // of these, while rates are filled
    bool is_dirty_ = false;
};

}  // namespace sley
