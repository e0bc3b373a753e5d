/* A trace of the C++ as the only order of a model's steps: each step says in its guard which event it is,
   IS(who, kind, a, b), and then that it is TAKEN. Without TRACED a model's steps have any order. */

/* The kinds, which tests/native/protocol_test.cpp has in the same order; kernels_test.cpp has the last. */
#define WRITE 1
#define PUBLISH 2
#define RELEASE 3
#define LOOK 4
#define RING 5
#define RUNG 6
#define WAKE 7
#define HEAR 8
#define ENTER 9
#define LEAVE 10
#define SLEEP 11
#define CHECK 12
#define FAIL 13
#define NUMBER 14
#define WHAT 15
#define COUNT 16
#define SEE_NUMBER 17
#define SEE_WHAT 18
#define SEE_COUNT 19
#define SAY_WAY 20
#define SEE_WAY 21
#define CHOOSE 22

#ifdef TRACED
#define IS(who, kind, a, b) (event == (((who) * 32 + (kind)) * 256 + (a)) * 256 + (b))
#define TAKEN event = 0

int event;  /* the next one; 0: taken */
short position;

c_decl {
    int trace[1 << 15], trace_length, trace_furthest;
};

/* Reads the events, and writes the number of those that some run of the model takes. */
active proctype Trace() {
    c_code {
        while (scanf("%d", &trace[trace_length]) == 1) ++trace_length;
    };
    do
    :: atomic { event == 0 ->
           c_code {
               if (now.position > trace_furthest) {
                   trace_furthest = now.position;
                   fprintf(stderr, "%d\n", trace_furthest);
               }
           };
           if
           :: c_expr { now.position == trace_length } -> break
           :: else -> c_code { now.event = trace[now.position++]; }
           fi }
    od
}
#else
#define IS(who, kind, a, b) true
#define TAKEN skip
#endif
