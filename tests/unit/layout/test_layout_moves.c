/* Moves between any two layouts: every element is delivered exactly once, to the place where it
 * belongs. Thousands of random homes and box lists over a small space with awkward sizes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/rng.h"
#include "layout/layout.h"

#include <stdlib.h>
#include <string.h>

static const char tiny[] =
    "{\"model_type\":\"llama\",\"hidden_size\":24,\"num_hidden_layers\":2,"
    "\"num_attention_heads\":3,\"num_key_value_heads\":1,\"intermediate_size\":50,"
    "\"vocab_size\":70,\"max_position_embeddings\":64,\"rms_norm_eps\":1e-5}";

static uint64_t draws;

static int64_t below(int64_t n)
{
    return (int64_t)dt_rng_below((struct dt_rng_key){.seed = 7, .purpose = 99}, draws++,
                                 (uint64_t)n);
}

static void open_space(struct dt_arch **arch, struct dt_space *s, bool all)
{
    assert_int_equal(dt_arch_parse(tiny, sizeof tiny - 1, "tiny", arch), 0);
    bool *trainable = calloc((size_t)(*arch)->tensor_count, 1);
    for (int64_t i = 0; i < (*arch)->tensor_count; i++)
        trainable[i] = all || below(3) > 0 || i == 1;
    assert_int_equal(dt_space_new(*arch, trainable, s), 0);
    free(trainable);
}

/* Random cuts anywhere (homes cut on block edges are a special case), owners at random, storage of
 * each owner without gaps. */
static void random_home(const struct dt_space *s, int32_t owners, struct dt_home *h)
{
    int64_t stored[16] = {0}, at = 0;
    h->count = 0;
    h->intervals = calloc(64, sizeof *h->intervals);
    while (at < s->elements && h->count < 63) {
        int64_t n = h->count == 62 ? s->elements - at : 1 + below(s->elements / 5);
        if (n > s->elements - at)
            n = s->elements - at;
        int32_t owner = (int32_t)below(owners);
        h->intervals[h->count++] =
            (struct dt_interval){.begin = at, .end = at + n, .owner = owner, .at = stored[owner]};
        stored[owner] += n;
        at += n;
    }
}

/* Every tensor cut into a grid of boxes, dealt to owners at random. */
static void random_boxes(const struct dt_space *s, int32_t owners, struct dt_compute *c)
{
    int64_t stored[16] = {0};
    c->count = 0;
    c->boxes = calloc((size_t)s->count * 9, sizeof *c->boxes);
    for (int64_t t = 0; t < s->count; t++) {
        const struct dt_tensor *x = &s->arch->tensors[s->tensor[t]];
        int64_t row[4] = {0, below(x->rows + 1), below(x->rows + 1), x->rows};
        int64_t col[4] = {0, below(x->cols + 1), below(x->cols + 1), x->cols};
        if (row[1] > row[2]) {
            int64_t k = row[1];
            row[1] = row[2], row[2] = k;
        }
        if (col[1] > col[2]) {
            int64_t k = col[1];
            col[1] = col[2], col[2] = k;
        }
        for (int i = 0; i < 3; i++)
            for (int j = 0; j < 3; j++) {
                struct dt_box b = {.owner = (int32_t)below(owners),
                                   .tensor = t,
                                   .row0 = row[i],
                                   .row1 = row[i + 1],
                                   .col0 = col[j],
                                   .col1 = col[j + 1],
                                   .gradient = DT_GRAD_PARTIAL};
                if (b.row0 == b.row1 || b.col0 == b.col1)
                    continue;
                b.ld = b.col1 - b.col0 + below(3);
                b.at = stored[b.owner];
                stored[b.owner] += (b.row1 - b.row0) * b.ld;
                c->boxes[c->count++] = b;
            }
    }
}

enum { OWNERS = 5, ROOM = 1 << 16 };
static int32_t home_memory[OWNERS][ROOM], box_memory[OWNERS][ROOM], back[OWNERS][ROOM];

static void carry(const struct dt_move *m, int32_t from[OWNERS][ROOM], int32_t to[OWNERS][ROOM])
{
    for (int64_t i = 0; i < m->count; i++) {
        const struct dt_piece *p = &m->pieces[i];
        for (int64_t r = 0; r < p->rows; r++)
            for (int64_t k = 0; k < p->cols; k++) {
                int32_t *cell = &to[p->to][p->to_at + r * p->to_ld + k];
                assert_int_equal(*cell, -1); /* nobody wrote it before */
                *cell = from[p->from][p->from_at + r * p->from_ld + k];
            }
    }
}

static void clear(int32_t m[OWNERS][ROOM])
{
    memset(m, 0xff, sizeof(int32_t) * OWNERS * ROOM);
}

static void fill_home(const struct dt_home *h, int32_t m[OWNERS][ROOM])
{
    clear(m);
    for (int64_t i = 0; i < h->count; i++)
        for (int64_t e = h->intervals[i].begin; e < h->intervals[i].end; e++)
            m[h->intervals[i].owner][h->intervals[i].at + e - h->intervals[i].begin] = (int32_t)e;
}

static void test_gather_and_reduce(void **state)
{
    (void)state;
    for (int round = 0; round < 400; round++) {
        struct dt_arch *arch;
        struct dt_space s;
        struct dt_home h;
        struct dt_compute c;
        struct dt_move gather, reduce;
        open_space(&arch, &s, round % 2);
        random_home(&s, OWNERS, &h);
        random_boxes(&s, OWNERS, &c);
        assert_int_equal(dt_move_gather(&s, &h, &c, -1, &gather), 0);
        assert_int_equal(dt_move_reduce(&s, &c, &h, -1, &reduce), 0);
        assert_int_equal(dt_move_elements(&gather), s.elements);
        assert_int_equal(dt_move_elements(&reduce), s.elements);
        fill_home(&h, home_memory);
        clear(box_memory);
        carry(&gather, home_memory, box_memory);
        for (int64_t b = 0; b < c.count; b++) {
            const struct dt_box *x = &c.boxes[b];
            int64_t cols = arch->tensors[s.tensor[x->tensor]].cols;
            for (int64_t r = x->row0; r < x->row1; r++)
                for (int64_t k = x->col0; k < x->col1; k++)
                    assert_int_equal(
                        box_memory[x->owner][x->at + (r - x->row0) * x->ld + k - x->col0],
                        s.offset[x->tensor] + r * cols + k);
        }
        clear(back);
        carry(&reduce, box_memory, back);
        assert_memory_equal(back, home_memory, sizeof back);
        dt_move_free(&gather);
        dt_move_free(&reduce);
        dt_home_free(&h);
        dt_compute_free(&c);
        dt_space_free(&s);
        dt_arch_free(arch);
    }
}

static void test_migrate_there_and_back(void **state)
{
    (void)state;
    for (int round = 0; round < 400; round++) {
        struct dt_arch *arch;
        struct dt_space s;
        struct dt_home a, b;
        struct dt_move there, home;
        open_space(&arch, &s, round % 2);
        random_home(&s, OWNERS, &a);
        random_home(&s, OWNERS, &b);
        assert_int_equal(dt_move_migrate(&s, &a, &b, -1, &there), 0);
        assert_int_equal(dt_move_migrate(&s, &b, &a, -1, &home), 0);
        fill_home(&a, home_memory);
        clear(box_memory);
        carry(&there, home_memory, box_memory);
        fill_home(&b, back);
        assert_memory_equal(box_memory, back, sizeof back);
        clear(back);
        carry(&home, box_memory, back);
        assert_memory_equal(back, home_memory, sizeof back);
        dt_move_free(&there);
        dt_move_free(&home);
        dt_home_free(&a);
        dt_home_free(&b);
        dt_space_free(&s);
        dt_arch_free(arch);
    }
}

/* Of boxes that say `same` one sends, of `partial` all, of `none` nobody. */
static void test_gradient_kinds(void **state)
{
    (void)state;
    struct dt_arch *arch;
    struct dt_space s;
    struct dt_home h;
    struct dt_compute c;
    struct dt_move m;
    open_space(&arch, &s, true);
    assert_int_equal(dt_home_buckets(&s, 1, NULL, &h), 0);
    assert_int_equal(dt_compute_whole(&s, 3, &c), 0);
    assert_int_equal(dt_move_reduce(&s, &c, &h, -1, &m), 0);
    assert_int_equal(dt_move_elements(&m), 3 * s.elements);
    dt_move_free(&m);
    for (int64_t i = 0; i < c.count; i++)
        c.boxes[i].gradient = DT_GRAD_SAME;
    assert_int_equal(dt_move_reduce(&s, &c, &h, -1, &m), 0);
    assert_int_equal(dt_move_elements(&m), s.elements);
    dt_move_free(&m);
    for (int64_t i = 0; i < c.count; i++)
        c.boxes[i].gradient = DT_GRAD_NONE;
    assert_int_equal(dt_move_reduce(&s, &c, &h, -1, &m), 0);
    assert_int_equal(dt_move_elements(&m), 0);
    dt_move_free(&m);
    dt_home_free(&h);
    dt_compute_free(&c);
    dt_space_free(&s);
    dt_arch_free(arch);
}

/* Homes are cut on block edges, also for shares that are nothing and for more workers than blocks.
 */
static void test_home_cuts(void **state)
{
    (void)state;
    struct dt_arch *arch;
    struct dt_space s;
    open_space(&arch, &s, true);
    for (int32_t workers = 1; workers < 40; workers++) {
        struct dt_home h;
        double share[64];
        for (int i = 0; i < 64; i++)
            share[i] = i % 3 ? 1.0 + i % 5 : 0.0;
        assert_int_equal(dt_home_buckets(&s, workers, workers > 1 ? share : NULL, &h), 0);
        int64_t at = 0;
        for (int64_t i = 0; i < h.count; i++) {
            assert_int_equal(h.intervals[i].begin, at);
            assert_int_equal(dt_space_block_edge(&s, at), at);
            at = h.intervals[i].end;
        }
        assert_int_equal(at, s.elements);
        dt_home_free(&h);
    }
    dt_space_free(&s);
    dt_arch_free(arch);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gather_and_reduce),
        cmocka_unit_test(test_migrate_there_and_back),
        cmocka_unit_test(test_gradient_kinds),
        cmocka_unit_test(test_home_cuts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
