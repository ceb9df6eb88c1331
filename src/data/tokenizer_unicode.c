/* Character classes, UTF-8, and the byte alphabet of byte-level BPE.
 *
 * Ids must not depend on which Unicode version a system library knows, so the classes come from a
 * frozen table (tests/golden/tokenizers/unicode_classes.py) that is unrolled once into two levels:
 * blocks of 128 code points, equal blocks stored once. */
#include "data/tokenizer_internal.h"

#include <pthread.h>
#include <utf8proc.h>

#include "data/tokenizer_unicode.inc"

#define RUNS(table) (sizeof(table) / sizeof *(table))
#define BLOCK_BYTES sizeof dt_classes.bits[0]

struct dt_classes dt_classes;
static pthread_once_t classes_once = PTHREAD_ONCE_INIT;

static void build(void)
{
    size_t run = 0, blocks = 0;
    for (uint32_t first = 0; first < 0x110000; first += 128) {
        uint8_t bits[128];
        for (uint32_t k = 0; k < 128; k++) {
            while (run + 1 < RUNS(class_runs) && class_runs[run + 1] >> 8 <= first + k)
                run++;
            bits[k] = (uint8_t)(class_runs[run] & 0xff);
        }
        size_t same = blocks; /* search backwards: neighbours are alike */
        while (same > 0 && memcmp(dt_classes.bits[same - 1], bits, BLOCK_BYTES) != 0)
            same--;
        if (same == 0) {
            memcpy(dt_classes.bits[blocks++], bits, BLOCK_BYTES);
            same = blocks;
        }
        dt_classes.block[first >> 7] = (uint16_t)(same - 1);
    }
}

void dt_classes_build(void)
{
    pthread_once(&classes_once, build);
}

/* Continuation bytes wanted after a lead byte, and the least code point that may use that many. */
static size_t bad_sequence(const unsigned char *u, size_t left)
{
    size_t size = u[0] >= 0xf0 ? 4 : u[0] >= 0xe0 ? 3 : 2;
    if (u[0] < 0xc2 || u[0] > 0xf4 || left < size)
        return 0;
    for (size_t k = 1; k < size; k++)
        if ((u[k] & 0xc0) != 0x80)
            return 0;
    if ((u[0] == 0xe0 && u[1] < 0xa0) || (u[0] == 0xed && u[1] > 0x9f) ||
        (u[0] == 0xf0 && u[1] < 0x90) || (u[0] == 0xf4 && u[1] > 0x8f))
        return 0; /* overlong, surrogate, beyond U+10FFFF */
    return size;
}

size_t dt_utf8_valid(const char *text, size_t n)
{
    const unsigned char *u = (const unsigned char *)text;
    size_t i = 0;
    while (i < n) {
        uint64_t eight;
        if (n - i >= 8 && (memcpy(&eight, u + i, 8), (eight & 0x8080808080808080u) == 0)) {
            i += 8;
        } else if (u[i] < 0x80) {
            i++;
        } else {
            size_t size = bad_sequence(u + i, n - i);
            if (size == 0)
                return i;
            i += size;
        }
    }
    return n;
}

size_t dt_utf8_put(uint32_t c, char out[4])
{
    if (c < 0x80) {
        out[0] = (char)c;
        return 1;
    }
    if (c < 0x800) {
        out[0] = (char)(0xc0 | c >> 6);
        out[1] = (char)(0x80 | (c & 63));
        return 2;
    }
    if (c < 0x10000) {
        out[0] = (char)(0xe0 | c >> 12);
        out[1] = (char)(0x80 | (c >> 6 & 63));
        out[2] = (char)(0x80 | (c & 63));
        return 3;
    }
    out[0] = (char)(0xf0 | c >> 18);
    out[1] = (char)(0x80 | (c >> 12 & 63));
    out[2] = (char)(0x80 | (c >> 6 & 63));
    out[3] = (char)(0x80 | (c & 63));
    return 4;
}

/* Printable Latin-1 stands for itself; the 68 others are numbered from U+0100 in order: 0-32, then
 * 127-160, then 173. */
uint32_t dt_byte_char(unsigned char b)
{
    if (b <= 32)
        return 0x100u + b;
    if (b >= 127 && b <= 160)
        return 0x100u + 33 + (b - 127u);
    return b == 173 ? 0x100u + 67 : b;
}

int dt_char_byte(uint32_t c)
{
    if (c < 0x100)
        return c <= 32 || (c >= 127 && c <= 160) || c == 173 ? -1 : (int)c;
    c -= 0x100;
    if (c <= 32)
        return (int)c;
    if (c <= 66)
        return (int)(c - 33 + 127);
    return c == 67 ? 173 : -1;
}

int dt_bytes_written(const char *p, size_t n, struct dt_text *out)
{
    DT_TRY(dt_text_reserve(out, 2 * n + 4));
    char *to = out->p + out->n;
    for (size_t i = 0; i < n; i++)
        to += dt_utf8_put(dt_byte_char((unsigned char)p[i]), to);
    out->n = (size_t)(to - out->p);
    out->p[out->n] = '\0';
    return 0;
}

/* Order of CATEGORIES in the generator. */
static const char *const category_name[] = {"Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Me", "Nd",
                                            "Nl", "No", "Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po",
                                            "Sm", "Sc", "Sk", "So", "Zs", "Zl", "Zp"};

void dt_newer_ranges(const char *category, void (*range)(uint32_t from, uint32_t to, void *arg),
                     void *arg)
{
    for (size_t i = 0; i + 1 < RUNS(newer_runs); i++) {
        size_t k = newer_runs[i] & 0xff;
        if (k > 0 && strncmp(category_name[k - 1], category, strlen(category)) == 0)
            range(newer_runs[i] >> 8, (newer_runs[i + 1] >> 8) - 1, arg);
    }
}

/* Position of the last entry whose code point is at most c; -1: none. */
static int64_t last_run(const uint32_t *runs, size_t n, uint32_t c)
{
    size_t low = 0, high = n;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (runs[middle] >> 8 <= c)
            low = middle + 1;
        else
            high = middle;
    }
    return (int64_t)low - 1;
}

bool dt_is_inert(uint32_t c)
{
    int64_t k = last_run(inert_runs, RUNS(inert_runs), c);
    return k >= 0 && (inert_runs[k] & 1);
}

uint32_t dt_lower(uint32_t c)
{
    if (c == 0x130)
        return 'i'; /* and U+0307, which the caller adds */
    for (size_t i = 0; i < RUNS(newer_lower); i += 2)
        if (newer_lower[i] == c)
            return newer_lower[i + 1];
    return (uint32_t)utf8proc_tolower((int32_t)c);
}
