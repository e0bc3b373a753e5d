// One rank of oneCCL on CPUs in the comparison with peers, with the commands of worker.py.
//
//   mpiexec -n RANKS oneccl_worker FOLDER [huge-pages]
//
// FOLDER has the pipes of the ranks. Intel MPI starts the ranks, makes the barriers, and is oneCCL's
// transport.

#include <mpi.h>

#include <iostream>
#include <oneapi/ccl.hpp>

#include "rank.hpp"

namespace {

using peers::Cell;
using peers::Collective;

ccl::communicator made(int rank, int ranks) {
    ccl::kvs::address_type address;
    ccl::shared_ptr_class<ccl::kvs> store;
    if (rank == 0) {
        store = ccl::create_main_kvs();
        address = store->get_address();
    }
    MPI_Bcast(address.data(), static_cast<int>(address.size()), MPI_BYTE, 0, MPI_COMM_WORLD);
    if (rank != 0) store = ccl::create_kvs(address);
    return ccl::create_communicator(ranks, rank, store);
}

struct OneCcl {
    int rank, ranks;
    ccl::communicator all;

    void barrier() const { MPI_Barrier(MPI_COMM_WORLD); }

    void call(const Cell& cell) const {
        float *in = cell.input, *out = cell.output;
        const auto sum = ccl::reduction::sum;
        switch (cell.collective) {
            case Collective::kAllReduce: ccl::allreduce(in, in, cell.whole, sum, all).wait(); break;
            case Collective::kAllGather: ccl::allgather(in, out, cell.part, all).wait(); break;
            case Collective::kReduceScatter: ccl::reduce_scatter(in, out, cell.part, sum, all).wait(); break;
            case Collective::kAllToAll: ccl::alltoall(in, out, cell.part, all).wait(); break;
            case Collective::kBroadcast: ccl::broadcast(in, cell.whole, peers::kRoot, all).wait(); break;
            case Collective::kReduce: ccl::reduce(in, in, cell.whole, sum, peers::kRoot, all).wait(); break;
            case Collective::kSendRecv: exchange(cell); break;
            case Collective::kGather:
            case Collective::kScatter: throw std::runtime_error("oneCCL has no such collective");
        }
    }

    void exchange(const Cell& cell) const {
        if (!cell.hasPartner()) return;
        const auto send = [&] { ccl::send(cell.input, cell.whole, cell.partner(), all).wait(); };
        if (cell.sendsFirst()) send();
        ccl::recv(cell.output, cell.whole, cell.partner(), all).wait();
        if (!cell.sendsFirst()) send();
    }

    static std::string version() { return "oneCCL " + std::string(ccl::get_library_version().full); }
};

}  // namespace

int main(int argc, char** argv) {
    if (argc < 2) {
        std::cerr << "usage: oneccl_worker FOLDER [huge-pages]\n";
        return 2;
    }
    ccl::init();
    MPI_Init(&argc, &argv);
    int rank = 0, ranks = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    bool done = false;
    {
        OneCcl engine{rank, ranks, made(rank, ranks)};
        done = peers::Rank<OneCcl>(engine, argv[1], peers::isAmong("huge-pages", argc, argv)).serve();
        if (!done) MPI_Abort(MPI_COMM_WORLD, 1);
    }
    MPI_Finalize();
    return 0;
}
