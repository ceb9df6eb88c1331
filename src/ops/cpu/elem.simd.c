/* Boxes: copying with conversion, adding, and sums over rows for biases. */
#include "ops/cpu/parallel.h"
#include "ops/cpu/simd.h"
#include "ops/ops.h"

#include <stddef.h>

/* ---- conversion ---- */

/* Half to float: shifted into place, the bits are the number times 2^-112 (a half's denormals
 * included), so one exact product does all but infinity and NaN. */
VINLINE vf widen_f16(vu h)
{
    vu sign = (h & 0x8000u) << 16, shifted = (h & 0x7fffu) << 13;
    vu finite = (vu)((vf)shifted * v_set(0x1p112f));
    vu quiet = ((vu)((vi)shifted > (vi){0} + 0x0f800000)) & 0x400000u;
    vu special = shifted | 0x7f800000u | quiet;
    return v_select((vi)shifted >= (vi){0} + 0x0f800000, (vf)(sign | special), (vf)(sign | finite));
}

/* Float to half, to nearest even. Below 2^-14 adding 0.5, whose last bit is 2^-24, rounds. */
VINLINE vu round_f16(vf x)
{
    vu u = (vu)x, sign = u >> 16 & 0x8000u, a = u & 0x7fffffffu;
    vi ia = (vi)a;
    vu normal = (a + 0xfffu + (a >> 13 & 1u) - 0x38000000u) >> 13;
    vu small = (vu)((vf)a + v_set(0.5f)) - 0x3f000000u;
    vu nan = (a >> 13 & 0x3ffu) | 0x7e00u;
    vf r = v_select(ia < (vi){0} + 0x38800000, (vf)small, (vf)normal);
    r = v_select(ia >= (vi){0} + 0x477ff000, (vf)((vu){0} + 0x7c00u), r);
    r = v_select(ia > (vi){0} + 0x7f800000, (vf)nan, r);
    return sign | (vu)r;
}

VINLINE vu load_half(const uint16_t *p, int64_t k)
{
    if (k == VL)
        return __builtin_convertvector(*(const vh_any *)p, vu);
    vh h = {0};
    memcpy(&h, p, (size_t)k * sizeof *p);
    return __builtin_convertvector(h, vu);
}

VINLINE void store_half(uint16_t *p, vu x, int64_t k)
{
    vh h = __builtin_convertvector(x, vh);
    if (k == VL)
        *(vh_any *)p = h;
    else
        memcpy(p, &h, (size_t)k * sizeof *p);
}

VINLINE vf load_as(const void *p, enum dt_dtype type, int64_t i, int64_t k)
{
    if (type == DT_F32)
        return v_load_k((const float *)p + i, k, 0);
    vu h = load_half((const uint16_t *)p + i, k);
    return type == DT_BF16 ? (vf)(h << 16) : widen_f16(h);
}

VINLINE void store_as(void *p, enum dt_dtype type, int64_t i, vf x, int64_t k)
{
    if (type == DT_F32)
        v_store_k((float *)p + i, x, k);
    else if (type == DT_BF16)
        v_store_bf16_k((uint16_t *)p + i, x, k);
    else
        store_half((uint16_t *)p + i, round_f16(x), k);
}

VINLINE void convert(void *dst, enum dt_dtype dst_type, const void *src, enum dt_dtype src_type,
                     int64_t n)
{
    int64_t i = 0;
    for (; i + VL <= n; i += VL)
        store_as(dst, dst_type, i, load_as(src, src_type, i, VL), VL);
    if (i < n)
        store_as(dst, dst_type, i, load_as(src, src_type, i, n - i), n - i);
}

struct copy {
    unsigned char *dst;
    const unsigned char *src;
    enum dt_dtype dst_type, src_type;
    int64_t ldd, lds, cols, dst_size, src_size;
};

static void copy_tile(const struct copy *c, void *dst, const void *src, int64_t n)
{
    if (c->dst_type == c->src_type)
        memcpy(dst, src, (size_t)(n * c->src_size));
    else if (c->dst_type == DT_F32 && c->src_type == DT_BF16)
        convert(dst, DT_F32, src, DT_BF16, n);
    else if (c->dst_type == DT_F32)
        convert(dst, DT_F32, src, DT_F16, n);
    else if (c->dst_type == DT_BF16 && c->src_type == DT_F32)
        convert(dst, DT_BF16, src, DT_F32, n);
    else if (c->dst_type == DT_BF16)
        convert(dst, DT_BF16, src, DT_F16, n);
    else if (c->src_type == DT_F32)
        convert(dst, DT_F16, src, DT_F32, n);
    else
        convert(dst, DT_F16, src, DT_BF16, n);
}

static void copy_range(int64_t begin, int64_t end, const void *arg)
{
    const struct copy *c = arg;
    for (int64_t index = begin; index < end; index++) {
        struct dt_tile t = dt_tile_at(index, c->cols);
        copy_tile(c, c->dst + (t.row * c->ldd + t.col) * c->dst_size,
                  c->src + (t.row * c->lds + t.col) * c->src_size, t.n);
    }
}

void DT_KERNEL(copy)(void *dst, enum dt_dtype dst_type, int64_t ldd, const void *src,
                     enum dt_dtype src_type, int64_t lds, int64_t rows, int64_t cols);
void DT_KERNEL(copy)(void *dst, enum dt_dtype dst_type, int64_t ldd, const void *src,
                     enum dt_dtype src_type, int64_t lds, int64_t rows, int64_t cols)
{
    if (ldd == cols && lds == cols) { /* one long row */
        cols *= rows;
        rows = cols > 0;
    }
    struct copy c = {dst,
                     src,
                     dst_type,
                     src_type,
                     ldd,
                     lds,
                     cols,
                     (int64_t)dt_dtype_size(dst_type),
                     (int64_t)dt_dtype_size(src_type)};
    dt_parallel(rows * dt_tiles(cols), 1, rows * cols, copy_range, &c);
}

/* ---- add ---- */

struct add {
    float *y;
    const float *x;
    int64_t ldy, ldx, cols;
};

static void add_run(float *y, const float *x, int64_t n)
{
    int64_t i = 0;
    for (; i + VL <= n; i += VL)
        v_store(y + i, v_load(y + i) + v_load(x + i));
    if (i < n)
        v_store_n(y + i, v_load_n(y + i, n - i, 0) + v_load_n(x + i, n - i, 0), n - i);
}

static void add_range(int64_t begin, int64_t end, const void *arg)
{
    const struct add *a = arg;
    for (int64_t index = begin; index < end; index++) {
        struct dt_tile t = dt_tile_at(index, a->cols);
        add_run(a->y + t.row * a->ldy + t.col, a->x + t.row * a->ldx + t.col, t.n);
    }
}

void DT_KERNEL(add)(float *y, int64_t ldy, const float *x, int64_t ldx, int64_t rows, int64_t cols);
void DT_KERNEL(add)(float *y, int64_t ldy, const float *x, int64_t ldx, int64_t rows, int64_t cols)
{
    struct add a = {y, x, ldy, ldx, cols};
    dt_parallel(rows * dt_tiles(cols), 1, rows * cols, add_range, &a);
}

/* ---- sums over rows ---- by chunks of DT_CHUNK rows in order, each thread for its own columns. */

#define STRIP 512

struct bias {
    float *db;
    const float *dy;
    int64_t ld, T;
};

static void bias_strip(const struct bias *b, int64_t c, int64_t n)
{
    float total[STRIP] = {0}, chunk[STRIP];
    for (int64_t first = 0; first < b->T; first += DT_CHUNK) {
        int64_t last = first + DT_CHUNK < b->T ? first + DT_CHUNK : b->T;
        memset(chunk, 0, sizeof chunk);
        for (int64_t t = first; t < last; t++)
            add_run(chunk, b->dy + t * b->ld + c, n);
        add_run(total, chunk, n);
    }
    add_run(b->db + c, total, n);
}

static void bias_range(int64_t begin, int64_t end, const void *arg)
{
    for (int64_t c = begin; c < end; c += STRIP)
        bias_strip(arg, c, end - c < STRIP ? end - c : STRIP);
}

void DT_KERNEL(bias_backward)(float *db, const float *dy, int64_t ld, int64_t T, int64_t N);
void DT_KERNEL(bias_backward)(float *db, const float *dy, int64_t ld, int64_t T, int64_t N)
{
    struct bias b = {db, dy, ld, T};
    dt_parallel(N, VL, T * N, bias_range, &b);
}
