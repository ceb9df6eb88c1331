/* Headers and fields of frames as bytes (pack.h). Every read and write of a payload goes through
 * `claim`, which is where lengths are checked. */
#include "cluster/pack.h"

#include "base/error.h"

#include <inttypes.h>
#include <string.h>

void cluster__store(unsigned char *to, uint64_t v, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        to[i] = (unsigned char)(v >> 8 * i);
}

uint64_t cluster__load(const unsigned char *from, size_t bytes)
{
    uint64_t v = 0;
    for (size_t i = 0; i < bytes; i++)
        v |= (uint64_t)from[i] << 8 * i;
    return v;
}

void cluster__fault(struct cluster__wire *w, const char *field, const char *fault)
{
    if (w->fault)
        return;
    w->field = field;
    w->fault = fault;
}

/* Is there room for `bytes` more? */
static bool claim(struct cluster__wire *w, const char *field, size_t bytes)
{
    if (!w->fault && w->size - w->used < bytes)
        cluster__fault(w, field, w->to ? "the buffer is full" : "the frame ends too early");
    return !w->fault;
}

/* An integer of `bytes` bytes: what was read, or v. */
static uint64_t integer(struct cluster__wire *w, const char *field, uint64_t v, size_t bytes)
{
    if (!claim(w, field, bytes))
        return v;
    if (w->to)
        cluster__store(w->to + w->used, v, bytes);
    else
        v = cluster__load(w->from + w->used, bytes);
    w->used += bytes;
    return v;
}

/* Faults leave `v` alone; a writing wire does so always. */
static bool filled(const struct cluster__wire *w)
{
    return !w->to && !w->fault;
}

void cluster__bool(struct cluster__wire *w, const char *field, bool *v)
{
    uint64_t x = integer(w, field, *v, 1);
    if (x > 1)
        cluster__fault(w, field, "it must be 0 or 1");
    if (filled(w))
        *v = x == 1;
}

void cluster__u32(struct cluster__wire *w, const char *field, uint32_t *v)
{
    uint64_t x = integer(w, field, *v, 4);
    if (filled(w))
        *v = (uint32_t)x;
}

void cluster__u64(struct cluster__wire *w, const char *field, uint64_t *v)
{
    uint64_t x = integer(w, field, *v, 8);
    if (filled(w))
        *v = x;
}

void cluster__i32(struct cluster__wire *w, const char *field, int32_t *v)
{
    uint64_t x = integer(w, field, (uint32_t)*v, 4);
    if (filled(w))
        *v = (int32_t)(uint32_t)x;
}

void cluster__i64(struct cluster__wire *w, const char *field, int64_t *v)
{
    uint64_t x = integer(w, field, (uint64_t)*v, 8);
    if (filled(w))
        *v = (int64_t)x;
}

void cluster__f32(struct cluster__wire *w, const char *field, float *v)
{
    uint32_t bits;
    memcpy(&bits, v, sizeof bits);
    cluster__u32(w, field, &bits);
    if (filled(w))
        memcpy(v, &bits, sizeof bits);
}

void cluster__f64(struct cluster__wire *w, const char *field, double *v)
{
    uint64_t bits;
    memcpy(&bits, v, sizeof bits);
    cluster__u64(w, field, &bits);
    if (filled(w))
        memcpy(v, &bits, sizeof bits);
}

void cluster__raw(struct cluster__wire *w, const char *field, const unsigned char **v, size_t bytes)
{
    if (!claim(w, field, bytes))
        return;
    if (!w->to)
        *v = w->from + w->used;
    else if (bytes > 0)
        memcpy(w->to + w->used, *v, bytes);
    w->used += bytes;
}

void cluster__blob(struct cluster__wire *w, const char *field, const unsigned char **v,
                   size_t *bytes)
{
    if (*bytes > DT_MESSAGE_MOST) {
        cluster__fault(w, field, "it is too long");
        return;
    }
    uint32_t n = (uint32_t)*bytes;
    cluster__u32(w, field, &n);
    cluster__raw(w, field, v, n);
    if (filled(w))
        *bytes = n;
}

void cluster__text(struct cluster__wire *w, const char *field, char *v, size_t size)
{
    const unsigned char *text = (const unsigned char *)v;
    size_t n = w->to ? strnlen(v, size) : 0;
    cluster__blob(w, field, &text, &n);
    if (n >= size)
        cluster__fault(w, field, "it is too long");
    if (!filled(w))
        return;
    if (memchr(text, 0, n)) {
        cluster__fault(w, field, "there is a zero byte in it");
        return;
    }
    memcpy(v, text, n);
    v[n] = 0;
}

void cluster__range(struct cluster__wire *w, const char *field, int64_t v, int64_t lowest,
                    int64_t highest)
{
    if (v < lowest || v > highest)
        cluster__fault(w, field, "it is out of range");
}

void cluster__frame_begin(struct cluster__wire *w, unsigned char *buf, size_t size, int type,
                          int32_t rank)
{
    *w = (struct cluster__wire){.to = buf, .size = size};
    if (!claim(w, "header", DT_MESSAGE_HEADER))
        return;
    memset(buf, 0, DT_MESSAGE_HEADER);
    buf[4] = DT_MESSAGE_VERSION;
    buf[5] = (unsigned char)type;
    cluster__store(buf + 8, (uint32_t)rank, 4);
    w->used = DT_MESSAGE_HEADER;
    cluster__range(w, "rank", rank, DT_EVERYBODY, DT_MSG_WORKERS - 1);
}

int64_t cluster__frame_end(struct cluster__wire *w)
{
    if (!w->fault && w->used - DT_MESSAGE_HEADER > DT_MESSAGE_MOST)
        cluster__fault(w, "payload", "it is too long");
    if (w->fault)
        return DT_FAIL(DT_E_INTERNAL, "%s frame, %s: %s",
                       dt_message_name(w->size >= DT_MESSAGE_HEADER ? w->to[5] : DT_MSG_NONE),
                       w->field, w->fault);
    cluster__store(w->to, w->used - DT_MESSAGE_HEADER, 4);
    return (int64_t)w->used;
}

void cluster__payload_begin(struct cluster__wire *w, const struct dt_frame *f)
{
    *w = (struct cluster__wire){.from = f->payload, .size = f->bytes};
}

int cluster__payload_end(const struct cluster__wire *w, const struct dt_frame *f)
{
    const char *name = dt_message_name(f->type);
    if (w->fault)
        return DT_FAIL(DT_E_DATA, "%s frame of rank %" PRId32 ", %zu bytes, %s: %s", name, f->rank,
                       f->bytes, w->field, w->fault);
    if (w->used < w->size)
        return DT_FAIL(DT_E_DATA, "%s frame of rank %" PRId32 ": expected %zu bytes, found %zu",
                       name, f->rank, w->used, w->size);
    return DT_OK;
}

int cluster__header_read(const unsigned char header[DT_MESSAGE_HEADER], struct dt_frame *out)
{
    uint64_t bytes = cluster__load(header, 4);
    int version = header[4], type = header[5];
    int32_t rank = (int32_t)(uint32_t)cluster__load(header + 8, 4);
    if (version != DT_MESSAGE_VERSION)
        return DT_FAIL(DT_E_DATA,
                       "a frame of version %d of the control protocol; this program speaks version "
                       "%d: start the same ductile everywhere",
                       version, DT_MESSAGE_VERSION);
    if (type <= DT_MSG_NONE || type >= DT_MSG_TYPES)
        return DT_FAIL(DT_E_DATA, "a frame of unknown type %d; expected 1 to %d", type,
                       DT_MSG_TYPES - 1);
    if (rank < DT_EVERYBODY || rank >= DT_MSG_WORKERS || cluster__load(header + 6, 2) ||
        cluster__load(header + 12, 4))
        return DT_FAIL(DT_E_DATA, "a %s frame with a malformed header (rank %" PRId32 ")",
                       dt_message_name(type), rank);
    if (bytes > DT_MESSAGE_MOST)
        return DT_FAIL(DT_E_DATA, "a %s frame of %" PRIu64 " bytes; at most %zu are allowed",
                       dt_message_name(type), bytes, DT_MESSAGE_MOST);
    *out = (struct dt_frame){.type = type, .rank = rank, .bytes = (size_t)bytes};
    return DT_OK;
}
