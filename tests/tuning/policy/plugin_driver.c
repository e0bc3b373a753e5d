/* Calls the functions of a tuner plug-in, whose text is above, with random and with nonsensical
 * arguments. Run with sanitizers: the cost tables have exactly the size that each call names. */

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int failures;

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "line %d: %s\n", __LINE__, #condition);                                \
            failures++;                                                                            \
        }                                                                                          \
    } while (0)

static void log_line(int level, unsigned long subsystems, const char *file, int line,
                     const char *format, ...)
{
    char text[512];
    va_list values;
    (void)level;
    (void)subsystems;
    (void)line;
    va_start(values, format);
    CHECK(vsnprintf(text, sizeof text, format, values) > 0);
    va_end(values);
    CHECK(file != NULL);
}

static unsigned next(unsigned *state)
{
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

static void call(void *context, unsigned *state)
{
    const int algorithms = (int)(next(state) % 9), protocols = (int)(next(state) % 4);
    const size_t cells = (size_t)algorithms * (size_t)protocols;
    float *costs = (float *)malloc(cells * sizeof(float));
    float *before = (float *)malloc(cells * sizeof(float));
    const int collective = (int)(next(state) % 8) - 1;
    const size_t bytes = next(state) % 3 ? next(state) : (size_t)-1 - next(state);
    int channels = -7, changed = 0;
    size_t i, chunk = next(state) % 3 ? next(state) : next(state) % 4096;
    const size_t own = chunk;
    for (i = 0; i < cells; i++) {
        before[i] = costs[i] = next(state) % 3 ? (float)next(state) + 1.0f : -1.0f;
    }
    CHECK(ncclTunerPlugin_v7.get_coll_info(context, collective, bytes, (int)next(state),
                                           (float **)(void *)costs, algorithms, protocols,
                                           (int)(next(state) % 2), &channels) == 0);
    for (i = 0; i < cells; i++) {
        if (costs[i] != before[i]) {
            changed++;
            CHECK(costs[i] == 0.0f && before[i] != -1.0f);
        }
    }
    CHECK(changed <= 1 && (changed == 1) == (channels != -7));
    CHECK(channels == -7 || channels >= 1);
    CHECK(ncclTunerPlugin_v6.get_chunk_size(context, collective, bytes, algorithms - 1,
                                            protocols - 1, (int)(next(state) % 70) - 1,
                                            &chunk) == 0);
    CHECK(chunk <= own && (chunk > 0 || own == 0));
    free(costs);
    free(before);
}

static void *many_calls(void *context)
{
    unsigned state = 7;
    int i;
    for (i = 0; i < 2000; i++) {
        call(context, &state);
    }
    return NULL;
}

static void nonsense(void *context)
{
    float cell = 1.0f, costs[21];
    int channels = 5, i;
    size_t chunk = 4096;
    float **one = (float **)(void *)&cell;
    CHECK(ncclTunerPlugin_v5.get_coll_info(context, 4, 1, 1, NULL, 7, 3, 0, NULL) == 0);
    for (i = 0; i < 21; i++) {
        costs[i] = 1.0f;
    }
    CHECK(ncclTunerPlugin_v5.get_coll_info(context, 4, 1, 1, (float **)(void *)costs, 7, 3, 0,
                                           NULL) == 0);
    CHECK(ncclTunerPlugin_v5.get_coll_info(context, 4, 1, 1, one, 0, 0, 0, &channels) == 0);
    CHECK(ncclTunerPlugin_v5.get_coll_info(context, -2147483647, (size_t)-1, -1, one, -1, -1, -1,
                                           &channels) == 0);
    CHECK(ncclTunerPlugin_v5.get_coll_info(&cell, 4, 1, 1, NULL, 7, 3, 0, &channels) == 0);
    CHECK(ncclTunerPlugin_v6.get_chunk_size(context, 4, 1, 1, 2, 1, NULL) == 0);
    CHECK(ncclTunerPlugin_v6.get_chunk_size(context, 4, 1, -5, 99, 0, &chunk) == 0);
    CHECK(ncclTunerPlugin_v6.get_chunk_size(context, 4, (size_t)-1, 1, 2, -3, &chunk) == 0);
    CHECK(cell == 1.0f && channels == 5 && chunk == 4096);
}

int main(void)
{
    void *contexts[3] = {NULL, NULL, NULL};
    pthread_t threads[4];
    int i;
    CHECK(ncclTunerPlugin_v7.init(&contexts[0], 1, RANKS, NODES, log_line, NULL, NULL) == 0);
    CHECK(ncclTunerPlugin_v4.init(RANKS, NODES, log_line, &contexts[1]) == 0);
    CHECK(ncclTunerPlugin_v5.init(&contexts[2], 1, RANKS + 1, NODES, NULL, NULL, NULL) == 0);
    CHECK(ncclTunerPlugin_v6.init(NULL, 0, 0, 0, NULL, NULL, NULL) == 0);
    for (i = 0; i < 4; i++) {
        CHECK(pthread_create(&threads[i], NULL, many_calls, contexts[i % 3]) == 0);
    }
    for (i = 0; i < 4; i++) {
        CHECK(pthread_join(threads[i], NULL) == 0);
    }
    for (i = 0; i < 3; i++) {
        nonsense(contexts[i]);
        CHECK(ncclTunerPlugin_v7.finalize(contexts[i]) == 0);
    }
    CHECK(ncclTunerPlugin_v4.destroy(NULL) == 0);
    return failures != 0;
}
