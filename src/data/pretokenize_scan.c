/* Hand-written scanners for the two patterns almost every byte-level tokenizer uses.
 *
 * A regex engine spends most of its time entering and leaving; these patterns only ever look at
 * classes of characters and one character ahead, so a loop over a class table does the same work
 * several times faster. The tests hold both to PCRE2 on the same pattern. Every character is in
 * some alternative, so tokens follow each other without gaps. */
#include "data/tokenizer_internal.h"

enum { L = DT_CLASS_LETTER, N = DT_CLASS_NUMBER, S = DT_CLASS_SPACE };

static inline unsigned class_at(const char *text, size_t at, size_t *size)
{
    unsigned char b = (unsigned char)text[at];
    if (b < 0x80) {
        *size = 1;
        return dt_classes.bits[dt_classes.block[0]][b];
    }
    return dt_class_of(dt_utf8_get(text + at, size));
}

/* End of the run of characters that have a bit of `want` (or, want 0, none of L, N, S). */
static inline size_t run(const char *text, size_t n, size_t at, unsigned want)
{
    while (at < n) {
        size_t size;
        unsigned c = class_at(text, at, &size);
        if (want ? !(c & want) : (c & (L | N | S)) != 0)
            break;
        at += size;
    }
    return at;
}

/* \s+(?!\S)|\s+ : all white space, but the last one when text follows and it is not alone. */
static size_t spaces(const char *text, size_t n, size_t at)
{
    size_t end = at, last = at, size;
    while (end < n && (class_at(text, end, &size) & S)) {
        last = end;
        end += size;
    }
    return end < n && last > at ? last : end;
}

size_t dt_scan_gpt2(const char *text, size_t n, size_t at)
{
    const char *p = text + at;
    size_t left = n - at, size;
    if (*p == '\'' && left >= 2) {
        if (p[1] == 's' || p[1] == 't' || p[1] == 'm' || p[1] == 'd')
            return at + 2;
        if (left >= 3 && ((p[1] == 'r' && p[2] == 'e') || (p[1] == 'v' && p[2] == 'e') ||
                          (p[1] == 'l' && p[2] == 'l')))
            return at + 3;
    }
    size_t from = at + (*p == ' ');
    if (from < n) {
        unsigned c = class_at(text, from, &size);
        if (c & L)
            return run(text, n, from + size, L);
        if (c & N)
            return run(text, n, from + size, N);
        if (!(c & S))
            return run(text, n, from + size, 0);
    }
    return spaces(text, n, at);
}

/* (?i:'s|'t|'re|'ve|'m|'ll|'d): bytes after the apostrophe, 0: none. U+017F folds to s. */
static size_t contraction(const char *p, size_t left)
{
    if (left >= 3 && (unsigned char)p[1] == 0xc5 && (unsigned char)p[2] == 0xbf)
        return 2;
    if (left < 2)
        return 0;
    int a = p[1] | 32, b = left >= 3 ? p[2] | 32 : 0;
    if (a == 's' || a == 't' || a == 'm' || a == 'd')
        return 1;
    return (a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l') ? 2 : 0;
}

static size_t digits(const char *text, size_t n, size_t at, int max)
{
    size_t size;
    for (int k = 0; k < max && at < n && (class_at(text, at, &size) & N); k++)
        at += size;
    return at;
}

/* \s*[\r\n]+ when the white space holds a line break: up to the last one. Else `spaces`. */
static size_t breaks(const char *text, size_t n, size_t at)
{
    size_t end = run(text, n, at, S);
    for (size_t k = end; k > at; k--)
        if (text[k - 1] == '\n' || text[k - 1] == '\r')
            return k;
    return spaces(text, n, at);
}

size_t dt_scan_llama(const char *text, size_t n, size_t at, int max_digits)
{
    const char *p = text + at;
    size_t size, next_size;
    if (*p == '\'') {
        size_t k = contraction(p, n - at);
        if (k)
            return at + 1 + k;
    }
    unsigned c = class_at(text, at, &size);
    if (c & L)
        return run(text, n, at + size, L);
    if (c & N)
        return digits(text, n, at, max_digits);
    size_t from = at + size;
    unsigned next = from < n ? class_at(text, from, &next_size) : S;
    if ((next & L) && *p != '\r' && *p != '\n')
        return run(text, n, from + next_size, L);
    if (!(c & S) || (*p == ' ' && !(next & (L | N | S)))) {
        size_t end = run(text, n, from, 0);
        while (end < n && (text[end] == '\r' || text[end] == '\n'))
            end++;
        return end;
    }
    return breaks(text, n, at);
}
