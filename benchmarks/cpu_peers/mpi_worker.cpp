// One rank of an MPI in the comparison with peers, with the commands of worker.py over a named pipe.
//
//   mpiexec -n RANKS mpi_worker FOLDER [multiple] [huge-pages]
//
// FOLDER has the pipe `commands-RANK` of each rank and `answers`, which all ranks share. With `multiple`
// MPI starts with MPI_THREAD_MULTIPLE; with `huge-pages` large buffers request huge pages.

#include <mpi.h>

#include <iostream>

#include "rank.hpp"

namespace {

using peers::Cell;
using peers::Collective;

struct Mpi {
    int rank = 0, ranks = 0;

    void barrier() const { MPI_Barrier(MPI_COMM_WORLD); }

    void call(const Cell& cell) const {
        const int whole = static_cast<int>(cell.whole), part = static_cast<int>(cell.part);
        float *in = cell.input, *out = cell.output;
        const MPI_Comm all = MPI_COMM_WORLD;
        switch (cell.collective) {
            case Collective::kAllReduce:
                MPI_Allreduce(MPI_IN_PLACE, in, whole, MPI_FLOAT, MPI_SUM, all);
                break;
            case Collective::kAllGather: MPI_Allgather(in, part, MPI_FLOAT, out, part, MPI_FLOAT, all); break;
            case Collective::kReduceScatter:
                MPI_Reduce_scatter_block(in, out, part, MPI_FLOAT, MPI_SUM, all);
                break;
            case Collective::kAllToAll: MPI_Alltoall(in, part, MPI_FLOAT, out, part, MPI_FLOAT, all); break;
            case Collective::kBroadcast: MPI_Bcast(in, whole, MPI_FLOAT, peers::kRoot, all); break;
            case Collective::kReduce: {
                const bool atRoot = rank == peers::kRoot;
                MPI_Reduce(atRoot ? MPI_IN_PLACE : in, atRoot ? in : nullptr, whole, MPI_FLOAT, MPI_SUM,
                           peers::kRoot, all);
                break;
            }
            case Collective::kGather:
                MPI_Gather(in, part, MPI_FLOAT, out, part, MPI_FLOAT, peers::kRoot, all);
                break;
            case Collective::kScatter:
                MPI_Scatter(in, part, MPI_FLOAT, out, part, MPI_FLOAT, peers::kRoot, all);
                break;
            case Collective::kSendRecv: exchange(cell, whole); break;
        }
    }

    static void exchange(const Cell& cell, int whole) {
        if (!cell.hasPartner()) return;
        const auto send = [&] {
            MPI_Send(cell.input, whole, MPI_FLOAT, cell.partner(), 0, MPI_COMM_WORLD);
        };
        if (cell.sendsFirst()) send();
        MPI_Recv(cell.output, whole, MPI_FLOAT, cell.partner(), 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        if (!cell.sendsFirst()) send();
    }

    static std::string version() {
        char text[MPI_MAX_LIBRARY_VERSION_STRING];
        int length = 0;
        MPI_Get_library_version(text, &length);
        std::string line(text, static_cast<std::size_t>(length));
        return line.substr(0, line.find_first_of(",\n"));
    }
};

}  // namespace

int main(int argc, char** argv) {
    if (argc < 2) {
        std::cerr << "usage: mpi_worker FOLDER [multiple] [huge-pages]\n";
        return 2;
    }
    const bool multiple = peers::isAmong("multiple", argc, argv);
    int provided = 0;
    MPI_Init_thread(&argc, &argv, multiple ? MPI_THREAD_MULTIPLE : MPI_THREAD_SINGLE, &provided);
    Mpi mpi;
    MPI_Comm_rank(MPI_COMM_WORLD, &mpi.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &mpi.ranks);
    peers::Rank<Mpi> rank(mpi, argv[1], peers::isAmong("huge-pages", argc, argv));
    if (!rank.serve()) MPI_Abort(MPI_COMM_WORLD, 1);
    MPI_Finalize();
    return 0;
}
