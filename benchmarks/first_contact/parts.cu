// The parts of a call on a GPU: launches, dependent loads, fences, barriers, and messages between
// two blocks; a line of JSON each. What sley's kernels take beyond these is theirs to save.
//
//     nvcc -O3 -std=c++17 -arch=native benchmarks/first_contact/parts.cu -o parts && ./parts

#include <cuda_runtime.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

using Word = unsigned long long;

#define CHECK(call)                                                                   \
    do {                                                                              \
        if (cudaError_t error = (call); error != cudaSuccess) {                       \
            std::fprintf(stderr, "%s: %s\n", #call, cudaGetErrorString(error));       \
            std::exit(1);                                                             \
        }                                                                             \
    } while (0)

enum Load { VOLATILE, ACQUIRE_GPU, ACQUIRE_SYSTEM, FROM_L1 };
enum Order { FENCE_GPU, FENCE_SYSTEM, RELEASE_GPU, RELEASE_SYSTEM, RELAXED_SYSTEM, BARRIER };

template <Load kind>
__device__ Word load(const Word* place) {
    Word word;
    if (kind == VOLATILE) asm volatile("ld.volatile.global.u64 %0, [%1];" : "=l"(word) : "l"(place) : "memory");
    if (kind == ACQUIRE_GPU) asm volatile("ld.acquire.gpu.global.u64 %0, [%1];" : "=l"(word) : "l"(place) : "memory");
    if (kind == ACQUIRE_SYSTEM) asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(word) : "l"(place) : "memory");
    if (kind == FROM_L1) asm volatile("ld.global.ca.u64 %0, [%1];" : "=l"(word) : "l"(place) : "memory");
    return word;
}

template <Order kind>
__device__ void order(Word* place, Word word) {
    if (kind == FENCE_GPU) asm volatile("fence.acq_rel.gpu;" ::: "memory");
    if (kind == FENCE_SYSTEM) asm volatile("fence.acq_rel.sys;" ::: "memory");
    if (kind == RELEASE_GPU) asm volatile("st.release.gpu.global.u64 [%0], %1;" ::"l"(place), "l"(word) : "memory");
    if (kind == RELEASE_SYSTEM) asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(place), "l"(word) : "memory");
    if (kind == RELAXED_SYSTEM) asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(place), "l"(word) : "memory");
    if (kind == BARRIER) __syncthreads();
}

__global__ void nothing(Word*) {}

// Each load reads the address of the next.
template <Load kind>
__global__ void chain(Word* place, int count, long long* cycles) {
    long long start = clock64();
    for (int i = 0; i < count; ++i) place = reinterpret_cast<Word*>(load<kind>(place));
    cycles[0] = clock64() - start;
    cycles[1] = reinterpret_cast<long long>(place);
}

// Each thread stores a word before each fence, so that there is something to wait for.
template <Order kind>
__global__ void orders(Word* place, int count, long long* cycles) {
    __syncthreads();
    long long start = clock64();
    for (int i = 0; i < count; ++i) {
        if (kind != BARRIER) place[threadIdx.x + 32 * (i & 7)] = i;
        order<kind>(place + 2048 + threadIdx.x, i);
    }
    if (!threadIdx.x) cycles[0] = clock64() - start;
}

// Two blocks that answer each other `count` times.
template <Order send, Load poll>
__global__ void answers(Word* flags, int count, long long* ns) {
    Word *mine = flags + 512 * blockIdx.x, *other = flags + 512 * (1 - blockIdx.x);
    long long start, end;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(start));
    for (int i = 1; i <= count; ++i) {
        if (!threadIdx.x && !blockIdx.x) order<send>(other, i);
        if (!threadIdx.x)
            while (load<poll>(mine) != Word(i)) {}
        __syncthreads();
        if (!threadIdx.x && blockIdx.x) order<send>(other, i);
    }
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(end));
    if (!threadIdx.x && !blockIdx.x) ns[0] = end - start;
}

static double now_us() {
    using namespace std::chrono;
    return duration<double, std::micro>(steady_clock::now().time_since_epoch()).count();
}

static double median(std::vector<double> values) {
    std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
    return values[values.size() / 2];
}

template <class Launch>
static void time_launch(const char* what, int blocks, int threads, cudaStream_t stream, Launch launch) {
    std::vector<double> host, whole;
    for (int i = 0; i < 2050; ++i) {
        double start = now_us();
        launch();
        double launched = now_us();
        CHECK(cudaStreamSynchronize(stream));
        if (i < 50) continue;
        host.push_back(launched - start);
        whole.push_back(now_us() - start);
    }
    std::printf("{\"launch\": \"%s\", \"blocks\": %d, \"threads\": %d, \"host_us\": %.2f, \"to_synchronised_us\": %.2f}\n",
                what, blocks, threads, median(host), median(whole));
}

static void time_launches(int blocks, int threads, Word* place, cudaStream_t stream) {
    void* arguments[] = {&place};
    auto ordinary = [&] { nothing<<<blocks, threads, 0, stream>>>(place); };
    auto cooperative = [&] {
        CHECK(cudaLaunchCooperativeKernel(reinterpret_cast<void*>(nothing), blocks, threads, arguments, 0, stream));
    };
    auto captured = [&](const char* what, auto launch) {
        cudaGraph_t graph;
        cudaGraphExec_t ready;
        CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
        launch();
        CHECK(cudaStreamEndCapture(stream, &graph));
        CHECK(cudaGraphInstantiate(&ready, graph, 0));
        time_launch(what, blocks, threads, stream, [&] { CHECK(cudaGraphLaunch(ready, stream)); });
    };
    time_launch("ordinary", blocks, threads, stream, ordinary);
    time_launch("cooperative", blocks, threads, stream, cooperative);
    captured("graph", ordinary);
    captured("graph, cooperative", cooperative);
}

int main() {
    constexpr int LINKS = 64, COUNT = 1024;
    cudaDeviceProp device;
    CHECK(cudaGetDeviceProperties(&device, 0));
    std::printf("{\"device\": \"%s\"}\n", device.name);
    cudaStream_t stream;
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    Word* place;
    CHECK(cudaMalloc(&place, 1 << 20));
    long long* out;
    CHECK(cudaMallocManaged(&out, 16));

    for (auto [blocks, threads] : {std::pair(1, 128), {16, 512}, {128, 512}})
        time_launches(blocks, threads, place, stream);

    std::vector<Word> links(LINKS * 512);
    for (int i = 0; i < LINKS; ++i) links[i * 512] = reinterpret_cast<Word>(place + (i + 1) % LINKS * 512);
    CHECK(cudaMemcpy(place, links.data(), links.size() * sizeof(Word), cudaMemcpyHostToDevice));
    // The first of three runs fills the caches.
    auto ran = [&](auto kernel, int blocks, int threads) {
        for (int i = 0; i < 3; ++i) {
            kernel<<<blocks, threads, 0, stream>>>(place, COUNT, out);
            CHECK(cudaStreamSynchronize(stream));
        }
        return double(out[0]) / COUNT;
    };
    auto time_load = [&](const char* what, auto kernel) {
        std::printf("{\"load\": \"%s\", \"cycles\": %.0f}\n", what, ran(kernel, 1, 1));
    };
    time_load("volatile", chain<VOLATILE>);
    time_load("acquire.gpu", chain<ACQUIRE_GPU>);
    time_load("acquire.sys", chain<ACQUIRE_SYSTEM>);
    time_load("L1", chain<FROM_L1>);
    for (int threads : {32, 128, 512, 1024}) {
        auto time_order = [&](const char* what, auto kernel) {
            std::printf("{\"each\": \"%s\", \"threads\": %d, \"cycles\": %.0f}\n", what, threads, ran(kernel, 1, threads));
        };
        time_order("fence.gpu", orders<FENCE_GPU>);
        time_order("fence.sys", orders<FENCE_SYSTEM>);
        time_order("st.release.gpu", orders<RELEASE_GPU>);
        time_order("st.release.sys", orders<RELEASE_SYSTEM>);
        time_order("st.relaxed.sys", orders<RELAXED_SYSTEM>);
        time_order("barrier", orders<BARRIER>);
    }
    for (int threads : {32, 128, 512}) {
        auto time_answer = [&](const char* what, auto kernel) {
            CHECK(cudaMemset(place, 0, 1 << 14));
            kernel<<<2, threads, 0, stream>>>(place, COUNT, out);
            CHECK(cudaStreamSynchronize(stream));
            std::printf("{\"message\": \"%s\", \"threads\": %d, \"one_way_us\": %.3f}\n", what, threads, out[0] / 2e3 / COUNT);
        };
        time_answer("release.gpu, acquire.gpu", answers<RELEASE_GPU, ACQUIRE_GPU>);
        time_answer("release.sys, acquire.sys", answers<RELEASE_SYSTEM, ACQUIRE_SYSTEM>);
        time_answer("relaxed.sys, volatile", answers<RELAXED_SYSTEM, VOLATILE>);
    }
    return 0;
}
