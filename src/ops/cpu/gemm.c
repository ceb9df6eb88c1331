/* The driver of the packed matrix multiplications: who computes what, in which order, out of which
 * buffers. The same for every set; the kernels are in gemm.simd.c.
 *
 * K is cut into equal blocks, a function of K alone: the partial sums of an element are added in
 * block order, so its bits depend on nothing else. `add` comes with the first block, `bias` after
 * the last.
 *
 * Within a block of K one operand, the *shared* one, is packed by the whole team, and each thread
 * packs its part of the other by itself, piece by piece, into its own second-level cache: by
 * columns: A is shared (or used where it lies), threads own columns of C (or a grid of them); by
 * rows:    B is shared, threads own rows of C. An operand too large for the shared buffer passes
 * through it in slabs. Which of the two is taken depends on how much would be packed how often, and
 * on how evenly the tiles divide. */
#include "ops/cpu/gemm.h"
#include "ops/cpu/scalar.h"

#include <math.h>
#include <omp.h>

enum {
    ROW_BYTES = DT_GEMM_KC_BYTES + 64, /* of packed A: not a power of two, for the caches' sake */
    SHARED_ROWS = 1024,                /* most rows (A) or columns (B) of a slab */
    PIECE = 192,                       /* most columns of B or rows of A a thread packs at a time */
    STAGE_ROWS = 512,                  /* of the fp32 partial sums of a bf16 result */
    STAGE_COLS = 192,                  /* times threads */
};
static const size_t shared_bytes = (size_t)(SHARED_ROWS + 64) * ROW_BYTES;
static const size_t private_bytes = (size_t)(PIECE + 64) * ROW_BYTES;
static const size_t stage_bytes = (size_t)STAGE_ROWS * STAGE_COLS * sizeof(float);

struct job {
    struct dt_gemm g;
    const struct dt_gemm_set *set;
    int64_t kc; /* of every block but the last */
    bool a_direct;
    bool by_rows;
    int64_t grid_rows, grid_cols; /* by columns: threads across M and N */
    char *shared;
    int threads;
};

struct span {
    int64_t begin, end;
};

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t round_up(int64_t n, int64_t unit)
{
    return (n + unit - 1) / unit * unit;
}

/* Part `i` of `parts` of [0, n), cut at multiples of `unit` */
static struct span part(int64_t n, int64_t unit, int64_t i, int64_t parts)
{
    int64_t units = (n + unit - 1) / unit, each = units / parts, more = units % parts;
    int64_t begin = each * i + least(i, more), end = begin + each + (i < more);
    return (struct span){least(begin * unit, n), least(end * unit, n)};
}

static void team_barrier(const struct job *job)
{
    if (job->threads > 1) {
#pragma omp barrier
    }
}

/* op(m)[row, col] on: where it lies */
static const char *at(const struct dt_mat *m, int64_t row, int64_t col)
{
    int64_t i = m->trans ? col * m->ld + row : row * m->ld + col;
    return (const char *)m->p + i * (int64_t)dt_dtype_size(m->dtype);
}

static struct dt_gemm_box box(const struct dt_gemm *g, const struct dt_mat *m, int64_t row,
                              int64_t col, int64_t rows, int64_t cols)
{
    struct dt_gemm_box x = {at(m, row, col), m->ld, m->dtype, rows, cols, g->compute == DT_BF16};
    if (m->trans) {
        x.rows = cols;
        x.cols = rows;
    }
    return x;
}

/* ---- Packing --------------------------------------------------------------------------------- */

static int64_t packed_ld(const struct job *job)
{
    return ROW_BYTES / (int64_t)job->set->element;
}

/* Bytes of `cols` columns of packed B */
static size_t panel_bytes(const struct job *job, int64_t kc, int64_t cols)
{
    if (job->set->element == 2)
        kc = round_up(kc, 2);
    return (size_t)(kc * cols) * job->set->element;
}

/* Rows [i, i + rows) of A into dst; a strip of rows at a time, which bounds the pages in use. */
static void pack_a(const struct job *job, char *dst, int64_t i, int64_t rows, int64_t k, int64_t kc)
{
    enum { STRIP = 64 };
    for (int64_t r = 0; r < rows; r += STRIP) {
        struct dt_gemm_box x = box(&job->g, &job->g.a, i + r, k, least(STRIP, rows - r), kc);
        job->set->pack_a(dst + r * ROW_BYTES, packed_ld(job), &x, job->g.a.trans);
    }
}

static void pack_b(const struct job *job, char *dst, int64_t j, int64_t cols, int64_t k, int64_t kc)
{
    int64_t nr = job->set->nr;
    for (int64_t c = 0; c < cols; c += nr) {
        struct dt_gemm_box x = box(&job->g, &job->g.b, k, j + c, kc, least(nr, cols - c));
        job->set->pack_b(dst + panel_bytes(job, kc, c), &x, job->g.b.trans);
    }
}

/* ---- Computing ------------------------------------------------------------------------------- */

/* The block of C at [i, j] plus what the block of K from k on gives */
static struct dt_gemm_block block(const struct job *job, int64_t i, int64_t rows, int64_t j,
                                  int64_t cols, int64_t k, int64_t kc)
{
    const struct dt_gemm *g = &job->g;
    struct dt_gemm_block x = {.kc = kc, .rows = rows, .cols = cols, .ldc = g->ldc};
    if (g->c)
        x.c = g->c + i * g->ldc + j;
    else
        x.c_bf16 = g->c_bf16 + i * g->ldc + j;
    if (k > 0) {
        x.in = x.c;
        x.ldin = g->ldc;
    } else if (g->add) {
        x.in = g->add + i * g->ldadd + j;
        x.ldin = g->ldadd;
    }
    if (g->bias && k + kc == g->K)
        x.bias = g->bias + j;
    return x;
}

static void place_a(const struct job *job, struct dt_gemm_block *x, const char *packed, int64_t i,
                    int64_t k)
{
    x->a = job->a_direct ? at(&job->g.a, i, k) : packed;
    x->lda = job->a_direct ? job->g.a.ld : packed_ld(job);
}

/* Let the block prefetch what its thread packs next: [row, col] on of operand m, where it lies. */
static void look_ahead(const struct dt_mat *m, struct dt_gemm_block *x, int64_t row, int64_t col,
                       int64_t rows, int64_t cols)
{
    int64_t size = (int64_t)dt_dtype_size(m->dtype);
    x->next = at(m, row, col);
    x->next_ld = m->ld * size;
    x->next_rows = m->trans ? cols : rows;
    x->next_bytes = (m->trans ? rows : cols) * size;
}

static void run_columns(const struct job *job, int me)
{
    const struct dt_gemm *g = &job->g;
    int64_t nr = job->set->nr, piece = PIECE / nr * nr;
    char *own = job->shared + shared_bytes + (size_t)me * private_bytes;
    int64_t slab = job->a_direct ? g->M : SHARED_ROWS;
    struct span cols = part(g->N, nr, me % job->grid_cols, job->grid_cols);
    for (int64_t m = 0; m < g->M; m += slab) {
        int64_t height = least(slab, g->M - m);
        struct span rows = part(height, job->set->mr, me / job->grid_cols, job->grid_rows);
        for (int64_t k = 0; k < g->K; k += job->kc) {
            int64_t kc = least(job->kc, g->K - k);
            if (!job->a_direct) {
                struct span mine = part(height, 16, me, job->threads);
                if (m > 0 || k > 0)
                    team_barrier(job);
                pack_a(job, job->shared + mine.begin * ROW_BYTES, m + mine.begin,
                       mine.end - mine.begin, k, kc);
                team_barrier(job);
            }
            for (int64_t j = cols.begin; j < cols.end && rows.begin < rows.end; j += piece) {
                int64_t width = least(piece, cols.end - j), i = m + rows.begin;
                struct dt_gemm_block x = block(job, i, rows.end - rows.begin, j, width, k, kc);
                pack_b(job, own, j, width, k, kc);
                x.b = own;
                place_a(job, &x, job->shared + rows.begin * ROW_BYTES, i, k);
                if (j + width < cols.end)
                    look_ahead(&g->b, &x, k, j + width, kc, least(piece, cols.end - j - width));
                else if (k + kc < g->K)
                    look_ahead(&g->b, &x, k + kc, cols.begin, least(job->kc, g->K - k - kc),
                               least(piece, cols.end - cols.begin));
                job->set->block(&x);
            }
        }
    }
}

static void run_rows(const struct job *job, int me)
{
    const struct dt_gemm *g = &job->g;
    int64_t nr = job->set->nr, slab = SHARED_ROWS / nr * nr,
            piece = PIECE / job->set->mr * job->set->mr;
    char *own = job->shared + shared_bytes + (size_t)me * private_bytes;
    struct span rows = part(g->M, job->set->mr, me, job->threads);
    for (int64_t j = 0; j < g->N; j += slab) {
        int64_t width = least(slab, g->N - j);
        struct span mine = part(width, nr, me, job->threads);
        for (int64_t k = 0; k < g->K; k += job->kc) {
            int64_t kc = least(job->kc, g->K - k);
            if (j > 0 || k > 0)
                team_barrier(job);
            pack_b(job, job->shared + panel_bytes(job, kc, mine.begin), j + mine.begin,
                   mine.end - mine.begin, k, kc);
            team_barrier(job);
            for (int64_t i = rows.begin; i < rows.end; i += piece) {
                int64_t height = least(piece, rows.end - i);
                struct dt_gemm_block x = block(job, i, height, j, width, k, kc);
                if (!job->a_direct)
                    pack_a(job, own, i, height, k, kc);
                x.b = job->shared;
                x.panel_outer = true;
                place_a(job, &x, own, i, k);
                if (!job->a_direct && i + height < rows.end)
                    look_ahead(&g->a, &x, i + height, k, least(piece, rows.end - i - height), kc);
                job->set->block(&x);
            }
        }
    }
}

static void run_plain(const struct job *job, int me)
{
    if (job->by_rows)
        run_rows(job, me);
    else
        run_columns(job, me);
}

/* ---- Choosing -------------------------------------------------------------------------------- */

/* What the busiest thread does, in tiles' steps of k (measured on two cores of a Sapphire Rapids):
 * to pack an element costs about a tenth of one, half as much again into the shared buffer, whose
 * lines are often in another core's cache; to fetch a packed element from there, a fiftieth. */
static double cost(const struct job *job, bool by_rows, int64_t grid_rows, int64_t grid_cols)
{
    const struct dt_gemm *g = &job->g;
    const double pack = 0.1, share = 0.15, fetch = 0.02;
    double M = (double)g->M, N = (double)g->N, K = (double)g->K;
    int64_t mr = job->set->mr, nr = job->set->nr;
    int64_t high = ((g->M + mr - 1) / mr + grid_rows - 1) / grid_rows;
    int64_t wide = ((g->N + nr - 1) / nr + grid_cols - 1) / grid_cols;
    double work = (double)(high * wide) * K;
    double a = job->a_direct ? 0 : M * K / job->threads;
    double b = (double)(wide * nr) * K;
    double slabs = (double)(((by_rows ? g->N : g->M) + SHARED_ROWS - 1) / SHARED_ROWS);
    if (by_rows)
        return work + pack * a * slabs + share * N * K / job->threads +
               fetch * N * K * (double)((high * mr + PIECE - 1) / PIECE);
    if (job->a_direct)
        return work + pack * b;
    return work + share * a + pack * b * slabs +
           fetch * M * K * (double)((wide * nr + PIECE - 1) / PIECE);
}

static void choose(struct job *job)
{
    double best = INFINITY;
    job->by_rows = false;
    for (int64_t rows = 1; rows <= job->threads; rows++) {
        if (job->threads % rows)
            continue;
        double c = cost(job, false, rows, job->threads / rows);
        if (c < best) {
            best = c;
            job->grid_rows = rows;
            job->grid_cols = job->threads / rows;
        }
    }
    if (cost(job, true, job->threads, 1) <= best)
        job->by_rows = true;
}

/* ---- A bf16 result of several blocks of K: partial sums stay fp32 on a stage -------------------
 */

static void convert(const struct dt_gemm *to, const struct dt_gemm *from, struct span rows)
{
    for (int64_t i = rows.begin; i < rows.end; i++) {
        const float *x = from->c + i * from->ldc;
        uint16_t *y = to->c_bf16 + i * to->ldc;
        for (int64_t j = 0; j < from->N; j++)
            y[j] = bf16_round(x[j]);
    }
}

/* The part of g at [i, j] */
static struct dt_gemm window(const struct dt_gemm *g, int64_t i, int64_t j, int64_t rows,
                             int64_t cols)
{
    struct dt_gemm x = *g;
    x.M = rows;
    x.N = cols;
    x.a.p = at(&g->a, i, 0);
    x.b.p = at(&g->b, 0, j);
    if (g->add)
        x.add = g->add + i * g->ldadd + j;
    if (g->bias)
        x.bias = g->bias + j;
    x.c_bf16 = g->c_bf16 + i * g->ldc + j;
    return x;
}

static void run_staged(const struct job *job, int me)
{
    const struct dt_gemm *g = &job->g;
    int64_t stage_cols = (int64_t)STAGE_COLS * job->threads;
    float *stage = (float *)(job->shared + shared_bytes + (size_t)job->threads * private_bytes);
    for (int64_t i = 0; i < g->M; i += STAGE_ROWS)
        for (int64_t j = 0; j < g->N; j += stage_cols) {
            struct job sub = *job;
            struct dt_gemm to =
                window(g, i, j, least(STAGE_ROWS, g->M - i), least(stage_cols, g->N - j));
            sub.g = to;
            sub.g.c = stage;
            sub.g.c_bf16 = NULL;
            sub.g.ldc = to.N;
            choose(&sub);
            run_plain(&sub, me);
            team_barrier(job);
            convert(&to, &sub.g, part(to.M, 1, me, job->threads));
            team_barrier(job);
        }
}

static void run(const struct job *job, int me)
{
    if (job->g.c || job->kc >= job->g.K)
        run_plain(job, me);
    else
        run_staged(job, me);
}

/* ---- Entry ----------------------------------------------------------------------------------- */

size_t dt_gemm_work_bytes(void)
{
    size_t threads = (size_t)dt_ops_threads();
    return shared_bytes + threads * (private_bytes + stage_bytes);
}

static int64_t block_of_k(int64_t K, const struct dt_gemm_set *set)
{
    int64_t most = DT_GEMM_KC_BYTES / (int64_t)set->element, blocks = (K + most - 1) / most;
    return round_up((K + blocks - 1) / blocks, 16);
}

void dt_gemm_run(const struct dt_gemm *g, const struct dt_gemm_set *set)
{
    struct job job = {.g = *g, .set = set, .kc = block_of_k(g->K, set), .shared = g->work};
    bool converts =
        set->element == 2 ? g->a.dtype == DT_F32 : g->a.dtype == DT_BF16 || g->compute == DT_BF16;
    job.a_direct = !g->a.trans && !converts;
    job.threads = omp_in_parallel() ? 1 : dt_ops_threads();
    if (job.threads == 1) {
        choose(&job);
        run(&job, 0);
        return;
    }
#pragma omp parallel num_threads(job.threads)
    {
        /* a thread's own copy: the team may have turned out smaller */
        struct job own = job;
        own.threads = omp_get_num_threads();
        choose(&own);
        run(&own, omp_get_thread_num());
    }
}
