/* bench/moves [--rounds 3]
 *
 * Moving a space of 1 GiB of float32 between 4 workers (processes of one thread each, over UCX):
 * every bucket's weights from their homes, then every bucket's gradients to their homes, as a step
 * does, but without computing. Beside it, in the same run, two concurrent pairs of ucx_perftest
 * tag_bw with messages of a bucket's size. One JSON line: bytes received per second by all workers
 * together (best round; both moves, gather alone, reduce alone), perftest's sum, the ratio. */
#include "../tests/unit/comm/processes.h"

#include "base/clock.h"
#include "state/state.h"

enum { WORKERS = 4, LAYERS = 20, ROUNDS = 3 };
#define PATIENT 120.0

static int open_state(struct dt_comm *c, struct dt_arch **arch, struct dt_state *s)
{
    char config[512];
    int n = snprintf(config, sizeof config,
                     "{\"model_type\":\"llama\",\"hidden_size\":1024,\"num_hidden_layers\":%d,"
                     "\"num_attention_heads\":16,\"num_key_value_heads\":16,"
                     "\"intermediate_size\":2816,\"vocab_size\":11264,"
                     "\"max_position_embeddings\":64,\"rms_norm_eps\":1e-5,"
                     "\"tie_word_embeddings\":true}",
                     LAYERS);
    struct dt_state_options o = {
        .kind = DT_STATE_GRADIENTS, .rank = dt_comm_rank(c), .workers = dt_comm_size(c), .comm = c};
    DT_TRY(dt_kernels_select("auto"));
    dt_ops_set_threads(1);
    DT_TRY(dt_arch_parse(config, (size_t)n, "bench", arch));
    DT_TRY(dt_state_open(*arch, &o, s));
    return DT_OK;
}

static int gather(struct dt_state *s)
{
    const struct dt_part *p = &s->parts[0];
    for (int64_t b = 0; b < p->bucket_count; b++)
        DT_TRY(dt_state_gather_start(s, p->buckets[b].segment, p->buckets[b].layer));
    for (int64_t b = 0; b < p->bucket_count; b++)
        DT_TRY(dt_state_gather_wait(s, p->buckets[b].segment, p->buckets[b].layer));
    return dt_state_settle(s);
}

static int reduce(struct dt_state *s)
{
    const struct dt_part *p = &s->parts[0];
    for (int64_t b = p->bucket_count; b-- > 0;)
        DT_TRY(dt_state_reduce_start(s, p->buckets[b].segment, p->buckets[b].layer));
    return dt_state_settle(s);
}

/* Seconds between two barriers around one move, and what all workers received in them. */
static int timed(struct dt_state *s, int (*move)(struct dt_state *s), double *seconds,
                 double *bytes)
{
    struct dt_group g = {.count = s->workers, .me = s->rank};
    struct dt_comm_counts before, after;
    double scratch[WORKERS];
    DT_TRY(dt_barrier(s->comm, &g, 1));
    dt_comm_counts(s->comm, &before);
    double begun = dt_clock_seconds();
    DT_TRY(move(s));
    dt_comm_counts(s->comm, &after);
    DT_TRY(dt_barrier(s->comm, &g, 2));
    *seconds = dt_clock_seconds() - begun;
    *bytes = (double)(after.bytes_received - before.bytes_received);
    return dt_all_reduce_small(s->comm, &g, 3, bytes, 1, scratch);
}

/* The bytes of the largest bucket, then a report a round: seconds and bytes of both moves. */
static int work(int rounds)
{
    struct dt_comm *c = NULL;
    struct dt_arch *arch;
    struct dt_state s;
    double value[4] = {0};
    DT_TRY(crew_join(PATIENT, &c));
    DT_TRY(open_state(c, &arch, &s));
    const struct dt_part *p = &s.parts[0];
    for (int64_t b = 0; b < p->bucket_count; b++) {
        double bytes = (double)(p->buckets[b].end - p->buckets[b].begin) * sizeof(float);
        value[0] = bytes > value[0] ? bytes : value[0];
    }
    value[1] = (double)p->space.elements * sizeof(float);
    /* So that pages are there; what stands in them is all the same. */
    memset(p->box, 0, (size_t)p->box_elements * sizeof *p->box);
    memset(p->box_gradient.real, 0, (size_t)p->box_elements * sizeof *p->box_gradient.real);
    for (int64_t i = 0; i < p->elements; i++)
        p->master[i] = p->gradient.real[i] = 1;
    crew_say(DT_OK, value);
    for (int i = 0; i <= rounds; i++) { /* the first one warms up */
        DT_TRY(timed(&s, gather, &value[0], &value[1]));
        DT_TRY(timed(&s, reduce, &value[2], &value[3]));
        dt_state_skip(&s, 0, i + 1); /* so that the next round gathers again */
        if (i > 0)
            crew_say(DT_OK, value);
    }
    dt_state_close(&s);
    dt_arch_free(arch);
    dt_comm_close(c);
    return DT_OK;
}

/* Bytes per second of two pairs at a time, as both say themselves; 0: ucx_perftest is missing. */
static double perftest(double bytes)
{
    const char *settings[16];
    char buffer[64], command[768];
    double rate, sum = 0;
    if (dt_comm_environment(true, NULL, buffer, sizeof buffer, settings) < 0)
        return 0;
    for (int i = 0; settings[i]; i++)
        putenv((char *)(uintptr_t)settings[i]);
    snprintf(command, sizeof command,
             "command -v ucx_perftest >/dev/null || exit 0\n"
             "for p in 23401 23402; do ucx_perftest -p $p >/dev/null 2>&1 & done\n"
             "sleep 1\n"
             "for p in 23401 23402; do\n"
             "    ucx_perftest 127.0.0.1 -p $p -t tag_bw -s %.0f -n 60 -w 4 -f 2>/dev/null |\n"
             "        awk '$1 == 60 { print $6 }' &\n"
             "done\n"
             "wait\n",
             bytes);
    FILE *f = popen(command, "r");
    while (f && fscanf(f, "%lf", &rate) == 1)
        sum += rate * 1048576; /* its MB are MiB */
    if (f)
        pclose(f);
    unsetenv("UCX_NET_DEVICES"); /* its words stand in `buffer` */
    return sum;
}

struct best {
    double both, gather, reduce;
};

static int measure(int rounds, struct best *best, double *bucket, double *space)
{
    struct crew crew;
    static struct crew_address table[CREW_MOST];
    static struct crew_report said[CREW_MOST];
    char scenario[64];
    snprintf(scenario, sizeof scenario, "%d", rounds);
    DT_TRY(crew_start(&crew, WORKERS, scenario, NULL));
    DT_TRY(crew_connect(&crew, 1, table, NULL));
    DT_TRY(crew_hear(&crew, said));
    *bucket = said[0].value[0];
    *space = said[0].value[1];
    for (int i = 0; i < rounds; i++) {
        DT_TRY(crew_hear(&crew, said));
        const double *v = said[0].value;
        double both = (v[1] + v[3]) / (v[0] + v[2]);
        best->both = both > best->both ? both : best->both;
        best->gather = v[1] / v[0] > best->gather ? v[1] / v[0] : best->gather;
        best->reduce = v[3] / v[2] > best->reduce ? v[3] / v[2] : best->reduce;
    }
    DT_TRY(crew_hear(&crew, said));
    return crew_finish(&crew);
}

static int run(int rounds)
{
    struct best best = {0};
    double bucket = 0, space = 0;
    DT_TRY(measure(rounds, &best, &bucket, &space));
    double pairs = perftest(bucket < (double)DT_COMM_MESSAGE ? bucket : (double)DT_COMM_MESSAGE);
    printf("{\"bench\":\"moves\",\"workers\":%d,\"space_bytes\":%.0f,\"bucket_bytes\":%.0f,"
           "\"bytes_per_second\":%.4g,\"gather\":%.4g,\"reduce\":%.4g,\"perftest\":%.4g,"
           "\"ratio\":%.3f}\n",
           WORKERS, space, bucket, best.both, best.gather, best.reduce, pairs,
           pairs > 0 ? best.both / pairs : 0);
    return DT_OK;
}

int main(int argc, char **argv)
{
    signal(SIGPIPE, SIG_IGN);
    if (argc == 3 && strcmp(argv[1], "worker") == 0) {
        int rc = work(atoi(argv[2]));
        crew_say(rc, NULL);
        return rc < 0;
    }
    int rounds = argc == 3 && strcmp(argv[1], "--rounds") == 0 ? atoi(argv[2]) : ROUNDS;
    if (argc != 1 && (argc != 3 || rounds < 1)) {
        fprintf(stderr, "usage: %s [--rounds N]\n", argv[0]);
        return 2;
    }
    if (run(rounds) < 0) {
        fprintf(stderr, "moves: %s\n", dt_error_message());
        return 1;
    }
    return 0;
}
