#include "devices/link_tables.hpp"

#include <algorithm>
#include <functional>

#include "devices/table_bytes.hpp"
#include "engine/reduce.hpp"

namespace sley {
namespace {

constexpr std::string_view kLinkHead = "sley link tables 3\n";  // the number grows with each other layout

class Writer {
public:
    template <class Number>
    void operator()(Number value) {
        const auto number = static_cast<std::int64_t>(value);
        put(bytes, &number, 1);
    }
    void operator()(const std::string& text) {
        (*this)(text.size());
        bytes += text;
    }
    void operator()(const std::shared_ptr<const PlanTables>& plan) { (*this)(plan->to_bytes()); }

    template <class Rows, class Each>
    void list(const Rows& rows, const Each& each) {
        (*this)(rows.size());
        for (const auto& row : rows) each(row);
    }

    std::string bytes;
};

class Reader {
public:
    explicit Reader(std::string_view bytes) : bytes(bytes) {}

    template <class Number>
    void operator()(Number& value) {
        take_number(bytes, value);
    }
    void operator()(std::string& text) { text = piece(); }
    void operator()(std::shared_ptr<const PlanTables>& plan) {
        plan = std::make_shared<const PlanTables>(PlanTables::from_bytes(piece()));
    }

    // Each row takes 8 bytes or more: a larger number of them isn't even tried.
    template <class Rows, class Each>
    void list(Rows& rows, const Each& each) {
        std::size_t count = 0;
        (*this)(count);
        if (count > bytes.size() / sizeof(std::int64_t)) throw damaged("whole lists", "a cut one");
        rows.resize(count);
        for (auto& row : rows) each(row);
    }

    std::string_view bytes;  // that are left

private:
    std::string_view piece() {
        std::size_t size = 0;
        (*this)(size);
        if (size > bytes.size()) throw damaged("whole tables", "a cut one");
        const auto found = bytes.substr(0, size);
        bytes.remove_prefix(size);
        return found;
    }
};

template <class File, class Tables>
void visit(File& file, Tables& all) {
    const auto each = [&file](auto& value) { file(value); };
    file(all.key.ranks);
    file(all.key.has_lines);
    file(all.key.is_one_device);
    file(all.key.most_blocks);
    file(all.key.same_bits);
    file(all.version);
    file(all.threads);
    file(all.scratch);
    file.list(all.names, each);
    file.list(all.plans, each);
    file.list(all.mailboxes, each);
    file.list(all.rows, [&](auto& row) {
        file(row.name);
        file(row.kind.number);
        file(row.kind.reduces);
        file(row.kind.has_root);
        file(row.kind.input_parts);
        file(row.kind.output_parts);
        file(row.call.kind);
        file(row.call.in_place);
        file(row.call.root);
        file.list(row.ends, each);
        file.list(row.plans, each);
    });
    file.list(all.kernels, [&](auto& one) {
        file(one.plan);
        file(one.program.dtype);
        file(one.program.op);
        file(one.program.scales);
        file(one.file);
    });
    file(all.messages);
}

}  // namespace

std::string LinkKey::file_name() const {
    return std::to_string(ranks) + "-ranks" + (has_lines ? "-lines" : "") +
           (is_one_device ? "-one-device" : "") + (same_bits ? "-same-bits" : "") + "-" +
           std::to_string(most_blocks) + "-blocks.tables";
}

std::string LinkTables::to_bytes() const {
    Writer file;
    visit(file, *this);
    return sealed(kLinkHead, file.bytes);
}

LinkTables LinkTables::from_bytes(std::string_view bytes) {
    const std::uint64_t digest = unseal(kLinkHead, bytes);
    LinkTables made;
    Reader file(bytes);
    visit(file, made);
    if (!file.bytes.empty()) throw damaged("the tables", "bytes behind them");
    made.check();
    for (int shift = 60; shift >= 0; shift -= 4) {
        made.digest += "0123456789abcdef"[digest >> shift & 15];
    }
    return made;
}

void LinkTables::check() const {
    const auto ranks = static_cast<std::size_t>(key.ranks);
    const auto is_plan = [this](int plan) {
        return plan >= 0 && static_cast<std::size_t>(plan) < plans.size();
    };
    expect_table(key.ranks > 0 && key.most_blocks > 0 && threads > 0, "numbers of links");
    expect_table(names.size() == plans.size() && mailboxes.size() == ranks, "a name of each plan");
    for (const auto& plan : plans) {
        expect_table(plan->numbers.scratch_chunks.size() == ranks, "plans of the ranks");
    }
    for (const auto& row : rows) {
        const auto& ends = row.ends;
        expect_table(row.plans.size() == ends.size() + 1 &&
                         std::all_of(row.plans.begin(), row.plans.end(), is_plan) &&
                         std::adjacent_find(ends.begin(), ends.end(), std::greater_equal<>()) ==
                             ends.end(),
                     "a plan for each range of sizes");
        expect_table(row.call.kind == row.kind.number && row.call.root >= 0 &&
                         row.call.root < key.ranks,
                     "kinds of calls");
    }
    const auto expect_file = [](const std::string& name) {
        expect_table(!name.empty() && name.find('/') == std::string::npos,
                     "names of kernels' files");
    };
    expect_file(messages);
    for (const auto& one : kernels) {
        expect_table(is_plan(one.plan) && one.program.dtype >= 0 &&
                         one.program.dtype < kDataTypes && one.program.op >= 0 &&
                         one.program.op < kReduceOps,
                     "kernels of the plans");
        expect_file(one.file);
    }
}

}  // namespace sley
