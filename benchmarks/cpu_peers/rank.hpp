// One rank of an engine that is called from C++, in the comparison with peers: its buffers, its commands
// over a named pipe, and the check of its results.
//
// An engine has a rank and a number of ranks, `call(const Cell&)`, `barrier()` and `version()`.
// Between commands a rank sleeps in read(), so that engines that wait for their turn cost nothing.

#pragma once

#include <sys/mman.h>
#include <time.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <new>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace peers {

constexpr std::size_t kHugePage = std::size_t{2} << 20;
constexpr std::size_t kHugeFrom = std::size_t{4} << 20;  // as NumPy does
constexpr int kPeriod = 61;  // period of the values: a prime, so that different blocks differ
constexpr int kRoot = 0;

struct Free {
    void operator()(float* memory) const { std::free(memory); }
};

using Buffer = std::unique_ptr<float, Free>;

inline Buffer allocate(std::size_t elements, bool hugePages) {
    const std::size_t size_bytes = elements * sizeof(float);
    const bool huge = hugePages && size_bytes >= kHugeFrom;
    void* memory = nullptr;
    if (posix_memalign(&memory, huge ? kHugePage : 64, size_bytes) != 0) throw std::bad_alloc();
    if (huge) madvise(memory, size_bytes, MADV_HUGEPAGE);
    std::memset(memory, 0, size_bytes);
    return Buffer(static_cast<float*>(memory));
}

// The value at an index of a rank's input; small integers, so that sums are exact.
inline float value(int rank, std::size_t index) {
    return static_cast<float>((rank + 1) * static_cast<int>(index % kPeriod + 1));
}

// The CPU time of this process, with all its threads.
inline double cpuSeconds() {
    timespec now{};
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

enum class Collective {
    kAllReduce,
    kAllGather,
    kReduceScatter,
    kAllToAll,
    kBroadcast,
    kReduce,
    kGather,
    kScatter,
    kSendRecv
};

inline Collective named(const std::string& name) {
    static const char* const kNames[] = {"AllReduce", "AllGather", "ReduceScatter", "AllToAll", "Broadcast",
                                         "Reduce",    "Gather",    "Scatter",       "SendRecv"};
    const auto* const found = std::find(std::begin(kNames), std::end(kNames), name);
    if (found == std::end(kNames)) throw std::runtime_error("no collective " + name);
    return static_cast<Collective>(found - std::begin(kNames));
}

// The buffers of a cell, as cells.py lays them out. AllReduce, Broadcast and Reduce are in place: their
// output is the input. A buffer that a rank doesn't have is null.
class Cell {
  public:
    Cell(Collective collective, std::size_t size_bytes, bool hugePages, int rank, int ranks)
        : collective(collective), rank(rank), ranks(ranks), whole(size_bytes / sizeof(float)) {
        part = whole / static_cast<std::size_t>(ranks);
        const std::size_t ofRoot = rank == kRoot ? whole : 0;
        switch (collective) {
            case Collective::kAllReduce:
            case Collective::kBroadcast:
            case Collective::kReduce: inputs_ = whole; break;
            case Collective::kAllGather: inputs_ = part, outputs_ = whole; break;
            case Collective::kReduceScatter: inputs_ = whole, outputs_ = part; break;
            case Collective::kAllToAll:
            case Collective::kSendRecv: inputs_ = outputs_ = whole; break;
            case Collective::kGather: inputs_ = part, outputs_ = ofRoot; break;
            case Collective::kScatter: inputs_ = ofRoot, outputs_ = part; break;
        }
        if (inputs_ > 0) inputBuffer_ = allocate(inputs_, hugePages);
        if (outputs_ > 0) outputBuffer_ = allocate(outputs_, hugePages);
        input = inputBuffer_.get();
        output = outputBuffer_.get();
        if (isInPlace()) output = input, outputs_ = inputs_;
    }

    const Collective collective;
    const int rank, ranks;
    const std::size_t whole;
    std::size_t part = 0;
    float* input = nullptr;
    float* output = nullptr;

    // The rank with which this one exchanges messages, and whether it sends first.
    int partner() const { return rank ^ 1; }
    bool hasPartner() const { return partner() < ranks; }
    bool sendsFirst() const { return rank < partner(); }

    void fill() {
        for (std::size_t i = 0; i < inputs_; ++i) input[i] = value(rank, i);
    }

    bool isRight() const {
        if (collective == Collective::kReduce && rank != kRoot) return true;
        if (collective == Collective::kSendRecv && !hasPartner()) return true;
        for (std::size_t i = 0; i < outputs_; ++i)
            if (output[i] != expected(i)) return false;
        return true;
    }

  private:
    bool isInPlace() const {
        return collective == Collective::kAllReduce || collective == Collective::kBroadcast ||
               collective == Collective::kReduce;
    }

    float expected(std::size_t index) const {
        const std::size_t first = static_cast<std::size_t>(rank) * part, own = first + index;
        switch (collective) {
            case Collective::kAllGather:
            case Collective::kGather: return ofBlock(index, 0);
            case Collective::kAllToAll: return ofBlock(index, first);
            case Collective::kReduceScatter: return sum(own);
            case Collective::kAllReduce:
            case Collective::kReduce: return sum(index);
            case Collective::kBroadcast: return value(kRoot, index);
            case Collective::kScatter: return value(kRoot, own);
            case Collective::kSendRecv: return value(partner(), index);
        }
        return 0;
    }

    // The value in the part of another rank, whose values begin at an index of that rank's input. Only
    // collectives with parts have one: the part of a small buffer of another may be empty.
    float ofBlock(std::size_t index, std::size_t first) const {
        return value(static_cast<int>(index / part), first + index % part);
    }

    float sum(std::size_t index) const {
        return static_cast<float>(ranks * (ranks + 1) / 2) * value(0, index);
    }

    std::size_t inputs_ = 0, outputs_ = 0;
    Buffer inputBuffer_, outputBuffer_;
};

template <class Engine>
class Rank {
  public:
    Rank(Engine& engine, std::string folder, bool hugePages)
        : engine_(engine), folder_(std::move(folder)), hugePages_(hugePages) {}

    // Answers commands until `stop`; returns whether there was no error.
    bool serve() {
        const std::string rank = std::to_string(engine_.rank);
        std::ofstream answers(folder_ + "/answers");
        std::ifstream commands(folder_ + "/commands-" + rank);
        const auto say = [&](const std::string& text) {
            answers << (rank + " " + text + "\n") << std::flush;
        };
        say("ready " + engine_.version());
        try {
            for (std::string line; std::getline(commands, line) && line != "stop";) say(answer(line));
        } catch (const std::exception& error) {
            say(std::string("error ") + error.what());
            return false;
        }
        cell_.reset();
        return true;
    }

  private:
    std::string answer(const std::string& line) {
        std::istringstream words(line);
        std::ostringstream text;
        text.precision(17);
        std::string command;
        words >> command;
        if (command == "prepare") {
            std::string collective;
            std::size_t size_bytes = 0;
            words >> collective >> size_bytes;
            cell_.reset();
            cell_ = std::make_unique<Cell>(named(collective), size_bytes, hugePages_, engine_.rank,
                                           engine_.ranks);
            text << "ok";
        } else if (command == "time") {
            int iterations = 0, warmup = 0;
            words >> iterations >> warmup;
            text << seconds(iterations, warmup);
        } else if (command == "sample") {
            int calls = 0;
            double lateSeconds = 0;
            words >> calls >> lateSeconds;
            text << sample(calls, lateSeconds);
        } else if (command == "check") {
            text << (isRight() ? "right" : "wrong");
        } else {
            throw std::runtime_error("no command " + line);
        }
        return text.str();
    }

    double seconds(int iterations, int warmup) {
        engine_.barrier();
        for (int i = 0; i < warmup; ++i) engine_.call(*cell_);
        const auto begin = std::chrono::steady_clock::now();
        for (int i = 0; i < iterations; ++i) engine_.call(*cell_);
        const auto end = std::chrono::steady_clock::now();
        engine_.barrier();  // nobody sleeps while a slower rank needs it
        return std::chrono::duration<double>(end - begin).count() / iterations;
    }

    // Calls one by one, whose samples go to a file as worker.py describes; returns the seconds of CPU.
    double sample(int calls, double lateSeconds) {
        std::vector<double> samples;
        samples.reserve(2 * static_cast<std::size_t>(calls));
        const auto late = std::chrono::duration<double>(engine_.rank == 0 ? lateSeconds : 0);
        engine_.barrier();
        const double burned = cpuSeconds();
        for (int i = 0; i < calls; ++i) {
            if (late.count() > 0) std::this_thread::sleep_for(late);
            const auto begin = std::chrono::steady_clock::now();
            engine_.call(*cell_);
            const auto end = std::chrono::steady_clock::now();
            samples.push_back(std::chrono::duration<double>(begin.time_since_epoch()).count());
            samples.push_back(std::chrono::duration<double>(end - begin).count());
        }
        const double total = cpuSeconds() - burned;
        engine_.barrier();
        std::ofstream file(folder_ + "/samples-" + std::to_string(engine_.rank), std::ios::binary);
        file.write(reinterpret_cast<const char*>(samples.data()),
                   static_cast<std::streamsize>(samples.size() * sizeof(double)));
        return total;
    }

    bool isRight() {
        cell_->fill();
        engine_.call(*cell_);
        const bool right = cell_->isRight();
        engine_.barrier();
        return right;
    }

    Engine& engine_;
    std::string folder_;
    bool hugePages_;
    std::unique_ptr<Cell> cell_;
};

inline bool isAmong(const char* word, int argc, char** argv) {
    return std::any_of(argv, argv + argc, [&](char* given) { return !std::strcmp(given, word); });
}

}  // namespace peers
