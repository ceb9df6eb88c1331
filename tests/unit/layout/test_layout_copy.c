/* Copies between layouts in which an element stands on several workers: pipelines, each divided
 * over a tensor-parallel group with uneven shares. Every wanted element arrives once, from a
 * holder; what the receiver holds is not sent; and nobody sends much more than the least that is
 * possible. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/error.h"
#include "random_layout.h"

enum { WORKERS = 9, ROOM = 1 << 17, SIZE = 4 };

struct memory {
    int32_t cell[WORKERS][ROOM];
};
static struct memory one, two, three;
static uint8_t touched[WORKERS][ROOM];

/* Columns or rows [a, b) of a tensor that member m of a group holds. */
static void add_box(struct dt_compute *c, int64_t *stored, int32_t owner, int64_t tensor,
                    struct dt_box where, enum dt_gradient gradient)
{
    struct dt_box b = where;
    if (b.row0 == b.row1 || b.col0 == b.col1)
        return;
    b.owner = owner;
    b.tensor = tensor;
    b.gradient = gradient;
    b.ld = b.col1 - b.col0 + (below(3) == 0);
    b.at = stored[owner];
    stored[owner] += (b.row1 - b.row0) * b.ld;
    assert_true(stored[owner] <= ROOM);
    c->boxes[c->count++] = b;
}

/* Cuts [0, n) for `members`, in random proportions; a share may be nothing. */
static void random_cuts(int64_t n, int members, int64_t *cut)
{
    double share[WORKERS], upto = 0, total = random_shares(members, share);
    cut[0] = 0;
    for (int m = 0; m < members; m++) {
        upto += share[m];
        cut[m + 1] = m + 1 == members ? n : (int64_t)((double)n * (upto / total));
    }
}

/* One tensor over one group, divided as arch says it can be, or held by all of them. */
static void add_tensor(const struct dt_space *s, struct dt_compute *c, int64_t *stored, int64_t i,
                       const int32_t *member, int members)
{
    const struct dt_tensor *t = &s->arch->tensors[s->tensor[i]];
    int64_t cut[WORKERS + 1];
    int groups = t->split == DT_SPLIT_QKV_COLS && t->cols % 3 == 0 ? 3 : 1;
    bool rows = t->split == DT_SPLIT_ROWS;
    bool replicated = t->split == DT_SPLIT_NONE || below(5) == 0;
    random_cuts(rows ? t->rows : t->cols / groups, members, cut);
    for (int m = 0; m < members; m++) {
        struct dt_box b = {.row1 = t->rows, .col1 = t->cols};
        if (replicated)
            add_box(c, stored, member[m], i, b, below(2) ? DT_GRAD_SAME : DT_GRAD_PARTIAL);
        for (int g = 0; !replicated && g < groups; g++) {
            *(rows ? &b.row0 : &b.col0) = cut[m] + g * (t->cols / groups);
            *(rows ? &b.row1 : &b.col1) = cut[m + 1] + g * (t->cols / groups);
            add_box(c, stored, member[m], i, b, DT_GRAD_PARTIAL);
        }
    }
}

/* The workers, shuffled, form one to three groups, some are in none; each group holds most tensors
 * and the first holds all. */
static void random_plan(const struct dt_space *s, int32_t workers, struct dt_compute *c)
{
    int64_t stored[WORKERS] = {0};
    int32_t order[WORKERS];
    c->count = 0;
    c->boxes = calloc((size_t)(s->count * workers * 3), sizeof *c->boxes);
    for (int32_t w = 0; w < workers; w++) {
        int32_t k = (int32_t)below(w + 1);
        order[w] = order[k];
        order[k] = w;
    }
    int32_t a = 1 + (int32_t)below(workers), b = a + (int32_t)below(workers - a + 1);
    int32_t d = b + (int32_t)below(workers - b + 1);
    bool holds_all = below(2);
    for (int64_t i = 0; i < s->count; i++) {
        add_tensor(s, c, stored, i, order, a);
        if (b > a && (holds_all || below(2)))
            add_tensor(s, c, stored, i, order + a, b - a);
        if (d > b && (holds_all || below(2)))
            add_tensor(s, c, stored, i, order + b, d - b);
    }
}

static void clear(struct memory *m, const struct dt_compute *c)
{
    for (int64_t i = 0; i < c->count; i++) {
        const struct dt_box *b = &c->boxes[i];
        memset(&m->cell[b->owner][b->at], 0xff,
               (size_t)((b->row1 - b->row0) * b->ld) * sizeof(int32_t));
    }
}

static int64_t element_of(const struct dt_space *s, const struct dt_box *b, int64_t r, int64_t k)
{
    return s->offset[b->tensor] + r * s->arch->tensors[s->tensor[b->tensor]].cols + k;
}

/* Writes the elements' numbers where they belong, or checks that they stand there. */
static void numbers(const struct dt_space *s, const struct dt_compute *c, struct memory *m,
                    bool check)
{
    for (int64_t i = 0; i < c->count; i++) {
        const struct dt_box *b = &c->boxes[i];
        for (int64_t r = b->row0; r < b->row1; r++)
            for (int64_t k = b->col0; k < b->col1; k++) {
                int32_t *cell = &m->cell[b->owner][b->at + (r - b->row0) * b->ld + k - b->col0];
                if (check)
                    assert_int_equal(*cell, element_of(s, b, r, k));
                *cell = (int32_t)element_of(s, b, r, k);
            }
    }
}

static void carry(const struct dt_move *m, const struct memory *from, struct memory *to)
{
    for (int64_t i = 0; i < m->count; i++) {
        const struct dt_piece *p = &m->pieces[i];
        for (int64_t r = 0; r < p->rows; r++)
            for (int64_t k = 0; k < p->cols; k++) {
                int32_t *cell = &to->cell[p->to][p->to_at + r * p->to_ld + k];
                assert_int_equal(*cell, -1);
                *cell = from->cell[p->from][p->from_at + r * p->from_ld + k];
                assert_int_not_equal(*cell, -1);
            }
    }
}

/* [elements] the set of workers that hold each. */
static uint16_t *holders_of(const struct dt_space *s, const struct dt_compute *c)
{
    uint16_t *set = calloc((size_t)s->elements, sizeof *set);
    for (int64_t i = 0; i < c->count; i++) {
        const struct dt_box *b = &c->boxes[i];
        for (int64_t r = b->row0; r < b->row1; r++)
            for (int64_t k = b->col0; k < b->col1; k++)
                set[element_of(s, b, r, k)] |= (uint16_t)(1 << b->owner);
    }
    return set;
}

/* The least that the busiest sender can send. By max-flow and min-cut it is the largest, over sets
 * S of workers, of what nobody outside S can send, divided by the size of S. */
static int64_t optimum(const int64_t *wanted_from, int32_t workers)
{
    int64_t best = 0;
    for (int set = 1; set < 1 << workers; set++) {
        int64_t sum = 0, size = __builtin_popcount((unsigned)set);
        for (int sub = set; sub; sub = (sub - 1) & set)
            sum += wanted_from[sub];
        int64_t least = (sum + size - 1) / size;
        best = least > best ? least : best;
    }
    return best;
}

static double worst;

/* Elements sent: the lower bound, and balanced. Senders are even to the element but for chains of
 * holders each of which has one more than the next, hence + workers. */
static void check_sent(const struct dt_space *s, const struct dt_compute *from,
                       const struct dt_compute *to, const struct dt_move *m, int32_t workers)
{
    int64_t wanted_from[1 << WORKERS] = {0}, load[WORKERS] = {0}, sent = 0, needed = 0, most = 0;
    uint16_t *held = holders_of(s, from);
    for (int64_t i = 0; i < to->count; i++) {
        const struct dt_box *b = &to->boxes[i];
        for (int64_t r = b->row0; r < b->row1; r++)
            for (int64_t k = b->col0; k < b->col1; k++) {
                uint16_t set = held[element_of(s, b, r, k)];
                bool local = set >> b->owner & 1;
                needed += !local;
                wanted_from[local ? 0 : set]++;
            }
    }
    for (int64_t i = 0; i < m->count; i++) {
        int64_t n = m->pieces[i].rows * m->pieces[i].cols;
        sent += m->pieces[i].from == m->pieces[i].to ? 0 : n;
        load[m->pieces[i].from] += m->pieces[i].from == m->pieces[i].to ? 0 : n;
    }
    for (int32_t w = 0; w < workers; w++)
        most = load[w] > most ? load[w] : most;
    int64_t best = optimum(wanted_from, workers);
    assert_int_equal(sent, needed);
    assert_true((double)most <= 1.1 * (double)best + workers);
    worst =
        best > 1000 && (double)most / (double)best > worst ? (double)most / (double)best : worst;
    free(held);
}

/* A rank's move is the whole one without the pieces of others. */
static void check_part(const struct dt_move *all, const struct dt_move *own, int32_t rank)
{
    int64_t k = 0;
    for (int64_t i = 0; i < all->count; i++)
        if (all->pieces[i].from == rank || all->pieces[i].to == rank) {
            assert_true(k < own->count);
            assert_memory_equal(&own->pieces[k++], &all->pieces[i], sizeof *all->pieces);
        }
    assert_int_equal(k, own->count);
}

static void test_copy_there_and_back(void **state)
{
    (void)state;
    for (int round = 0; round < 2000; round++) {
        struct dt_arch *arch;
        struct dt_space s;
        struct dt_compute a, b;
        struct dt_move there, back, own;
        int32_t workers = 1 + (int32_t)below(WORKERS);
        random_space(&arch, &s, SIZE);
        random_plan(&s, workers, &a);
        random_plan(&s, workers, &b);
        assert_int_equal(dt_move_copy(&s, &a, &b, -1, &there), 0);
        assert_int_equal(dt_move_copy(&s, &b, &a, -1, &back), 0);
        clear(&one, &a);
        numbers(&s, &a, &one, false);
        clear(&two, &b);
        carry(&there, &one, &two);
        numbers(&s, &b, &two, true);
        clear(&three, &a);
        carry(&back, &two, &three);
        numbers(&s, &a, &three, true);
        check_sent(&s, &a, &b, &there, workers);
        check_sent(&s, &b, &a, &back, workers);
        int32_t rank = (int32_t)below(workers);
        assert_int_equal(dt_move_copy(&s, &a, &b, rank, &own), 0);
        check_part(&there, &own, rank);
        dt_move_free(&own);
        dt_move_free(&there);
        dt_move_free(&back);
        dt_compute_free(&a);
        dt_compute_free(&b);
        close_space(arch, &s);
    }
    print_message("busiest sender at most %.4f of the optimum\n", worst);
}

/* Every partial of every element is sent to its home once, and one copy of what is the same. */
static void test_reduce_of_plans(void **state)
{
    (void)state;
    for (int round = 0; round < 1000; round++) {
        struct dt_arch *arch;
        struct dt_space s;
        struct dt_home h;
        struct dt_compute c;
        struct dt_move m;
        int32_t workers = 1 + (int32_t)below(WORKERS);
        random_space(&arch, &s, SIZE);
        random_plan(&s, workers, &c);
        assert_int_equal(dt_home_buckets(&s, workers, NULL, &h), 0);
        assert_int_equal(dt_move_reduce(&s, &c, &h, -1, &m), 0);
        int64_t expected = 0, *parts = calloc((size_t)s.elements, sizeof *parts);
        uint8_t *same = calloc((size_t)s.elements, 1);
        clear(&one, &c);
        numbers(&s, &c, &one, false);
        for (int64_t i = 0; i < c.count; i++) {
            const struct dt_box *b = &c.boxes[i];
            for (int64_t r = b->row0; r < b->row1; r++)
                for (int64_t k = b->col0; k < b->col1; k++) {
                    int64_t e = element_of(&s, b, r, k);
                    bool counts = b->gradient == DT_GRAD_PARTIAL || !same[e];
                    same[e] |= b->gradient == DT_GRAD_SAME;
                    parts[e] += counts;
                    expected += counts;
                }
        }
        assert_int_equal(dt_move_elements(&m), expected);
        memset(touched, 0, sizeof touched);
        for (int64_t i = 0; i < m.count; i++) {
            const struct dt_piece *p = &m.pieces[i];
            for (int64_t r = 0; r < p->rows; r++)
                for (int64_t k = 0; k < p->cols; k++) {
                    int64_t at = p->from_at + r * p->from_ld + k;
                    assert_false(touched[p->from][at]); /* no partial twice */
                    touched[p->from][at] = 1;
                    parts[one.cell[p->from][at]]--;
                }
        }
        for (int64_t e = 0; e < s.elements; e++)
            assert_int_equal(parts[e], 0);
        free(parts);
        free(same);
        dt_move_free(&m);
        dt_home_free(&h);
        dt_compute_free(&c);
        close_space(arch, &s);
    }
}

static void test_moves_of_one_rank(void **state)
{
    (void)state;
    for (int round = 0; round < 1000; round++) {
        struct dt_arch *arch;
        struct dt_space s;
        struct dt_home h, g;
        struct dt_compute c;
        struct dt_move all, own;
        double share[WORKERS];
        int32_t workers = 1 + (int32_t)below(WORKERS), rank = (int32_t)below(workers);
        random_space(&arch, &s, SIZE);
        random_plan(&s, workers, &c);
        random_shares(workers, share);
        assert_int_equal(dt_home_buckets(&s, workers, NULL, &h), 0);
        assert_int_equal(dt_home_buckets(&s, workers, share, &g), 0);
        assert_int_equal(dt_move_gather(&s, &h, &c, -1, &all), 0);
        assert_int_equal(dt_move_gather(&s, &h, &c, rank, &own), 0);
        check_part(&all, &own, rank);
        dt_move_free(&all);
        dt_move_free(&own);
        assert_int_equal(dt_move_reduce(&s, &c, &h, -1, &all), 0);
        assert_int_equal(dt_move_reduce(&s, &c, &h, rank, &own), 0);
        check_part(&all, &own, rank);
        dt_move_free(&all);
        dt_move_free(&own);
        assert_int_equal(dt_move_migrate(&s, &h, &g, -1, &all), 0);
        assert_int_equal(dt_move_migrate(&s, &h, &g, rank, &own), 0);
        check_part(&all, &own, rank);
        dt_move_free(&all);
        dt_move_free(&own);
        dt_home_free(&h);
        dt_home_free(&g);
        dt_compute_free(&c);
        close_space(arch, &s);
    }
}

/* A home is boxes too: from it to a plan and back to another home. */
static void test_homes_as_boxes(void **state)
{
    (void)state;
    for (int round = 0; round < 500; round++) {
        struct dt_arch *arch;
        struct dt_space s;
        struct dt_home home, save;
        struct dt_byte_range *ranges;
        struct dt_compute h, c;
        struct dt_move to, from;
        int64_t count;
        int32_t workers = 1 + (int32_t)below(WORKERS);
        random_space(&arch, &s, SIZE);
        random_plan(&s, workers, &c);
        assert_int_equal(dt_home_buckets(&s, workers, NULL, &home), 0);
        struct dt_save_file f = {8, 4, 8 + 4 * (size_t)s.elements, 64}; /* cuts anywhere */
        assert_int_equal(dt_home_save(&s, &home, &f, workers, &save, &ranges, &count), 0);
        assert_int_equal(dt_compute_home(&s, &save, &h), 0);
        assert_int_equal(dt_move_copy(&s, &h, &c, -1, &to), 0);
        assert_int_equal(dt_move_copy(&s, &c, &h, -1, &from), 0);
        clear(&one, &h);
        numbers(&s, &h, &one, false);
        clear(&two, &c);
        carry(&to, &one, &two);
        numbers(&s, &c, &two, true);
        check_sent(&s, &h, &c, &to, workers);
        check_sent(&s, &c, &h, &from, workers);
        dt_move_free(&to);
        dt_move_free(&from);
        dt_compute_free(&h);
        dt_compute_free(&c);
        dt_home_free(&home);
        dt_home_free(&save);
        free(ranges);
        close_space(arch, &s);
    }
}

static void test_nobody_holds_it(void **state)
{
    (void)state;
    struct dt_arch *arch;
    struct dt_space s;
    struct dt_compute a, b;
    struct dt_move m;
    random_space(&arch, &s, SIZE);
    assert_int_equal(dt_compute_whole(&s, 1, &a), 0);
    assert_int_equal(dt_compute_whole(&s, 2, &b), 0);
    const struct dt_tensor *t = &arch->tensors[s.tensor[s.count - 1]];
    a.boxes[a.count - 1].col1--; /* the last column of the last tensor */
    assert_int_equal(dt_move_copy(&s, &a, &b, -1, &m), DT_E_INTERNAL);
    assert_non_null(strstr(dt_error_message(), t->name));
    assert_null(m.pieces);
    a.count--;
    assert_int_equal(dt_move_copy(&s, &a, &b, -1, &m), DT_E_INTERNAL);
    dt_compute_free(&a);
    dt_compute_free(&b);
    close_space(arch, &s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_copy_there_and_back), cmocka_unit_test(test_reduce_of_plans),
        cmocka_unit_test(test_moves_of_one_rank),   cmocka_unit_test(test_homes_as_boxes),
        cmocka_unit_test(test_nobody_holds_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
