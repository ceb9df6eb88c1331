/* The state over several workers (threads of this process over the in-process transport): gather
 * brings every weight to every worker, reduce is the sum in rank order bit by bit, exact sums are
 * the same for any number of workers, and a checkpoint written by several has the bytes of one
 * written by one, with no page touched by two of them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/error.h"
#include "comm/transport.h"
#include "state/state.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 8 };

static const char config[] =
    "{\"model_type\":\"llama\",\"hidden_size\":80,\"num_hidden_layers\":2,"
    "\"num_attention_heads\":4,\"num_key_value_heads\":2,\"intermediate_size\":200,"
    "\"vocab_size\":300,\"max_position_embeddings\":64,\"rms_norm_eps\":1e-5,"
    "\"tie_word_embeddings\":false}";

static struct dt_arch *arch;
static char dir[256];

struct team {
    int32_t size;
    bool exact, frozen;
    const char *directory; /* save there, or NULL */
    struct dt_state state[MOST];
    struct dt_comm *comm[MOST];
    struct dt_comm_hub *hub;
    struct dt_checkpoint_part *part[MOST];
    int rc[MOST];
    char words[MOST][512];
};

struct member {
    struct team *team;
    int32_t rank;
};

static bool trainable[64];

/* What worker `rank` has as gradient of element i of the space: differs between workers, and sums
 * in another order differ in the last bits. */
static float part_of(int32_t rank, int64_t i)
{
    return (float)((i * 7 + 3) % 1013 - 500) * 0.001f / (float)(rank + 1);
}

static int step(struct dt_state *s)
{
    struct dt_part *p = &s->parts[0];
    for (int64_t b = 0; b < p->bucket_count; b++)
        DT_TRY(dt_state_gather_start(s, p->buckets[b].segment, p->buckets[b].layer));
    for (int64_t b = 0; b < p->bucket_count; b++)
        DT_TRY(dt_state_gather_wait(s, p->buckets[b].segment, p->buckets[b].layer));
    for (int64_t b = p->bucket_count; b-- > 0;) {
        for (int64_t i = p->buckets[b].begin; i < p->buckets[b].end; i++)
            if (s->exact)
                p->box_gradient.fixed[i] = (int64_t)(part_of(s->rank, i) * 1e6f);
            else
                p->box_gradient.real[i] = part_of(s->rank, i);
        DT_TRY(dt_state_reduce_start(s, p->buckets[b].segment, p->buckets[b].layer));
    }
    return dt_state_settle(s);
}

static void connect_all(struct team *t)
{
    struct dt_comm_address table[MOST];
    assert_int_equal(dt_comm_hub_new(t->size, &t->hub), 0);
    for (int32_t r = 0; r < t->size; r++) {
        struct dt_comm_options o = {.rank = r, .size = t->size, .epoch = 1, .timeout = 20};
        assert_int_equal(dt_comm_local_new(t->hub, r, &o.transport), 0);
        assert_int_equal(dt_comm_open(&o, &t->comm[r]), 0);
        assert_int_equal(dt_comm_address(t->comm[r], &table[r].data, &table[r].bytes), 0);
    }
    for (int32_t r = 0; r < t->size; r++)
        assert_int_equal(dt_comm_connect(t->comm[r], table), 0);
}

static int open_member(struct team *t, int32_t rank)
{
    struct dt_state_options so = {.kind = DT_STATE_TRAIN,
                                  .trainable = trainable,
                                  .rank = rank,
                                  .workers = t->size,
                                  .comm = t->comm[rank],
                                  .exact = t->exact,
                                  .copy_compute = true};
    DT_TRY(dt_state_open(arch, &so, &t->state[rank]));
    dt_state_init(&t->state[rank], 11);
    return DT_OK;
}

static void *work(void *arg)
{
    struct member *m = arg;
    struct team *t = m->team;
    struct dt_state *s = &t->state[m->rank];
    int rc = open_member(t, m->rank);
    for (int k = 0; k < 3 && rc >= 0; k++) {
        rc = step(s);
        dt_state_skip(s, 0, k + 1); /* so that the next step gathers again */
    }
    if (rc >= 0 && t->directory) {
        for (int64_t i = 0; i < s->parts[0].elements; i++) {
            s->parts[0].exp_avg[i] = s->parts[0].master[i] * 0.5f;
            s->parts[0].exp_avg_sq[i] = s->parts[0].master[i] * s->parts[0].master[i];
        }
        rc = dt_state_part_open(t->directory, &t->part[m->rank]);
        if (rc >= 0)
            rc = dt_state_save(s, t->part[m->rank]);
    }
    t->rc[m->rank] = rc;
    snprintf(t->words[m->rank], sizeof t->words[0], "%.500s", rc < 0 ? dt_error_message() : "");
    return NULL;
}

static void run_team(struct team *t)
{
    pthread_t threads[MOST];
    struct member members[MOST];
    connect_all(t);
    for (int32_t r = 0; r < t->size; r++) {
        members[r] = (struct member){t, r};
        assert_int_equal(pthread_create(&threads[r], NULL, work, &members[r]), 0);
    }
    for (int32_t r = 0; r < t->size; r++)
        pthread_join(threads[r], NULL);
    for (int32_t r = 0; r < t->size; r++)
        if (t->rc[r] < 0)
            fail_msg("worker %d of %d: %s", r, t->size, t->words[r]);
}

static void close_team(struct team *t)
{
    for (int32_t r = 0; r < t->size; r++) {
        dt_checkpoint_part_close(t->part[r]);
        dt_state_close(&t->state[r]);
        dt_comm_close(t->comm[r]);
    }
    dt_comm_hub_free(t->hub);
}

static void set_trainable(bool frozen)
{
    for (int64_t i = 0; i < arch->tensor_count; i++)
        trainable[i] = !frozen || i % 4 > 0;
}

static int setup(void **state)
{
    (void)state;
    snprintf(dir, sizeof dir, "/tmp/ductile-workers-XXXXXX");
    dt_ops_set_threads(1);
    return dt_kernels_select("auto") < 0 || !mkdtemp(dir) ||
           dt_arch_parse(config, sizeof config - 1, "tiny", &arch) < 0;
}

static int teardown(void **state)
{
    (void)state;
    dt_arch_free(arch);
    return dt_remove_tree(dir);
}

/* The whole master array of the space, put together from all homes. */
static float *whole(const struct team *t, int which)
{
    const struct dt_home *h = &t->state[0].parts[0].home;
    float *out = calloc((size_t)t->state[0].parts[0].space.elements, sizeof *out);
    for (int64_t i = 0; i < h->count; i++) {
        const struct dt_part *p = &t->state[h->intervals[i].owner].parts[0];
        const float *from = which == 0 ? p->master : p->gradient.real;
        memcpy(out + h->intervals[i].begin, from + h->intervals[i].at,
               (size_t)(h->intervals[i].end - h->intervals[i].begin) * sizeof *out);
    }
    return out;
}

static void test_gather_and_reduce(void **state)
{
    (void)state;
    for (int frozen = 0; frozen < 2; frozen++)
        for (int32_t size = 1; size <= MOST; size++) {
            static struct team t;
            t = (struct team){.size = size};
            set_trainable(frozen);
            run_team(&t);
            int64_t n = t.state[0].parts[0].space.elements, sum = 0;
            float *master = whole(&t, 0), *gradient = whole(&t, 1);
            for (int32_t r = 0; r < size; r++) {
                assert_memory_equal(t.state[r].parts[0].box, master, (size_t)n * sizeof *master);
                sum += t.state[r].parts[0].elements;
            }
            assert_int_equal(sum, n);
            for (int64_t i = 0; i < n; i++) {
                float wanted = part_of(0, i);
                for (int32_t r = 1; r < size; r++)
                    wanted += part_of(r, i);
                if (memcmp(&wanted, &gradient[i], sizeof wanted) != 0)
                    fail_msg("%d workers, element %lld: %.9g, expected %.9g", size, (long long)i,
                             (double)gradient[i], (double)wanted);
            }
            free(master);
            free(gradient);
            close_team(&t);
        }
}

static void test_exact(void **state)
{
    (void)state;
    set_trainable(false);
    for (int32_t size = 1; size <= 5; size += 2) {
        static struct team t;
        t = (struct team){.size = size, .exact = true};
        run_team(&t);
        const struct dt_home *h = &t.state[0].parts[0].home;
        for (int64_t k = 0; k < h->count; k++) {
            const struct dt_interval *in = &h->intervals[k];
            const int64_t *got = t.state[in->owner].parts[0].gradient.fixed + in->at;
            for (int64_t i = in->begin; i < in->end; i++) {
                int64_t wanted = 0;
                for (int32_t r = 0; r < size; r++)
                    wanted += (int64_t)(part_of(r, i) * 1e6f);
                assert_int_equal(got[i - in->begin], wanted);
            }
        }
        close_team(&t);
    }
}

/* ---- Saving ---- */

static void make_files(const struct dt_state *s, const char *directory)
{
    struct dt_state_file files[DT_STATE_FILES];
    char path[DT_PATH], sub[DT_PATH];
    snprintf(sub, sizeof sub, "%s/optimizer", directory);
    assert_int_equal(dt_mkdirs(sub), 0);
    assert_int_equal(dt_state_files(arch, s->trainable, s->frozen_dtype, files), 0);
    for (int k = 0; k < DT_STATE_FILES; k++) {
        int fd;
        snprintf(path, sizeof path, "%s/%s/%s", directory, files[k].folder, files[k].name);
        assert_int_equal(dt_fd_create(path, &fd), 0);
        assert_int_equal(dt_fd_reserve(fd, path, files[k].plan.files[0].size), 0);
        assert_int_equal(dt_fd_close(fd, path), 0);
    }
    dt_state_files_free(files);
}

/* Every page of every file belongs to one writer, and every byte to exactly one range. */
static void check_ranges(const struct team *t)
{
    enum { PAGES = 4096 };
    static int owner[DT_STATE_FILES][PAGES];
    static size_t bytes[DT_STATE_FILES];
    memset(owner, -1, sizeof owner);
    memset(bytes, 0, sizeof bytes);
    for (int32_t r = 0; r < t->size; r++) {
        size_t count;
        const struct dt_checkpoint_range *range = dt_checkpoint_part_ranges(t->part[r], &count);
        for (size_t i = 0; i < count; i++) {
            bytes[range[i].file] += range[i].length;
            for (size_t page = range[i].offset / DT_STATE_PAGE;
                 page <= (range[i].offset + range[i].length - 1) / DT_STATE_PAGE; page++) {
                int *o = &owner[range[i].file][page];
                assert_true(page < PAGES && (*o == -1 || *o == r));
                *o = r;
            }
        }
    }
    struct dt_state_file files[DT_STATE_FILES];
    const struct dt_state *s = &t->state[0];
    assert_int_equal(dt_state_files(arch, s->trainable, s->frozen_dtype, files), 0);
    for (int k = 0; k < DT_STATE_FILES; k++)
        assert_int_equal(bytes[k], files[k].plan.files[0].size);
    dt_state_files_free(files);
}

static void compare_files(const char *a, const char *b)
{
    static const char *const names[] = {"model.safetensors", "optimizer/exp_avg.safetensors",
                                        "optimizer/exp_avg_sq.safetensors"};
    for (int k = 0; k < 3; k++) {
        struct dt_map x, y;
        char path[DT_PATH];
        snprintf(path, sizeof path, "%s/%s", a, names[k]);
        assert_int_equal(dt_file_map(path, &x), 0);
        snprintf(path, sizeof path, "%s/%s", b, names[k]);
        assert_int_equal(dt_file_map(path, &y), 0);
        assert_int_equal(x.size, y.size);
        assert_memory_equal(x.data, y.data, x.size);
        dt_file_unmap(&x);
        dt_file_unmap(&y);
    }
}

static void test_many_writers(void **state)
{
    (void)state;
    for (int frozen = 0; frozen < 2; frozen++) {
        char one[512], many[512];
        set_trainable(frozen);
        for (int32_t size = 1; size <= MOST; size++) {
            static struct team t;
            struct dt_state shape;
            struct dt_state_options so = {.kind = DT_STATE_TRAIN, .trainable = trainable};
            snprintf(many, sizeof many, "%s/save-%d-%d", dir, frozen, size);
            assert_int_equal(dt_state_open(arch, &so, &shape), 0);
            make_files(&shape, many);
            dt_state_close(&shape);
            t = (struct team){.size = size, .directory = many};
            run_team(&t);
            check_ranges(&t);
            close_team(&t);
            if (size == 1)
                memcpy(one, many, sizeof one);
            else
                compare_files(one, many);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gather_and_reduce),
        cmocka_unit_test(test_exact),
        cmocka_unit_test(test_many_writers),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
