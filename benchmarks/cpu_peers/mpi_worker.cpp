// One rank of an MPI in the comparison with peers, with commands over a named pipe.
//
//   mpiexec -n RANKS mpi_worker FOLDER [multiple] [huge-pages]
//
// FOLDER has the pipe `commands-RANK` of each rank and `answers`, which all ranks share; the commands
// are those of worker.py. With `multiple` MPI starts with MPI_THREAD_MULTIPLE; with `huge-pages` large
// buffers request huge pages.
// Between commands a rank sleeps in read(), so that engines that wait for their turn cost nothing.

#include <mpi.h>
#include <sys/mman.h>
#include <time.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iostream>
#include <memory>
#include <new>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20;
constexpr std::size_t kHugeFrom = std::size_t{4} << 20;  // as NumPy does
constexpr int kPeriod = 61;  // period of the values: a prime, so that different blocks differ

struct Free {
    void operator()(float* memory) const { std::free(memory); }
};

using Buffer = std::unique_ptr<float, Free>;

Buffer allocate(std::size_t elements, bool hugePages) {
    const std::size_t size_bytes = elements * sizeof(float);
    const bool huge = hugePages && size_bytes >= kHugeFrom;
    void* memory = nullptr;
    if (posix_memalign(&memory, huge ? kHugePage : 64, size_bytes) != 0) throw std::bad_alloc();
    if (huge) madvise(memory, size_bytes, MADV_HUGEPAGE);
    std::memset(memory, 0, size_bytes);
    return Buffer(static_cast<float*>(memory));
}

// The value at an index of a rank's input; small integers, so that sums are exact.
float value(int rank, std::size_t index) {
    return static_cast<float>((rank + 1) * static_cast<int>(index % kPeriod + 1));
}

// The CPU time of this process, with all its threads.
double cpuSeconds() {
    timespec now{};
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

enum class Collective { kAllReduce, kAllGather, kReduceScatter, kAllToAll };

Collective named(const std::string& name) {
    if (name == "AllReduce") return Collective::kAllReduce;
    if (name == "AllGather") return Collective::kAllGather;
    if (name == "ReduceScatter") return Collective::kReduceScatter;
    if (name == "AllToAll") return Collective::kAllToAll;
    throw std::runtime_error("no collective " + name);
}

class Cell {
  public:
    Cell(Collective collective, std::size_t size_bytes, bool hugePages, int rank, int ranks)
        : collective_(collective), rank_(rank), ranks_(static_cast<std::size_t>(ranks)) {
        const std::size_t whole = size_bytes / sizeof(float);
        part_ = whole / ranks_;
        inputs_ = collective == Collective::kAllGather ? part_ : whole;
        outputs_ = collective == Collective::kReduceScatter ? part_ : whole;
        input_ = allocate(inputs_, hugePages);
        if (collective != Collective::kAllReduce) output_ = allocate(outputs_, hugePages);
    }

    void call() const {
        const int part = static_cast<int>(part_);
        switch (collective_) {
            case Collective::kAllReduce:
                MPI_Allreduce(MPI_IN_PLACE, input_.get(), static_cast<int>(inputs_), MPI_FLOAT,
                              MPI_SUM, MPI_COMM_WORLD);
                break;
            case Collective::kAllGather:
                MPI_Allgather(input_.get(), part, MPI_FLOAT, output_.get(), part, MPI_FLOAT,
                              MPI_COMM_WORLD);
                break;
            case Collective::kReduceScatter:
                MPI_Reduce_scatter_block(input_.get(), output_.get(), part, MPI_FLOAT, MPI_SUM,
                                         MPI_COMM_WORLD);
                break;
            case Collective::kAllToAll:
                MPI_Alltoall(input_.get(), part, MPI_FLOAT, output_.get(), part, MPI_FLOAT,
                             MPI_COMM_WORLD);
                break;
        }
    }

    double seconds(int iterations, int warmup) const {
        MPI_Barrier(MPI_COMM_WORLD);
        for (int i = 0; i < warmup; ++i) call();
        const auto begin = std::chrono::steady_clock::now();
        for (int i = 0; i < iterations; ++i) call();
        const auto end = std::chrono::steady_clock::now();
        MPI_Barrier(MPI_COMM_WORLD);  // nobody sleeps while a slower rank needs it
        return std::chrono::duration<double>(end - begin).count() / iterations;
    }

    // Calls one by one, as worker.py describes: fills beginnings and seconds, alternating, and returns the
    // seconds of CPU.
    double sample(int calls, double lateSeconds, std::vector<double>& samples) const {
        samples.clear();
        samples.reserve(2 * static_cast<std::size_t>(calls));
        const auto late = std::chrono::duration<double>(rank_ == 0 ? lateSeconds : 0);
        MPI_Barrier(MPI_COMM_WORLD);
        const double burned = cpuSeconds();
        for (int i = 0; i < calls; ++i) {
            if (late.count() > 0) std::this_thread::sleep_for(late);
            const auto begin = std::chrono::steady_clock::now();
            call();
            const auto end = std::chrono::steady_clock::now();
            samples.push_back(std::chrono::duration<double>(begin.time_since_epoch()).count());
            samples.push_back(std::chrono::duration<double>(end - begin).count());
        }
        const double total = cpuSeconds() - burned;
        MPI_Barrier(MPI_COMM_WORLD);
        return total;
    }

    bool isRight() {
        for (std::size_t i = 0; i < inputs_; ++i) input_.get()[i] = value(rank_, i);
        call();
        const float* found = output_ ? output_.get() : input_.get();
        bool right = true;
        for (std::size_t i = 0; i < outputs_; ++i) right = right && found[i] == expected(i);
        MPI_Barrier(MPI_COMM_WORLD);
        return right;
    }

  private:
    float expected(std::size_t index) const {
        const auto rank = static_cast<std::size_t>(rank_);
        switch (collective_) {
            case Collective::kAllGather:
                return value(static_cast<int>(index / part_), index % part_);
            case Collective::kAllToAll:
                return value(static_cast<int>(index / part_), rank * part_ + index % part_);
            case Collective::kReduceScatter:
                return sum(rank * part_ + index);
            case Collective::kAllReduce:
                return sum(index);
        }
        return 0;
    }

    float sum(std::size_t index) const {
        const auto ranks = static_cast<int>(ranks_);
        return static_cast<float>(ranks * (ranks + 1) / 2) * value(0, index);
    }

    Collective collective_;
    int rank_;
    std::size_t ranks_, part_ = 0, inputs_ = 0, outputs_ = 0;
    Buffer input_, output_;
};

struct Rank {
    int rank = 0, ranks = 0;
    bool hugePages = false;
    std::string folder;
    std::unique_ptr<Cell> cell;

    std::string answer(const std::string& line);
};

// The answer to one command.
std::string Rank::answer(const std::string& line) {
    std::istringstream words(line);
    std::ostringstream text;
    text.precision(17);
    std::string command;
    words >> command;
    if (command == "prepare") {
        std::string collective;
        std::size_t size_bytes = 0;
        words >> collective >> size_bytes;
        cell.reset();
        cell = std::make_unique<Cell>(named(collective), size_bytes, hugePages, rank, ranks);
        text << "ok";
    } else if (command == "time") {
        int iterations = 0, warmup = 0;
        words >> iterations >> warmup;
        text << cell->seconds(iterations, warmup);
    } else if (command == "sample") {
        int calls = 0;
        double lateSeconds = 0;
        words >> calls >> lateSeconds;
        std::vector<double> samples;
        text << cell->sample(calls, lateSeconds, samples);
        std::ofstream file(folder + "/samples-" + std::to_string(rank), std::ios::binary);
        file.write(reinterpret_cast<const char*>(samples.data()),
                   static_cast<std::streamsize>(samples.size() * sizeof(double)));
    } else if (command == "check") {
        text << (cell->isRight() ? "right" : "wrong");
    } else {
        throw std::runtime_error("no command " + line);
    }
    return text.str();
}

std::string version() {
    char text[MPI_MAX_LIBRARY_VERSION_STRING];
    int length = 0;
    MPI_Get_library_version(text, &length);
    std::string line(text, static_cast<std::size_t>(length));
    return line.substr(0, line.find_first_of(",\n"));
}

bool isAmong(const char* word, int argc, char** argv) {
    return std::any_of(argv, argv + argc, [&](char* given) { return !std::strcmp(given, word); });
}

}  // namespace

int main(int argc, char** argv) {
    if (argc < 2) {
        std::cerr << "usage: mpi_worker FOLDER [multiple] [huge-pages]\n";
        return 2;
    }
    const bool multiple = isAmong("multiple", argc, argv);
    int provided = 0;
    MPI_Init_thread(&argc, &argv, multiple ? MPI_THREAD_MULTIPLE : MPI_THREAD_SINGLE, &provided);
    Rank own;
    own.hugePages = isAmong("huge-pages", argc, argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &own.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &own.ranks);
    own.folder = argv[1];
    std::ofstream answers(own.folder + "/answers");
    std::ifstream commands(own.folder + "/commands-" + std::to_string(own.rank));
    const auto say = [&](const std::string& text) {
        answers << (std::to_string(own.rank) + " " + text + "\n") << std::flush;
    };
    say("ready " + version());
    try {
        for (std::string line; std::getline(commands, line) && line != "stop";)
            say(own.answer(line));
    } catch (const std::exception& error) {
        say(std::string("error ") + error.what());
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    own.cell.reset();
    MPI_Finalize();
    return 0;
}
